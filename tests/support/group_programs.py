"""Parts of programs of one's own whose processes form replica groups."""

HEAD = """
import os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import istmpi

class Net(torch.nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, hidden), torch.nn.Linear(hidden, 2)

    def forward(self, x):
        y = self.b(torch.relu(self.a(x)))
        return istmpi.with_loss(y, y.square().mean()) if self.training else y

def accuracy(module, batch):
    return (module(batch[0]).argmax(1) == batch[1]).double().mean()

x = torch.randn(91, 8, generator=torch.Generator().manual_seed(1)).double()
data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
settings = dict(method="local-sgd", local_steps=2, dtype="float64", checkpoint_every=1, group_size={size})
make = lambda parameters: torch.optim.SGD(parameters, lr=0.3)
"""
JOB = """
job = istmpi.Distributed(Net, {{}}, example=x[:9], **settings, optimizer=make)
"""
