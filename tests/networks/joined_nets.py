"""Networks that join units of several layers, or units and inputs, on one axis."""

import torch
from torch import nn
from torch.nn import functional


class WideAndDeep(nn.Module):
    """Two hidden layers, behind the inputs that the last layer also gets."""

    def __init__(self, features, outputs, hidden1=12, hidden2=14):
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden1), nn.Linear(hidden1, hidden2)
        self.last = nn.Linear(features + hidden2, outputs)

    def forward(self, x):
        deep = torch.relu(self.second(torch.relu(self.first(x))))
        return self.last(torch.cat([x, deep], dim=-1))


class Nerf(nn.Module):
    """The inputs come again beside the units of the second layer, whose sum a batch normalisation follows."""

    def __init__(self, features, outputs, hidden=12, wide=14):
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden + features, wide)
        self.norm, self.last = nn.BatchNorm1d(wide), nn.Linear(wide, outputs)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.second(torch.cat([torch.relu(self.first(x)), x], 1)))))


class UnetSkips(nn.Module):
    """A U-Net whose skips have other widths than what is joined to them, with normalisations."""

    def __init__(self, shape, outputs, outer=12, inner=14, deep=16):
        super().__init__()
        self.down1 = nn.Conv2d(shape[0], outer, 3, padding=1)
        self.down2 = nn.Conv2d(outer, inner, 3, stride=2, padding=1)
        self.bottom, self.norm = nn.Conv2d(inner, deep, 3, stride=2, padding=1), nn.BatchNorm2d(deep)
        self.up2 = nn.ConvTranspose2d(deep, inner, 2, stride=2)
        self.up1 = nn.ConvTranspose2d(2 * inner, outer, 2, stride=2)
        self.mixed = nn.Conv2d(outer + outer + shape[0], outer, 3, padding=1)
        self.wide = nn.ConvTranspose2d(outer + inner, outer, 2, stride=2)
        self.last = nn.Conv2d(outer, outputs, 1)

    def forward(self, x):
        first = torch.relu(self.down1(x))
        second = torch.relu(self.down2(first))
        third = torch.relu(self.norm(self.bottom(second)))
        up = torch.relu(self.up1(torch.cat([self.up2(third), second], dim=1)))
        wide = self.wide(torch.cat([functional.max_pool2d(first, 2), second], dim=1))
        mixed = torch.relu(self.mixed(torch.cat([up, first, x], dim=1)))
        return self.last(mixed + wide).mean((2, 3))


class Growing(nn.Module):
    """Dense blocks as in the paper: normalisations over all channels so far, bottlenecks, a transition."""

    def __init__(self, shape, outputs, stem=12, growth=14, neck=16, half=18):
        super().__init__()
        self.stem = nn.Conv2d(shape[0], stem, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(stem + number * growth),
                nn.ReLU(),
                nn.Conv2d(stem + number * growth, neck, 1, bias=False),
                nn.BatchNorm2d(neck),
                nn.ReLU(),
                nn.Conv2d(neck, growth, 3, padding=1, bias=False),
            )
            for number in range(3)
        )
        self.transition, self.last = nn.Conv2d(stem + 3 * growth, half, 1), nn.Linear(half, outputs)

    def forward(self, x):
        channels = [self.stem(x)]
        for block in self.blocks:
            channels.append(block(torch.cat(channels, dim=1)))
        return self.last(torch.relu(self.transition(torch.cat(channels, 1))).mean((2, 3)))


class Branches(nn.Module):
    """Four branches, one of them the pooled inputs, behind which a flattened picture meets a dense layer."""

    def __init__(self, shape, outputs, one=12, three=14, five=16):
        super().__init__()
        self.one = nn.Conv2d(shape[0], one, 1)
        self.reduce, self.three = nn.Conv2d(shape[0], three, 1), nn.Conv2d(three, three, 3, padding=1)
        self.five = nn.Conv2d(shape[0], five, 5, padding=2)
        self.last = nn.Linear((one + three + five + shape[0]) * 4, outputs)

    def forward(self, x):
        pooled = functional.avg_pool2d(x, 3, 1, 1)
        parts = [self.one(x), self.three(torch.relu(self.reduce(x))), pooled, self.five(x)]
        x = functional.adaptive_avg_pool2d(torch.relu(torch.cat(parts, dim=1)), 2)
        return self.last(x.flatten(1))


class OwnWeights(nn.Module):
    """Weights that are no layers: one for a linear function, one for a product, whose rows are inputs."""

    def __init__(self, features, outputs, units=12, wide=14):
        super().__init__()
        self.first = nn.Linear(features, units)
        self.second = nn.Parameter(torch.randn(wide, features + units) / 4)
        self.last = nn.Parameter(torch.randn(wide + units, outputs) / 4)

    def forward(self, x):
        h = torch.relu(self.first(x))
        second = torch.relu(functional.linear(torch.cat([x, h], dim=1), self.second))
        return torch.cat([second, h], dim=1) @ self.last


class GroupBeside(nn.Module):
    """A normalisation of one group over many channels and few inputs, which the channels outweigh."""

    def __init__(self, shape, outputs, channels=12):
        super().__init__()
        self.up = nn.Conv2d(shape[0], channels, 3, padding=1)
        self.norm = nn.GroupNorm(1, channels + shape[0])
        self.last = nn.Linear(channels + shape[0], outputs)

    def forward(self, x):
        return self.last(torch.relu(self.norm(torch.cat([self.up(x), x], dim=1))).amax((2, 3)))


class CutTwice(nn.Module):
    """A product whose rows are cut, and one of the parts again, as a layer of a state-space model has it."""

    def __init__(self, shape, outputs, inner=12, state=14):
        super().__init__()
        self.rows = [inner, inner + 2 * state, inner]
        self.parts = [inner, state, state]
        self.into = nn.Linear(shape[1], sum(self.rows))
        self.mix = nn.Conv1d(self.rows[1], self.rows[1], 3, padding=1, groups=self.rows[1])
        self.last = nn.Linear(inner, outputs)

    def forward(self, x):
        gate, mixed, step = self.into(x).split(self.rows, dim=-1)
        mixed = functional.silu(self.mix(mixed.transpose(1, 2)).transpose(1, 2))
        units, read, write = mixed.split(self.parts, dim=-1)
        units = functional.softplus(step) * units * (read * write).sum(-1, keepdim=True)
        return self.last(units * torch.sigmoid(gate)).mean(1)


class Padded(nn.Module):
    """A shortcut with channels of zeros around its own, as residual networks without weights have."""

    def __init__(self, shape, outputs, channels=12):
        super().__init__()
        self.first = nn.Conv2d(shape[0], channels, 3, padding=1)
        self.wide = nn.Conv2d(channels, channels + 4, 3, padding=1)
        self.last = nn.Linear(channels + 4, outputs)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.wide(x) + functional.pad(x, (0, 0, 0, 0, 2, 2)))
        return self.last(x.mean((2, 3)))
