"""A small EfficientNet of `timm`, unchanged. The expanded channels of its blocks and its last features are dealt out.

    istmpi model examples/efficientnet.py:Net --shape 3x32x32
    mpirun -n 4 istmpi train --data cifar.h5 --model examples/efficientnet.py:Net --set optimizer.name=adam --lr 0.003

timm rounds a block's expanded channels to a multiple of 8, so a unit of ``expand`` is 8 channels. The channels between
blocks and those of squeeze-and-excitation are not arguments, and stay whole.
"""

from timm.models.efficientnet import EfficientNet, decode_arch_def


class Net(EfficientNet):
    def __init__(self, shape, outputs, expand=(8, 16, 24), wide=256):
        channels = [16, 24, 40, 80]
        blocks = [
            [f"ir_r1_k3_s{1 + (i > 0)}_e{8 * units / channels[i]}_c{channels[i + 1]}_se0.25"]
            + [f"ir_r1_k3_s1_e{8 * units / channels[i + 1]}_c{channels[i + 1]}_se0.25"]
            for i, units in enumerate(expand)
        ]
        sizes = {"in_chans": shape[0], "stem_size": channels[0], "num_features": wide, "num_classes": outputs}
        super().__init__(decode_arch_def(blocks), **sizes)
