"""Networks that look alright at few units, or at first sight, as users write them: they know nothing of istmpi."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


class HeadsFromWidth(nn.Module):
    """A head for each 16 units: one, where there are fewer."""

    def __init__(self, shape, outputs, inner=32):
        super().__init__()
        self.heads = max(1, inner // 16)
        self.qkv, self.last = nn.Linear(shape[-1], 3 * inner), nn.Linear(inner, outputs)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.last(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).mean(1))


class Hidden(nn.Module):
    """A hidden layer, whose units a derived class changes."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.first, self.last = nn.Linear(features, hidden), nn.Linear(hidden, outputs)

    def changed(self, x):
        return torch.relu(x)

    def forward(self, x):
        return self.last(self.changed(self.first(x)))


class TrainingBranch(Hidden):
    """Neighbouring units are mixed in training alone."""

    def changed(self, x):
        x = torch.relu(x)
        return x + 0.5 * x.roll(1, -1) if self.training else x


class DrawsAlways(Hidden):
    """Noise in evaluation, too."""

    def changed(self, x):
        return torch.relu(x) + 0.1 * torch.randn_like(x)


class UnusedLayer(Hidden):
    """A layer that nobody calls."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__(features, outputs, hidden)
        self.unused = nn.Linear(hidden, hidden)


class Numbered(Hidden):
    """A constant of each unit, by its number."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__(features, outputs, hidden)
        self.register_buffer("rates", 1 / (1 + torch.arange(hidden)))

    def changed(self, x):
        return torch.tanh(x) * self.rates


class Vae(nn.Module):
    """Logits, and a part of the loss beside them."""

    def __init__(self, features, outputs, hidden=12, code=14):
        super().__init__()
        self.first, self.mean = nn.Linear(features, hidden), nn.Linear(hidden, code)
        self.log_variance, self.last = nn.Linear(hidden, code), nn.Linear(code, outputs)

    def forward(self, x):
        x = torch.relu(self.first(x))
        mean, log_variance = self.mean(x), self.log_variance(x)
        noise = torch.randn_like(mean) if self.training else 0
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(-1).mean()
        return self.last(mean + noise * (log_variance / 2).exp()), kl


@dataclass
class Widths:
    """Widths in a configuration."""

    hidden: int = 12
    wide: int = 14


class Configured(nn.Module):
    """Widths that no argument tells."""

    def __init__(self, features, outputs, config=Widths()):  # noqa: B008
        super().__init__()
        self.first, self.second = nn.Linear(features, config.hidden), nn.Linear(config.hidden, config.wide)
        self.last = nn.Linear(config.wide, outputs)

    def forward(self, x):
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))
