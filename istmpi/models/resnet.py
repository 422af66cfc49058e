"""Residual networks with pre-activation (He et al. 2016, arXiv 1603.05027), for images of any
size."""

from torch import nn
from torch.nn import functional


class ResNet(nn.Module):
    """A stem, sections of residual blocks and a linear classifier. Every section except the first
    halves the image.

    ``shape``: channels, height, width. ``blocks``: residual blocks of each section. ``channels``:
    channels of the residual stream in each section. ``inner``: channels inside each section's
    blocks, which are dealt out (LOFT, arXiv 2210.16169); a block's input and output stay whole.
    ``bottleneck``: use blocks of three convolutions (1x1, 3x3, 1x1) instead of two (3x3); the
    stream is then usually four times as wide as inner. ``stem``: side of the first convolution: 3
    for small images; 7 for large images, with stride and pooling. ``exits``: sections, numbered
    from 1, with another classifier at the end; its outputs come before those of later classifiers.
    """

    DEALT = ("inner",)

    def __init__(
        self,
        shape: tuple[int, int, int],
        outputs: int,
        blocks: tuple[int, ...] = (2, 2, 2, 2),
        channels: tuple[int, ...] = (64, 128, 256, 512),
        inner: tuple[int, ...] = (64, 128, 256, 512),
        bottleneck: bool = False,
        stem: int = 3,
        exits: tuple[int, ...] = (),
    ):
        super().__init__()
        _require_sections(blocks, channels, inner, stem)
        require_images(shape, exits, len(blocks) - 1)
        stride = 2 if stem == 7 else 1
        self.stem = nn.Conv2d(
            shape[0], channels[0], stem, padding=stem // 2, stride=stride, bias=False
        )
        self.pool: nn.Module = nn.Identity()
        if stem == 7:
            self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        before = channels[0]
        self.sections = nn.Sequential()
        for section, (count, after, within) in enumerate(zip(blocks, channels, inner)):
            layers = nn.Sequential()
            for number in range(count):
                # A section's first block halves the image, except in the first section.
                step = 2 if section and not number else 1
                layers.append(Block(before, within, after, step, bottleneck))
                before = after
            self.sections.append(layers)
        # With pre-activation, the stream itself is not normalised.
        self.norm = nn.BatchNorm2d(before)
        self.outputs = nn.Linear(before, outputs)
        self.exits = nn.ModuleDict(
            {str(section): Exit(channels[section - 1], outputs) for section in exits}
        )

    def forward(self, x):
        """Return logits ``[b, outputs]`` of images ``[b, channels, height, width]``; with exits, a
        tuple."""
        x = self.pool(self.stem(x))
        early = []
        for number, section in enumerate(self.sections, 1):
            x = section(x)
            if str(number) in self.exits:
                early.append(self.exits[str(number)](x))
        logits = self.outputs(functional.relu(self.norm(x)).mean(dim=(2, 3)))
        if early:
            return (*early, logits)
        return logits


class Exit(nn.Module):
    def __init__(self, channels: int, outputs: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.outputs = nn.Linear(channels, outputs)

    def forward(self, x):
        return self.outputs(functional.relu(self.norm(x)).mean(dim=(2, 3)))


class Block(nn.Module):
    """A block that adds to the residual stream: ``before`` channels in, ``within`` inside,
    ``after`` out."""

    def __init__(self, before: int, within: int, after: int, stride: int, bottleneck: bool):
        super().__init__()
        sides = (1, 3, 1) if bottleneck else (3, 3)
        inputs = [before, *[within] * (len(sides) - 1)]
        outputs = [*inputs[1:], after]
        # The first 3x3 convolution halves the image.
        strides = [1] * len(sides)
        strides[sides.index(3)] = stride
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in inputs)
        self.convolutions = nn.ModuleList()
        for width, channels, side, step in zip(inputs, outputs, sides, strides):
            self.convolutions.append(
                nn.Conv2d(width, channels, side, padding=side // 2, stride=step, bias=False)
            )
        self.shortcut: nn.Module | None = None
        if before != after or stride != 1:
            self.shortcut = nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def forward(self, x):
        activated = functional.relu(self.norms[0](x))
        # A shortcut with weights reads the normalised input, as in the paper.
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        added = self.convolutions[0](activated)
        for norm, convolution in zip(self.norms[1:], self.convolutions[1:]):
            added = convolution(functional.relu(norm(added)))
        return shortcut + added


def _require_sections(
    blocks: tuple[int, ...], channels: tuple[int, ...], inner: tuple[int, ...], stem: int
) -> None:
    if not len(blocks) == len(channels) == len(inner):
        raise ValueError(
            f"blocks = {list(blocks)}, channels = {list(channels)} and inner = {list(inner)} "
            "must have the same length"
        )
    if stem not in (3, 7):
        raise ValueError(f"stem = {stem} must be 3 or 7, the side of the first convolution")


def require_images(shape: tuple[int, ...], exits: tuple[int, ...], sections: int) -> None:
    """Raise ValueError unless examples are images, and ``exits`` are increasing numbers from 1 to
    ``sections``."""
    if len(shape) != 3:
        raise ValueError(
            f"examples of shape {tuple(shape)} are not images [channels, height, width]"
        )
    if any(not 1 <= section <= sections for section in exits) or [*exits] != sorted({*exits}):
        raise ValueError(
            f"exits = {list(exits)} must be sections from 1 to {sections}, each once and in order"
        )
