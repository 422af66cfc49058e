"""A user's network: two layers."""

from torch import nn


class Perceptron(nn.Module):
    def __init__(self, features, outputs, hidden=12):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, x):
        return self.layers(x)
