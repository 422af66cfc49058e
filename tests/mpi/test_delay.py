"""Weights that leave before a round's end, against networks put together in one process; and what must not matter."""

import pytest
import torch
from batches import plain
from small import assert_near, assert_same_bits, trained, whole
from torch.nn import functional

from istmpi.comm import mpi
from istmpi.cost import round_bytes
from istmpi.data.batches import Batches, place
from istmpi.data.sources import open_dataset
from istmpi.engine.partition import Partition
from istmpi.engine.store import ParameterStore
from istmpi.models import architecture

PLAIN = {"model__norm": "none", "model__bias": True, "method__local_steps": 4, "train__rounds": 4}
LAYERS = ("hidden1", "hidden2", "labels")
MOMENTUM = {"optimizer__momentum": 0.6, "method__optimizer_state": "carry"}


def naive(run, ranks, delay):
    """The whole network after all rounds: every rank's values are kept whole, after step J - D and after step J. A
    weight is a rank's where both its ends are; that of nobody stays as it is."""
    data = open_dataset(run.data.source)
    labels, seed = data.train.labels(), run.train.seed
    network = architecture(data.features, data.outputs, data.task, run.model)
    store = ParameterStore(network.parameters, network.lengths, ranks=1, rank=0)
    store.initialise(seed)
    weights = {name: values.clone() for name, values in store.tensors.items()}
    velocity = {name: torch.zeros_like(values) for name, values in weights.items()}
    placed = [place(run.data.placement, labels, rank, ranks, seed) for rank in range(ranks)]
    streams = [Batches(data.train, rows, run.train.batch, seed, rank) for rank, rows in enumerate(placed)]
    steps, rounds = run.method.local_steps, run.train.rounds
    lengths, groups = network.lengths, ("hidden1", "hidden2")

    def masks(round, rank):
        deal = Partition.draw(lengths, groups, ranks, seed, round, run.method.shares, run.method.redeal)
        mine, before, found = {}, "features", {}
        for stage in ("features", *LAYERS):
            mine[stage] = torch.zeros(lengths.get(stage, data.outputs), dtype=torch.float64)
            mine[stage][torch.from_numpy(deal.units[stage][rank]) if stage in groups else slice(None)] = 1
        for stage in LAYERS:
            found[f"{stage}.linear.weight"] = torch.outer(mine[stage], mine[before])
            found[f"{stage}.linear.bias"], before = mine[stage], stage
        return mine, found

    for round in range(rounds):
        early, late = [], []
        for rank in range(ranks):
            mine, has = masks(round, rank)
            own = {name: (values * has[name]).requires_grad_() for name, values in weights.items()}
            moving = {name: values * has[name] for name, values in velocity.items()}
            for local_step in range(steps):
                x, y = map(torch.from_numpy, plain(streams[rank].at(round * steps + local_step)))
                x, before = x.double(), "features"
                for stage in LAYERS:
                    factor = 1.0 if stage == "hidden1" else lengths[before] / ranks / float(mine[before].sum())
                    x = x * factor @ own[f"{stage}.linear.weight"].T + own[f"{stage}.linear.bias"]
                    x, before = (x if stage == "labels" else torch.relu(x) * mine[stage]), stage
                gradients = torch.autograd.grad(functional.cross_entropy(x, y), list(own.values()))
                for (name, values), gradient in zip(own.items(), gradients, strict=True):
                    moving[name] = run.optimizer.momentum * moving[name] + gradient * has[name]
                    values.data -= run.optimizer.lr * moving[name]
                if local_step == steps - 1 - delay:
                    early.append([{name: one.detach().clone() for name, one in each.items()} for each in (own, moving)])
            late.append([{name: one.detach().clone() for name, one in each.items()} for each in (own, moving)])
        for name in weights:
            now = [masks(round, rank)[1][name] for rank in range(ranks)]
            if all(bool(one.all()) for one in now):  # nothing of it is dealt out
                weights[name] = sum(one[0][name] for one in late) / ranks
                velocity[name] = sum(one[1][name] for one in late) / ranks
                continue
            after = [masks(round + 1, rank)[1][name] for rank in range(ranks)]
            for rank in range(ranks):
                stays = (now[rank] * after[rank] > 0) | torch.tensor(round == rounds - 1)
                for at, whole_one in enumerate((weights, velocity)):
                    values = torch.where(stays, late[rank][at][name], early[rank][at][name])
                    whole_one[name] = torch.where(now[rank] > 0, values, whole_one[name])
    return {name: values.numpy() for name, values in weights.items()}


@pytest.mark.parametrize("delay, redeal", [(0, 0.3), (1, 1.0), (1, 0.0), (3, 0.3), (3, 1.0)])
def test_what_leaves_does_so_early_and_what_stays_keeps_all_its_steps(comm, delay, redeal):
    settings = PLAIN | MOMENTUM | {"method__delay": delay, "method__redeal": redeal}
    training, _ = trained(comm, **settings)
    early = delay if comm.size > 1 else 0  # nothing leaves one rank
    expected = naive(training.run, comm.size, early)
    assert_near(whole(training), expected, 1e-11)
    other = naive(training.run, comm.size, 2 if early == 0 else 0)
    if comm.size > 1 and redeal:
        name = "hidden2.linear.weight"
        assert abs(other[name] - expected[name]).max() > 1e-6, "a delay that makes no difference is no test"


STREAMING = {"method__name": "streaming-diloco", "method__fragments": 2, "method__local_steps": 8}


@pytest.mark.parametrize("settings", [MOMENTUM | {"method__redeal": 0.4}, {"method__wire": "int8"}, STREAMING], ids=str)
def test_without_threads_every_bit_is_the_same(comm, monkeypatch, settings):
    """Where no thread may call MPI, all that leaves early travels at the end of the round."""
    settings = {"method__local_steps": 4, "method__delay": 2, "model__dtype": "float32", **settings}
    expected, progress = trained(comm, **settings)
    monkeypatch.setattr(mpi, "threads_may_call", lambda: False)
    alone, its = trained(comm, **settings)
    assert_same_bits(whole(alone), whole(expected))
    assert [(one.loss, one.bytes) for one in its] == [(one.loss, one.bytes) for one in progress]


@pytest.mark.ranks(also=1)
@pytest.mark.parametrize("wire", ["float32", "int8"])
@pytest.mark.parametrize("changed", [{}, {"model__bias": True, **MOMENTUM}], ids=["", "bias, momentum carried"])
def test_what_is_sent_is_what_is_sent_without_a_delay_and_known_to_the_byte(comm, wire, changed):
    """In each round, and in all of them together; what is not dealt out goes round a ring, whatever its size."""
    settings = {"model__dtype": "float32", "model__norm": "none", "method__redeal": 0.5, "method__wire": wire}
    settings |= changed
    early, its = trained(comm, **settings, method__delay=2)
    run, network = early.run, early.architecture
    assert [one.last_round.bytes for one in its] == [sum(round_bytes(run, network, comm.size, one)) for one in range(4)]
    late, progress = trained(comm, **settings)
    if wire == "float32" and not changed:
        assert its[-1].bytes == progress[-1].bytes
    assert comm.size == 1 or all(one.last_round.background > 0 for one in its[:-1])
    assert progress[0].last_round.background == its[-1].last_round.background == 0
