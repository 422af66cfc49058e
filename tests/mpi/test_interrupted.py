"""A run that is saved between rounds and stopped inside others goes on bit for bit, for every method and network."""

import pytest
from own_runs import CONVOLUTIONAL, DEEP, SHAKEN
from replaying import run_of
from resuming import save, stop_at
from small import assert_same_bits, whole

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.config.methods import METHODS
from istmpi.training.loop import Training
from tests.networks import joined_nets

MOMENTUM = {"optimizer__momentum": 0.9}
CARRIED = {"method__optimizer_state": "carry"}
ADAM = {"optimizer__name": "adam", "optimizer__lr": 0.01}
KEPT = ADAM | {"method__optimizer_state": "keep"}
BASE = {"model__dropout": 0.3, "model__bias": True, "method__redeal": 0.5, "method__local_steps": 4}
SPECIAL = {
    "streaming-diloco": {"method__fragments": 2, "method__delay": 0},  # leaves and arrives after 2 and 4 steps
    "fedavg": {"train__batch": 300, "method__fraction": 0.7},  # 5 steps in a pass, more than method.local_steps
    "dynamic-averaging": {"method__threshold": 0.002},  # some rounds above, some below
    "codistillation": {"method__burn_in": 1},
}
IMAGES = {"data__crop": 2, "data__flip": True, "data__cutout": 3}
SLOW_FRAGMENTS = {"method__local_steps": 8, "method__fragments": 2, "method__delay": 2}
BY_METHOD = {
    **{f"{method}, adam carried": {"method__name": method, **ADAM, **CARRIED} for method in METHODS},
    "ist, momentum carried": MOMENTUM | CARRIED,
    "ist, adam reset": ADAM,
    "ist, images and rates": MOMENTUM | IMAGES | {"optimizer__warm_up": 2, "optimizer__schedule": "cosine"},
    "diloco, adam kept": {"method__name": "diloco", **KEPT},
    "local-sgd, adam kept": {"method__name": "local-sgd", **KEPT},
    "streaming-diloco, a fragment on its way": {"method__name": "streaming-diloco", **MOMENTUM},
}
"""Every method with the optimizer that has most state, and others."""
EARLY = {
    "adam carried": ADAM | CARRIED,
    "momentum reset": MOMENTUM | {"method__redeal": 0.4},
    "int8": {"method__wire": "int8", "model__dtype": "float32"},
    "bfloat16": {"method__wire": "bfloat16", "model__dtype": "float32", **MOMENTUM, **CARRIED},
    "one group": {"method__partition": ["hidden2"]},
    "seldom shared": {"method__partition": ["hidden2"], "method__share_every": 3},
    "uneven shares": {"method__shares": [3.0, 1.0, 2.0]},
    "a finish": {"method__finish": "local-sgd:25%"},
}
FINISHES = {
    "data-parallel": ADAM | CARRIED,
    "diloco": ADAM,
    "codistillation": ADAM,
    "dynamic-averaging": ADAM | CARRIED,
}
"""The other half of the rounds of a run that IST begins."""
ROUNDED = {
    "adam carried": ADAM | CARRIED,
    "round a ring": {"method__share_every": 2, "method__partition": ["hidden2"]},
    "outer momentum": {"method__outer_momentum": 0.5},
    "local-sgd, outer momentum": {"method__name": "local-sgd", "method__outer_momentum": 0.5},
    "data-parallel": {"method__name": "data-parallel", **ADAM, **CARRIED},
    "fedavg": {"method__name": "fedavg", **ADAM, **CARRIED},
}
TOP = {"method__partition": ["hidden1"], "method__shared_wire": "top-k", "method__top": 900}
LARGEST = {
    "sgd": TOP,
    "adam carried": TOP | ADAM | CARRIED,
    "seldom shared": TOP | ADAM | CARRIED | {"method__share_every": 3},
}
NERF = {"model__name": f"{joined_nets.__file__}:Nerf", "model__hidden": 13, "model__wide": 11, **ADAM, **CARRIED}
NETWORKS = {
    "own": SHAKEN,
    "blocks": DEEP | MOMENTUM | CARRIED,
    "blocks, seldom shared": DEEP | {"method__share_every": 3},
    "joined": NERF,
    "joined, a part redealt": NERF | {"method__redeal": 0.3},
    "joined, some widths": NERF | {"method__partition": ["wide"], "method__share_every": 2},
    "joined, in fewer bits": NERF | {"method__wire": "int8", "model__dtype": "float32"},
    "joined, outer momentum": NERF | {"method__outer_momentum": 0.5},
    "joined, shares": NERF | {"method__shares": [2.0, 1.0, 1.0]},
}
GROWN = CONVOLUTIONAL | {"train__resolution": [[0.5, 4], [0.5, 8]], **ADAM, **CARRIED}
GROWING = {
    f"growing images, {method}": GROWN | {"method__name": method, **SPECIAL.get(method, {})}
    for method in METHODS
    if method not in ("local-sgd", "data-parallel", "easgd", "downpour")
}
"""One of the methods that keep alike from round to round is enough: diloco."""
GROWING |= {
    "growing images, seldom shared": GROWN | {"method__partition": ["hidden"], "method__share_every": 3},
    "growing images, early": GROWN | {"method__delay": 2},
}


def cases():
    """Yield a name and the settings of each run."""
    for case, settings in BY_METHOD.items():
        special = SLOW_FRAGMENTS if "on its way" in case else SPECIAL.get(settings.get("method__name"), {})
        yield case, {**BASE, **settings, **special}
    for case, settings in EARLY.items():
        yield f"early, {case}", {**BASE, "method__delay": 2, **settings}
    for method, settings in FINISHES.items():
        yield f"ist, then {method}", {**BASE, **settings, **SPECIAL.get(method, {}), "method__finish": f"{method}:50%"}
    for case, settings in ROUNDED.items():
        special = SPECIAL.get(settings.get("method__name"), {})
        yield f"int8, {case}", {**BASE, **settings, "method__wire": "int8", "model__dtype": "float32", **special}
    for case, settings in LARGEST.items():
        yield f"largest changes, {case}", BASE | settings
    for case, settings in (NETWORKS | GROWING).items():
        yield case, settings | {"train__rounds": 4, "method__local_steps": 4}


CASES = dict(cases())


TWO_HALVES = {"method__finish", "train__resolution"}
STOPS = ((1, 1), (2, 2), (3, 1))
"""Rounds and local steps. The last one is of runs of two halves, where the second half has been saved once."""


def allow_rounds(settings):
    """How many rounds more may be done when a run ends that was stopped inside one."""
    last = settings.get("method__finish", settings.get("method__name", "ist")).partition(":")[0]
    if last in ("data-parallel", "streaming-diloco"):
        return (0, 1)  # ranks that ask each other inside a round leave it together, perhaps at its end
    if settings.get("method__delay"):  # what has left before the end must arrive
        return (0, 1) if settings.keys() & TWO_HALVES else (1,)
    return (0,)


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("number, case", [*enumerate(CASES)], ids=CASES)
def test_a_run_that_is_saved_and_stopped_again_and_again_goes_on_bit_for_bit(comm, shared_tmp, number, case):
    """Stopped in some rounds, by one rank or by every rank elsewhere; what was resumed is saved before it goes on."""
    settings = CASES[case]
    run = run_of(settings, comm.size, shared_tmp) if comm.rank == 0 else None
    run = comm.broadcast_from_root(run)
    expected = Training(run, comm)
    progress = list(expected.rounds())
    path = shared_tmp / "between.h5"
    training = Training(run, comm)
    rounds = training.rounds()
    seen = [next(rounds)]
    save(training, path)
    rounds.close()
    for round, step in STOPS if settings.keys() & TWO_HALVES else STOPS[:2]:
        first = Training(run, comm)
        first.resume(path)
        assert (first.position, first.size.side) == (training.position, training.size.side)
        training = Training(run, comm)
        training.resume(save(first, shared_tmp / "again.h5"))
        busy = [rank for rank, steps in enumerate(comm.allgather(training.method.steps(round))) if steps]
        if number % 2:
            stop_at(training, round, (step + comm.rank) % run.method.local_steps)
        elif comm.rank == busy[-1]:
            stop_at(training, round, step)
        seen += list(training.rounds())
        assert training.stop.reason == "a test"
        assert training.rounds_done - round in allow_rounds(settings)
        path = save(training, shared_tmp / f"{round}.h5")
        with open_checkpoint(path) as checkpoint:
            assert comm.rank or list(checkpoint.errors()) == []
            assert checkpoint.header.position == (training.rounds_done, 0)
    training = Training(run, comm)
    training.resume(path)
    seen += list(training.rounds())
    assert_same_bits(whole(training), whole(expected))
    assert [(one.loss, one.learning_rate) for one in seen] == [(one.loss, one.learning_rate) for one in progress]
    assert seen[-1].examples == progress[-1].examples
