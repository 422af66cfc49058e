"""Networks of convolutions, as users write them: they know nothing of istmpi."""

import torch
from torch import nn


class GroupsCounted(nn.Module):
    """Convolutions in groups of four channels, so many as an argument says."""

    def __init__(self, shape, outputs, groups=12):
        super().__init__()
        self.first = nn.Conv2d(shape[0], 4 * groups, 3)
        self.grouped = nn.Conv2d(4 * groups, 2 * groups, 3, groups=groups)
        self.last = nn.Linear(2 * groups, outputs)

    def forward(self, x):
        return self.last(torch.relu(self.grouped(torch.relu(self.first(x)))).mean((2, 3)))


class GroupsFixed(nn.Module):
    """A convolution in four groups: channels of one group are not those of another."""

    def __init__(self, shape, outputs, channels=16):
        super().__init__()
        self.first = nn.Conv2d(shape[0], channels, 3)
        self.grouped = nn.Conv2d(channels, channels, 3, groups=4)
        self.last = nn.Linear(channels, outputs)

    def forward(self, x):
        return self.last(torch.relu(self.grouped(torch.relu(self.first(x)))).mean((2, 3)))


class Upsampling(nn.Module):
    """Transposed convolutions, the second one of each channel by itself."""

    def __init__(self, shape, outputs, channels=12, wide=14):
        super().__init__()
        self.first = nn.Conv2d(shape[0], channels, 3, stride=2)
        self.up = nn.ConvTranspose2d(channels, wide, 2, stride=2)
        self.alone = nn.ConvTranspose2d(wide, wide, 2, groups=wide)
        self.last = nn.Linear(wide, outputs)

    def forward(self, x):
        return self.last(torch.relu(self.alone(torch.relu(self.up(torch.relu(self.first(x)))))).mean((2, 3)))


class Inverted(nn.Module):
    """A block whose inner width is a multiple of its outer one: two widths on one axis."""

    def __init__(self, shape, outputs, stream=6, expand=6):
        super().__init__()
        inner = stream * expand
        self.stem = nn.Conv2d(shape[0], stream, 3, bias=False)
        self.up, self.up_norm = nn.Conv2d(stream, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.alone = nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False)
        self.down, self.last = nn.Conv2d(inner, stream, 1, bias=False), nn.Linear(stream, outputs)

    def forward(self, x):
        x = self.stem(x)
        inner = torch.relu(self.alone(torch.relu(self.up_norm(self.up(x)))))
        return self.last((x + self.down(inner)).mean((2, 3)))


class DenseNet(nn.Module):
    """Layers that get the outputs of all before them, beside each other."""

    def __init__(self, shape, outputs, growth=12):
        super().__init__()
        self.first, self.second = nn.Conv2d(shape[0], growth, 1), nn.Conv2d(shape[0] + growth, growth, 1)
        self.last = nn.Conv2d(shape[0] + 2 * growth, outputs, 1)

    def forward(self, x):
        x = torch.cat([x, torch.relu(self.first(x))], dim=1)
        x = torch.cat([x, torch.relu(self.second(x))], dim=1)
        return self.last(x).mean((2, 3))
