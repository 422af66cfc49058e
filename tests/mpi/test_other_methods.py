"""Federated and dynamic averaging, DiLoCo, codistillation and a finish: against naive loops over all networks."""

import numpy as np
import pytest
import torch
from replicas import replicas
from small import assert_near, assert_same_bits, on_root, small_run, trained, whole
from torch.nn import functional

from istmpi import rng
from istmpi.engine.partition import draw_ranks
from istmpi.methods.logit_adjustment import LogitAdjustment
from istmpi.training.loop import Training

NO_NORM = {"model__norm": "none", "model__bias": True}


@pytest.mark.parametrize("fraction", [0.0001, 0.7, 1.0])
def test_fedavg_is_what_its_authors_wrote(comm, fraction):
    settings = {"data__placement": "by-label", "train__batch": 100, "optimizer__momentum": 0.5, **NO_NORM}
    settings |= (
        {"method__epochs": 2, "method__fraction": fraction} if fraction < 0.5 else {"method__fraction": fraction}
    )
    training, progress = trained(comm, method__name="fedavg", **settings)
    everyone = replicas(training.run, comm.size)
    current, taken = everyone[0].weights, set()
    passed = 0
    for round in range(4):
        drawn = draw_ranks(comm.size, fraction, training.run.train.seed, round)
        assert len(drawn) == max(int(fraction * comm.size), 1)
        taken |= {*drawn}
        total, examples = 0, 0
        for one in (everyone[rank] for rank in drawn):
            one.weights = current
            one.reset()
            count = one.batches.examples
            if one is everyone[comm.rank]:
                passed += training.run.method.epochs * count
            for epoch in range(training.run.method.epochs):
                for number in range(-(-count // 100)):
                    one.step(one.batches.read_from_pass(training.run.method.epochs * round + epoch, number))
            total, examples = total + count * one.weights, examples + count
        current = total / examples
    everyone[0].weights = current
    assert_near(whole(training), everyone[0].named())
    assert len(taken) > 1, "others are drawn in other rounds"
    assert training.method.examples == passed, "ranks that were not drawn do not train"


def test_dynamic_averaging_at_the_least_drift_is_local_sgd(comm):
    settings = {"optimizer__momentum": 0.9, "optimizer__lr": 0.03, "method__optimizer_state": "carry"}
    dynamic, _ = trained(comm, method__name="dynamic-averaging", method__threshold=0.0, **settings)
    local, _ = trained(comm, method__name="local-sgd", **settings)
    assert_near(whole(dynamic), whole(local), 1e-12)


@pytest.mark.ranks(min=2, also=5)
def test_dynamic_averaging_is_what_its_authors_wrote(comm):
    """Violators take their mean with as many others, until it is near the reference or they are half of all."""
    threshold = 0.012
    settings = {"method__threshold": threshold, "train__rounds": 8, "data__placement": "by-label", "data__alpha": 0.3}
    training = Training(small_run(method__name="dynamic-averaging", **settings), comm)
    everyone = replicas(training.run, comm.size)
    reference, seen = everyone[0].weights, []
    for round in range(8):
        for one in everyone:
            one.reset()
            for local_step in range(3):
                one.step(one.batches.at(3 * round + local_step))
        limit = threshold * (reference**2).sum()
        members = [rank for rank, one in enumerate(everyone) if ((one.weights - reference) ** 2).sum() > limit]
        order = rng.permutation(comm.size, rng.key(training.run.train.seed, "averaging", round)).tolist()
        while members:
            if len(members) >= comm.size / 2:
                members = [*range(comm.size)]
            mean = sum(everyone[rank].weights for rank in members) / len(members)
            if len(members) == comm.size or ((mean - reference) ** 2).sum() <= limit:
                break
            others = [rank for rank in order if rank not in members]
            members += others[: len(members)]
        for rank in members:
            everyone[rank].weights = mean
        reference = mean if len(members) == comm.size else reference
        seen.append(len(members))
        before = comm.traffic.bytes
        training.method.run(round)
        assert members or comm.traffic.bytes == before, "without a violator, nothing is sent"
        assert_near(training.method.subnet.tensors, everyone[comm.rank].named())
    everyone[0].weights = sum(one.weights for one in everyone) / comm.size
    training.method.publish()
    assert_near(whole(training), everyone[0].named())
    assert {0, comm.size} <= set(seen), "rounds below the threshold, and above"
    assert comm.size < 5 or 2 in seen, "rounds in which some took their mean"


@pytest.mark.parametrize("rate, momentum", [(0.7, 0.9), (1.0, 0.0)])
def test_diloco_is_what_its_authors_wrote(comm, rate, momentum):
    """Workers are AdamW whose state no round touches; the outer optimizer is PyTorch's SGD with Nesterov's momentum."""
    settings = {"optimizer__name": "adamw", "optimizer__lr": 0.01, "optimizer__weight_decay": 0.1, **NO_NORM}
    settings |= {"method__outer_lr": rate, "method__outer_momentum": momentum, "data__placement": "sharded"}
    training, _ = trained(comm, method__name="diloco", **settings)
    everyone = replicas(training.run, comm.size)
    for one in everyone:
        one.optimizer = torch.optim.AdamW(one.module.parameters(), lr=0.01, weight_decay=0.1)
    common = torch.nn.Parameter(everyone[0].weights)
    outer = torch.optim.SGD([common], lr=rate, momentum=momentum, nesterov=bool(momentum))
    for round in range(4):
        for one in everyone:
            one.weights = common.detach()
            for local_step in range(3):
                one.step(one.batches.at(3 * round + local_step))
        common.grad = common.detach() - sum(one.weights for one in everyone) / comm.size
        outer.step()
    everyone[0].weights = common.detach()
    assert_near(whole(training), everyone[0].named(), 1e-12)
    if not momentum:
        local, progress = trained(comm, method__name="local-sgd")
        same, its = trained(comm, method__name="diloco", method__outer_lr=rate, method__outer_momentum=momentum)
        assert_same_bits(whole(same), whole(local))
        assert [one.bytes for one in its] == [one.bytes for one in progress]


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_codistillation_is_what_its_authors_wrote(comm, norm):
    settings = {"optimizer__momentum": 0.5, "optimizer__lr": 0.03, "method__burn_in": 1, "model__norm": norm}
    training, _ = trained(comm, method__name="codistillation", data__placement="sharded", **settings)
    everyone = replicas(training.run, comm.size)
    stale = replicas(training.run, comm.size)
    for round in range(4):
        for one, copy in zip(everyone, stale):
            copy.weights = one.weights
        for rank, one in enumerate(everyone):
            teachers = [copy.module for other, copy in enumerate(stale) if other != rank and round >= 1]
            for local_step in range(3):
                one.step(one.batches.at(3 * round + local_step), teachers)
    assert_near(whole(training), everyone[0].named())


def go_on(training, source, rounds):
    """Give a fresh training the weights of another one, and have it run these rounds."""
    for name, tensor in training.store.tensors.items():
        if name in source.store.tensors:
            tensor.copy_(source.store.tensors[name])
    for round in rounds:
        training.method.run(round)
    training.method.publish()


OWN_STATE = "admm", "easgd", "downpour"
"""Methods whose optimizer states no owner has, so that a finish begins without any."""
FINISHES = [("ist", last) for last in ("data-parallel", "diloco", "codistillation")]
FINISHES += [(first, "ist") for first in ("codistillation", "dynamic-averaging", *OWN_STATE)]
FINISHES += [("sparse-loco", "streaming-diloco"), ("streaming-diloco", "local-sgd")]


@pytest.mark.ranks(only=[2])
@pytest.mark.parametrize("first, last", FINISHES)
def test_a_finish_starts_from_what_came_before(comm, first, last):
    settings = {"optimizer__name": "adam", "optimizer__lr": 0.02, "method__burn_in": 1, "method__threshold": 0.001}
    settings |= {"method__optimizer_state": "carry"} if first in OWN_STATE else {}
    both, progress = trained(comm, method__name=first, method__finish=f"{last}:50%", **settings)
    before, _ = trained(comm, method__name=first, train__rounds=2, **settings)
    before.method.publish()
    after = Training(small_run(method__name=last, **settings), comm)
    keeps = before.method.spec.optimizer_slots(before.run) and first not in OWN_STATE
    after.method.job.state_since = 0 if keeps else 2
    go_on(after, before, (2, 3))
    both.method.publish()
    mine, expected = whole(both), whole(after)
    for name in (name for name in expected if "/" not in name):
        np.testing.assert_array_equal(mine[name], expected[name], err_msg=name)
    assert [one.round for one in progress] == [1, 2, 3, 4]
    assert progress[-1].local_steps == 12


def test_any_class_of_optimizers_trains_by_its_name(comm, shared_tmp):
    """Its state may have values that no step reads, as the norms of a LAMB."""
    file = shared_tmp / "mine.py"
    text = """import torch
class Mine(torch.optim.RMSprop):
    def step(self):
        super().step()
        for weight, state in self.state.items():
            state["norm"] = weight.norm()
"""
    on_root(comm, lambda: file.write_text(text))
    settings = {"optimizer__arguments": {"alpha": 0.9}, "optimizer__lr": 0.01, "method__optimizer_state": "carry"}
    runs = [trained(comm, optimizer__name=name, **settings)[0] for name in ("torch.optim:RMSprop", f"{file}:Mine")]
    assert_same_bits(*map(whole, runs))
    assert "hidden1.linear.weight/square_avg" in map(str, runs[0].store.tensors)


def test_logits_are_those_of_a_rank_with_equally_many_of_each_class(comm):
    by_label = {"data__placement": "by-label", "data__alpha": 0.2, "model__output_norm": False}
    training, adjusted = (Training(small_run(**by_label, train__logit_adjustment=by), comm) for by in (0.0, 1.0))
    labels = training.batches.labels
    assert len(labels) == training.batches.examples
    logits, targets = torch.randn(6, 10, dtype=torch.float64), torch.from_numpy(labels[:6].astype(np.int64))
    loss = functional.cross_entropy(LogitAdjustment(training.batches, 1.0)(logits), targets)
    counts = torch.tensor([(labels == label).sum() for label in range(10)], dtype=torch.float64)
    weighted = counts * logits.exp()
    by_hand = -(weighted[range(6), targets] / weighted.sum(1)).log().mean()
    assert float(loss) == pytest.approx(float(by_hand))
    several = LogitAdjustment(training.batches, 0.5)([logits, 2 * logits])
    assert torch.allclose(several[1] - 2 * logits, several[0] - logits)
    assert next(training.rounds()).loss != next(adjusted.rounds()).loss
