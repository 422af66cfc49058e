"""The full network of a user's own, its weights gathered or where they lie, against the plain module in one process."""

import networks
import numpy as np
import pytest
import torch
from live_bytes import LiveBytes
from small import own_run
from torch import nn

from istmpi.cost import cost
from istmpi.cost.evaluation import evaluation_plan
from istmpi.cost.passing import pass_bytes
from istmpi.engine.store import ParameterStore
from istmpi.evaluation.full import FullNetwork
from istmpi.inspection.examine import inspect
from istmpi.names import NETWORKS as SHIPPED
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import user_network
from istmpi.network.scaling import multiply_sums
from istmpi.training.loop import Training
from tests.networks import joined_nets

FILE = networks.__file__
NETWORKS = {
    "convolutions": ("Convolutional", (1, 8, 8), {"channels": (7, 5), "hidden": 6}),
    "attention": ("Attention", (6, 10), {"heads": 3, "head_dim": 5, "embed": 7, "hidden": 5, "depth": 1}),
    "tables": ("Words", (9,), {"by_hand": False}),
    "a table read by hand": ("Words", (9,), {}),
    "tied": ("Shaken", (9,), {"hidden": 11}),
    "branching": ("Branching", (9,), {}),
    "joined": (f"{joined_nets.__file__}:Nerf", (9,), {"hidden": 13, "wide": 11}),
    "vgg": ("vgg", (1, 4, 4), {"channels": (4, 6, 5, 4, 5), "dense": (7, 6)}),
    "resnet": ("resnet", (2, 4, 4), {"blocks": (1, 1), "channels": (4, 6), "inner": (5, 4)}),
    "gated and residual": (
        "Grown",
        (9,),
        {"kinds": ("plain", "residual", "gated"), "widths": (8, 7, 5), "norms": ("batch", "none", "layer")},
    ),
}
SHARE = 0.4
OUTPUTS = 5


@pytest.fixture(scope="module")
def looked_at():
    """Every network's class with its arguments, and its table: each is looked at once."""
    known = {}

    def get(case):
        if case not in known:
            name, shape, settings = NETWORKS[case]
            source = name if name in SHIPPED or ":" in name else f"{FILE}:{name}"
            own = user_network(source, shape, OUTPUTS, settings)
            known[case] = own, inspect(own)
        return known[case]

    return get


def prepared(comm, looked_at):
    """The class, the network as the engine knows it, and this rank's initial weights, scaled as after a deal."""
    own, table = looked_at
    network = Architecture(own.name, table, "float64", own)
    store = ParameterStore(network.parameters, network.lengths, comm.size, comm.rank)
    store.initialise(3)
    store.scale = {group: SHARE for groups in network.sums.values() for group in groups}
    return own, network, store


def naive(comm, own, network, store, sample, batches):
    """What the plain class makes of each batch, calibrated on ``sample``, and the moments. The scale is by hand."""
    per_rank = comm.allgather({name: values.numpy() for name, values in store.tensors.items()})
    weights = {name: torch.from_numpy(np.concatenate([rows[name] for rows in per_rank])) for name in store.tensors}
    module = own.build().double()
    for name, parameter in module.named_parameters():
        parameter.data = weights[name]
    factors = {path: SHARE ** len(groups) for path, groups in network.sums.items() if groups}
    for path, factor in factors.items():
        layer = module.get_submodule(path)
        factor = torch.full((layer.weight.shape[1],), factor, dtype=torch.float64)
        if path in network.table.joined:
            factor[13:] = 1.0  # these columns are of inputs
        along = factor.view(1, -1, *[1] * (layer.weight.ndim - 2))
        layer.weight = nn.Parameter(layer.weight.detach() * along)
    for name, groups in network.table.folded.items():
        module.get_parameter(name).data *= SHARE ** sum(group in store.scale for group in groups)
    calls = network.scaled_calls(store.full_scale)
    multiply_sums(module, lambda: (calls, {}))
    norms = {name: one for name, one in module.named_modules() if isinstance(one, nn.BatchNorm1d | nn.BatchNorm2d)}
    counts = {}
    for name, norm in norms.items():

        def count(_, inputs, name=name):
            counts.setdefault(name, inputs[0].numel() // inputs[0].shape[1])

        norm.momentum = 1.0
        norm.register_forward_pre_hook(count)
    module.eval()
    for norm in norms.values():
        norm.train()
    with torch.no_grad():
        module(sample)
        for name, norm in norms.items():
            norm.running_var *= (counts[name] - 1) / counts[name]
        module.eval()
        moments = {name: (norm.running_mean.clone(), norm.running_var.clone()) for name, norm in norms.items()}
        return [module(x) for x in batches], moments


def examples(shape, count, seed):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_moments(found, expected):
    assert found.keys() == expected.keys()
    for name, pair in expected.items():
        for mine, theirs in zip(found[name], pair, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12, msg=name)


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("case", NETWORKS)
def test_gathered_and_sharded_agree_with_the_plain_module(comm, looked_at, case):
    """Where all is gathered each rank calibrates on its share, as many as there are."""
    own, network, store = prepared(comm, looked_at(case))
    shape = NETWORKS[case][1]
    sample, batches = examples(shape, 23, 0), [examples(shape, count, count) for count in (1, 8, 5)]
    expected, moments = naive(comm, own, network, store, sample, batches)
    everything = {name for names in network.leaves.values() for name in names}
    one = set(next(iter(network.leaves.values())))
    assert everything and (case != "a table read by hand" or "other.weight" not in everything)
    # A share of the examples may take another branch than all of them.
    for sharded in (everything, one, *[set()] * (case != "branching")):
        full = FullNetwork(network, store, comm, sharded)
        assert full.same_examples == bool(sharded) != full.shares_examples
        for _ in range(2):  # released, and with weights once more
            full.calibrate(sample if sharded else sample[comm.rank :: comm.size])
            assert_moments(full.moments, moments)
            for x, outputs in zip(batches, expected, strict=True):
                found = full(x)
                assert found.is_contiguous()
                torch.testing.assert_close(found, outputs, rtol=0, atol=1e-12)
            full.release()
        again = FullNetwork(network, store, comm, sharded)
        again.load_moments(full.moments)
        assert torch.equal(again(x), found)


@pytest.mark.ranks(only=[4])
@pytest.mark.parametrize("case", [case for case in NETWORKS if case != "branching"])
def test_weights_come_to_examples_that_stay_on_their_rank(comm, looked_at, case):
    own, network, store = prepared(comm, looked_at(case))
    shape = NETWORKS[case][1]
    samples = [examples(shape, 7 + rank, rank) for rank in range(comm.size)]
    batches = [[examples(shape, 3 + n, 10 * rank + n) for n in range(2 * rank % 3 + 1)] for rank in range(comm.size)]
    mine = batches[comm.rank]
    everything = {name for names in network.leaves.values() for name in names}
    expected, moments = naive(comm, own, network, store, torch.cat(samples), mine)
    for sharded in (everything, set()):
        full = FullNetwork(network, store, comm, sharded, local_examples=True)
        full.calibrate(samples[comm.rank])
        assert_moments(full.moments, moments)
        found = [full(x) for x in mine]
        full.finish()
        for one, outputs in zip(found, expected, strict=True):
            torch.testing.assert_close(one, outputs, rtol=0, atol=1e-12)


@pytest.mark.ranks(min=2)
def test_ranks_whose_examples_take_other_branches_wait_for_nobody(comm, looked_at):
    """Every other rank calls a layer that the others leave out, and each calls another one more often."""
    own, network, store = prepared(comm, looked_at("branching"))
    per_rank = comm.allgather({name: values.numpy() for name, values in store.tensors.items()})
    module = own.build().double()
    for name, parameter in module.named_parameters():
        parameter.data = torch.from_numpy(np.concatenate([rows[name] for rows in per_rank]))
    for path, groups in network.sums.items():
        layer = module.get_submodule(path)
        layer.weight.data = layer.weight * SHARE ** len(groups)
    module.norm.register_forward_pre_hook(lambda _, inputs: arrived.append(inputs[0]))
    samples, arrived = [], []
    with torch.no_grad():
        for rank in range(comm.size):
            drawn = (10.0**rank * examples((9,), 5 + rank, seed) for seed in range(1000))
            samples.append(next(x for x in drawn if (module.first(x).sum() > 0) == bool(rank % 2)))
            module(samples[rank])
        centred = torch.cat(arrived) - torch.cat(arrived).mean(0)
        moments = {"norm": (torch.cat(arrived).mean(0), (centred**2).mean(0))}
    everything = {name for names in network.leaves.values() for name in names}
    for sharded in (everything, {"odd.weight", "odd.bias"}, set()):
        full = FullNetwork(network, store, comm, sharded, local_examples=True)
        full.calibrate(samples[comm.rank])
        assert_moments(full.moments, moments)
        found = full(samples[comm.rank])
        full.finish()
        variance, mean = moments["norm"][1], moments["norm"][0]
        expected = (arrived[comm.rank] - mean) / torch.sqrt(variance + module.norm.eps) * module.norm.weight
        expected = module.last(expected + module.norm.bias).detach()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_random_numbers_of_a_pass_are_the_same_on_all_ranks(comm):
    """Else each rank's rows would be multiplied by other examples; and nobody else's random numbers change."""
    noisy = user_network(f"{FILE}:Noisy", (9,), OUTPUTS, {})
    own, network, store = prepared(comm, (noisy, inspect(noisy)))
    full = FullNetwork(network, store, comm, {"first.weight", "first.bias", "last.weight", "last.bias"})
    torch.manual_seed(comm.rank)
    state = torch.get_rng_state()
    full.calibrate(examples((9,), 4, 0))
    found = full(examples((9,), 4, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(np.array_equal(one, found.numpy()) for one in comm.allgather(found.numpy()))
    values = {name: torch.from_numpy(np.concatenate(comm.allgather(t.numpy()))) for name, t in store.tensors.items()}
    module = own.build().double()
    module.load_state_dict(values)
    assert set(network.leaves) == {"first", "last"} and not store.scale, "nothing of it can be dealt out"
    torch.manual_seed(0)
    torch.testing.assert_close(found, module(examples((9,), 4, 1)).detach(), rtol=0, atol=1e-12)
    torch.set_rng_state(state)


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("case", NETWORKS)
def test_planned_bytes_are_counted_bytes(comm, looked_at, case):
    own, network, store = prepared(comm, looked_at(case))
    shape, passes = NETWORKS[case][1], [23, 8, 8, 3]
    x = [examples(shape, count, count) for count in passes]
    for room in (0, 3000, 10**9):
        plan = evaluation_plan(network, comm.size, room, passes)
        assert room > 0 or comm.size == 1 or plan.sharded
        full = FullNetwork(network, store, comm, plan.sharded)
        before = comm.traffic.bytes
        full.calibrate(x[0] if full.same_examples else x[0][comm.rank :: comm.size])
        for batch in x[1:] if full.same_examples else []:
            full(batch)
        sent = sum(comm.allgather(comm.traffic.bytes - before))
        totals = 0 if full.same_examples else 24 * comm.size * (comm.size - 1)  # the evaluator adds them up
        if {"table.weight", "other.weight"} & plan.sharded:  # planned at most: each row is looked up once
            assert sent <= plan.sent - totals
        elif case != "branching":  # which calls as many layers as the examples say
            assert sent == plan.sent - totals


WIDE = {"model__name": f"{FILE}:Grown", "model__widths": [300, 300], "train__rounds": 1, "train__batch": 4}
WIDE |= {"model__kinds": ["plain", "plain"], "model__norms": ["batch", "none"]}
WIDE |= {"evaluate__batch": 4, "evaluate__calibration_examples": 4}


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("method", ["ist", "local-sgd"])
def test_an_evaluation_needs_no_more_than_what_training_leaves_free(comm, monkeypatch, method):
    """And it sends what is planned. A small network, as this one, would need less than is always free."""
    monkeypatch.setattr("istmpi.cost.evaluation.ALWAYS_FREE", 0)
    monkeypatch.setattr("istmpi.cost.evaluation.FLOPS_OF_ONE", 0)
    training = Training(own_run(**WIDE, method__name=method), comm)
    score = list(training.rounds())[-1].score
    network, evaluator = training.architecture, training.evaluator
    training.method.publish()
    memory = cost(training.run, network, comm.size).parts[-1].memory
    weights = sum(8 * one.size(network.lengths) for one in network.parameters.values())
    assert weights == sum(comm.allgather(sum(tensor.nbytes for tensor in training.store.tensors.values())))
    assert bool(evaluator.plan.sharded) == (weights > memory.gradients + memory.activations) == (method == "ist")
    known = [*training.store.tensors.values(), *training.method.subnet.network.parameters()]
    before = comm.traffic.bytes
    with LiveBytes(known) as counter, training.store.borrowing(training.method.values_on_all_ranks()):
        again = evaluator.score()
    assert (again.loss, again.score, again.further.f1) == (score.loss, score.score, score.further.f1)
    assert sum(comm.allgather(comm.traffic.bytes - before)) == evaluator.plan.sent
    if method == "ist":
        assert counter.peak <= memory.gradients + memory.activations < weights
        assert evaluator.plan.gathered_bytes <= counter.peak
    else:
        assert weights <= counter.peak  # the counter sees what is gathered
    assert not any(parameter.numel() for parameter in evaluator.network.gathered.values()), "all is given back"


@pytest.mark.ranks(only=[1, 3])
@pytest.mark.parametrize("case", ["convolutions", "vgg", "resnet", "tied", "joined"])
def test_a_pass_makes_at_least_what_is_planned_and_no_multiple_of_it(comm, looked_at, case):
    own, network, store = prepared(comm, looked_at(case))
    run = own_run(evaluate__batch=400, evaluate__calibration_examples=300)
    sharded = evaluation_plan(network, comm.size, 0, [400]).sharded
    full, x = FullNetwork(network, store, comm, sharded), examples(NETWORKS[case][1], 400, 0)
    full.calibrate(x[:300])
    with LiveBytes([*store.tensors.values(), *full.gathered.values()]) as counter:
        full(x)
    assert 1 <= counter.peak / pass_bytes(run, network, comm.size, bool(sharded)) <= 3.2, counter.peak
