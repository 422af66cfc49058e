"""Replica groups: processes that train one subnet together compute and send what one rank does in their place."""

import json
import os
import re
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
import replay_cases
import torch
from following import lines, wait_for_rounds
from group_programs import HEAD, JOB
from masked_data import FILE
from small import assert_near

from istmpi.amounts import amounts_in
from istmpi.config.methods import METHODS
from istmpi.methods.agreement import StepLosses

pytestmark = pytest.mark.timeout(300)
RUN = ["train", "--rounds", "3", "-q", "--set", "evaluate.every=2"]
MLP = ["--hidden", "32,24", "--set", "model.norm=layer"]
BLANK = ["--data", f"{FILE}:blank", "--model"]
PART = ["--method", "fedavg", "--data", "two.npz", "--batch", "79", "--set", "method.fraction=0.5"]
EXACT = ["--set", "model.dtype=float64"]


def as_words(settings):
    pairs = [(name.replace("__", "."), json.dumps(value)) for name, value in settings.items()]
    return [word for name, value in pairs for word in ("--set", f"{name}={value}")]


RESNET = {name: value for name, value in replay_cases.RESNET.items() if name.startswith("model")}
TEXT = replay_cases.TRANSFORMER | {"data__source": "text.h5", "optimizer__name": "sgd"}
MOMENTUM = {"optimizer__momentum": 0.9, "model__dtype": "float64"}
CASES = {
    "images": as_words(RESNET | MOMENTUM | {"train__sync_batch_norm": True}),
    "text": as_words(TEXT | MOMENTUM),
    "ist, a tenth, Adam": ["--redeal", "0.1", "--optimizer", "adam", "--optimizer-state", "carry", *EXACT],
    "ist, never, parts that differ": ["--redeal", "0", "--batch", "31", *EXACT],
    "ist, delay": ["--redeal", "0.5", "--set", "method.delay=2", *EXACT],
    "ist, int8": ["--set", "method.wire=int8"],
    "local SGD, weights of classes": [
        *("--method", "local-sgd", "--set", "train.class_weights=[1,2,3,1,1,2,1,1,0.5,1]"),
        *("--set", "optimizer.momentum=0.9", *EXACT),
    ],
    "diloco": ["--method", "diloco", "--optimizer", "adamw", "--lr", "0.001", *EXACT],
    "sparse-loco": ["--method", "sparse-loco", *EXACT],
    "ist, shares": ["--set", "method.shares=[3,1]", "--redeal", "0.5", *EXACT],
    "several losses": ["--data", f"{FILE}:blank", "--model", f"{FILE}:Named", "--batch", "7", *EXACT],
    "unused parameters": [*BLANK, f"{FILE}:Idle", "--optimizer", "adam", "--batch", "5", *EXACT],
    "masked targets, default loss": ["--data", f"{FILE}:splits", "--model", f"{FILE}:Net", "--batch", "5", *EXACT],
    "admm, unused parameters": ["--method", "admm", "--data", f"{FILE}:blank", "--model", f"{FILE}:Idle", *EXACT],
    "easgd": ["--method", "easgd", "--set", "optimizer.momentum=0.9", *EXACT],
    "downpour": ["--method", "downpour", "--optimizer", "adam", *EXACT],
    "dynamic-averaging": ["--method", "dynamic-averaging", "--set", "method.threshold=1e-6", *EXACT],
    "streaming-diloco": ["--method", "streaming-diloco", "--set", "method.fragments=1", "--optimizer", "adamw", *EXACT],
    # A pass ends with one of 80 examples, and one of two ranks is drawn.
    "fedavg": [*PART, *EXACT],
    "data-parallel, masked": ["--method", "data-parallel", *BLANK, f"{FILE}:Named", "--batch", "3", *EXACT],
    # Moments of a whole batch, of which a member may lack examples.
    "batch normalisation": [*PART, "--hidden", "32,24", "--set", "train.sync_batch_norm=true", *EXACT],
    "SyncBatchNorm": ["--data", f"{FILE}:splits", "--model", f"{FILE}:Synchronised", "--batch", "9", *EXACT],
    # Their curve needs all margins; a network that rank 0 alone evaluates, and one that all ranks have.
    "two classes": ["--data", "two.npz", "--redeal", "1", "--set", "optimizer.momentum=0.9", *EXACT],
    "two classes, local SGD": ["--method", "local-sgd", "--data", "two.npz", *EXACT],
    "numbers, local data": ["--data", "numbers-{rank}.npz", "--set", "data.placement=local", "--redeal", "1", *EXACT],
}
EVALUATED = "evaluated"
KINDS_OF_SCORES = ("score", "loss", "accuracy", "f1", "auc", "rmse", "r2")


def describe(case):
    words = CASES[case]
    steps = [] if "fedavg" in words else ["--local-steps", "4"]
    return [*RUN, *steps, *([] if re.search("--model|--hidden|model.name", " ".join(words)) else MLP), *words]


# All examples are a step's batch, whichever ranks draw them.
TOGETHER = [*RUN, "--data", f"{FILE}:blank", "--model", f"{FILE}:Pairs", "--set", "optimizer.momentum=0.9", *EXACT]
TOGETHER += ["--set", "data.placement=sharded", "--local-steps", "1", "--rounds", "6"]
WHOLE = {
    "apart": ["--method", "data-parallel", "--batch", "16"],
    "whole": ["--method", "local-sgd", "--optimizer-state", "keep", "--batch", "64", "--group-size", "host"],
}
# Round N of a run that goes on as so many groups of so many processes.
SHAPES = [(2, 2), (4, 1), (1, 4), (2, 2)]
PROGRAM = Path(__file__).parents[2] / "examples" / "replica_groups.py"
RUN_PROGRAM = "import runpy, sys; sys.argv = ['', 'ist', '24', '{rounds}', '{size}']; runpy.run_path({path!r})"


UNEVEN = """
import socket, sys
from istmpi.cli.main import main
from istmpi.cluster import alone, links, measure_groups, timing, transfers

timing.SECONDS, timing.TURN_SECONDS, transfers.TRANSFER_WIDTHS, alone.REPEATS = 0.01, 0.001, (32, 64), 1
links.MESSAGE_BYTES = measure_groups.MESSAGE_BYTES = (2**10, 2**20, 2**24)
gethostname, socket.gethostname = socket.gethostname, lambda: "small" if rank == 3 else "large"
sys.argv = ["istmpi", *{words}]
main()
socket.gethostname = gethostname
"""


@pytest.fixture(scope="module")
def stopped(start_once, folder):
    """How the program of examples/ ended whose member was told to stop."""
    job = start_once(4, "python", PROGRAM, "ist", 24, 10**6, 2, cwd=folder)
    wait_for_rounds(folder / "runs" / "replica-groups-ist-2", 2, job)
    os.kill(job.ranks[1], signal.SIGTERM)
    return job.end(60)


@pytest.fixture(scope="module")
def said(series, stopped, folder):
    """The outcomes of all commands: on groups of four processes, on two ranks, and of one process."""
    x = np.random.default_rng(1).standard_normal((200, 8)).astype(np.float32)
    np.savez(folder / "two.npz", x=x, y=(x[:, 0] > x[:, 1]).astype(np.int64))
    for rank in range(2):
        np.savez(folder / f"numbers-{rank}.npz", x=x + rank, y=x[:, :2] + x[:, 2:4] ** 2)
    jobs = {"groups": {}, "ranks": {}, "simulated": {}}
    for case in CASES:
        jobs["groups"][case] = [*describe(case), "--group-size", "2", "--out", folder / "groups" / case]
        on_ranks = ["simulate", *describe(case)[1:], "--ranks", "2", "--out", folder / "ranks" / case]
        jobs["simulated"][f"{case}, on ranks"] = on_ranks
    jobs["groups"] |= {case: [*TOGETHER, *words, "--out", folder / case] for case, words in WHOLE.items()}
    for rounds in (3, 6):
        words = [*TOGETHER, *WHOLE["whole"], "--rounds", rounds, "--resume", "auto"]
        jobs["groups"][f"whole, {rounds} rounds"] = [*words, "--out", folder / "resumed"]
    for rounds, (groups, members) in enumerate(SHAPES, start=1):
        step = [*describe("ist, a tenth, Adam")[1:], "--rounds", rounds, "--resume", "auto", "--out"]
        jobs["groups"][f"{rounds} rounds"] = ["train", *step, folder / "regrouped", "--group-size", members]
        jobs["simulated"][f"{rounds} rounds"] = ["simulate", *step, folder / "simulated", "--ranks", groups]
    rounds = len(lines(folder / "runs" / "replica-groups-ist-2")) + 2
    for place, size in (("ranks", 1), ("groups", 2)):
        jobs[place]["program"] = RUN_PROGRAM.format(rounds=rounds, size=size, path=str(PROGRAM))
        for epochs in (1, 3):
            life = (HEAD + JOB + LIFE).format(size=size, epochs=epochs, folder=folder / "life" / place)
            jobs[place][f"life of {epochs} epochs"] = life
        jobs[place]["loops"] = (HEAD + LOOPS).format(size=size, folder=folder / "loops" / place)
    for message, (command, *words) in REFUSED.items():
        jobs["groups"][message] = [command, "--group-size", "2", *words, "--rounds", "1", "--out", folder / "refused"]
    plan = ["--cluster", folder / "here.json", "--dry-run", "--ranks", "2", "--set", "train.group_size=3"]
    jobs["simulated"]["plan"] = ["train", *MEASURED, *plan]
    jobs["groups"] |= every_kind(folder)
    for case in CASES:
        plan = ["--dry-run", "--json", "--ranks", "2", "--group-size", "2"]
        jobs["simulated"][case] = [word for word in describe(case) if word != "-q"] + plan
    # A host with three processes, and one with one.
    uneven = {
        "measure": ["measure", *MEASURED, "--out", folder / "here.json"],
        "uneven": [word for word in describe("data-parallel, masked") if word != "-q"] + ["--out", folder / "uneven"],
    }
    for name, words in uneven.items():
        jobs["groups"][name] = UNEVEN.format(words=[*map(str, words), "--set", "train.group_size=0"])
    jobs["ranks"][EVALUATED] = ["evaluate", folder / "groups" / "two classes" / "network.h5", "--json"]
    processes = {"groups": 4, "ranks": 2, "simulated": 1}
    return {place: series(count, folder, jobs[place]).end(600) for place, count in processes.items()}


@pytest.fixture(scope="module")
def runs(said, folder):
    """The folder of all runs, which all trained."""
    for place, outcomes in said.items():
        for case, outcome in outcomes.items():
            if case not in REFUSED and not isinstance(case, tuple):
                assert outcome.returncode == 0, (place, case, outcome)
    return folder


def network(path):
    with h5py.File(path / "network.h5") as file:
        return {name: file["model"][name][...] for name in file["model"]}


@pytest.mark.parametrize("case", CASES)
def test_groups_compute_and_send_what_ranks_do(runs, case):
    ranks, groups = network(runs / "ranks" / case), network(runs / "groups" / case)
    # Rounded values may jump where the last bits differ.
    nearest = 1e-6 if "int8" in case else 1e-12
    assert_near(groups, ranks, nearest)
    for alone, together in zip(lines(runs / "ranks" / case), lines(runs / "groups" / case), strict=True):
        assert (alone["bytes"], alone["examples"]) == (together["bytes"], together["examples"])
        assert together["loss"] == pytest.approx(alone["loss"], rel=1e-5)
        names = [name for name in alone if name.endswith(KINDS_OF_SCORES) and name != "loss"]
        # All members evaluate in groups.
        scores, expected = ([float(line[name]) for name in names] for line in (together, alone))
        assert scores == pytest.approx(expected, rel=nearest, abs=1e-12)


# Gradients that a network never has are not sent.
@pytest.mark.parametrize("case", [case for case in CASES if case != "admm, unused parameters"])
def test_predicted_bytes_inside_groups_are_counted(said, runs, case):
    *_, last = lines(runs / "groups" / case)
    group = json.loads(said["simulated"][case].stdout)["group"]
    # The evaluation after the last round is not in its line.
    evaluations = last["group_bytes"] - last["round"] * group["round_bytes"]
    possible = [group["evaluation_bytes"]]
    if "never" in case:
        # Subnets side by side may score better than the full network, which each of two leaders gives another member.
        possible = [0, 2 * sum(values.nbytes for values in network(runs / "groups" / case).values())]
    assert evaluations in possible


def test_the_network_of_groups_is_evaluated_as_in_the_run(said, runs):
    evaluated = json.loads(said["ranks"][EVALUATED].stdout)
    *_, last = lines(runs / "groups" / "two classes")
    assert evaluated["score"]["loss"] == pytest.approx(last["test_loss"], rel=1e-12)
    assert evaluated["score"]["score"] == last["score"]


# A group of four has the same bits after a resume.
@pytest.mark.parametrize(
    "alike, nearest", [("whole apart", 1e-12), ("regrouped simulated", 1e-12), ("resumed whole", 0)]
)
def test_one_group_of_all_is_data_parallel_and_groups_resume_as_others(runs, alike, nearest):
    assert_near(*(network(runs / name) for name in alike.split()), nearest)


REFUSED = {
    "does not go with method codistillation": ["train", "--finish", "codistillation:50%"],
    "train.batch = 3 leaves a member of 2 fewer than two examples": ["train", "--batch", "3"],
    "does not divide the 4 processes on ": ["train", "--group-size", "3"],
    "train.sync_batch_norm does not go with norm, a Changed": [
        *("train", "--data", f"{FILE}:splits", "--model", f"{FILE}:Normed", "--set", "train.sync_batch_norm=true")
    ],
    "a part of a batch may have no weight": ["train", "--set", "train.class_weights=[1,0,1,1,1,1,1,1,1,1]"],
    "train.group_size = 2 is for istmpi train under mpirun": ["compare", "--methods", "ist,local-sgd"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_groups_cannot_do_is_refused_in_one_line(said, message):
    assert message in said["groups"][message].refusal()


MEASURED = ["digits", "--hidden", "64,64"]


def test_groups_are_measured_and_their_time_is_predicted(said, runs):
    figures = json.loads((runs / "here.json").read_text())
    assert figures["name"] == "2 replica groups of 3 on 2 hosts"
    assert len(figures["measured"]["inside"]["points"]) == 3 and figures["inside"]["seconds_per_byte"] > 0
    assert "on 2 replica groups of 3 on 2 hosts: " in said["simulated"]["plan"].stdout


# Rows are in the cases above. benchmarks/group_table trains images and texts by each method.
KINDS = {
    "own": {"model__name": f"{FILE}:Pairs", "data__source": f"{FILE}:blank"},
    "images": replay_cases.RESNET,
    "text": replay_cases.TRANSFORMER,
    "sparse rows": replay_cases.XC,
    "a graph": replay_cases.GCN,
}


# Neither what methods refuse depends on the data, nor what data refuse on the method.
UNDIVIDED = [("codistillation", "text"), ("joint", "own"), ("ist", "sparse rows"), ("fedavg", "a graph")]
UNDIVIDED.append(("fedavg", "images"))
COMBINATIONS = [*UNDIVIDED, ("fedavg", "text")]
for number, method in enumerate(sorted({*METHODS} - {"codistillation", "joint", "fedavg"})):
    COMBINATIONS.append((method, ("text", "own", "images")[number % 3]))


def every_kind(folder):
    files = replay_cases.files(folder, 2)
    commands = {}
    for method, kind in COMBINATIONS:
        words = ["train", "--method", method, "--group-size", "2", "-q", "--out", folder / method / kind]
        steps = {} if method == "fedavg" else {"method__local_steps": 3}
        settings = {"evaluate__every": 9, **KINDS[kind], "train__rounds": 1, **steps}
        settings.pop("method__optimizer_state", None)
        named = {name: files.get(str(value), value) for name, value in settings.items()}
        commands[method, kind] = [*words, *as_words(named)]
    return commands


def test_each_method_trains_each_kind_of_data_or_says_in_one_line_that_it_does_not(said):
    for method, kind in COMBINATIONS:
        outcome = said["groups"][method, kind]
        if (method, kind) in UNDIVIDED:
            assert re.search("does not go with|needs predictions of classes", outcome.refusal()), (method, kind)
        else:
            assert outcome.returncode == 0, (method, kind, outcome)


LIFE = """
for round in job.epochs({epochs}, DataLoader(data, batch_size=9, shuffle=True), folder="{folder}", resume="auto"):
    for a, b in round.take():
        round.step(torch.nn.functional.cross_entropy(round.module(a), b))
    job.keep(seen=job.kept.get("seen", 0) + 1)
    job.evaluate(accuracy, DataLoader(data, batch_size=7), best="best.h5", patience=99)
print(job.kept["seen"], job.best.round, job.best.score)
"""
# Batches of nine examples, and at the end of one, which two members divide.
LOOPS = """
class Still(Net):
    def __init__(self, hidden=8):
        super().__init__(hidden)
        self.c = torch.nn.Linear(8, 8).requires_grad_(False)
        self.register_buffer("d", torch.full((8,), 0.5))

    def forward(self, x):
        return super().forward(self.c(x) * self.d)

class Normed(Net):
    def __init__(self, hidden=8):
        super().__init__(hidden)
        self.a = torch.nn.Sequential(self.a, torch.nn.BatchNorm1d(hidden))

class Bag(torch.nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.a, self.b = torch.nn.EmbeddingBag(50, hidden, mode="sum"), torch.nn.Linear(hidden, 2)

    def forward(self, x):
        return self.b(self.a(x))

def run(name, network=Net, data=data, take={{}}, by_hand=False, **more):
    job = istmpi.Distributed(network, {{}}, example=data[:9][0], **{{"optimizer": make}} | settings | more)
    for round in job.rounds(4, folder="{folder}/" + name):
        for a, b in round.take(DataLoader(data, batch_size=9), **take):
            loss = torch.nn.functional.cross_entropy(round.module(a), b)
            if by_hand:
                loss.backward()
                round.optimizer.step()
            else:
                round.step(loss)
            weights = torch.cat([values.detach().reshape(-1) for values in round.module.parameters()])
            print(f"weights, {{name}}: {{weights.double().square().sum():.9g}}")
        loader = DataLoader(data, batch_size=7)
        job.evaluate(accuracy, loader, calibrate=loader if network is Normed else None)

plateau = lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=0)
ids = torch.randint(0, 50, (91, 4), generator=torch.Generator().manual_seed(2))
run("cosine and a clip", schedule="cosine", clip=0.5)
run("plateau, frozen values and a buffer", Still, schedule=plateau)
run("by hand", by_hand=True)
run("moments of all members", Normed, sync_batch_norm=True)
run("two batches a step", take={{"accumulate": 2}})
run("embeddings", Bag, TensorDataset(ids, data.tensors[1]), optimizer="sgd", lr=0.3)
"""


def test_a_loss_that_is_not_finite_names_no_loss_function_if_a_member_has_such_outputs():
    leader, member = StepLosses(), StepLosses()
    for losses, value in ((leader, 1.0), (member, float("nan"))):
        losses.add_facts(torch.tensor(value), amounts_in(torch.tensor(value), 1, "loss"))
        losses.add(torch.tensor(value))
    leader.replace([leader.values(), member.values()])
    assert leader.summarise((), is_first_round=False).cause == ""


def test_a_program_in_epochs_keeps_values_and_its_best_network_in_groups(said, runs):
    ended = {}
    for place in ("ranks", "groups"):
        printed = said[place]["life of 3 epochs"].stdout.splitlines()
        ended[place] = [line for line in printed if line[0].isdigit()]
        rounds = len(lines(runs / "life" / place))
        assert rounds > 3 and ended[place][0].startswith(f"{rounds} ")
    # Each process prints the same.
    assert ended["groups"] == 2 * ended["ranks"]
    ranks, groups = (h5py.File(runs / "life" / place / "best.h5") for place in ended)
    assert_near(groups["model"], ranks["model"], 1e-12)


def test_loops_of_members_have_the_weights_of_ranks_after_each_step(said):
    outputs = [said[place]["loops"].stdout.splitlines() for place in ("ranks", "groups")]
    of_ranks, of_groups = ([line for line in output if line.startswith("weights")] for output in outputs)
    steps = len(of_ranks) // 2
    first, second = of_ranks[:steps], of_ranks[steps:]
    assert first != second and of_groups == [*first, *first, *second, *second]


def test_hosts_may_have_unequal_groups(said, runs):
    assert "in replica groups of 3, 1 processes" in said["groups"]["uneven"].stdout
    for found, expected in zip(lines(runs / "uneven"), lines(runs / "ranks" / "data-parallel, masked"), strict=True):
        scores = {name: value for name, value in expected.items() if name.endswith(KINDS_OF_SCORES)}
        assert {name: found[name] for name in scores} == pytest.approx(scores, rel=1e-6)
    assert_near(network(runs / "uneven"), network(runs / "ranks" / "data-parallel, masked"), 1e-12)


def test_a_program_of_groups_stops_resumes_and_computes_what_its_ranks_do(said, stopped, runs):
    (line,) = stopped.errors
    assert stopped.returncode == 75 and "stopped by SIGTERM" in line, stopped
    assert "Run the same program with resume='auto' to continue" in line
    ranks, groups = (runs / "runs" / f"replica-groups-ist-{size}" for size in (1, 2))
    for place, folder in (("ranks", ranks), ("groups", groups)):
        assert said[place]["program"].stdout.count(f"round {len(lines(folder))}: accuracy") == 1, place
    assert_near(network(groups), network(ranks), 1e-12)


TOLD = """
import numpy as np
from istmpi.comm import world
from istmpi.comm.groups import Membership
from istmpi.engine.group_calls import Step

membership = Membership(world(), 2)
if membership.leads:
    for number in range(4):
        membership.tell(Step(number, number, 0.1, [{"lr": 0.1, "momentum": 0.9}] * 4))
    world().send(np.ones(1), peer=1)
else:
    world().receive(np.empty(1), peer=0)
    print([membership.hear().number for _ in range(4)])
"""


def test_a_leader_that_tells_its_steps_does_not_wait_for_a_member(start):
    """The member hears them after a message that the leader sends later."""
    assert start(2, "python", "-c", TOLD).end(30).stdout == "[0, 1, 2, 3]\n"
