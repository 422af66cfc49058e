"""All subnets of a joint run in one process, in plain PyTorch."""

import numpy as np
import torch
from batches import plain
from torch import nn
from torch.nn import functional

from istmpi.config.methods import METHODS
from istmpi.data.batches import Batches
from istmpi.data.sources import open_dataset
from istmpi.engine.store import ParameterStore
from istmpi.optim.schedules import rate_at

PLAIN = {"method__name": "joint", "model__norm": "none", "model__bias": True}
MOMENTUM = {"optimizer__momentum": 0.9, "optimizer__lr": 0.03}
OPTIMIZERS = {
    "sgd": {},
    "momentum, decay": MOMENTUM | {"optimizer__weight_decay": 0.1, "optimizer__schedule": "cosine"},
    "adam": {"optimizer__name": "adamw", "optimizer__lr": 0.01, "optimizer__weight_decay": 0.1},
    "clipped": MOMENTUM | {"optimizer__clip": 0.05},
}


class Mlp(nn.Module):
    """The mlp of small runs with the weights of some units, or of all."""

    def __init__(self, run, weights):
        super().__init__()
        self.weights = nn.ParameterDict({name.replace(".", "/"): values for name, values in weights.items()})
        self.hidden = [f"hidden{number}" for number in range(1, len(run.model.hidden) + 1)]

    def forward(self, x):
        for name in [*self.hidden, "labels"]:
            x = functional.linear(x, self.weights[f"{name}/linear/weight"], self.weights[f"{name}/linear/bias"])
            if name != "labels":
                x = torch.relu(x)
        return x


class Oracle:
    """All subnets in one process, and the batches and rates of a run."""

    def __init__(self, training, ranks):
        self.run = run = training.run
        network = training.architecture
        data = open_dataset(run.data.source)
        self.batches = Batches(data.train, np.arange(len(data.train)), run.train.batch, run.train.seed, 0)
        self.test = plain(data.test.batch(np.arange(len(data.test))))
        store = ParameterStore(network.parameters, network.lengths, ranks=1, rank=0)
        store.initialise(run.train.seed)
        self.deal = METHODS["joint"].deal(run, network, ranks, 0)
        self.network = network
        self.subnets = [Mlp(run, self.part(store.tensors, rank)) for rank in range(ranks)]
        # The whole network has its output bias once.
        for subnet in self.subnets[1:]:
            subnet.weights["labels/linear/bias"].data.zero_()
            subnet.weights["labels/linear/bias"].requires_grad_(False)

    def part(self, tensors, rank):
        """Return a rank's part of whole tensors."""
        parts = {}
        for name, values in tensors.items():
            axes = enumerate(self.network.parameters[name].pattern.axes)
            at = np.ix_(*[self.deal.positions(axis, place, rank) for place, axis in axes])
            parts[name] = nn.Parameter(values[at].clone())
        return parts

    def optimizer(self, module):
        settings = self.run.optimizer
        trained = [values for values in module.parameters() if values.requires_grad]
        if settings.name == "adamw":
            return torch.optim.AdamW(trained, lr=settings.lr, weight_decay=settings.weight_decay)
        return torch.optim.SGD(trained, settings.lr, settings.momentum, weight_decay=settings.weight_decay)

    def set_rate(self, optimizer, step):
        rounds, steps = self.run.train.rounds, self.run.method.local_steps
        optimizer.param_groups[0]["lr"] = rate_at(self.run.optimizer, step, rounds * steps)

    def batch(self, step):
        x, y = plain(self.batches.at(step))
        return torch.from_numpy(x).double(), torch.from_numpy(y)

    def sum(self, x):
        return sum(subnet(x) for subnet in self.subnets)

    def train_on_stale_sums(self, sigma):
        """Train each subnet by the formula: the loss of S + sigma (z - z at the round's start), over sigma."""
        steps = self.run.method.local_steps
        count = steps // self.run.method.passes
        optimizers = [self.optimizer(subnet) for subnet in self.subnets]
        for round in range(self.run.train.rounds):
            batches = [self.batch(round * count + place) for place in range(count)]
            with torch.no_grad():
                starts = [[subnet(x) for subnet in self.subnets] for x, _ in batches]
            for step in range(steps):
                (x, y), start = batches[step % count], starts[step % count]
                for subnet, own, optimizer in zip(self.subnets, start, optimizers, strict=True):
                    self.set_rate(optimizer, round * steps + step)
                    loss = functional.cross_entropy(sum(start) + sigma * (subnet(x) - own), y) / sigma
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

    def train_in_one_piece(self):
        """Train the sum itself: all subnets are one network, and one optimizer has all weights."""
        network = nn.ModuleList(self.subnets)
        optimizer = self.optimizer(network)
        trained = [values for values in network.parameters() if values.requires_grad]
        for step in range(self.run.train.rounds * self.run.method.local_steps):
            x, y = self.batch(step)
            self.set_rate(optimizer, step)
            optimizer.zero_grad()
            functional.cross_entropy(self.sum(x), y).backward()
            if self.run.optimizer.clip:
                nn.utils.clip_grad_norm_(trained, self.run.optimizer.clip)
            optimizer.step()
