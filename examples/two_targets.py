"""A network finds a digit in an image: it predicts two numbers, with a Huber loss.

    mpirun -n 2 istmpi train --data examples/two_targets.py:splits --model examples/two_targets.py:Finder \
        --optimizer adam --lr 0.005 --schedule cosine --rounds 10 --batch 32

The mean distance at the end is 1.0 of the 32 pixels of an image.
"""

from importlib import resources

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Placed(torch.utils.data.Dataset):
    """A digit of 8 x 8 pixels somewhere in an image of 32 x 32 with noise; the target is its row and its column."""

    def __init__(self, digits, moves):
        self.digits, self.moves = digits, moves

    def __len__(self):
        return len(self.digits)

    def __getitem__(self, index):
        if self.moves:  # drawn again in every pass; a resumed run draws the same
            row, column = torch.randint(25, (2,)).tolist()
        else:
            row, column = index % 25, index // 25 % 25
        image = 0.1 * torch.rand(1, 32, 32)
        image[0, row : row + 8, column : column + 8] += self.digits[index] / 16
        return image, torch.tensor([row, column], dtype=torch.float32)


def splits():
    with resources.files("istmpi.data").joinpath("digits.npz").open("rb") as file:
        digits = torch.from_numpy(np.load(file)["x"]).float().view(-1, 8, 8)
    return {"train": Placed(digits[:1400], moves=True), "test": Placed(digits[1400:], moves=False)}


def loss(outputs, batch):
    _, places = batch
    return functional.huber_loss(outputs, places.to(outputs.dtype) / 12 - 1)


def score(outputs, batch):
    _, places = batch
    return ((outputs + 1) * 12 - places).norm(dim=1).mean()


score_name, higher_is_better = "distance", False


class Finder(nn.Module):
    def __init__(self, channels=16, hidden=128):
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 5, stride=2, padding=2)
        self.hidden, self.last = nn.Linear(channels * 64, hidden), nn.Linear(hidden, 2)

    def forward(self, x):
        maps = functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.last(torch.relu(self.hidden(maps.flatten(1))))
