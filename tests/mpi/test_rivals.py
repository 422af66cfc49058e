"""Streaming DiLoCo, SparseLoCo, ADMM, elastic averaging and Downpour against naive loops over all networks."""

import numpy as np
import pytest
import torch
from replicas import replicas
from small import assert_near, small_run, trained, whole

from istmpi.engine.few_bits import Float4, TopK
from istmpi.engine.slots import Slot
from istmpi.engine.sparse_mean import SparseMean
from istmpi.training.loop import Training

PLAIN = {"model__norm": "none", "model__bias": True}
STREAM = {"method__name": "streaming-diloco", "method__local_steps": 8, "method__fragments": 2, "method__delay": 2}
SPARSE = {"method__name": "sparse-loco", "method__local_steps": 3}
FIRST, SECOND = ("hidden1", "labels"), ("hidden2",)
"""The layers of the two fragments: every other one."""
SENT_AND_TAKEN = ((3, 5, FIRST), (6, 8, SECOND))
"""A fragment's layers, sent after so many local steps and taken after so many, by hand."""


def of_layers(named, layers):
    return [name for name in named if name.split(".")[0] in layers]


def pass_in_4_bits(values):
    """Values as they arrive: tests/unit/test_codec.py has the nearest of 16 by hand."""
    return Float4().decode(Float4().encode(values), len(values))


def largest_of_chunks(values, top):
    """What a rank sends of a flat tensor, as a tensor with zeros elsewhere; test_codec.py has it by hand."""
    codec = TopK(top, (len(values),))
    places, chosen = codec.decode(codec.encode([torch.from_numpy(values)]), torch.float64)
    sent = np.zeros_like(values)
    sent[places] = chosen
    return sent


@pytest.mark.parametrize("state", [{}, {"optimizer__momentum": 0.5, "optimizer__lr": 0.05}], ids=["plain", "momentum"])
def test_streaming_diloco_is_what_its_authors_wrote(comm, state):
    training, _ = trained(comm, **{**PLAIN, **STREAM, **state, "data__placement": "sharded", "method__mix": 0.25})
    everyone, ranks = replicas(training.run, comm.size), comm.size
    common = {name: values.copy() for name, values in everyone[0].named().items()}
    velocity = {name: np.zeros_like(values) for name, values in common.items()}
    for round in range(4):
        on_its_way = {}
        for local_step in range(8):
            for one in everyone:
                one.step(one.batches.at(8 * round + local_step))
            for leaves, arrives, layers in SENT_AND_TAKEN:
                names = of_layers(common, layers)
                if leaves == local_step + 1:
                    apart = [{name: one.named()[name] - common[name] for name in names} for one in everyone]
                    on_its_way[layers] = mean_of(apart)
                if arrives == local_step + 1:
                    for name, change in on_its_way.pop(layers).items():
                        velocity[name] = 0.9 * velocity[name] + change
                        common[name] = common[name] + 0.7 * (change + 0.9 * velocity[name])
                        for one in everyone:
                            own = one.named()[name]
                            own[...] = 0.25 * own + 0.75 * common[name]
        assert not on_its_way
    assert_near(whole(training), common, 1e-6)
    assert_near(training.method.subnet.tensors, everyone[comm.rank].named(), 1e-6)
    assert ranks == 1 or not np.allclose(everyone[0].named()["labels.linear.bias"], common["labels.linear.bias"], 1e-4)
    assert_alike(comm, training.method._common)


def assert_alike(comm, tensors):
    bits = comm.allgather({name: values.numpy().tobytes() for name, values in tensors.items()})
    assert all(theirs == bits[0] for theirs in bits)


def mean_of(apart):
    """The mean over ranks, quantised twice. An owner adds its own piece, then those before it, the nearest first."""
    rows = [np.concatenate([one[name].ravel() for name in one]).astype(np.float32) for one in apart]
    pieces = []
    for rank in range(len(rows)):
        piece = slice(len(rows[0]) * rank // len(rows), len(rows[0]) * (rank + 1) // len(rows))
        total = sum(pass_in_4_bits(rows[(rank - step) % len(rows)][piece]) for step in range(len(rows)))
        pieces.append(pass_in_4_bits((total / np.float32(len(rows))).astype(np.float32)))
    flat, found = np.concatenate(pieces).astype(np.float64), {}
    for name, values in apart[0].items():
        found[name], flat = flat[: values.size].reshape(values.shape), flat[values.size :]
    return found


@pytest.mark.parametrize("outer", [{}, {"method__outer_lr": 0.6, "method__outer_momentum": 0.5}], ids=["1", "outer"])
def test_sparse_loco_is_what_its_authors_wrote(comm, outer):
    settings = {**PLAIN, **SPARSE, **outer, "model__hidden": [90, 60], "optimizer__momentum": 0.5}
    settings |= {"data__placement": "sharded", "method__top": 200, "optimizer__lr": 0.05}
    training, _ = trained(comm, **settings)
    everyone = replicas(training.run, comm.size)
    common = {name: each.copy() for name, each in everyone[0].named().items()}
    errors = [{name: np.zeros(each.size) for name, each in common.items()} for _ in everyone]
    velocity = dict.fromkeys(common, 0.0)
    lr, momentum = (0.6, 0.5) if outer else (1.0, 0.0)
    for round in range(4):
        for one in everyone:
            for local_step in range(3):
                one.step(one.batches.at(3 * round + local_step))
        for name, start in common.items():
            change = 0.0
            for one, error in zip(everyone, errors, strict=True):
                error[name] = 0.95 * error[name] + (one.named()[name] - start).ravel()
                sent = largest_of_chunks(error[name], 200)
                error[name] = error[name] - sent
                change = change + sent.reshape(start.shape) / comm.size
            velocity[name] = momentum * velocity[name] + change
            common[name] = start + lr * (change + momentum * velocity[name])
            for one in everyone:
                one.named()[name][...] = common[name]
    assert_near(whole(training), common)
    assert_alike(comm, {name: training.method.subnet.tensors[name] for name in common})
    own = training.method.of_this_rank()
    for name, each in errors[comm.rank].items():
        np.testing.assert_allclose(own[Slot(name, "error")].numpy().ravel(), each, rtol=0, atol=1e-10)


def test_sparse_loco_has_no_copies_for_a_rollback_while_it_sends(comm, monkeypatch):
    take, copies = SparseMean.take, []
    training = Training(small_run(method__name="sparse-loco", optimizer__name="adam"), comm)

    def noted(*arguments):
        copies.extend(training.method.shards._own)
        take(*arguments)

    monkeypatch.setattr(SparseMean, "take", noted)
    assert len(list(training.rounds())) == 4 and copies == []


CASES = {
    "admm": {"method__name": "admm", "method__penalty": 0.3},
    "easgd, together": {"method__name": "easgd", "method__moving_rate": 0.6},
    "easgd, round-robin": {"method__name": "easgd", "method__moving_rate": 0.6, "method__order": "round-robin"},
    "downpour": {"method__name": "downpour"},
    "downpour, 3 rounds old": {"method__name": "downpour", "method__staleness": 3},
}
ROUNDS, STEPS = 4, 3


def naive(name, everyone, ranks):
    """Return the common weights behind all rounds; ``everyone``: a plain network for each rank, trained in place."""
    common = {key: values.copy() for key, values in everyone[0].named().items()}
    duals = [{key: np.zeros_like(values) for key, values in common.items()} for _ in everyone]
    zeros = {key: np.zeros_like(values) for key, values in common.items()}
    staleness = 3 if name.endswith("old") else 1
    past = [[zeros] * staleness for _ in everyone]
    for round in range(ROUNDS):
        starts = [{key: values.copy() for key, values in one.named().items()} for one in everyone]
        for rank, one in enumerate(everyone):
            for step in range(STEPS):
                here = {key: values.copy() for key, values in one.named().items()}
                one.step(one.batches.at(STEPS * round + step))
                if name == "admm":
                    for key, values in one.named().items():
                        values -= 0.05 * 0.3 * (here[key] - common[key] + duals[rank][key])
        for key, center in common.items():
            own = [one.named()[key] for one in everyone]
            if name == "admm":
                center[...] = sum(x + dual[key] for x, dual in zip(own, duals, strict=True)) / ranks
                for x, dual in zip(own, duals, strict=True):
                    dual[key] += x - center
            elif name == "easgd, together":
                before = center.copy()
                center += 0.6 / ranks * sum(x - before for x in own)
                for x in own:
                    x -= 0.6 / ranks * (x - before)
            elif name == "easgd, round-robin":
                for x in own:
                    apart = x - center
                    center += 0.6 / ranks * apart
                    x -= 0.6 / ranks * apart
            else:
                center += sum(changes[0][key] for changes in past) / ranks
                for x, start, changes in zip(own, starts, past, strict=True):
                    if key == [*common][0]:
                        changes.append({})
                    changes[-1][key] = x - start[key]
                    x[...] = center + sum(change[key] for change in changes[1:])
        past = [changes[-staleness:] for changes in past]
    return common


@pytest.mark.parametrize("name", CASES)
def test_it_is_its_formula(comm, name):
    training, _ = trained(comm, **PLAIN, **CASES[name], data__placement="sharded", optimizer__lr=0.05)
    everyone = replicas(training.run, comm.size)
    expected, found = naive(name, everyone, comm.size), whole(training)
    assert_near(found, expected)
    assert_near(training.method.subnet.tensors, everyone[comm.rank].named())
