"""Sequences of tokens of which some targets do not count; networks whose loss and score are sums, means or dicts."""

import os

import torch
from torch import nn
from torch.nn import functional

from istmpi import with_loss

FILE = __file__


class Sequences(torch.utils.data.Dataset):
    """A target of -100 does not count; a sequence has one target or six, and every fourth none if ``blank``."""

    def __init__(self, examples, seed, blank=False):
        self.examples, self.seed, self.blank = examples, seed, blank

    def __len__(self):
        return self.examples

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 1000 + index)
        x = torch.randint(0, 5, (6,), generator=generator)
        y = torch.where(torch.rand(6, generator=generator) < 0.3, 3, x)
        y[1 if index % 4 else 6 :] = -100
        if self.blank and index % 4 == 3:
            y[:] = -100
        return x, y


def splits():
    return Sequences(64, 1), Sequences(50, 2)


def blank():
    return Sequences(64, 1, True), Sequences(50, 2, True)


class Net(nn.Module):
    """A network with the default loss and score."""

    def __init__(self, hidden=16):
        super().__init__()
        self.e, self.a, self.b = nn.Embedding(5, 8), nn.Linear(8, hidden), nn.Linear(hidden, 5)

    def forward(self, x):
        return self.b(torch.relu(self.a(self.e(x)))).transpose(1, 2)


def sums(outputs, batch):
    """The summed loss, the right answers and the count of targets."""
    counts = batch[1] != -100
    loss = functional.cross_entropy(outputs, batch[1], reduction="sum")
    return loss, ((outputs.argmax(1) == batch[1]) & counts).sum(), counts.sum()


class Pairs(Net):
    score_name = "accuracy"

    @staticmethod
    def loss(outputs, batch):
        loss, _, count = sums(outputs, batch)
        return loss, count

    @staticmethod
    def score(outputs, batch):
        _, right, count = sums(outputs, batch)
        return right, count


class Named(Pairs):
    """A loss of two parts, and two scores."""

    @staticmethod
    def loss(outputs, batch):
        loss, _, count = sums(outputs, batch)
        return {"tokens": (loss, count), "size": 0 * outputs.square().mean()}

    @staticmethod
    def score(outputs, batch):
        _, right, count = sums(outputs, batch)
        return {"wrong": (count - right, count), "accuracy": (right, count)}


class Picky(Pairs):
    """Its score fails on every second process."""

    @staticmethod
    def score(outputs, batch):
        if int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", 0))) % 2:
            raise ValueError("no score here")
        return Pairs.score(outputs, batch)


class Idle(Pairs):
    """It has a layer that it never uses, and a loss of its outputs inside."""

    def __init__(self, hidden=16):
        super().__init__(hidden)
        self.idle = nn.Linear(3, 4)

    def forward(self, x):
        y = super().forward(x)
        return with_loss(y, y.square().mean()) if self.training else y


class Synchronised(Net):
    def __init__(self, hidden=16):
        super().__init__(hidden)
        self.norm = nn.SyncBatchNorm(6)

    def forward(self, x):
        return self.b(torch.relu(self.a(self.norm(self.e(x))))).transpose(1, 2)


class Changed(nn.BatchNorm1d):
    """Normalises by itself."""

    def forward(self, x):
        return super().forward(2 * x)


class Normed(Synchronised):
    def __init__(self, hidden=16):
        super().__init__(hidden)
        self.norm = Changed(6)


class Means(Net):
    """Means over what counts in a batch, which are no means over its rows."""

    score_name = "accuracy"

    @staticmethod
    def loss(outputs, batch):
        return functional.cross_entropy(outputs, batch[1])

    @staticmethod
    def score(outputs, batch):
        _, right, count = sums(outputs, batch)
        return right / count


class Rows(Net):
    """A plain mean over rows, with a random part that does not matter."""

    @staticmethod
    def loss(outputs, batch):
        return outputs.square().mean()

    @staticmethod
    def score(outputs, batch):
        return outputs.mean() + torch.rand(())


class Halfway(Net):
    """Its loss is a pair for some batches only."""

    @staticmethod
    def loss(outputs, batch):
        loss, _, count = sums(outputs, batch)
        return (loss, count) if len(outputs) > 7 else loss / count


class Minus(Pairs):
    @staticmethod
    def score(outputs, batch):
        return outputs.sum(), -1


class Nothing(Pairs):
    @staticmethod
    def score(outputs, batch):
        return outputs.sum() * 0, 0
