"""What an evaluation sends is known before the run, and the rounds between evaluations follow from it."""

from itertools import product

import graphs
import numpy as np
import pytest
import sparse_rows
from masked_data import FILE
from own_runs import DEEP, RESNET
from replay_cases import XC
from small import on_root, own_run, small_run

from istmpi.checkpoint.state import model_pieces
from istmpi.comm import threads_may_call_everywhere
from istmpi.comm.ledger import EVALUATION, ROUNDS, SAVING, START
from istmpi.cost import evaluation, run_bytes
from istmpi.evaluation.planned_bytes import plan_evaluations
from istmpi.evaluation.planned_waits import plan_evaluation_waits
from istmpi.evaluation.planning import SHARE
from istmpi.training.loop import Training
from istmpi.training.run import run_training
from istmpi.training.saves import OWN_DATA, plan_saves
from istmpi.training.waits import count_threads, plan_waits

OWN = {"data__source": f"{FILE}:blank", "model__name": f"{FILE}:Pairs", "model__hidden": 16, "train__batch": 5}
KNOWN = [
    {},
    OWN,
    OWN | {"method__name": "local-sgd"},
    {"method__redeal": 0.1},
    {"method__delay": 1},
    {"method__share_every": 2},
    {"method__name": "fedavg", "train__batch": 100},
    *({"method__name": name} for name in ("local-sgd", "data-parallel", "diloco", "sparse-loco")),
    *({"method__name": name} for name in ("streaming-diloco", "admm", "downpour")),
    # Ranks add up what their units contribute to the outputs.
    {"model__hidden": [300, 300], "evaluate__examples": 16, "evaluate__calibration_examples": 8},
]
JOINT = {"method__name": "joint"}
SIDE_BY_SIDE = [
    {"method__redeal": 0.0},
    {"method__redeal": 0.0, "method__shares": [3.0, 1.0, 2.0]},
    {"method__redeal": 0.0, "evaluate__form": "blocks", "model__norm": "layer", "model__bias": True},
    {"method__redeal": 0.0, "method__partition": ["hidden1"]},
    {"method__redeal": 0.0, "model__norm": "layer", "model__output_norm": False},
    JOINT,
]
BOTH = KNOWN[-1] | {"method__redeal": 0.0}
OTHERS = [
    {"method__redeal": 0.0, "method__delay": 1, "optimizer__momentum": 0.9},
    JOINT | {"method__local_steps": 1, "optimizer__clip": 1.0},
    {"method__finish": "ist:40%", "method__name": "local-sgd", "method__delay": 1},
    {"method__finish": "easgd:40%"},
    *({"method__name": name} for name in ("easgd", "codistillation", "dynamic-averaging")),
]
LOCAL = {"data__placement": "local"}
GRAPH = {"model__name": "gcn", "model__hidden": [12, 9], "train__batch": 1}
DIVIDED = KNOWN[-1]


def name_case(value):
    if isinstance(value, dict):
        value = " ".join(f"{key}={one}" for key, one in value.items()) or "ist"
    return str(value)


@pytest.mark.parametrize(
    "settings, where",
    [
        *product([*KNOWN, *SIDE_BY_SIDE, BOTH], ["on one"]),
        *product([*KNOWN[::3], *SIDE_BY_SIDE[::2]], ["on all"]),
    ],
    ids=name_case,
)
def test_planned_bytes_are_counted_bytes(comm, monkeypatch, settings, where):
    """All values that ranks send in the evaluations of a run. On one rank, there are no other messages."""
    if where == "on all":
        monkeypatch.setattr("istmpi.cost.evaluation.FLOPS_OF_ONE", 0)
    training = Training(small_run(train__rounds=5, evaluate__every=2, **settings), comm)
    counted, forms = [], set()
    evaluate = training.evaluate

    def count_and_evaluate(*split):
        before = comm.traffic.bytes
        score = evaluate(*split)
        counted.append(comm.traffic.bytes - before)
        forms.add(score.form)
        return score

    training.evaluate = count_and_evaluate
    list(training.rounds())
    planned = plan_evaluations(training.evaluator.planned)
    assert planned.count == len(counted) == 3
    # A user's sums travel as objects.
    counted = comm.ledger.sent[EVALUATION].bytes if "data__source" in settings else sum(counted)
    total = sum(comm.allgather(counted))
    assert planned.least <= total <= planned.sent
    assert total in (planned.least, planned.sent) or len(forms) > 1
    if where == "on one":
        assert total == sum(comm.allgather(comm.ledger.sent[EVALUATION].bytes))
    waits = plan_evaluation_waits(training.evaluator.planned)
    assert waits.least <= comm.ledger.sent[EVALUATION].calls <= waits.calls


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("method, rounds, steps", [("ist", 3, 2), ("ist", 40, 2), ("local-sgd", 120, 1)])
def test_evaluations_take_a_bounded_part_of_the_bytes(comm, method, rounds, steps):
    """At most 15%, unless there is but one evaluation; and one more would take more, unless there are ten."""
    run = small_run(method__name=method, train__rounds=rounds, method__local_steps=steps, evaluate__every=0)
    training = Training(run, comm)
    planned = plan_evaluations(training.evaluator.planned)
    assert planned.every == training.run.evaluate.every
    of_rounds = run_bytes(training.run, training.architecture, comm.size)
    if planned.count > 1:
        assert planned.sent <= SHARE * (planned.sent + of_rounds)
    else:
        assert planned.every == rounds


def test_a_run_that_depends_on_its_evaluations_keeps_ten(comm):
    """Patience and the best network need them; a setting is taken as it is."""
    run = small_run(train__rounds=40, evaluate__every=0)
    for settings, every in (({"data.validation": 0.2, "train.patience": 3}, 4), ({"evaluate.every": 7}, 7)):
        training = Training(run.override(settings), comm)
        assert training.run.evaluate.every == training.evaluator.planned.every == every


@pytest.mark.both
@pytest.mark.ranks(only=[4])
@pytest.mark.parametrize(
    "settings, every",
    [*product([*KNOWN, *SIDE_BY_SIDE, BOTH, *OTHERS], [2]), *product([{}, *SIDE_BY_SIDE[::2]], [0])],
    ids=name_case,
)
def test_planned_saves_and_waits_are_counted(comm, shared_tmp, settings, every):
    """The network's file, and a checkpoint after every other round but the last; one of them after an evaluation."""
    times = {"train__rounds": 5, "checkpoint__every": every, "evaluate__every": 4}
    if "method__shares" in settings:
        times["method__shares"] = [*settings["method__shares"], 1.0][: comm.size]
    run = own_run(**settings | times, output__folder=str(shared_tmp / "run"))
    comm.members = None  # as in a job that begins
    comm.ledger.begin_anew()
    summary = run_training(run, comm)
    sent = sum(comm.allgather(comm.ledger.sent[SAVING].bytes))
    training = Training(run, comm)
    planned = plan_saves(training.evaluator.planned)
    # Ranks save values of their own, or what they have not yet sent.
    own_values = settings in OTHERS[2:] or settings.get("method__name") in ("admm", "downpour", "streaming-diloco")
    if evaluation.FLOPS_OF_ONE == 0 and training.dataset.scoring.one_class:
        assert planned.unknown in ("weights or labels travel for the temperature of the classes", OWN_DATA)
    elif own_values or (every and "method__share_every" in settings):
        assert planned.sent is None and planned.unknown == "each rank saves its own values"
    else:
        rows = [piece.bytes.size for piece in model_pieces(training.store)] * bool(comm.rank)
        assert planned.rows == sum(comm.allgather(sum(rows))), "which rank 0 receives if hosts share no folder"
        assert sent == planned.sent
    waits = plan_waits(training.evaluator.planned)
    for purpose in (START, ROUNDS, EVALUATION, SAVING):
        found, counted = getattr(waits, purpose), summary.sent[purpose].calls
        if purpose == START and not threads_may_call_everywhere(comm):
            counted += count_threads(training.run)
        assert bool(found.unknown) == (settings is OTHERS[-1] and purpose == ROUNDS), found.unknown
        assert found.unknown or found.least <= counted <= found.calls, purpose


@pytest.mark.ranks(only=[4])
@pytest.mark.parametrize(
    "network, method",
    [({}, JOINT | {"method__wire": "int8"}), (RESNET, {"method__redeal": 0.0}), (DEEP, JOINT)],
    ids=["mlp", "resnet", "by blocks"],
)
def test_planned_bytes_of_saved_moments_are_counted_bytes(comm, shared_tmp, network, method):
    settings = {"model__dtype": "float32", "optimizer__momentum": 0.5, **network, **method}
    test_planned_saves_and_waits_are_counted(comm, shared_tmp, settings, 2)


@pytest.mark.ranks(only=[4])
@pytest.mark.parametrize(
    "settings",
    [{}, {"method__redeal": 0.0}, LOCAL, GRAPH, XC, DIVIDED, DIVIDED | {"model__norm": "layer"}],
    ids=name_case,
)
def test_planned_waits_of_a_network_on_all_ranks_are_counted(comm, shared_tmp, monkeypatch, settings):
    """Ranks calibrate together, or join the outputs of layers that they divide, and fit the temperature."""
    if "model__name" in settings:
        write = {"gcn": graphs.write, "xc": sparse_rows.write}[settings["model__name"]]
        on_root(comm, lambda: write(shared_tmp / "data.h5"))
        settings = settings | {"data__source": str(shared_tmp / "data.h5")}
    if settings == LOCAL:
        np.savez(shared_tmp / f"{comm.rank}.npz", x=np.eye(60, dtype=np.float32), y=np.arange(60) % 3)
        settings = LOCAL | {"data__source": str(shared_tmp / "{rank}.npz"), "data__test": 0.2}
    monkeypatch.setattr(evaluation, "FLOPS_OF_ONE", 0)
    monkeypatch.setattr(evaluation, "FLOPS_A_BYTE", 10**12)
    test_planned_saves_and_waits_are_counted(comm, shared_tmp, settings, 2)
