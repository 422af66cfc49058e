"""Networks with normalisations of units and of weights, as users write them: they know nothing of istmpi."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations


class GroupsOfNorm(nn.Module):
    """Groups of four channels, so many as an argument says, each normalised by itself."""

    def __init__(self, shape, outputs, groups=12):
        super().__init__()
        self.first, self.norm = nn.Conv2d(shape[0], 4 * groups, 3), nn.GroupNorm(groups, 4 * groups)
        self.last = nn.Linear(4 * groups, outputs)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))).mean((2, 3)))


class InstanceTracked(nn.Module):
    """Each channel is normalised over its pixels, with running statistics."""

    def __init__(self, shape, outputs, channels=(8, 12)):
        super().__init__()
        self.first, self.second = nn.Conv2d(shape[0], channels[0], 3), nn.Conv2d(*channels, 3)
        self.norm = nn.InstanceNorm2d(channels[1], affine=True, track_running_stats=True)
        self.last = nn.Linear(channels[1], outputs)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.second(torch.relu(self.first(x))))).mean((2, 3)))


class BatchNormAct(nn.BatchNorm2d):
    """A batch normalisation with an activation behind it, as timm has it."""

    def forward(self, x):
        return torch.relu(super().forward(x))


class OfSubclass(nn.Module):
    """Batch normalisations of a class of one's own."""

    def __init__(self, shape, outputs, channels=(8, 12)):
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(shape[0], channels[0], 3, bias=False), BatchNormAct(channels[0])
        self.second, self.second_norm = nn.Conv2d(*channels, 3, bias=False), BatchNormAct(channels[1])
        self.last = nn.Linear(channels[1], outputs)

    def forward(self, x):
        return self.last(self.second_norm(self.second(self.first_norm(self.first(x)))).mean((2, 3)))


class NormTwice(nn.Module):
    """One batch normalisation, called behind each of two products."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
        self.norm, self.last = nn.BatchNorm1d(hidden), nn.Linear(hidden, outputs)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.norm(self.second(x))))


class AndElsewhere(nn.Module):
    """A product that goes into a batch normalisation, and by it as well."""

    def __init__(self, features, outputs, hidden=12, wide=14):
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, wide)
        self.norm, self.last = nn.BatchNorm1d(wide), nn.Linear(wide, outputs)

    def forward(self, x):
        x = self.second(torch.relu(self.first(x)))
        return self.last(torch.relu(self.norm(x)) + torch.tanh(x))


class WeightNormed(nn.Module):
    """Weights by direction and length, the length of each row over dealt units."""

    normed = staticmethod(parametrizations.weight_norm)

    def __init__(self, features, outputs, hidden=(12, 14)):
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden[0]), self.normed(nn.Linear(*hidden))
        self.last = nn.Linear(hidden[1], outputs)

    def forward(self, x):
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))


class SpectralNormed(WeightNormed):
    """Weights divided by their largest singular value, whose vectors are buffers that training changes."""

    normed = staticmethod(parametrizations.spectral_norm)


class Standardised(nn.Module):
    """A convolution whose weights are standardised over their inputs."""

    def __init__(self, shape, outputs, channels=(8, 12)):
        super().__init__()
        self.first, self.second = nn.Conv2d(shape[0], channels[0], 3), nn.Conv2d(*channels, 3)
        self.last = nn.Linear(channels[1], outputs)

    def forward(self, x):
        variance, mean = torch.var_mean(self.second.weight, (1, 2, 3), correction=0, keepdim=True)
        weight = (self.second.weight - mean) * torch.rsqrt(variance + 1e-6)
        x = functional.conv2d(torch.relu(self.first(x)), weight, self.second.bias)
        return self.last(torch.relu(x).mean((2, 3)))
