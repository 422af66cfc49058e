"""Replica groups: processes that train one subnet together compute and send what one rank does in their place."""

import json
import os
import re
import signal
from itertools import product
from pathlib import Path

import h5py
import numpy as np
import pytest
import replay_cases
import torch
from following import lines, wait_for_rounds
from masked_data import FILE

from istmpi.amounts import amounts_in
from istmpi.config.methods import METHODS
from istmpi.methods.agreement import StepLosses

RUN = ["train", "--rounds", "3", "-q"]
MLP = ["--hidden", "32,24", "--set", "model.norm=layer"]
RUN += ["--set", "evaluate.every=2"]
EXACT = ["--set", "model.dtype=float64"]
CASES = {
    "ist, a tenth, Adam": ["--redeal", "0.1", "--optimizer", "adam", "--optimizer-state", "carry", *EXACT],
    "ist, full": ["--redeal", "1", "--set", "optimizer.momentum=0.9", *EXACT],
    "ist, never, parts that differ": ["--redeal", "0", "--batch", "31", *EXACT],
    "ist, delay": ["--redeal", "0.5", "--set", "method.delay=2", *EXACT],
    "ist, int8": ["--set", "method.wire=int8"],
    "local SGD, weights of classes": [
        *("--method", "local-sgd", "--set", "train.class_weights=[1,2,3,1,1,2,1,1,0.5,1]"),
        *("--set", "optimizer.momentum=0.9", *EXACT),
    ],
    "diloco": ["--method", "diloco", "--optimizer", "adamw", "--lr", "0.001", *EXACT],
    "sparse-loco": ["--method", "sparse-loco"],
    "masked targets": ["--data", f"{FILE}:blank", "--model", f"{FILE}:Pairs", "--batch", "5", *EXACT],
    "several losses": ["--data", f"{FILE}:blank", "--model", f"{FILE}:Named", "--batch", "7", *EXACT],
    "unused parameters": [
        *("--data", f"{FILE}:blank", "--model", f"{FILE}:Idle", "--optimizer", "adam", "--batch", "5", *EXACT)
    ],
    "masked targets, default loss": ["--data", f"{FILE}:splits", "--model", f"{FILE}:Net", "--batch", "5", *EXACT],
    "admm, unused parameters": ["--method", "admm", "--data", f"{FILE}:blank", "--model", f"{FILE}:Idle", *EXACT],
    "easgd": ["--method", "easgd", "--set", "optimizer.momentum=0.9", *EXACT],
    "downpour": ["--method", "downpour", "--optimizer", "adam", *EXACT],
    "dynamic-averaging": ["--method", "dynamic-averaging", "--set", "method.threshold=1e-6", *EXACT],
    "streaming-diloco": ["--method", "streaming-diloco", "--set", "method.fragments=1", "--optimizer", "adamw", *EXACT],
    # A pass ends with one example, and one of two ranks is drawn.
    "fedavg": ["--method", "fedavg", "--batch", "13", "--set", "method.fraction=0.5", *EXACT],
    "data-parallel, masked": [
        *("--method", "data-parallel", "--data", f"{FILE}:blank", "--model", f"{FILE}:Named", "--batch", "3", *EXACT)
    ],
    "data-parallel": ["--method", "data-parallel", "--set", "optimizer.momentum=0.9", *EXACT],
    # Their curve needs all margins; a network that rank 0 alone evaluates, and one that all ranks have.
    "two classes": ["--data", "two.npz", "--redeal", "1", *EXACT],
    "two classes, local SGD": ["--method", "local-sgd", "--data", "two.npz", *EXACT],
    "numbers, local data": ["--data", "numbers-{rank}.npz", "--set", "data.placement=local", "--redeal", "1", *EXACT],
}
EVALUATED = "evaluated"
KINDS_OF_SCORES = ("score", "loss", "accuracy", "f1", "auc", "rmse", "r2")


def describe(case):
    words = CASES[case]
    steps = [] if "fedavg" in words else ["--local-steps", "4"]
    return [*RUN, *steps, *([] if "--model" in words else MLP), *words]


# All examples are a step's batch, whichever ranks draw them.
TOGETHER = [*RUN, "--data", f"{FILE}:blank", "--model", f"{FILE}:Pairs", "--set", "optimizer.momentum=0.9", *EXACT]
TOGETHER += ["--set", "data.placement=sharded", "--local-steps", "1", "--rounds", "6"]
WHOLE = {
    "apart": ["--method", "data-parallel", "--batch", "16"],
    "whole": ["--method", "local-sgd", "--optimizer-state", "keep", "--batch", "64", "--group-size", "host"],
}
# Round N of a run that goes on as so many groups of so many processes.
SHAPES = [(2, 2), (4, 1), (1, 4), (2, 2)]


@pytest.fixture(scope="module")
def runs(series, folder):
    """The folder of all cases on two ranks, and on two groups of two; of a run that goes on in other groups, and on as
    many simulated ranks."""
    x = np.random.default_rng(1).standard_normal((200, 8)).astype(np.float32)
    np.savez(folder / "two.npz", x=x, y=(x[:, 0] > x[:, 1]).astype(np.int64))
    for rank in range(2):
        np.savez(folder / f"numbers-{rank}.npz", x=x + rank, y=x[:, :2] + x[:, 2:4] ** 2)
    places = {"ranks": [], "groups": ["--group-size", "2"]}
    jobs = {
        place: {case: [*describe(case), *words, "--out", folder / place / case] for case in CASES}
        for place, words in places.items()
    }
    jobs["groups"] |= {case: [*TOGETHER, *words, "--out", folder / case] for case, words in WHOLE.items()}
    jobs["simulated"] = {}
    for rounds, (groups, members) in enumerate(SHAPES, start=1):
        step = [*describe("ist, a tenth, Adam")[1:], "--rounds", rounds, "--resume", "auto", "--out"]
        jobs["groups"][f"{rounds} rounds"] = ["train", *step, folder / "regrouped", "--group-size", members]
        jobs["simulated"][f"{rounds} rounds"] = ["simulate", *step, folder / "simulated", "--ranks", groups]
    for case in CASES:
        plan = ["--dry-run", "--json", "--ranks", "2", "--group-size", "2"]
        jobs["simulated"][case] = [word for word in describe(case) if word != "-q"] + plan
    jobs["ranks"][EVALUATED] = ["evaluate", folder / "groups" / "ist, full" / "network.h5", "--json"]
    for place, processes in {"groups": 4, "ranks": 2, "simulated": 1}.items():
        for case, outcome in series(processes, folder, jobs[place]).end(400).items():
            assert outcome.returncode == 0, (place, case, outcome)
            if case == EVALUATED or place == "simulated":
                (folder / f"{case}.json").write_text(outcome.stdout)
    return folder


def count_inside(run):
    """The bytes of the full network that each of two leaders gives another member."""
    return 2 * sum(values.nbytes for values in network(run).values())


def network(path):
    with h5py.File(path / "network.h5") as file:
        return {name: file["model"][name][...] for name in file["model"]}


@pytest.mark.parametrize("case", CASES)
def test_groups_compute_and_send_what_ranks_do(runs, case):
    ranks, groups = network(runs / "ranks" / case), network(runs / "groups" / case)
    # Rounded values and chosen elements jump where the last bits differ.
    nearest = 1e-12 if "model.dtype=float64" in CASES[case] else 1e-3
    for name, values in ranks.items():
        np.testing.assert_allclose(groups[name], values, rtol=0, atol=nearest)
    for alone, together in zip(lines(runs / "ranks" / case), lines(runs / "groups" / case), strict=True):
        assert (alone["bytes"], alone["examples"]) == (together["bytes"], together["examples"])
        assert together["loss"] == pytest.approx(alone["loss"], rel=1e-5)
        names = [name for name in alone if name.endswith(KINDS_OF_SCORES) and name != "loss"]
        # All members evaluate in groups.
        scores, expected = ([float(line[name]) for name in names] for line in (together, alone))
        assert scores == pytest.approx(expected, rel=1e-12 if nearest == 1e-12 else 1e-3, abs=1e-12)


# Gradients that a network never has are not sent.
@pytest.mark.parametrize("case", [case for case in CASES if case != "admm, unused parameters"])
def test_predicted_bytes_inside_groups_are_counted(runs, case):
    *_, last = lines(runs / "groups" / case)
    group = json.loads((runs / f"{case}.json").read_text())["group"]
    # The evaluation after the last round is not in its line.
    evaluations = last["group_bytes"] - last["round"] * group["round_bytes"]
    # Subnets side by side may score better than the merged network, and only leaders pass them.
    possible = [group["evaluation_bytes"]] if "never" not in case else [0, count_inside(runs / "groups" / case)]
    assert evaluations in possible


def test_the_network_of_groups_is_evaluated_as_in_the_run(runs):
    evaluated = json.loads((runs / f"{EVALUATED}.json").read_text())
    *_, last = lines(runs / "groups" / "ist, full")
    assert evaluated["score"]["loss"] == pytest.approx(last["test_loss"], rel=1e-12)
    assert evaluated["score"]["score"] == last["score"]


@pytest.mark.parametrize("alike", [("whole", "apart"), ("regrouped", "simulated")])
def test_one_group_of_all_is_data_parallel_and_groups_resume_as_others(runs, alike):
    first, second = (network(runs / name) for name in alike)
    for name, values in first.items():
        np.testing.assert_allclose(second[name], values, rtol=0, atol=1e-12)


REFUSED = {
    "a finish": (["--finish", "codistillation:50%"], "does not go with method codistillation"),
    "a small batch": (["--batch", "3"], "train.batch = 3 leaves a member of 2 fewer than two examples"),
    "a remainder": (["--group-size", "3"], "does not divide the 4 processes on "),
    "no weight": (["--set", "train.class_weights=[1,0,1,1,1,1,1,1,1,1]"], "a part of a batch may have no weight"),
    "compare": (["compare"], "train.group_size = 2 is for istmpi train under mpirun"),
}


def test_what_groups_cannot_do_is_refused_in_one_line(series, tmp_path):
    commands = {}
    for name, (words, _) in REFUSED.items():
        verb = ["compare", "--methods", "ist,local-sgd"] if name == "compare" else ["train", *words]
        commands[name] = [*verb[:1], "--group-size", "2", *verb[1:], "--rounds", "1", "--out", tmp_path / name]
    said = series(4, tmp_path, commands).end(200)
    for name, (_, message) in REFUSED.items():
        assert message in said[name].refusal(), name


def test_groups_are_measured_and_their_time_is_predicted(series, tmp_path):
    group = ["digits", "--set", "train.group_size=2", "--hidden", "64,64"]
    plan = ["train", *group, "--cluster", tmp_path / "here.json", "--dry-run"]
    commands = {"measure": ["measure", *group, "--out", tmp_path / "here.json"], "plan": plan}
    outcomes = series(4, tmp_path, commands).end(200)
    assert outcomes["measure"].returncode == 0, outcomes
    figures = json.loads((tmp_path / "here.json").read_text())
    assert figures["name"] == "2 replica groups of 2 on 1 host"
    assert len(figures["measured"]["inside"]["points"]) == 5 and figures["inside"]["seconds_per_byte"] > 0
    assert "on 2 replica groups of 2 on 1 host: " in outcomes["plan"].stdout


KINDS = {
    "rows": {"model__norm": "layer"},
    "images": replay_cases.RESNET,
    "text": replay_cases.TRANSFORMER,
    "sparse rows": replay_cases.XC,
    "a graph": replay_cases.GCN,
    "own": {"model__name": f"{FILE}:Pairs", "data__source": f"{FILE}:blank"},
}


def test_each_method_trains_each_kind_of_data_or_says_in_one_line_that_it_does_not(series, tmp_path):
    files = replay_cases.files(tmp_path, 2)
    commands = {}
    for method, kind in product(METHODS, KINDS):
        words = ["train", "--method", method, "--group-size", "2", "-q", "--out", tmp_path / method / kind]
        steps = {} if method == "fedavg" else {"method__local_steps": 3}
        for name, value in {"evaluate__every": 9, **KINDS[kind], "train__rounds": 1, **steps}.items():
            value = files.get(value, value) if isinstance(value, str) else value
            if name == "method__optimizer_state":
                continue
            words += ["--set", f"{name.replace('__', '.')}={json.dumps(value)}"]
        commands[method, kind] = words
    for (method, kind), outcome in series(4, tmp_path, commands).end(500).items():
        divided = kind not in ("sparse rows", "a graph") and (method, kind) != ("fedavg", "images")
        if divided and method not in ("codistillation", "joint"):
            assert outcome.returncode == 0, (method, kind, outcome)
        else:
            assert re.search("does not go with|needs predictions of classes", outcome.refusal()), (method, kind)


def test_a_score_that_fails_on_a_member_ends_the_job_with_its_line(start, tmp_path):
    words = ["train", "--data", f"{FILE}:blank", "--model", f"{FILE}:Picky", "--rounds", "2", "--local-steps", "2"]
    result = start(4, "istmpi", *words, "--group-size", "2", "-q", "--out", tmp_path / "run").end(60)
    assert result.returncode == 2, result
    (line,) = result.errors
    assert line.startswith("istmpi: rank ") and "Picky: score fails: ValueError: no score here" in line
    assert int(re.match(r"istmpi: rank (\d)", line)[1]) % 2, "a member that does not lead"


LONG = ["train", "--rounds", 10**6, "--group-size", "2", "--checkpoint-every", "1", "--progress", "lines"]
LONG += ["--set", "evaluate.every=1000000", "--set", "comm.patience=3", "--resume", "auto"]


def test_a_killed_member_ends_the_job_a_stopped_one_is_named_and_the_run_goes_on(start, tmp_path):
    folder = tmp_path / "run"
    job = start(4, "istmpi", *LONG, "--out", folder)
    wait_for_rounds(folder, 3, job)
    os.kill(job.ranks[3], signal.SIGKILL)
    result = job.end(60)
    assert result.returncode not in (0, 75) and "Skipped" not in result.stderr, result

    before = lines(folder)
    job = start(4, "istmpi", *LONG, "--out", folder)
    wait_for_rounds(folder, len(before) + 2, job, unlike=before)
    os.kill(job.ranks[1], signal.SIGSTOP)
    result = job.end(90)
    assert result.returncode == 76, result
    assert re.search(r"aborting, a rank does not respond: rank 1 on .*its process is stopped", result.errors[-1]), (
        result
    )

    for stop in (lambda job: os.kill(job.ranks[3], signal.SIGTERM), lambda job: (folder / "STOP").touch()):
        before = lines(folder)
        job = start(4, "istmpi", *LONG, "--out", folder)
        wait_for_rounds(folder, len(before) + 2, job, unlike=before)
        stop(job)
        result = job.end(60)
        assert result.returncode == 75, result


HEAD = """
import os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import istmpi

class Net(torch.nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, hidden), torch.nn.Linear(hidden, 2)

    def forward(self, x):
        y = self.b(torch.relu(self.a(x)))
        return istmpi.with_loss(y, y.square().mean()) if self.training else y

def accuracy(module, batch):
    return (module(batch[0]).argmax(1) == batch[1]).double().mean()

x = torch.randn(91, 8, generator=torch.Generator().manual_seed(1)).double()
data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
job = istmpi.Distributed(Net, {{}}, example=x[:9], method="local-sgd", local_steps=2, dtype="float64",
                         checkpoint_every=1, group_size={size}, optimizer=lambda p: torch.optim.SGD(p, lr=0.3))
"""
LIFE = """
for round in job.epochs({epochs}, DataLoader(data, batch_size=9, shuffle=True), folder="{folder}", resume="auto"):
    for a, b in round.take():
        round.step(torch.nn.functional.cross_entropy(round.module(a), b))
    job.keep(seen=job.kept.get("seen", 0) + 1)
    job.evaluate(accuracy, DataLoader(data, batch_size=7), best="best.h5", patience=99)
print(job.kept["seen"], job.best.round, job.best.score)
"""
FAULTY = """
is_last = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "3"
for round in job.rounds(3, folder="{folder}"):
    for a, b in round.take(DataLoader(data, batch_size=9)):
        round.number < 2 or not is_last or {fault}
        round.step(torch.nn.functional.cross_entropy(round.module(a), b))
    job.evaluate(lambda module, batch: 1.0 / (round.number < 2 or not is_last), DataLoader(data, batch_size=7))
"""


@pytest.mark.parametrize(
    "fault, line",
    {
        "sys.exit()": "rank 3 ended its program while rank 2 waits for it in all-reduce",
        "None": "the score fails: ZeroDivisionError",
    }.items(),
)
def test_a_fault_of_a_member_of_a_program_is_said_once(start, tmp_path, fault, line):
    result = start(4, "python", "-c", (HEAD + FAULTY).format(size=2, folder=tmp_path, fault=fault)).end(60)
    assert result.returncode in (1, 2) and result.stderr.count(f"istmpi: {line}") == 1, result


def test_a_loss_that_is_not_finite_names_no_loss_function_if_a_member_has_such_outputs():
    leader, member = StepLosses(), StepLosses()
    for losses, value in ((leader, 1.0), (member, float("nan"))):
        losses.add_facts(torch.tensor(value), amounts_in(torch.tensor(value), 1, "loss"))
        losses.add(torch.tensor(value))
    leader.replace([leader.values(), member.values()])
    assert leader.summarise((), is_first_round=False).cause == ""


def test_a_program_in_epochs_keeps_values_and_its_best_network_in_groups(series, tmp_path):
    said = {}
    for size, processes in ((1, 2), (2, 4)):
        folder = tmp_path / f"in groups of {size}"
        commands = {epochs: (HEAD + LIFE).format(size=size, epochs=epochs, folder=folder) for epochs in (1, 3)}
        for outcome in series(processes, tmp_path, commands).end(120).values():
            assert outcome.returncode == 0, outcome
        said[size] = [line for line in outcome.stdout.splitlines() if line[0].isdigit()]
        assert len(lines(folder)) > 3 and said[size][0].startswith(f"{len(lines(folder))} ")
    # Each process prints the same.
    assert said[2] == 2 * said[1]
    ranks, groups = (h5py.File(tmp_path / f"in groups of {size}" / "best.h5") for size in (1, 2))
    for name in ranks["model"]:
        np.testing.assert_allclose(groups["model"][name], ranks["model"][name], rtol=0, atol=1e-12)


PROGRAM = Path(__file__).parents[2] / "examples" / "replica_groups.py"


def test_a_program_of_groups_stops_resumes_and_computes_what_its_ranks_do(start, tmp_path):
    folder = tmp_path / "runs" / "replica-groups-ist-2"

    def begin(processes, rounds, size):
        return start(processes, "python", PROGRAM, "ist", 24, rounds, size, cwd=tmp_path)

    job = begin(4, 10**6, 2)
    wait_for_rounds(folder, 2, job)
    os.kill(job.ranks[1], signal.SIGTERM)
    stopped = job.end(60)
    assert stopped.returncode == 75 and "stopped by SIGTERM" in stopped.stderr, stopped
    rounds = len(lines(folder)) + 2
    for processes, size in ((4, 2), (2, 1)):
        done = begin(processes, rounds, size).end(60)
        assert done.returncode == 0 and done.stdout.count(f"round {rounds}: accuracy") == 1, done
    ranks, groups = network(tmp_path / "runs" / "replica-groups-ist-1"), network(folder)
    for name, values in ranks.items():
        np.testing.assert_allclose(groups[name], values, rtol=0, atol=1e-12)
