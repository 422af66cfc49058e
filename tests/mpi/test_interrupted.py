"""A run that is saved between rounds and stopped inside others goes on bit for bit, for every method and network."""

import pytest
from own_runs import CONVOLUTIONAL, DEEP, NERF, SHAKEN
from replay_cases import XC
from replaying import run_of
from resuming import save, stop_at
from small import assert_same_bits, whole

from istmpi.config.methods import METHODS
from istmpi.training.loop import Training

MOMENTUM = {"optimizer__momentum": 0.9}
CARRIED = {"method__optimizer_state": "carry"}
ADAM = {"optimizer__name": "adam", "optimizer__lr": 0.01}
BASE = {"model__dropout": 0.3, "model__bias": True, "method__redeal": 0.5}
SPECIAL = {
    "streaming-diloco": {"method__fragments": 2, "method__delay": 0},  # leaves and arrives after 2 and 4 steps
    "fedavg": {"train__batch": 300, "method__fraction": 0.7},  # 5 steps in a pass, more than method.local_steps
    "dynamic-averaging": {"method__threshold": 0.002},  # some rounds above, some below
    "codistillation": {"method__burn_in": 1},
}
IMAGES = {"data__crop": 2, "data__flip": True, "data__cutout": 3}
SEEN_LESS = {"method__partition": ["hidden2"], "method__share_every": 2}
EARLY = {"method__delay": 2}
INT8 = {"method__wire": "int8", "model__dtype": "float32"}
TOP = {"method__partition": ["hidden1"], "method__shared_wire": "top-k", "method__top": 900}
SLOW_FRAGMENTS = {"method__local_steps": 8, "method__fragments": 2, "method__delay": 2}
ROUNDS = {
    **{f"{method}, adam carried": {"method__name": method, **ADAM, **CARRIED} for method in METHODS},
    "ist, images and rates": MOMENTUM | IMAGES | {"optimizer__warm_up": 2, "optimizer__schedule": "cosine"},
    "local-sgd, adam kept": {"method__name": "local-sgd", **ADAM, "method__optimizer_state": "keep"},
    "streaming-diloco, a fragment on its way": {"method__name": "streaming-diloco", **MOMENTUM, **SLOW_FRAGMENTS},
    "early, int8": EARLY | INT8,
    "early, seldom shared": EARLY | SEEN_LESS,
    "early, a finish": EARLY | {"method__finish": "local-sgd:25%"},
    "ist, then data-parallel": ADAM | CARRIED | {"method__finish": "data-parallel:50%"},
    "int8, outer momentum": INT8 | {"method__outer_momentum": 0.5},
    "downpour, three rounds old": {"method__name": "downpour", "method__staleness": 3, **ADAM},
    "joint, two passes": {"method__name": "joint", "method__passes": 2, **ADAM, **CARRIED},
    "largest changes, seldom shared": TOP | ADAM | CARRIED | {"method__share_every": 2},
}
"""Of the mlp: every method with the optimizer that has most state, and what else a round can be."""
JOINED = NERF | ADAM | CARRIED
GROWN = CONVOLUTIONAL | {"train__resolution": [[0.5, 4], [0.5, 8]], **ADAM, **CARRIED}
NETWORKS = {
    "own": SHAKEN,
    "sparse rows": XC | MOMENTUM | CARRIED,
    "blocks, seldom shared": DEEP | MOMENTUM | CARRIED | {"method__share_every": 2},
    "joined, a part redealt in fewer bits": JOINED | INT8 | {"method__redeal": 0.3},
    "joined, shares and outer momentum": JOINED | {"method__shares": [2.0, 1.0, 1.0], "method__outer_momentum": 0.5},
    "growing images, streaming-diloco": GROWN | {"method__name": "streaming-diloco"} | SPECIAL["streaming-diloco"],
    "growing images, early": GROWN | EARLY,
}
"""Of networks that grow: methods that keep something else from round to round."""
TWO_HALVES = {"method__finish", "train__resolution"}


def cases():
    mlps = {case: BASE | SPECIAL.get(of.get("method__name"), {}) | of for case, of in ROUNDS.items()}
    for case, settings in (mlps | NETWORKS).items():
        rounds = 4 if settings.keys() & (TWO_HALVES | {"method__delay"}) else 3
        yield case, {"method__local_steps": 4} | settings | {"train__rounds": rounds}


CASES = dict(cases())
STOPS = ((1, 1), (2, 2), (3, 1))
"""Rounds and local steps. The last one is of runs of two halves, where the second half has been saved once."""


def choose_stops(case, number):
    """A run of two halves is stopped in both rounds of its second half, others in the second or the third round."""
    return STOPS[1:] if CASES[case].keys() & TWO_HALVES else STOPS[number // 2 % 2 :][:1]


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
    run = comm.broadcast_from_root(run_of(settings, comm.size, shared_tmp) if comm.rank == 0 else None)
    training = expected = Training(run, comm)
    rounds = expected.rounds()
    seen = [next(rounds)]
    path = save(expected, shared_tmp / "between.h5")
    place = expected.position, expected.size.side
    progress = [*seen, *rounds]
    for round, step in choose_stops(case, number):
        training = Training(run, comm)
        training.resume(path)
        assert (training.position, training.size.side) == place
        if round == 1:
            path = save(training, shared_tmp / "again.h5")
            training = Training(run, comm)
            training.resume(path)
        busy = [rank for rank, steps in enumerate(comm.allgather(training.method.steps(round))) if steps]
        if number % 2:
            stop_at(training, round, (step + comm.rank) % run.method.local_steps)
        elif comm.rank == busy[-1]:
            stop_at(training, round, step)
        seen += list(training.rounds())
        assert training.stop.reason == "a test"
        assert training.rounds_done - round in allow_rounds(settings)
        path = save(training, shared_tmp / f"{round}.h5")
        place = training.position, training.size.side
    training = Training(run, comm)
    training.resume(path)
    assert (training.position, training.size.side) == place
    seen += list(training.rounds())
    assert_same_bits(whole(training), whole(expected))
    assert [(one.loss, one.learning_rate) for one in seen] == [(one.loss, one.learning_rate) for one in progress]
    assert seen[-1].examples == progress[-1].examples
