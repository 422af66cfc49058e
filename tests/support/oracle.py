"""The naive oracle: independent subnet training in one process, on the full network, with masks.

It knows of no layout, transfer or store. A rank's subnet is the full network in which every unit that the rank was not
dealt is multiplied by zero; combining is the mean over the holders, written as a sum and a count. A product that no
batch normalisation follows is the mean over the units that there are, times as many as a rank has on average. From
istmpi it takes the deals, the batches and the initial values alone, each of which has tests of its own.
"""

import math

import torch
from batches import plain
from holders import stream_of

from istmpi.config.methods import METHODS
from istmpi.data.sources import open_for_training
from istmpi.engine.partition import Partition
from istmpi.engine.store import ParameterStore

EPSILON = 1e-5


def train(run, network, ranks, groups, shares=None):
    """The full network's weights after all rounds, and the mean loss of every round: ``{name: [...]}``, ``[rounds]``.
    ``groups`` are dealt out until the finish, if the run has one; that is then local SGD. ``shares``: of each round,
    where they are not the same in all. ``network`` is an `istmpi.models.mlp.MLP`; only its lengths and parameter names
    are used."""
    dataset = open_for_training(run.data)
    streams = [stream_of(run, dataset.train, rank, ranks) for rank in range(ranks)]
    store = ParameterStore(network.parameters, network.lengths, ranks=1, rank=0)
    store.initialise(run.train.seed)
    weights = {name: tensor.clone() for name, tensor in store.tensors.items()}
    state = {name: (torch.zeros_like(tensor), torch.zeros_like(tensor)) for name, tensor in weights.items()}
    kept = [{name: tuple(map(torch.clone, slots)) for name, slots in state.items()} for _ in range(ranks)]
    velocity = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    losses = []
    clubs = ranks / run.method.holders
    average = {name: length / clubs if name in groups else length for name, length in network.lengths.items()}
    share = run.method.finish.removeprefix("local-sgd:").removesuffix("%") or 0
    delay = (run.method.delay or 0) * (ranks > 1)  # nothing leaves one rank

    def draw(round):
        """What each rank holds in a round: one for each unit that is there."""
        how = shares[round] if shares else run.method.shares, run.method.redeal, run.method.holders
        deal = Partition.draw(network.lengths, groups, ranks, run.train.seed, round, *how)
        return [held_by(rank, deal, network.lengths, groups) for rank in range(ranks)]

    for round in range(run.train.rounds):
        if round >= run.train.rounds * (1 - float(share) / 100):
            groups = ()
        before = {name: tensor.clone() for name, tensor in weights.items()}
        ends, early = [], []
        for rank, held in enumerate(draw(round)):
            mine = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
            what = run.method.optimizer_state or ("keep" if run.method.name == "diloco" else "reset")
            carried = what == "carry"
            slots = {
                name: tuple(slot.clone() if carried else torch.zeros_like(slot) for slot in slots)
                for name, slots in state.items()
            }
            slots = kept[rank] if what == "keep" else slots
            for local_step in range(run.method.local_steps):
                step = round * run.method.local_steps + local_step
                x, y = map(torch.from_numpy, plain(streams[rank].at(step)))
                loss = cross_entropy(forward(run.model, network, mine, held, x.double(), average), y)
                gradients = torch.autograd.grad(loss, list(mine.values()))
                losses.append(float(loss.detach()))
                lr = rate(run.optimizer, step, run.train.rounds * run.method.local_steps)
                number = local_step if what == "reset" else step
                for name, gradient in zip(mine, gradients):
                    update(run.optimizer, lr, mine[name].data, gradient, slots[name], number)
                if local_step == run.method.local_steps - 1 - delay:
                    early.append({name: [mine[name].detach().clone(), *map(torch.clone, slots[name])] for name in mine})
            ends.append((mine, slots, held))
        if delay and round < run.train.rounds - 1:
            for (mine, slots, held), soon, then in zip(ends, early, draw(round + 1)):
                leave_early(mine, slots, soon, held, then)
        combine(weights, state, ends)
        outer_step(before, weights, velocity, *METHODS[run.method.name].outer(run), [held for _, _, held in ends])
    per_round = torch.tensor(losses, dtype=torch.float64).view(run.train.rounds, -1).mean(dim=1)
    return weights, per_round.tolist()


def held_by(rank, deal, lengths, groups):
    """One for each unit that a rank holds in a deal, zero for others; of what is not dealt out it holds all."""
    held = {name: torch.zeros(length, dtype=torch.float64) for name, length in lengths.items()}
    for name in held:
        held[name][torch.from_numpy(deal.units[name][rank]) if name in groups else slice(None)] = 1
    return held


def leave_early(mine, slots, soon, held, then):
    """What a rank does not hold ``then``, in the next deal, has the values that it had when it left."""
    for name, tensor in mine.items():
        stays = mask(name, tensor, held) * mask(name, tensor, then) > 0
        late = (tensor.data, *slots[name])
        tensor.data, *slots[name] = (torch.where(stays, *parts) for parts in zip(late, soon[name]))


def combine(weights, state, ends):
    """Every element becomes the mean over the ranks that held both its ends; one that nobody held stays."""
    for name in weights:
        masks = [mask(name, weights[name], held) for _, _, held in ends]
        count = sum(masks)
        for tensor, parts in [
            (weights[name], [mine[name].detach() for mine, _, _ in ends]),
            *((state[name][slot], [slots[name][slot] for _, slots, _ in ends]) for slot in (0, 1)),
        ]:
            total = sum(part * mask for part, mask in zip(parts, masks))
            tensor.copy_(torch.where(count > 0, total / count.clamp(min=1), tensor))


def outer_step(before, weights, velocity, lr, momentum, per_rank):
    """What was trained follows its round's change with Nesterov's momentum; the rest keeps its velocity."""
    for name, weight in weights.items():
        trained = sum(mask(name, weight, held) for held in per_rank) > 0
        moving = momentum * velocity[name] + weight - before[name]
        velocity[name] = torch.where(trained, moving, velocity[name])
        there = before[name] + lr * (weight - before[name] + momentum * moving)
        weight.copy_(torch.where(trained, there, before[name]))


def mask(name, tensor, held):
    """One where a rank holds an element of a parameter: ``stage.linear.weight`` and so on."""
    stages = [*held][1:]
    stage = name.split(".")[0]
    rows = held[stage]
    if tensor.ndim == 1:
        return rows
    return torch.outer(rows, held[[*held][stages.index(stage)]])


def forward(model, network, weights, held, x, average):
    """A subnet's outputs ``[batch, labels]``. ``average``: a rank's units of each group at first; ``held``: now."""
    stages = [*network.lengths][1:]
    for before, stage in zip(network.lengths, stages):
        x = x @ weights[f"{stage}.linear.weight"].T
        if not normalised_over_the_batch(model, stage):
            x = x / held[before].sum() * average[before]
        if model.bias:
            x = x + weights[f"{stage}.linear.bias"]
        if stage == "labels":
            return batch_norm(x) if normalised_over_the_batch(model, stage) else x
        if model.norm == "batch":
            x = batch_norm(x)
        elif model.norm == "layer":
            units = held[stage].sum()
            mean = (x * held[stage]).sum(dim=1, keepdim=True) / units
            variance = ((x - mean) ** 2 * held[stage]).sum(dim=1, keepdim=True) / units
            x = (x - mean) / torch.sqrt(variance + EPSILON)
        if model.norm != "none":
            x = x * weights[f"{stage}.norm.weight"] + weights[f"{stage}.norm.bias"]
        x = (torch.tanh(x) if model.activation == "tanh" else torch.relu(x)) * held[stage]


def normalised_over_the_batch(model, stage):
    if stage == "labels" and model.output_norm is not None:
        return model.output_norm
    return model.norm == "batch"


def batch_norm(x):
    mean = x.mean(dim=0)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(dim=0) + EPSILON)


def cross_entropy(logits, labels):
    return (logits.logsumexp(dim=1) - logits[torch.arange(len(labels)), labels]).mean()


def update(optimizer, lr, weight, gradient, slots, step):
    """One step of SGD with momentum, or of Adam with decoupled weight decay; ``step`` counts from 0."""
    first, second = slots
    if optimizer.name == "sgd":
        first.mul_(optimizer.momentum).add_(gradient + optimizer.weight_decay * weight)
        weight -= lr * first
        return
    first.mul_(0.9).add_(0.1 * gradient)
    second.mul_(0.999).add_(0.001 * gradient**2)
    weight *= 1 - lr * optimizer.weight_decay
    deviation = torch.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8
    weight -= lr * first / (1 - 0.9 ** (step + 1)) / deviation


def rate(settings, step, steps):
    """The learning rate of a local step of so many."""
    if step < settings.warm_up:
        return settings.lr * (step + 1) / settings.warm_up
    if settings.schedule == "cosine":
        share = (step - settings.warm_up) / (steps - settings.warm_up)
        return settings.lr / 2 + settings.lr / 2 * math.cos(math.pi * share)
    return settings.lr
