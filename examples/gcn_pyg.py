"""Graph convolutions of `torch_geometric`, unchanged, on a graph that `istmpi prepare graph` has prepared.

    istmpi model examples/gcn_pyg.py:Gcn --data cora.h5
    mpirun -n 4 istmpi train graph --data cora.h5 --model examples/gcn_pyg.py:Gcn

Hidden units are dealt out; features and classes are on every rank. Node i receives from the nodes
``columns[offsets[i]:offsets[i + 1]]``; torch_geometric needs pairs of a sender and a receiver.
"""

import torch
from torch import nn
from torch_geometric.nn import GCNConv


class Gcn(nn.Module):
    def __init__(self, features, outputs, hidden=256, dropout=0.5):
        super().__init__()
        self.first, self.last = GCNConv(features, hidden), GCNConv(hidden, outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, offsets, columns):
        to = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
        edges = torch.stack([columns, to])
        x = torch.relu(self.first(self.dropout(x), edges))
        return self.last(self.dropout(x), edges)
