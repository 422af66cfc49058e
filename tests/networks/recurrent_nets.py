"""Recurrent networks, as users write them: they know nothing of istmpi."""

import torch
from torch import nn


class Lstm(nn.Module):
    """One layer of torch's own."""

    def __init__(self, shape, outputs, hidden=12):
        super().__init__()
        self.cell, self.last = nn.LSTM(shape[-1], hidden, batch_first=True), nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(self.cell(x)[0][:, -1])


class LstmBoth(nn.Module):
    """Both directions, twice."""

    def __init__(self, shape, outputs, hidden=12):
        super().__init__()
        self.cell = nn.LSTM(shape[-1], hidden, 2, batch_first=True, bidirectional=True)
        self.last = nn.Linear(2 * hidden, outputs)

    def forward(self, x):
        return self.last(self.cell(x)[0].mean(1))


class LstmProjected(nn.Module):
    """A state of one width, and what is said of it of another."""

    def __init__(self, shape, outputs, hidden=26, projected=12):
        super().__init__()
        self.cell = nn.LSTM(shape[-1], hidden, batch_first=True, proj_size=projected)
        self.last = nn.Linear(projected, outputs)

    def forward(self, x):
        return self.last(self.cell(x)[0][:, -1])


class LstmForgets(Lstm):
    """A forget gate that starts open: its bias is 1, and the others' 0."""

    def __init__(self, shape, outputs, hidden=12):
        super().__init__(shape, outputs, hidden)
        for bias in (self.cell.bias_ih_l0, self.cell.bias_hh_l0):
            nn.init.zeros_(bias)
        nn.init.ones_(self.cell.bias_ih_l0.data[hidden : 2 * hidden])


class GruCells(nn.Module):
    """A cell that is called place by place from a learnt start."""

    def __init__(self, shape, outputs, hidden=12):
        super().__init__()
        self.cell, self.start = nn.GRUCell(shape[-1], hidden), nn.Parameter(torch.zeros(hidden))
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        state = self.start.expand(len(x), -1)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.last(state)
