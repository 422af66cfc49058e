"""VGG with batch normalisation (Simonyan and Zisserman 2014, arXiv 1409.1556), for images of any
size."""

from torch import nn

from istmpi.models.resnet import require_images

LAYERS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3)}
"""Convolutions in each of the five sections, by the number of layers with weights."""


class VGG(nn.Module):
    """Five sections of 3x3 convolutions, then dense layers. A section ends in 2x2 pooling, unless a
    side is one pixel.

    The IST paper deals out only the dense layers (`DEALT`). ``method.partition`` can also name
    channels, such as channels1. ``shape``: channels, height, width. ``layers``: layers with
    weights: 11, 13 or 16. ``channels``: channels of the convolutions of each section. ``dense``:
    widths of the hidden dense layers. ``dropout``: fraction of the dense units that a step drops.
    ``exits``: sections, numbered from 1, with a linear classifier of each channel's mean at the
    end; its outputs come before those of later classifiers.
    """

    DEALT = ("dense",)

    def __init__(
        self,
        shape: tuple[int, int, int],
        outputs: int,
        layers: int = 11,
        channels: tuple[int, ...] = (64, 128, 256, 512, 512),
        dense: tuple[int, ...] = (4096, 4096),
        dropout: float = 0.5,
        exits: tuple[int, ...] = (),
    ):
        super().__init__()
        _require_sections(layers, channels)
        require_images(shape, exits, len(channels))
        before, height, width = shape
        self.features = nn.Sequential()
        self.section_ends = []
        for convolutions, after in zip(LAYERS[layers], channels):
            for _ in range(convolutions):
                convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
                self.features.extend([convolution, nn.BatchNorm2d(after), nn.ReLU()])
                before = after
            # Small images would shrink to nothing in five sections.
            if min(height, width) > 1:
                self.features.append(nn.MaxPool2d(2))
                height //= 2
                width //= 2
            self.section_ends.append(len(self.features))
        # The dense layers see all remaining pixels of all channels.
        before *= height * width
        self.classifier = nn.Sequential()
        for after in dense:
            norm = nn.BatchNorm1d(after)
            self.classifier.extend([nn.Linear(before, after), norm, nn.ReLU(), nn.Dropout(dropout)])
            before = after
        self.classifier.append(nn.Linear(before, outputs))
        self.exits = nn.ModuleDict(
            {str(section): nn.Linear(channels[section - 1], outputs) for section in exits}
        )

    def forward(self, x):
        """Return logits ``[b, outputs]`` of images ``[b, channels, height, width]``; with exits, a
        tuple."""
        early = []
        for place, layer in enumerate(self.features, 1):
            x = layer(x)
            if place in self.section_ends:
                section = str(self.section_ends.index(place) + 1)
                if section in self.exits:
                    early.append(self.exits[section](x.mean(dim=(2, 3))))
        logits = self.classifier(x.flatten(1))
        if early:
            return (*early, logits)
        return logits


def _require_sections(layers: int, channels: tuple[int, ...]) -> None:
    if layers not in LAYERS:
        raise ValueError(f"layers = {layers} must be one of {', '.join(map(str, LAYERS))}")
    sections = len(LAYERS[layers])
    if len(channels) != sections:
        raise ValueError(
            f"channels = {list(channels)} must be {sections} numbers, one for each section"
        )
