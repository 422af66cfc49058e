"""A small U-Net finds discs in noisy images, pixel by pixel, with its own loss and the Dice score.

    mpirun -n 2 istmpi train --data examples/segmentation.py:splits --model examples/segmentation.py:UNet \
        --optimizer adam --lr 0.01 --rounds 5 --local-steps 10 --batch 16

The data set, the loss and the score are plain PyTorch. The Dice score after five rounds is 0.93.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Discs(torch.utils.data.Dataset):
    """Images [1, 32, 32] of one to three discs in noise, and masks [32, 32] of 0 and 1."""

    def __init__(self, count, seed, mirrored=False):
        self.count, self.seed, self.mirrored = count, seed, mirrored

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        random = np.random.default_rng([self.seed, index])
        rows, columns = np.mgrid[:32, :32]
        mask = np.zeros((32, 32), bool)
        for row, column, radius in zip(*random.uniform(6, 26, (2, 3)), random.uniform(3, 7, random.integers(1, 4))):
            mask |= (rows - row) ** 2 + (columns - column) ** 2 < radius**2
        image = 0.7 * mask + random.normal(0, 0.5, (32, 32))
        if self.mirrored and torch.rand(()) < 0.5:  # drawn again in every pass; a resumed run draws the same
            image, mask = image[:, ::-1], mask[:, ::-1]
        return torch.tensor(image[None].copy(), dtype=torch.float32), torch.tensor(mask.copy(), dtype=torch.float32)


def splits():
    return Discs(2000, seed=0, mirrored=True), Discs(200, seed=1)


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


class UNet(nn.Module):
    score_name = "Dice"

    def __init__(self, fine=16, middle=32, coarse=64):
        super().__init__()
        self.first, self.second, self.third = Block(1, fine), Block(fine, middle), Block(middle, coarse)
        # A product with two concatenated tensors is the sum of two products. Each of their axes has one width.
        self.up, self.across = nn.Conv2d(coarse, middle, 1), nn.Conv2d(middle, middle, 3, padding=1)
        self.up_again, self.across_again = nn.Conv2d(middle, fine, 1), nn.Conv2d(fine, fine, 3, padding=1)
        self.last = nn.Conv2d(fine, 1, 1)

    def forward(self, x):
        fine = self.first(x)
        middle = self.second(functional.max_pool2d(fine, 2))
        coarse = self.third(functional.max_pool2d(middle, 2))
        middle = torch.relu(functional.interpolate(self.up(coarse), scale_factor=2) + self.across(middle))
        fine = torch.relu(functional.interpolate(self.up_again(middle), scale_factor=2) + self.across_again(fine))
        return self.last(fine)[:, 0]

    @staticmethod
    def loss(outputs, batch):
        return functional.binary_cross_entropy_with_logits(outputs, batch[1].to(outputs.dtype))

    @staticmethod
    def score(outputs, batch):
        found, there = outputs > 0, batch[1] > 0
        return 2 * (found & there).sum() / (found.sum() + there.sum())
