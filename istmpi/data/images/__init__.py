from istmpi.data.class_list import OPTION as CLASSES
from istmpi.data.kind import Kind, lazy

IMAGES = Kind(
    name="images",
    help="train/CLASS/FILE and test/ or val/CLASS/FILE, or CLASS/FILE, or CIFAR",
    read=lazy("images.prepare:read"),
    options=(("size", "N", "resize the largest central square to N x N pixels."), CLASSES),
    input=("FILE.png, FOLDER, .tar", "for a network trained on images"),
    examples=lazy("images.prepare:examples"),
    reading={"type": "bytes"},
)
