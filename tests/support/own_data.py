"""Data sets of the user's own, as FILE.py:function returns them, with networks for them."""

import random

import numpy as np
import torch
from torch import nn

from istmpi.comm.mpi import if_up
from istmpi.data.sources import open_dataset

FILE = __file__
DIGITS = open_dataset("digits")


class Digits:
    classes = DIGITS.classes

    def __init__(self, split, item=lambda x, y: (x, int(y))):
        batch = split.batch(np.arange(len(split)))
        self.x, self.y, self.item = batch.inputs[0].reshape(-1, 1, 8, 8), batch.targets, item

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.item(self.x[index], self.y[index])


class Plain(Digits):
    classes = ()


class Padded(Plain):
    """Examples of several lengths, padded in a batch, a tenth of their values left out at random."""

    @staticmethod
    def collate(items):
        x = nn.utils.rnn.pad_sequence([x for x, _ in items], batch_first=True)
        x = nn.functional.pad(x, (0, 0, 0, 8 - x.shape[1])).reshape(len(x), -1)
        return {"x": x * (torch.rand(x.shape) > 0.1)}, torch.tensor([y for _, y in items])


def both(item, kind=Digits):
    return lambda: (kind(DIGITS.train, item), kind(DIGITS.test, item))


def digits():
    return Digits(DIGITS.train), Digits(DIGITS.test)


def shaken(x, y):
    noise = torch.randn(x.shape) + torch.empty(1).uniform_(-0.5, 0.5) + torch.rand_like(x)
    return x + 0.2 * noise + random.random() * np.random.rand() * (2 if np.random.rand() < 0.5 else 1), int(y)


noisy = both(shaken)
pairs = both(lambda x, y: {"left": x[0, :, :4].reshape(-1), "right": x[0, :, 4:].reshape(-1), "label": y})
two_inputs = both(lambda x, y: ((x[0, :, :4].reshape(-1), x[0, :, 4:].reshape(-1)), y), Plain)
numbers = both(lambda x, y: (x.reshape(-1), y.float()))
padded = both(lambda x, y: (x[0, : 1 + int(y) % 8], int(y)), Padded)
uncounted = both(lambda x, y: (x, int(y)), Plain)


def uneven():
    train, test = digits()
    train.x = train.x[if_up().COMM_WORLD.Get_rank() :]
    return train, test


def of_rank(rank, ranks):
    """Each rank's own part of the digits."""
    parts = [Digits(DIGITS.train), Digits(DIGITS.test)]
    for part in parts:
        part.x, part.y = part.x[rank::ranks], part.y[rank::ranks]
    return dict(zip(("train", "test"), parts))


class FailsLate(Digits):
    def __getitem__(self, index):
        if index == 77:
            raise ValueError("this file is damaged")
        return super().__getitem__(index)


late = both(lambda x, y: (x, int(y)), FailsLate)


class Two(nn.Module):
    """Two inputs, and outputs that are a dict."""

    score_name = "hits"

    def __init__(self, hidden=12):
        super().__init__()
        self.left, self.right = nn.Linear(32, hidden), nn.Linear(32, hidden)
        self.last, self.drop = nn.Linear(hidden, 10), nn.Dropout(0.2)

    def forward(self, left, right):
        return {"logits": self.last(self.drop(torch.relu(self.left(left) + self.right(right))))}

    @staticmethod
    def loss(outputs, batch):
        return nn.functional.cross_entropy(outputs["logits"], batch["label"])

    @staticmethod
    def score(outputs, batch):
        return (outputs["logits"].argmax(dim=1) == batch["label"]).float().mean()


class Logits(Two):
    """Its loss and score are those of the targets."""

    loss = score = None

    def forward(self, left, right):
        return super().forward(left, right)["logits"]


class Line(nn.Module):
    def __init__(self, features, outputs, hidden=9):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, x):
        return self.layers(x)


class Distance(Line):
    score_name, higher_is_better = "distance", False

    @staticmethod
    def loss(outputs, batch):
        return nn.functional.huber_loss(outputs[:, 0], batch[1].to(outputs.dtype))

    @staticmethod
    def score(outputs, batch):
        return (outputs[:, 0] - batch[1]).abs().mean()


class NotFinite(Distance):
    @staticmethod
    def loss(outputs, batch):
        return (outputs / 0).mean()
