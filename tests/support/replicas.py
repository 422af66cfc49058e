"""All ranks' whole networks in one process, each trained by plain PyTorch: what methods are compared with."""

import torch
from batches import plain
from holders import stream_of
from torch.nn import functional

from istmpi.data.sources import open_dataset
from istmpi.engine.store import ParameterStore
from istmpi.models import architecture


class Replica:
    """One rank's whole network, trained by plain SGD with momentum, in this process."""

    def __init__(self, run, rank, ranks):
        data = open_dataset(run.data.source)
        self.batches = stream_of(run, data.train, rank, ranks)
        network = architecture(data.features, data.outputs, data.task, run.model)
        self.module = network.build(network.lengths)
        store = ParameterStore(network.parameters, network.lengths, ranks=1, rank=0)
        store.initialise(run.train.seed)
        self.module.load_state_dict(store.tensors)
        self.run = run
        self.reset()

    def reset(self):
        settings = self.run.optimizer
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=settings.lr, momentum=settings.momentum)

    def step(self, batch, teachers=()):
        self.learn(*plain(batch), teachers)

    def learn(self, x, y, teachers=()):
        """Take a step with arrays of examples and labels."""
        x, y = torch.from_numpy(x).to(self.weights.dtype), torch.from_numpy(y)
        outputs = self.module(x)
        loss = functional.cross_entropy(outputs, y)
        if teachers:
            predicted = sum(torch.softmax(teacher(x), 1) for teacher in teachers).detach() / len(teachers)
            loss = loss - (predicted * torch.log_softmax(outputs, 1)).sum(1).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @property
    def weights(self):
        return torch.nn.utils.parameters_to_vector(self.module.parameters()).detach()

    @weights.setter
    def weights(self, values):
        torch.nn.utils.vector_to_parameters(values.clone(), self.module.parameters())

    def named(self):
        return {name: parameter.detach().numpy() for name, parameter in self.module.named_parameters()}


def replicas(run, ranks):
    return [Replica(run, rank, ranks) for rank in range(ranks)]
