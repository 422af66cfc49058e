"""A user's own loop: the same bits as `istmpi train`, and a clear line for each way to use it wrongly."""

import copy
import itertools
import math
import re
from collections import Counter
from contextlib import nullcontext

import networks
import numpy as np
import pytest
import torch
from own_runs import FILE
from small import assert_same_bits, own_run, whole
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

import istmpi
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.comm import stopping
from istmpi.data.sources import open_dataset
from istmpi.deploy import scoring
from istmpi.deploy.export import export
from istmpi.errors import ConfigError, DataError, DivergedError, StoppedError
from istmpi.methods.base import Method
from istmpi.program.streams import open_stream
from istmpi.record import RunFolder
from istmpi.tasks import higher_is_better
from istmpi.training.loop import Training
from istmpi.training.watch import Watch

ARGUMENTS = {"shape": (1, 8, 8), "outputs": 10, "channels": [7, 5], "hidden": 6}
SETTINGS = {"local_steps": 3, "seed": 5, "threads": 1, "device": "cpu", "dtype": "float64"}
EXAMPLE = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
AS_TRAIN = {
    "data__source": "digits",
    "model__name": f"{FILE}:Convolutional",
    "model__channels": [7, 5],
    "model__hidden": 6,
    "train__rounds": 4,
    "model__init": "constructor",
}
METHODS = [
    {"method": "ist"},
    {"method": "ist", "redeal": 0.1, "optimizer_state": "carry", "optimizer": "adamw"},
    {"method": "local-sgd", "optimizer": "adam", "optimizer_state": "carry"},
    {"method": "data-parallel"},
    {"method": "diloco"},
    {"method": "streaming-diloco"},
    {"method": "sparse-loco"},
    {"method": "dynamic-averaging"},
    {"method": "admm"},
    {"method": "downpour"},
    {"method": "easgd"},
]


def distributed(comm, network=networks.Convolutional, **settings):
    return istmpi.Distributed(network, ARGUMENTS, comm, **{"example": EXAMPLE} | SETTINGS | settings)


def loss_of(module, batch):
    x, y = batch
    return functional.cross_entropy(module(x.double()), y)


def accuracy(module, batch):
    x, y = batch
    return (module(x.double()).argmax(dim=1) == y).double().mean()


def as_run(settings):
    known = {"method": "method.name", "optimizer": "optimizer.name", "lr": "optimizer.lr"}
    return {known.get(key, f"method.{key}"): value for key, value in settings.items()}


def run_of(settings, rounds=4):
    return own_run(**AS_TRAIN).override(as_run(settings) | {"train.rounds": rounds})


def steps_from(batches, first):
    step = first
    while True:
        batch = batches.at(step)
        yield batch.inputs[0], batch.targets
        step += 1


def loop(job, batches, rounds, by_hand=False, behind=lambda round: None, **more):
    """Train with the batches that the command takes in the same steps; return the number of the first round."""
    first = None
    for round in job.rounds(rounds, watch=Watch(), signals=False, **more):
        first = first or round.number
        for batch in round.take(steps_from(batches, 3 * (round.number - 1))):
            loss = loss_of(round.module, batch)
            if by_hand:
                loss.backward()
                round.optimizer.step()
            else:
                round.step(loss)
        behind(round)
    return first


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize(
    "settings, by_hand",
    [(settings, False) for settings in METHODS] + [(settings, True) for settings in METHODS[1:4]],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "by hand" * value,
)
def test_it_trains_to_the_bits_of_the_command(comm, shared_tmp, settings, by_hand):
    training = Training(run_of(settings), comm)
    progress = list(training.rounds())
    job = distributed(comm, lr=0.1, **settings)
    loop(job, training.batches, 4, by_hand, folder=shared_tmp / "run")
    assert_same_bits(whole(job.training), whole(training))
    assert job.training.tally.counts.bytes == progress[-1].bytes
    if not by_hand:
        assert job.summary.last.loss == progress[-1].loss


@pytest.mark.parametrize(
    "settings",
    [pytest.param(METHODS[1], marks=pytest.mark.both), METHODS[2]],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_a_resumed_loop_trains_to_the_bits_of_an_uninterrupted_one(comm, shared_tmp, settings, monkeypatch):
    monkeypatch.setattr(stopping, "_SECONDS_BETWEEN_LOOKS", 0.0)
    uninterrupted = distributed(comm, lr=0.1, **settings)
    batches = Training(run_of(settings), comm).batches
    loop(uninterrupted, batches, 4, folder=shared_tmp / "whole")
    folder = shared_tmp / "halves"

    def stop(round):
        if round.number == 1 and comm.rank == 0:
            (folder / "STOP").touch()

    with pytest.raises(StoppedError, match="stopped by the file .*STOP, after [12] of 4 rounds; saved in"):
        loop(distributed(comm, lr=0.1, **settings), batches, 4, folder=folder, behind=stop)
    comm.barrier()
    if comm.rank == 0:
        (folder / "STOP").unlink()
    comm.barrier()
    resumed = distributed(comm, lr=0.1, **settings)
    assert loop(resumed, batches, 4, folder=folder, resume="auto") in (2, 3)
    assert_same_bits(whole(resumed.training), whole(uninterrupted.training))


@pytest.mark.parametrize(
    "method", [pytest.param("ist", marks=pytest.mark.both), "local-sgd", "data-parallel", "streaming-diloco"]
)
def test_a_stop_file_that_only_rank_0_sees_stops_all_ranks(comm, shared_tmp, method, monkeypatch):
    """Both where the ranks are about to compare a new loader, and where the file was there before the run."""
    monkeypatch.setattr(stopping, "_SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(Method, "finished_within", 0.0)
    batches, folder = Training(run_of({}), comm).batches, shared_tmp / "run"
    for _ in range(2):
        job = distributed(comm, method=method)
        with pytest.raises(StoppedError, match="STOP, after [12] of 4 rounds; saved in"):
            loop(job, batches, 4, folder=folder, resume="auto", behind=lambda _: comm.rank or (folder / "STOP").touch())


@pytest.mark.ranks(only=[3])
def test_a_program_that_ends_in_a_dropped_round_decides_again(comm, shared_tmp, monkeypatch):
    """A patience that counts the score of a dropped round would end the run a round early."""
    monkeypatch.setattr(stopping, "_SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(Method, "finished_within", 0.0)
    batches, folder, job = Training(run_of({}), comm).batches, shared_tmp / "run", distributed(comm)

    def stop(round):
        if round.number == 1 and comm.rank == 0:
            (folder / "STOP").touch()
        comm.barrier()
        if round.number == 2:
            job.end()

    with pytest.raises(StoppedError, match="STOP, after 1 of 4 rounds; saved in"):
        loop(job, batches, 4, folder=folder, behind=stop)
    comm.barrier()
    if comm.rank == 0:
        (folder / "STOP").unlink()
    comm.barrier()
    resumed = distributed(comm)
    assert loop(resumed, batches, 4, folder=folder, resume="auto") == 2
    assert resumed.summary.ended == "all 4 rounds are done"


def test_a_program_ends_its_rounds_early(comm, shared_tmp):
    job, batches = distributed(comm, lr=0.1), Training(run_of({}), comm).batches
    loop(job, batches, 4, folder=shared_tmp / "run", behind=lambda round: round.number == 2 and job.end())
    assert (job.summary.last.round, job.summary.ended) == (2, "ended by the program")
    more = distributed(comm, lr=0.1)
    assert loop(more, batches, 4, folder=shared_tmp / "run", resume="auto") == 3
    assert [line["round"] for line in more.metrics()] == [1, 2, 3, 4]
    whole_run = distributed(comm, lr=0.1)
    planned = whole_run.cost()["round_bytes"]
    loop(whole_run, batches, 4, folder=shared_tmp / "whole")
    assert_same_bits(whole(more.training), whole(whole_run.training))
    assert planned == pytest.approx(whole_run.training.tally.counts.bytes / 4, rel=0.3)


class Noted(Watch):
    def __init__(self):
        self.notes = []

    def noticed(self, message):
        self.notes.append(message)


@pytest.mark.parametrize("method", ["ist", "local-sgd", "data-parallel", "diloco"])
@pytest.mark.parametrize("place", ["before", "inside", "last", "after", "error", "error inside"])
def test_the_next_call_discards_a_round_left_before_its_end_and_reports_it_once(comm, shared_tmp, method, place):
    """The job has the weights from before a round that a break or an error leaves; after the last step, the round's."""
    job, watch, ends = distributed(comm, lr=0.1, method=method), Noted(), []

    def train():
        for round in job.rounds(5, folder=shared_tmp / "run", watch=watch, signals=False):
            if round.number == 2 and place == "before":
                break
            for step in round.steps():
                round.step(loss_of(round.module, (EXAMPLE, torch.zeros(8).long())))
                if round.number == 2 and place == ("last" if step + 1 == round.local_steps else "inside"):
                    break
                if round.number == 2 and place == "error inside":
                    raise KeyError("y")
            if round.number == 2:
                if place == "error":
                    raise KeyError("y")
                break
            job.training.method.publish()
            ends.append({name: values.clone() for name, values in job.training.store.tensors.items()})

    with pytest.raises(KeyError) if place.startswith("error") else nullcontext():
        train()
    job.metrics()
    job.metrics()
    job.training.method.publish()
    after = place in ("after", "error")
    same = [torch.equal(job.training.store.tensors[name], values) for name, values in ends[0].items()]
    assert all(same) != after
    assert job.training.rounds_done == 1 + after
    fate = ", after its last local step: the job keeps the round's weights, but no file has them."
    note = (
        f"the program left its loop in round 2{fate if after else ': this round is discarded.'} End a loop early with"
    )
    found = [each for each in watch.notes if "left its loop" in each]
    assert comm.rank or (len(found) == 1 and found[0].startswith(note))


def boom(*_, **__):
    raise RuntimeError("boom")


def schedule_that(rate):
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


LOADER = [EXAMPLE] * 9
CALLS = {
    "a number": ({}, {"loader": 5}, "the iteration over the loader, int, fails: TypeError"),
    "iteration": ({}, {"loader": type("L", (), {"__iter__": boom})()}, "the iteration over the loader, L, fails: Runt"),
    "accumulate": ({}, {"accumulate": 0}, "round 1: accumulate = 0 must be a whole number of at least 1"),
    "ahead": ({}, {"ahead": "x"}, "round 1: ahead = 'x' must be a whole number of at least 0"),
    "schedule": ({"schedule": boom}, {}, "schedule fails: RuntimeError: boom. It is raised in"),
    "no schedule": ({"schedule": lambda optimizer: None}, {}, "schedule returns NoneType, not a torch.optim.lr_sche"),
    "step": ({"schedule": schedule_that(lambda step: step and boom())}, {}, "schedule: step fails: RuntimeError: boom"),
    "rate": (
        {"schedule": schedule_that(lambda step: math.nan)},
        {},
        "schedule gives the learning rate nan at",
    ),
    "score": ({}, {"score": boom}, "the score fails: RuntimeError: boom. It is raised in"),
    "no score": ({}, {"score": 5}, "the score fails: TypeError: 'int' object is not callable"),
    "large score": ({}, {"score": lambda *_: 1e38}, "the score is 1e+38; a record holds at most 1e+30"),
    "name": ({}, {"name": 5}, "evaluate: name = 5 must be a str"),
    "direction": ({}, {"higher_is_better": "no"}, "evaluate: higher_is_better = 'no' must be a bool"),
    "to evaluate": ({}, {"evaluated": 5}, "the iteration over the loader, int, fails: TypeError"),
}


@pytest.mark.ranks(only=[1])
@pytest.mark.parametrize("case", CALLS)
def test_an_object_that_fails_in_a_program_is_named(comm, shared_tmp, case):
    """Whatever a loader, a schedule or a score does when istmpi calls it, one line names it and its method."""
    settings, given, message = CALLS[case]
    settings = {"optimizer": own, **settings} if settings else {}
    job = istmpi.Distributed(
        networks.TwoTowers, {"features": 5}, comm, example=pair(6), **SETTINGS | {"dtype": "float32"} | settings
    )
    take = {name: given[name] for name in ("accumulate", "ahead") if name in given}
    evaluate = {name: given[name] for name in ("name", "higher_is_better") if name in given}

    def train():
        for round in job.rounds(2, folder=shared_tmp / "run", watch=Watch(), signals=False):
            for _ in round.take(given.get("loader", LOADER), **take):
                round.step(round.module(*pair(6)).square().mean())
            job.evaluate(given.get("score", lambda *_: 0.5), given.get("evaluated", LOADER), **evaluate)

    with pytest.raises((ConfigError, DataError), match=re.escape(message)) as refused:
        train()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("method", ["ist", "local-sgd", "data-parallel"])
def test_a_module_can_be_copied_and_averaged_in_its_round(comm, shared_tmp, method):
    """copy.deepcopy and AveragedModel make a module that computes the same, also after the round."""
    job, copies = distributed(comm, lr=0.1, method=method), []
    for round in job.rounds(2, folder=shared_tmp / "run", watch=Watch(), signals=False):
        average = torch.optim.swa_utils.AveragedModel(round.module)
        for _ in round.steps():
            copies.append((copy.deepcopy(round.module), round.module(EXAMPLE.double()).detach()))
            round.step(loss_of(round.module, (EXAMPLE, torch.zeros(8).long())))
        average.update_parameters(round.module)
    for module, outputs in copies:
        assert torch.equal(module(EXAMPLE.double()), outputs)


def test_steps_without_a_note_have_no_loss_and_one_note(comm, shared_tmp):
    """A loop that calls round.optimizer.step() alone is told once to call round.note(loss)."""
    job, watch = distributed(comm, lr=0.1, method="local-sgd"), Noted()
    for round in job.rounds(2, folder=shared_tmp / "run", watch=watch, signals=False):
        for _ in round.steps():
            loss_of(round.module, (EXAMPLE, torch.zeros(8).long())).backward()
            round.optimizer.step()
    assert [line["loss"] for line in job.metrics()] == [None, None]
    expected = ["no loss is recorded: call round.note(loss) after each round.optimizer.step()."]
    assert comm.rank or [note for note in watch.notes if "no loss" in note] == expected


class Digits(Dataset):
    """The digits, one by one."""

    def __init__(self, split="train"):
        rows = open_dataset("digits").splits[split]
        self._batch = rows.batch(np.arange(len(rows)))

    def __len__(self):
        return self._batch.examples

    def __getitem__(self, index):
        return self._batch.inputs[0][index].view(1, 8, 8), self._batch.targets[index]


def test_a_loader_that_shuffles_repeats_itself_when_resumed(comm, shared_tmp):
    """Each rank draws from its own part, whatever process it is; another epoch has another order."""
    loader = DataLoader(Digits(), batch_size=8, shuffle=True)
    streams = [open_stream(loader, 5, rank, 3, print) for rank in (0, 1, 2)]
    seen = [torch.cat([stream.at(step)[0].flatten(1) for step in range(60)]) for stream in streams]
    parts = [set(map(tuple, rows.tolist())) for rows in seen]
    assert sum(map(len, parts)) == len(set.union(*parts))
    again = open_stream(loader, 5, 1, 3, print)
    assert torch.equal(again.at(37)[0], streams[1].at(37)[0])
    assert not torch.equal(streams[1].at(0)[0], streams[1].at(60)[0])


def test_a_loader_in_its_own_order_begins_again_at_its_end_and_says_so(comm):
    notes = []
    loader = list(DataLoader(Digits(), batch_size=1000))
    stream = open_stream(loader, 5, comm.rank, comm.size, notes.append)
    first, *_ = (stream.at(step)[1] for step in range(2))
    assert torch.equal(stream.at(2)[1], first)
    assert notes == [
        "list keeps its own order, so a resumed run starts it again and differs from an uninterrupted run. "
        "A DataLoader of a map-style data set with shuffle=True avoids that."
    ]
    with pytest.raises(DataError, match="the loader, list, has no batch on rank 3."):
        open_stream([], 5, 3, 4, print).at(0)


def failing(items):
    return torch.stack([torch.zeros(number) for number in range(len(items))])


@pytest.mark.parametrize(
    "data, message",
    [
        ([], "the loader's data set is empty"),
        ([0] * 9, r"its collate function fails for examples (\d, ){4}...: RuntimeError: .* It is raised in .*py, line"),
        (
            type("Bad", (list,), {"__getitem__": lambda *_: 1 + ""})([0]),
            "example 0 cannot be read: TypeError.*py, line",
        ),
    ],
)
def test_a_loader_that_fails_is_named_with_the_line_of_the_users_code(data, message):
    with pytest.raises(DataError, match=message):
        open_stream(DataLoader(data, 5, collate_fn=failing), 5, 0, 1, print).at(0)


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("alike, local, warned", [(True, False, True), (True, True, False), (False, False, False)])
def test_a_loader_that_gives_all_ranks_the_same_batches_is_noticed(comm, shared_tmp, alike, local, warned):
    watch, loader = Noted(), [torch.full((4, 5), float(step + (not alike) * comm.rank)).double() for step in range(9)]
    job = istmpi.Distributed(networks.TwoTowers, {"features": 5}, comm, example=pair(6), **SETTINGS)
    for round in job.rounds(2, folder=shared_tmp / "run", watch=watch, signals=False):
        for x in round.take(loader, local=local):
            round.step(round.module(x, x).square().mean() * 1e-6)
    if comm.rank == 0:
        warning = "list gives all ranks the same first batch. Make it depend on"
        assert sum(note.startswith(warning) for note in watch.notes) == warned


class Counting:
    """A stateful loader, as torchdata has them."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        while True:
            self.next += 1
            yield torch.full((4, 5), self.next / 10, dtype=torch.float64)

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_loader_with_a_state_resumes_where_it_was(comm, shared_tmp, elsewhere):
    """Its state is found in the folder of the run that is resumed, too."""
    seen, first, second = [], shared_tmp / "run", shared_tmp / ("other" if elsewhere else "run")
    for rounds, folder in ((3, first), (4, second)):  # the second one resumes after round 2, the last checkpoint
        job = istmpi.Distributed(
            networks.TwoTowers, {"features": 5}, comm, example=pair(6), checkpoint_every=1, **SETTINGS
        )
        loader = Counting()
        resume = first if folder != first else "auto"
        for round in job.rounds(rounds, folder=folder, resume=resume, watch=Watch(), signals=False, network=False):
            for x in round.take(loader):
                seen.append(round_to(x))
                round.step(round.module(x, x).square().mean())
        comm.barrier()
    assert seen == [*range(1, 10), *range(7, 13)]


def round_to(x):
    return int(x[0, 0] * 10 + 0.5)


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("more, shift", [(1, 0), (0, 1)])
def test_data_sets_that_differ_are_refused_unless_they_are_local(comm, shared_tmp, more, shift):
    data = TensorDataset(torch.arange(20 + more * comm.rank)[:, None].expand(-1, 5).double() + 100 * shift * comm.rank)
    job = istmpi.Distributed(networks.TwoTowers, {"features": 5}, comm, example=pair(6), **SETTINGS)
    rounds = iter(job.rounds(1, folder=shared_tmp / "run", watch=Watch(), signals=False))
    round = next(rounds)
    loader, seen = DataLoader(data, batch_size=7, shuffle=True), []
    with pytest.raises(DataError, match=r"differs from that on rank 0.*write round.take\(loader, local=True\)"):
        next(iter(round.take(loader)))
    for (x,) in round.take(loader, local=True):
        seen += x[:, 0].tolist()
        round.step(round.module(x, x).square().mean() * 1e-6)
    assert len({*seen}) == min(21, 20 + more * comm.rank)


@pytest.mark.parametrize("local", [False, True])
def test_changed_data_are_refused_when_resuming(comm, shared_tmp, local):
    """As prepared data are; each rank's own only on as many ranks as before."""

    def train(rounds, value, folder="run", resume="auto"):
        data = TensorDataset(torch.full((12, 5), value).double())
        job = istmpi.Distributed(networks.TwoTowers, {"features": 5}, comm, example=pair(6), **SETTINGS)
        for round in job.rounds(rounds, folder=shared_tmp / folder, resume=resume, watch=Watch(), signals=False):
            for (x,) in round.take(DataLoader(data, batch_size=2, shuffle=True), local=local):
                round.step(round.module(x, x).square().mean())

    train(1, 0.0)
    train(2, 0.0)
    with pytest.raises(DataError, match="loader 1 has another data set than before resuming. Give the same"):
        train(3, 1.0)
    with pytest.raises(DataError, match="loader 1 has another data set than before resuming. Give the same"):
        train(3, 1.0, "other", shared_tmp / "run")
    path = shared_tmp / f"run/loaders/data-{comm.rank}.json"
    path.write_text(path.read_text().replace(f" {comm.size}]", f" {comm.size + 1}]"))
    if local:
        train(3, 1.0)


def test_it_begins_with_given_weights(comm, shared_tmp):
    given = networks.TwoTowers(5)
    if comm.rank == 0:
        torch.save(given.state_dict(), shared_tmp / "weights.pt")
    comm.barrier()
    settings = SETTINGS | {"lr": 1e-12, "scale": "none"}
    job = istmpi.Distributed(
        networks.TwoTowers, {"features": 5}, comm, example=pair(6), init=str(shared_tmp / "weights.pt"), **settings
    )
    for round in job.rounds(1, folder=shared_tmp / "run", watch=Watch(), signals=False):
        for _ in round.steps():
            round.step(round.module(*(x.double() for x in pair(4))).square().mean())
    state = job.state_dict()
    for name, values in given.state_dict().items() if comm.rank == 0 else ():
        assert torch.allclose(state[name], values.double(), atol=1e-9)


def test_a_second_loop_goes_on_from_the_first(comm, shared_tmp):
    """Not from the weights that the first one began with."""
    if comm.rank == 0:
        torch.save(networks.TwoTowers(5).state_dict(), shared_tmp / "weights.pt")
    comm.barrier()
    settings = SETTINGS | {"init": str(shared_tmp / "weights.pt"), "lr": 0.01}
    job = istmpi.Distributed(networks.TwoTowers, {"features": 5}, comm, example=pair(6), **settings)
    seen = []
    for rounds in (1, 2):
        for round in job.rounds(rounds, folder=shared_tmp / f"{rounds}", watch=Watch(), signals=False):
            seen.append(round.module.state_dict()["tower.0.bias"].sum().item() if comm.size == 1 else round.number)
            for _ in round.steps():
                round.step(round.module(*(x.double() for x in pair(4))).square().mean())
    assert len(set(seen)) == 2


class Shuffled(IterableDataset):
    def __iter__(self):
        yield from torch.arange(23.0)[torch.randperm(23)].double()[:, None, None]


@pytest.mark.parametrize("kind", ["shuffled", "distributed", "without batches", "iterable"])
def test_an_evaluation_scores_each_example_once(comm, shared_tmp, kind):
    data = TensorDataset(torch.arange(23.0)[:, None].expand(23, 5).double())
    how = {
        "shuffled": {"batch_size": 4, "shuffle": True},
        "distributed": {"batch_size": 4, "sampler": DistributedSampler(data, comm.size, comm.rank)},
        "without batches": {"batch_size": None, "shuffle": True},
        "iterable": {"batch_size": None},
    }[kind]
    job = istmpi.Distributed(networks.TwoTowers, {"features": 5}, comm, example=pair(6), **SETTINGS)
    loader = DataLoader(Shuffled() if kind == "iterable" else data, **how)
    torch.manual_seed(comm.rank)  # as ranks may differ that drew other numbers before
    assert job.evaluate(lambda module, batch: batch[0].mean(), loader) == pytest.approx(11.0)


def test_a_loader_that_is_made_anew_in_each_round_goes_on(comm, shared_tmp):
    data, seen = TensorDataset(torch.arange(60.0).view(12, 5).double()), []
    job = istmpi.Distributed(networks.TwoTowers, {"features": 5}, comm, example=pair(6), **SETTINGS)
    for round in job.rounds(2, folder=shared_tmp / "run", watch=Watch(), signals=False):
        for (x,) in round.take(DataLoader(data, batch_size=1, shuffle=True)):
            seen.append(float(x[0, 0]))
            round.step(round.module(x, x).square().mean())
    assert len(set(seen)) == min(6, 12 // comm.size)


def test_errors_name_arguments_of_python(comm, shared_tmp):
    (shared_tmp / "run").mkdir(exist_ok=True)
    (shared_tmp / "run" / "file").touch()
    job = distributed(comm)
    with pytest.raises(ConfigError, match="^(rank 0: )?folder = .*: the folder is not empty"):
        next(iter(job.rounds(1, folder=shared_tmp / "run", watch=Watch(), signals=False)))
    with pytest.raises(ConfigError, match='another method, such as method="local-sgd"'):
        istmpi.Distributed(torch.nn.Linear, {"in_features": 5, "out_features": 3}, comm, example=pair(6)[0])


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(9))


def test_a_loader_that_would_fork_is_refused(comm):
    with pytest.raises(ConfigError, match="num_workers = 2: processes that fork under MPI may hang"):
        open_stream(DataLoader(Endless(), num_workers=2), 0, 0, 1, print)


def test_evaluation_is_that_of_the_command(comm, shared_tmp):
    """The same weights and calibration batch; each rank scores some of the batches."""
    job = distributed(comm, lr=0.1)
    loader, test = DataLoader(Digits(), batch_size=8, shuffle=True), DataLoader(Digits("test"), batch_size=50)
    for round in job.rounds(3, folder=shared_tmp / "run", watch=Watch(), signals=False):
        for batch in round.take(loader):
            round.step(loss_of(round.module, batch))
        scored = job.evaluate(accuracy, test, calibrate=loader, name="accuracy")
    moments = job.training.evaluator.network.moments
    network = networks.Convolutional(**ARGUMENTS).double()
    state = job.state_dict()
    if comm.rank == 0:
        network.load_state_dict(state)
        mean, variance = moments["norm"]
        assert torch.allclose(network.norm.running_mean, mean)
        with torch.no_grad():
            right = [accuracy(network.eval(), batch) * len(batch[1]) for batch in test]
        assert scored == pytest.approx(float(sum(right)) / len(test.dataset))
        line = RunFolder(shared_tmp / "run").metrics()[-1]
        assert (line["score"], line["accuracy" if "accuracy" in line else "score"]) == (scored, scored)
    both = job.evaluate(lambda module, batch: {"accuracy": accuracy(module, batch), "one": 1.0}, test)
    assert both == {"accuracy": pytest.approx(scored), "one": 1.0}


def test_a_network_is_calibrated_as_it_was_before_where_the_last_round_is_not_evaluated(comm, shared_tmp):
    """It is saved, exported and scored with moments of the weights that it has; without a loader it is refused."""
    loader, batches, saved = DataLoader(Digits(), batch_size=8, shuffle=True), Training(run_of({}), comm).batches, []
    for calibrates in (0, 1, 3):
        job, folder = distributed(comm, lr=0.1), shared_tmp / f"{calibrates}"
        if calibrates < 3:
            with pytest.raises(ConfigError, match="moments are unknown after this round. Call evaluate"):
                job.save(shared_tmp / "network.h5")

        def evaluate(round, job=job, last=calibrates):
            if round.number <= last:
                job.evaluate(accuracy, DataLoader(Digits("test"), batch_size=50), calibrate=loader)

        loop(job, batches, 3, folder=folder, behind=evaluate)
        if calibrates:
            job.save(folder / "other.h5")
            with open_checkpoint(folder / "network.h5") as end, open_checkpoint(folder / "other.h5") as other:
                saved += [end.moments["norm"][0], other.moments["norm"][0]]
            assert job.evaluate(accuracy, DataLoader(Digits("test"), batch_size=50)) > 0
            with pytest.raises(DataError, match="is of a program, whose data istmpi does not know. Score it in the"):
                scoring.evaluate(folder / "other.h5", comm, model=f"{FILE}:Convolutional")
        elif comm.rank == 0:
            with pytest.raises(DataError, match="without calibration"):
                export(folder / "network.h5", "torch", folder / "network.pt", model=f"{FILE}:Convolutional")
    assert all(np.array_equal(saved[0], other) for other in saved)


def test_random_numbers_of_a_loader_are_the_same_in_every_evaluation(comm, shared_tmp):
    """Each example once, whatever the order that a process draws, and whatever it masks."""
    torch.manual_seed(comm.rank)
    seen, collate = [], torch.utils.data.default_collate

    def noted(module, batch):
        seen.append(batch[0])
        return {"mean": batch[0].mean(), "noise": torch.rand(())}

    def noisy(examples):
        x, y = collate(examples)
        return x + torch.rand_like(x), y

    job = distributed(comm, lr=0.1)
    loader = DataLoader(Digits("test"), batch_size=50, shuffle=True, collate_fn=noisy)
    calibrate = DataLoader(Digits(), batch_size=8, shuffle=True)
    first, second = (job.evaluate(noted, loader, calibrate=calibrate)["mean"] for _ in range(2))
    assert first == second
    assert first == pytest.approx(float(Digits("test")._batch.inputs[0].mean()) + 0.5, abs=0.01)
    before, after = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert all(torch.equal(*both) for both in zip(before, after, strict=True))
    assert sum(comm.allgather(sum(map(len, before[1:])))) == len(Digits("test"))


def test_a_record_is_json_without_the_loss_that_a_score_has_not(comm, shared_tmp):
    job = distributed(comm, lr=0.1)
    for round in job.rounds(1, folder=shared_tmp / "run", watch=Watch(), signals=False):
        for batch in round.take(steps_from(Training(run_of({}), comm).batches, 0)):
            round.step(loss_of(round.module, batch))
        job.evaluate(accuracy, DataLoader(Digits("test"), batch_size=50), calibrate=[(EXAMPLE, torch.zeros(8).long())])
    if comm.rank == 0:
        for name in ("metrics.jsonl", "summary.json"):
            assert "NaN" not in (shared_tmp / "run" / name).read_text()


def test_a_network_of_two_inputs_and_a_contrastive_loss_learns(comm, shared_tmp):
    generator = torch.Generator().manual_seed(comm.rank)
    example = {"left": torch.randn(6, 5), "right": torch.randn(6, 5)}
    job = istmpi.Distributed(
        networks.TwoTowers, {"features": 5, "hidden": 12}, comm, example=example, **SETTINGS, lr=0.5
    )
    assert job.training.architecture.default_groups == ("hidden",)
    losses = []
    for round in job.rounds(20, folder=shared_tmp / "run", watch=Watch(), signals=False):
        for _ in round.steps():
            x = torch.randn(16, 5, generator=generator, dtype=torch.float64)
            logits = round.module(left=x, right=x + 0.1)
            loss = functional.cross_entropy(logits, torch.arange(16))
            round.step(loss)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


def own(parameters):
    return torch.optim.RMSprop(parameters, lr=0.01)


@pytest.mark.parametrize("method, state", [("ist", "reset"), ("local-sgd", "carry")])
def test_an_optimizer_of_the_users_with_groups_and_a_schedule_resumes(comm, shared_tmp, method, state, monkeypatch):
    monkeypatch.setattr(stopping, "_SECONDS_BETWEEN_LOOKS", 0.0)
    rates = []

    def job():
        return distributed(
            comm,
            method=method,
            optimizer_state=state,
            optimizer=own,
            groups={"*.bias": {"weight_decay": 0.0, "lr": 0.001}, "dense.*": {"weight_decay": 0.1}},
            schedule=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12),
        )

    def note(round):
        rates.append([group["lr"] for group in round.optimizer.param_groups] if method == "local-sgd" else round.rate)

    batches = Training(run_of({"method": method}), comm).batches
    uninterrupted = job()
    loop(uninterrupted, batches, 4, folder=shared_tmp / "whole", behind=note)

    def stop(round):
        if round.number == 2 and comm.rank == 0:
            (shared_tmp / "halves" / "STOP").touch()

    with pytest.raises(StoppedError):
        loop(job(), batches, 4, folder=shared_tmp / "halves", behind=stop)
    comm.barrier()
    if comm.rank == 0:
        (shared_tmp / "halves" / "STOP").unlink()
    comm.barrier()
    resumed = job()
    loop(resumed, batches, 4, folder=shared_tmp / "halves", resume="auto")
    assert_same_bits(whole(resumed.training), whole(uninterrupted.training))
    expected = [0.01 * (1 + math.cos(math.pi * step / 12)) / 2 for step in (2, 5, 8, 11)]
    if method == "local-sgd":
        assert [each[1] for each in rates] == pytest.approx(expected)
        assert [each[0] for each in rates] == pytest.approx([rate / 10 for rate in expected])


def test_a_schedule_that_follows_scores_resumes(comm, shared_tmp):
    """The rates are those of a scheduler in one process that is given the same scores."""
    method = "ist" if comm.size > 1 else "local-sgd"
    scores, examples = [0.5, 0.6, 0.6, 0.6, 0.55, 0.7, 0.7], [EXAMPLE] * comm.size

    def plateau(optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=0)

    def rates_of(rounds, folder, resume=None):
        job, rates = distributed(comm, method=method, optimizer=own, schedule=plateau), {}

        def behind(round):
            rates[round.number] = round.rate
            job.evaluate(lambda module, x: 0 * module(x.double()).mean(), examples, calibrate=examples)
            job.evaluate(lambda module, x: scores[round.number - 1], examples)

        loop(
            job, Training(run_of({"method": method}), comm).batches, rounds, folder=folder, resume=resume, behind=behind
        )
        return job, rates

    alone = own([torch.nn.Parameter(torch.zeros(1))])
    scheduler, expected = plateau(alone), []
    for score in scores:
        expected.append(alone.param_groups[0]["lr"])
        scheduler.step(score)
    uninterrupted, rates = rates_of(6, shared_tmp / "whole")
    assert [*rates.values()] == expected[:6] and min(expected) == 0.01 / 8
    rates_of(4, shared_tmp / "halves")
    resumed, rates = rates_of(6, shared_tmp / "halves", "auto")
    assert rates == {5: expected[4], 6: expected[5]}
    assert_same_bits(whole(resumed.training), whole(uninterrupted.training))
    _, rates = rates_of(7, shared_tmp / "elsewhere", shared_tmp / "halves")
    assert rates == {7: expected[6]}
    comm.barrier()
    if comm.rank == 0:
        (shared_tmp / "halves" / "metrics.jsonl").unlink()
    comm.barrier()
    with pytest.raises(ConfigError, match="ReduceLROnPlateau needs the scores of earlier rounds"):
        rates_of(7, shared_tmp / "without a record", shared_tmp / "halves")


@pytest.mark.parametrize("method, by_hand", [("ist", False), ("data-parallel", True)])
def test_gradients_of_several_batches_add_up(comm, shared_tmp, method, by_hand):
    """Two halves of a batch make the step of the whole one; by hand, too, with a backward pass for each."""
    trained = []
    for parts in (1, 2):
        settings = SETTINGS | {"method": method}
        job = istmpi.Distributed(networks.TwoTowers, {"features": 5, "hidden": 8}, comm, example=pair(6), **settings)
        for round in job.rounds(2, folder=shared_tmp / f"{parts}", watch=Watch(), signals=False):
            batches = (torch.randn(8, 5, generator=seeded(comm.rank + 10 * step)) for step in range(100))
            halves = (half.double() for batch in batches for half in batch.chunk(parts))
            if by_hand:
                for _ in round.steps():
                    for x in itertools.islice(halves, parts):
                        (round.module(x, x).diagonal().square().mean() / parts).backward()
                    round.optimizer.step()
            else:
                for x in round.take(halves, accumulate=parts):
                    round.step(round.module(x, x).diagonal().square().mean())
        trained.append(whole(job.training))
    for name, values in trained[0].items():
        np.testing.assert_allclose(trained[1][name], values, rtol=1e-10)


def seeded(step):
    return torch.Generator().manual_seed(step)


def pair(rows):
    return torch.randn(rows, 5), torch.randn(rows, 5)


@pytest.mark.parametrize("method", ["local-sgd", "data-parallel"])
def test_a_scaler_and_autocast_train(comm, shared_tmp, method):
    """A gradient that is not finite on one rank is a step that no rank takes, where gradients are averaged."""
    settings = SETTINGS | {"dtype": "float32", "method": method}
    job = istmpi.Distributed(networks.TwoTowers, {"features": 5}, comm, example=pair(6), **settings)
    scaler = torch.amp.GradScaler("cpu")
    for round in job.rounds(2, folder=shared_tmp / "run", watch=Watch(), signals=False):
        for step in round.steps():
            with torch.autocast("cpu", torch.bfloat16):
                loss = round.module(*pair(8)).float().square().mean()
            before = [values.detach().clone() for values in round.module.parameters()]
            overflows = method == "data-parallel" and step == 1 and comm.rank == 0
            round.step(loss * (1e38 if overflows else 1), scaler)
            moved = any(not torch.equal(*both) for both in zip(before, round.module.parameters(), strict=True))
            assert moved != (method == "data-parallel" and step == 1)


# ---- used wrongly


def wrongly(body, **settings):
    """Take part in a round whose loop is ``body(round, batches)``."""

    def run(comm, folder):
        job = distributed(comm, **settings)
        batches = Training(run_of({"method": "local-sgd"}), comm).batches
        for round in job.rounds(2, folder=folder, watch=Watch(), signals=False):
            body(round, steps_from(batches, 0), job)

    return run


def skips(round, batches, job):
    for _ in round.take(batches):
        pass


def leaves(round, batches, job):
    for batch in round.take(batches):
        round.step(loss_of(round.module, batch))
        break


def twice(round, batches, job):
    for batch in round.take(batches):
        for _ in range(2):
            round.step(loss_of(round.module, batch))


def again(round, batches, job):
    for batch in round.take(batches):
        for loss in [loss_of(round.module, batch)] * 2:
            round.step(loss)


def many(round, batches, job):
    for x, _ in round.take(batches):
        round.step(round.module(x.double()))


def detached(round, batches, job):
    for batch in round.take(batches):
        round.step(loss_of(round.module, batch).detach())


def outside(round, batches, job):
    module = networks.Convolutional(**ARGUMENTS).double()
    for batch in round.take(batches):
        round.step(loss_of(module, batch))


def replaces(round, batches, job):
    for batch in round.take(batches):
        round.step(loss_of(round.module, batch))
        round.module.last.weight = torch.nn.Parameter(round.module.last.weight.detach().clone())


def keeps(round, batches, job):
    for batch in round.take(batches):
        module = round.module
        round.step(loss_of(module, batch))
    module(torch.zeros(2, 1, 8, 8, dtype=torch.float64))


def with_a_closure(round, batches, job):
    for _ in round.take(batches):
        round.optimizer.step(lambda: 0.0)


def evaluates(round, batches, job):
    for _ in round.take(batches):
        job.evaluate(accuracy, [])


def takes_inside(round, batches, job):
    for _ in round.take(batches):
        for batch in round.take(batches):
            round.step(loss_of(round.module, batch))


def rounds_inside(round, batches, job):
    [*job.rounds(2)]


def ends(round, batches, job):
    for batch in round.take([]):
        round.step(loss_of(round.module, batch))


def uncalibrated(round, batches, job):
    for batch in round.take(batches):
        round.step(loss_of(round.module, batch))
    job.evaluate(accuracy, [])


def raises(round, batches, job):
    for batch in round.take(batches):
        round.step(
            loss_of(round.module, batch) * (math.nan if job.communicator.rank == job.communicator.size - 1 else 1)
        )


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize(
    "body, kind, message",
    [
        (skips, ConfigError, "round 1: local step 1 was not taken. Call round.step"),
        (leaves, ConfigError, "round 1: the loop ended after 1 of 3 local steps. Take all of them"),
        (twice, ConfigError, "round 1: local step 1 was taken twice; take the next batch first."),
        (again, ConfigError, "round 1: local step 1 was taken twice; take the next batch first."),
        (many, ConfigError, r"round 1: the loss is \(8, 10\); it must be a tensor of one number"),
        (detached, ConfigError, "round 1: the loss has no gradient"),
        (outside, ConfigError, "round 1: no parameter of round.module got a gradient. Compute the"),
        (replaces, ConfigError, "round 1: parameter last.weight of round.module was replaced"),
        (with_a_closure, ConfigError, "round.optimizer.step takes no closure"),
        (evaluates, ConfigError, "evaluate is called inside a round"),
        (takes_inside, ConfigError, "round 1: round.take is called inside a loop over its local steps"),
        (rounds_inside, ConfigError, "rounds is called inside a loop over rounds. End this loop first"),
        (ends, DataError, "the loader, list, has no batch on rank"),
        (uncalibrated, ConfigError, "the network has batch normalisations, whose moments are unknown"),
        (raises, DivergedError, "the loss is no longer finite in round 1, local step 1"),
    ],
)
def test_a_loop_that_goes_wrong_is_told_so(comm, shared_tmp, body, kind, message):
    with pytest.raises(kind, match=message):
        wrongly(body)(comm, shared_tmp / "run")


def test_the_cure_names_no_setting_of_an_optimizer_that_the_program_gives(comm, shared_tmp):
    def body(round, batches, job):
        for number, batch in enumerate(round.take(batches)):
            round.step(loss_of(round.module, batch) * (math.nan if number else 1))

    for settings, cure in (({"optimizer": own}, "Lower the learning rate"), ({}, r"Lower optimizer\.lr")):
        with pytest.raises(DivergedError, match=cure):
            wrongly(body, **settings)(comm, shared_tmp / cure)


def test_a_buffer_that_the_loop_changes_is_refused(comm, shared_tmp):
    job = istmpi.Distributed(networks.FrozenTrunk, {}, comm, example=torch.randn(6, 5), **SETTINGS)
    rounds = iter(job.rounds(1, folder=shared_tmp / "run", watch=Watch(), signals=False))
    round = next(rounds)

    def take():
        for _ in round.steps():
            round.step(round.module(torch.randn(4, 5).double()).mean())
            round.module.trunk.weight.add_(1)

    with pytest.raises(ConfigError, match="round 1: buffer trunk.weight of round.module was changed"):
        take()


@pytest.mark.ranks(min=2)
def test_a_module_that_is_kept_beyond_its_round_is_refused(comm, shared_tmp):
    with pytest.raises(ConfigError, match="round 1: its module and optimizer are used after its end"):
        wrongly(keeps)(comm, shared_tmp / "run")


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("every", [0, 1])
def test_a_call_of_some_ranks_alone_is_refused(comm, shared_tmp, every):
    def body(round, batches, job):
        for batch in round.take(batches):
            round.step(loss_of(round.module, batch))
        if comm.rank == 0:
            job.state_dict()

    with pytest.raises(ConfigError, match="rank 0 called state_dict while rank 1 called round 2. Every rank must"):
        wrongly(body, checkpoint_every=every)(comm, shared_tmp / "run")


@pytest.mark.parametrize(
    "score, what",
    [
        (torch.zeros(3), " returns a value of shape (3,) and type float32; it must"),
        ({"a": torch.zeros(2)}, ": a returns a value of shape (2,)"),
        ((1.0, torch.ones(2)), ": its count returns a value of shape (2,)"),
        (None, " returns a value of type NoneType; it must return one number (the mean over a batch"),
        ("good", " returns a value of type str"),
        ([0.5], " returns a value of type list"),
        (torch.tensor(1j), " returns a value of shape () and type complex64"),
        ({1: 0.5}, " returns a dict with the key 1; its keys must be names"),
        ({}, " returns an empty dict"),
        ((1.0, float("nan")), " returns a pair (sum, count) with the count nan"),
    ],
)
def test_a_score_is_one_number(comm, score, what):
    job = istmpi.Distributed(networks.TwoTowers, {"features": 5}, comm, example=pair(6), **SETTINGS)
    with pytest.raises(ConfigError, match=re.escape(f"the score{what}")):
        job.evaluate(lambda module, batch: score, [EXAMPLE] * 9)
    with pytest.raises(ConfigError, match="the score f1 has 0 examples in all batches"):
        job.evaluate(lambda module, batch: {"f1": (1, 0), "one": 1.0}, [EXAMPLE] * 9)
    pairs = job.evaluate(lambda module, batch: {"f1": (batch[0, 0, 0, 0] * 0 + 1, 4), "one": 1.0}, [EXAMPLE] * 9)
    assert pairs == {"f1": 0.25, "one": 1.0}


def test_a_calibration_that_misses_the_network_is_none(comm, shared_tmp):
    job = distributed(comm)
    job.evaluate(lambda module, batch: 0.0, [EXAMPLE] * comm.size, calibrate=[EXAMPLE] * comm.size)
    with pytest.raises(ConfigError, match="calibrate=, a loader of training data, and a score that passes its batches"):
        job.save(shared_tmp / "network.h5")


@pytest.mark.ranks(min=2)
def test_scores_of_other_names_on_a_rank_are_refused(comm):
    job = istmpi.Distributed(networks.TwoTowers, {"features": 5}, comm, example=pair(6), **SETTINGS)
    assert job.evaluate(lambda module, batch: {"a": 1.0}, [EXAMPLE]) == {"a": 1.0}
    with pytest.raises(ConfigError, match="the score has ..a.. on a rank and ..acc.. on another"):
        job.evaluate(lambda module, batch: {"acc" if comm.rank == 1 else "a": 1.0}, [EXAMPLE] * 9)


def test_the_record_keeps_a_scores_name_and_direction_and_other_examples_resume(comm, shared_tmp):
    watch = Noted()
    for rounds in (1, 2):
        size, settings = {"in_features": 5, "out_features": 3}, SETTINGS | {"method": "local-sgd"}
        job = istmpi.Distributed(torch.nn.Linear, size, comm, example=torch.randn(6, rounds, 5), **settings)
        for round in job.rounds(rounds, folder=shared_tmp / "run", resume="auto", watch=watch, signals=False):
            for _ in round.steps():
                round.step(round.module(pair(4)[0].double()).square().mean())
        if rounds == 1:
            batches = [(EXAMPLE, EXAMPLE[:4])] * 9
            job.evaluate(lambda module, batch: 1.0, batches, name="mse", higher_is_better=False)
    assert job.summary.score_name == "mse (lower is better)" and not higher_is_better(job.summary.score_name)
    assert [line["score_name"] for line in job.metrics()] == ["mse (lower is better)"] * 2
    if comm.rank == 0:
        assert "the tensors of a batch to evaluate have different first axes" in "".join(watch.notes)


def test_the_record_has_all_scores_of_a_round_also_one_behind_the_last(comm, shared_tmp):
    job = istmpi.Distributed(networks.TwoTowers, {"features": 5}, comm, example=pair(6), **SETTINGS)
    for round in job.rounds(2, folder=shared_tmp / "run", watch=Watch(), signals=False):
        for _ in round.steps():
            round.step(round.module(*(x.double() for x in pair(4))).square().mean())
        job.evaluate(lambda module, batch: 1.0, [EXAMPLE] * 9)
        job.evaluate(lambda module, batch: 2.0, [EXAMPLE] * 9, name="two", higher_is_better=False)
    assert job.evaluate(lambda module, batch: 0.5, [EXAMPLE] * 7) == 0.5
    mean = job.evaluate(lambda module, batch: (batch.sum(), len(batch)), [EXAMPLE, EXAMPLE[:3]], name="mean")
    assert mean == pytest.approx(float(EXAMPLE.sum() + EXAMPLE[:3].sum()) / 11)
    lines = job.metrics()
    names = "score_name", "score", "test_examples", "two", "mean"
    assert [*map(lines[0].get, names)] == ["score", 1, 72, 2, None]
    assert [*map(lines[1].get, names)] == ["score", 0.5, 56, 2, mean]
    assert job.summary.last.score.score == 0.5
    if comm.rank == 0:
        assert RunFolder(shared_tmp / "run").summary().tree["last"]["score"]["score"] == 0.5
    finished = istmpi.Distributed(networks.TwoTowers, {"features": 5}, comm, example=pair(6), **SETTINGS)
    assert not finished.metrics()
    assert not [*finished.rounds(2, folder=shared_tmp / "run", resume="auto", watch=Watch(), signals=False)]
    assert finished.metrics() == lines


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"local_stepz": 3}, "unknown argument local_stepz; did you mean local_steps"),
        ({"patience": 3}, "patience is a setting of train and comm. Give comm_patience instead"),
        ({"epochs": 3}, "epochs is a setting of method and train. Give method_epochs instead"),
        ({"every": 3}, "every is a setting of evaluate and checkpoint. Give checkpoint_every instead"),
        ({"init": "absent"}, "init = 'absent' does not exist"),
        ({"groups": {"nothing.*": {}}, "optimizer": own}, "no parameter's name matches 'nothing"),
        ({"groups": {"*.bias": {}}}, "groups and schedule go with an optimizer that is a function"),
        ({"optimizer": lambda parameters: None}, "optimizer is NoneType, not a torch.optim.Optimizer"),
        ({"optimizer": lambda _: own([torch.zeros(1)])}, "the optimizer does not have the parameters it was given"),
        ({"optimizer": own, "momentum": 0.9}, "momentum goes with an optimizer by name. Set it in the function"),
        ({"optimizer": own, "groups": {"*.bias": {"weight_deca": 0.0}}}, "has weight_deca; did you mean weight_decay"),
        ({"optimizer": own, "schedule": "cosin"}, "schedule is 'cosin'; it must be a function"),
        ({"optimizer": own, "groups": ["*.bias"]}, "groups is a list; it must be a dict of patterns and options"),
        ({"optimizer": own, "groups": {"*.bias": 5}}, "must be a pattern of names and a dict of options"),
        ({"optimizer": own, "groups": {"*.bias": {"lr": -1.0}}}, "has lr = -1.0; it must be at least 0"),
        ({"optimizer": own, "groups": {"*.bias": {"lr": "x"}}}, "has lr = 'x'; it must be at least 0"),
        ({"examples": "x"}, "examples = 'x' must be a whole number of at least 1"),
        ({"example": torch.empty(4, 1, 8, 8, device="meta")}, "example has a tensor on the device meta"),
        ({"optimizer": own([torch.zeros(1)])}, "optimizer is an instance of RMSprop; it must be a function"),
        ({"network": networks.TwoTowers(5)}, "the network is an instance of TwoTowers. Give the class"),
        ({"optimizer": torch.optim.LBFGS}, "optimizer cannot step with gradients alone"),
        (
            {"optimizer": torch.optim.NAdam, "optimizer_state": "carry"},
            "cannot be kept between rounds: mu_product",
        ),
        ({"scale": "fitted"}, "needs a run's loss"),
        ({"method": "codistillation"}, "codistillation"),
    ],
)
def test_arguments_that_cannot_be_are_refused(comm, settings, message):
    with pytest.raises(ConfigError, match=message):
        distributed(comm, **settings)


def towers(comm, folder, around=lambda module: module, rounds=3, **settings):
    """Train two towers whose module is used through ``around``; return the job."""
    settings = SETTINGS | {"lr": 0.1, **settings}
    job = istmpi.Distributed(networks.TwoTowers, {"features": 5, "hidden": 8}, comm, example=pair(6), **settings)
    for round in job.rounds(rounds, folder=folder, watch=Watch(), signals=False):
        module = around(round.module)
        for step in round.steps():
            x = torch.randn(8, 5, generator=seeded(10 * round.number + step), dtype=torch.float64)
            round.step(module(x, x).square().mean())
        for hook in getattr(module, "hooks", ()):
            hook.remove()
    return job


def test_hooks_on_the_module_are_called_in_each_local_step(comm, shared_tmp):
    method, called = "ist" if comm.size > 1 else "local-sgd", []

    def hooked(module):
        last = module.tower[2]
        module.hooks = [
            module.register_forward_pre_hook(lambda *_: called.append("module")),
            last.register_forward_hook(lambda *_: called.append("forward")),
            last.register_full_backward_hook(lambda *_: called.append("backward")),
            last.weight.register_post_accumulate_grad_hook(lambda _: called.append("gradient")),
        ]
        return module

    job = towers(comm, shared_tmp / "hooked", hooked, method=method)
    assert called[:3] == ["module", "forward", "forward"]
    assert Counter(called) == {"module": 9, "forward": 18, "backward": 18, "gradient": 9}
    assert_same_bits(whole(job.training), whole(towers(comm, shared_tmp / "plain", method=method).training))


def test_a_compiled_module_is_compiled_anew_only_where_its_widths_change(comm, shared_tmp):
    """By a backend that compiles nothing; the weights are those of the plain module."""
    method, compiled, widths = "ist" if comm.size > 1 else "local-sgd", [], set()

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    def around(module):
        widths.add(module.tower[0].out_features)
        return torch.compile(module, backend=backend)

    job = towers(comm, shared_tmp / "compiled", around, rounds=5, method=method)
    assert len(compiled) == len(widths)
    assert_same_bits(whole(job.training), whole(towers(comm, shared_tmp / "plain", rounds=5, method=method).training))


def test_batches_on_another_device_are_refused(comm, shared_tmp):
    method = "ist" if comm.size > 1 else "local-sgd"
    job = istmpi.Distributed(networks.TwoTowers, {"features": 5}, comm, example=pair(6), method=method, **SETTINGS)
    batches = [torch.zeros(4, 5, device="meta", dtype=torch.float64)]
    with pytest.raises(ConfigError, match="the network to evaluate is on cpu and its input on meta. Use batch.to"):
        job.evaluate(lambda module, x: module(x, x).mean(), batches * comm.size)
    rounds = iter(job.rounds(1, folder=shared_tmp / "run", watch=Watch(), signals=False))
    round = next(rounds)
    x = next(iter(round.take(batches)))
    for inputs, named in [((x, x), {}), ((), {"left": x, "right": x})]:
        with pytest.raises(ConfigError, match="round 1: round.module is on cpu and its input on meta. Use batch.to"):
            round.module(*inputs, **named)
    assert round.device == torch.device("cpu")
