"""Frozen weights that are given: every rank has them, and resumed runs, checkpoints and exports have the same."""

import networks
import pytest
import torch
from small import assert_same_bits, on_root, whole

import istmpi
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.deploy.export import export
from istmpi.errors import ConfigError, DataError
from istmpi.training.watch import Watch

SETTINGS = {"local_steps": 2, "seed": 5, "threads": 1, "device": "cpu", "lr": 0.01}
X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


def job_of(comm, kind=networks.FrozenTrunk, **settings):
    return istmpi.Distributed(kind, {}, comm, example=X, **SETTINGS | settings)


def train(job, folder, rounds, **more):
    for round in job.rounds(rounds, folder=folder, watch=Watch(), signals=False, **more):
        for step in round.steps():
            x = torch.randn(4, 5, generator=torch.Generator().manual_seed(2 * round.number + step))
            round.step(round.module(x.to(next(round.module.parameters()).dtype)).square().mean())
    return score(job)


def score(job):
    dtype = next(iter(job.training.store.tensors.values())).dtype
    return job.evaluate(lambda module, x: module(x.to(dtype)).mean(), [X])


@pytest.fixture
def folder(comm, shared_tmp):
    safetensors = pytest.importorskip("safetensors.torch")
    if comm.rank == 0:
        (shared_tmp / "given").mkdir()
        given = {"bert.trunk.weight": torch.arange(20.0).view(4, 5) / 10, "bert.first.weight": torch.ones(8, 4) / 4}
        safetensors.save_file(given, shared_tmp / "given/model.safetensors")
    comm.barrier()
    return shared_tmp


@pytest.mark.parametrize("method, dtype", [("ist", "float32"), ("local-sgd", "float64")])
def test_frozen_weights_that_are_given_stay_the_same_when_resumed_and_exported(comm, folder, method, dtype):
    settings = {"method": method, "dtype": dtype}
    given = settings | {"init": str(folder / "given"), "init_names": {"bert.": ""}}
    uninterrupted = job_of(comm, **given)
    assert train(uninterrupted, folder / "whole", 2) != score(job_of(comm, **given))
    train(job_of(comm, **given), folder / "halves", 1)
    resumed = job_of(comm, **settings)
    assert train(resumed, folder / "halves", 2, resume="auto") == score(uninterrupted)
    assert_same_bits(whole(resumed.training), whole(uninterrupted.training))
    network = folder / "halves/network.h5"
    assert score(job_of(comm, **settings, init=str(network))) == pytest.approx(score(resumed), rel=1e-5)
    state = resumed.state_dict()
    if comm.rank == 0:
        assert torch.equal(state["trunk.weight"].float(), torch.arange(20.0).view(4, 5) / 10)
        exported = export(network, "torch", folder / "network.pt", model=f"{networks.__file__}:FrozenTrunk").path
        for name, values in torch.load(exported)["state_dict"].items():
            assert torch.equal(values, state[name]), name
        with open_checkpoint(network) as checkpoint:
            assert [*checkpoint.frozen] == ["trunk.weight"]  # what the constructor makes is not there twice


def test_frozen_weights_that_a_constructor_makes_otherwise_are_refused_when_resumed(comm, shared_tmp):
    train(job_of(comm, networks.Valued), shared_tmp / "run", 1)
    comm.barrier()
    try:
        networks.Valued.value = 2.0
        comm.barrier()
        with pytest.raises(ConfigError, match="network.h5: the frozen weights .* differ from that run's"):
            train(job_of(comm, networks.Valued), shared_tmp / "run", 2, resume="auto")
    finally:
        comm.barrier()
        networks.Valued.value = 1.0


def weights():
    yield "trunk.weight", torch.arange(20.0).view(4, 5) / 10
    yield "steps", torch.zeros(1).long()
    yield "first.weight", torch.arange(32.0).view(8, 4) / 40
    yield "last.weight", torch.full((1, 8), 0.1)


@pytest.mark.parametrize("method, how", [("ist", "function"), ("local-sgd", "name")])
def test_weights_that_a_function_yields_reach_the_ranks_that_keep_them(comm, shared_tmp, method, how):
    called = []

    def yielding():
        called.append(comm.rank)
        yield from weights()

    init = yielding if how == "function" else f"{__file__}:weights"
    job = job_of(comm, method=method, init=init)
    on_root(comm, lambda: torch.save(dict(weights()), shared_tmp / "weights.pt"))
    other = job_of(comm, method=method, init=str(shared_tmp / "weights.pt"))
    assert score(job) == score(other)
    assert_same_bits(whole(job.training), whole(other.training))
    assert called == [0] * (how == "function" and comm.rank == 0)
    assert job.training.begun[0].endswith(": 3 of 6 parameters.")


def failing():
    yield "trunk.weight", torch.zeros(4, 5)
    raise OSError("the disk is gone")


@pytest.mark.parametrize(
    "function, kind, message",
    [
        (failing, DataError, r"OSError: the disk is gone. It must yield \(name, tensor\) pairs."),
        (lambda: ["trunk.weight"], DataError, "ValueError: too many values to unpack"),
        (lambda: [("head.bias", X)], ConfigError, r"yields head.bias \(6, 5\); the network takes nothing of this name"),
        (lambda: [("last.bias", X[0])], ConfigError, r"yields last.bias \(5,\); the network takes \(1,\)"),
        (lambda: [("last.bias", X[0, :1] / 0)], ConfigError, ", finite."),
        (f"{__file__}:missing", ConfigError, "it has no function missing"),
    ],
)
def test_a_function_that_yields_no_weights_ends_all_ranks(comm, function, kind, message):
    with pytest.raises(kind, match=message):
        score(job_of(comm, init=function))
