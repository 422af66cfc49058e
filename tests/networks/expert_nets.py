"""Mixtures of experts, as users write them: they know nothing of istmpi."""

import torch
from torch import nn


class SoftExperts(nn.Module):
    """All experts, weighted by a softmax over them: their mean."""

    def __init__(self, features, outputs, experts=8, hidden=12):
        super().__init__()
        self.gate = nn.Linear(features, experts)
        self.up = nn.Parameter(torch.empty(experts, features, hidden).uniform_(-0.4, 0.4))
        self.down = nn.Parameter(torch.empty(experts, hidden, outputs).uniform_(-0.3, 0.3))

    def forward(self, x):
        weights = torch.softmax(self.gate(x), -1)
        hidden = torch.relu(torch.einsum("bf,efh->beh", x, self.up))
        return torch.einsum("be,beh,eho->bo", weights, hidden, self.down)


class TopExperts(SoftExperts):
    """The two best experts, by weights that add up to 1."""

    SUMS = {"down": "mean"}

    def forward(self, x):
        best, chosen = self.gate(x).topk(2, -1)
        weights = torch.softmax(best, -1)
        hidden = torch.relu(torch.einsum("bf,bkfh->bkh", x, self.up[chosen]))
        return torch.einsum("bk,bkh,bkho->bo", weights, hidden, self.down[chosen])


class ListedExperts(nn.Module):
    """Experts that are modules of a list: their number is no axis."""

    def __init__(self, features, outputs, experts=3, hidden=12):
        super().__init__()
        self.gate = nn.Linear(features, experts)
        self.up = nn.ModuleList(nn.Linear(features, hidden) for _ in range(experts))
        self.down = nn.ModuleList(nn.Linear(hidden, outputs) for _ in range(experts))

    def forward(self, x):
        weights = torch.softmax(self.gate(x), -1)
        made = [down(torch.relu(up(x))) for up, down in zip(self.up, self.down)]
        return (weights[:, None] * torch.stack(made, -1)).sum(-1)


class SoftmaxUnits(nn.Module):
    """Units that a softmax makes into shares of 1: what sums over them is a mean."""

    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.first, self.last = nn.Linear(features, hidden), nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(torch.softmax(self.first(x), -1))
