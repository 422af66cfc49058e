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


class BatchedExperts(SoftExperts):
    """The same by batched products, and the weights behind them."""

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        made = torch.bmm(torch.relu(torch.bmm(x.expand(len(self.up), *x.shape), self.up)), self.down)
        return (weights.T[..., None] * made).sum(0)


class OpenExperts(SoftExperts):
    """All experts, each with a gate that does not know of the others: their sum."""

    def forward(self, x):
        weights = torch.sigmoid(self.gate(x))
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


class MaskedExperts(SoftExperts):
    """The two best experts: all are computed, and the weights of the others are 0."""

    def forward(self, x):
        scores = self.gate(x)
        best = scores.topk(2, -1).values[:, -1:]
        weights = torch.softmax(scores.masked_fill(scores < best, -torch.inf), -1)
        hidden = torch.relu(torch.einsum("bf,efh->beh", x, self.up))
        return torch.einsum("be,beh,eho->bo", weights, hidden, self.down)


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


class Codebook(nn.Module):
    """A mean of learnt entries by how near they are."""

    def __init__(self, features, outputs, entries=12):
        super().__init__()
        self.entries, self.last = nn.Parameter(torch.randn(entries, 5)), nn.Linear(5, outputs)
        self.first = nn.Linear(features, 5)

    def forward(self, x):
        x = self.first(x)
        return self.last(torch.tanh(torch.softmax(x @ self.entries.T, -1) @ self.entries))
