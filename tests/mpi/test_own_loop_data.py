"""Loaders and scores of a user's own loop: each rank's own part, repeated when resumed; those of the command."""

import re

import loops
import networks
import numpy as np
import pytest
import torch
from loops import EXAMPLE, Digits, accuracy, begin_rounds, compute_loss, make_job, make_towers, square_loss
from own_runs import FILE
from small import Listening
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import istmpi
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.deploy import scoring
from istmpi.deploy.export import export
from istmpi.errors import ConfigError, DataError
from istmpi.program.streams import Streams, open_stream
from istmpi.record import RunFolder
from istmpi.tasks import higher_is_better


def test_a_loader_that_shuffles_repeats_itself_when_resumed(comm):
    """Each rank draws from its own part, whatever process it is; another epoch has another order."""
    loader = DataLoader(Digits(), batch_size=8, shuffle=True)
    streams = [open_stream(loader, 5, rank, 3, print) for rank in (0, 1, 2)]
    seen = [torch.cat([stream.at(step)[0].flatten(1) for step in range(60)]) for stream in streams]
    parts = [set(map(tuple, rows.tolist())) for rows in seen]
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert torch.equal(open_stream(loader, 5, 1, 3, print).at(37)[0], streams[1].at(37)[0])
    assert not torch.equal(streams[1].at(0)[0], streams[1].at(60)[0])


def test_a_loader_in_its_own_order_begins_again_at_its_end_and_says_so(comm):
    notes = []
    stream = open_stream(list(DataLoader(Digits(), batch_size=1000)), 5, comm.rank, comm.size, notes.append)
    first, *_ = (stream.at(step)[1] for step in range(2))
    assert torch.equal(stream.at(2)[1], first)
    assert notes == [
        "list keeps its own order, so a resumed run starts it again and differs from an uninterrupted run. "
        "A DataLoader of a map-style data set with shuffle=True avoids that."
    ]


class Failing(list):
    def __getitem__(self, index):
        return 1 + ""


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(9))


def collate(items):
    return torch.stack([torch.zeros(number) for number in range(len(items))])


@pytest.mark.ranks(only=[1])
@pytest.mark.parametrize(
    "loader, message",
    [
        ([], "the loader, list, has no batch on rank 3."),
        (DataLoader([], 5), "the loader's data set is empty"),
        (
            DataLoader([0] * 30, 5, collate_fn=collate),
            r"its collate function fails for examples (\d+, ){4}...: RuntimeError: .* It is raised in .*py, line",
        ),
        (DataLoader(Failing([0] * 4), 5), "example 0 cannot be read: TypeError.*py, line"),
        (DataLoader(Endless(), num_workers=2), "num_workers = 2: processes that fork under MPI may hang"),
    ],
)
def test_a_loader_that_fails_is_named_with_the_line_of_the_users_code(loader, message):
    with pytest.raises((ConfigError, DataError), match=message):
        open_stream(loader, 5, 3, 4, print).at(0)


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("alike, local, warned", [(True, False, True), (True, True, False), (False, False, False)])
def test_a_loader_that_gives_all_ranks_the_same_batches_is_noticed(comm, shared_tmp, alike, local, warned):
    watch, own = Listening(), 0 if alike else comm.rank
    loader = [torch.full((4, 5), float(step + own)).double() for step in range(9)]
    for round in begin_rounds(make_towers(comm), 2, shared_tmp / "run", watch):
        for x in round.take(loader, local=local):
            round.step(square_loss(round.module, x) * 1e-6)
    if comm.rank == 0:
        warning = "list gives all ranks the same first batch. Make it depend on"
        assert sum(note.startswith(warning) for note in watch.said) == warned


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
        job, loader = make_towers(comm, checkpoint_every=1), Counting()
        resume = first if folder != first else "auto"
        for round in begin_rounds(job, rounds, folder, resume=resume, network=False):
            for x in round.take(loader):
                seen.append(round_to(x))
                round.step(square_loss(round.module, x))
        comm.barrier()
    assert seen == [*range(1, 10), *range(7, 13)]


def test_a_dropped_round_asks_no_loader_for_its_state(comm, shared_tmp):
    """The states to save are those from the round's beginning."""
    streams, loader = Streams(comm, 5, print), Counting()
    streams.find(loader).at(0)
    streams.begin_round()
    loader.state_dict = lambda: 1 / 0
    streams.save(shared_tmp, 0, 1, dropped=True)
    assert torch.load(shared_tmp / f"0-{comm.rank}.pt") == [{"next": 1}]


def round_to(x):
    return int(x[0, 0] * 10 + 0.5)


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("more, shift", [(1, 0), (0, 1)])
def test_data_sets_that_differ_are_refused_unless_they_are_local(comm, shared_tmp, more, shift):
    data = TensorDataset(torch.arange(20 + more * comm.rank)[:, None].expand(-1, 5).double() + 100 * shift * comm.rank)
    rounds = iter(begin_rounds(make_towers(comm), 1, shared_tmp / "run"))  # a loop that nobody refers to is left
    round = next(rounds)
    loader, seen = DataLoader(data, batch_size=7, shuffle=True), []
    with pytest.raises(DataError, match=r"differs from that on rank 0.*write round.take\(loader, local=True\)"):
        next(iter(round.take(loader)))
    for (x,) in round.take(loader, local=True):
        seen += x[:, 0].tolist()
        round.step(square_loss(round.module, x) * 1e-6)
    assert len({*seen}) == min(21, 20 + more * comm.rank)


@pytest.mark.parametrize("local", [False, True])
def test_changed_data_are_refused_when_resuming(comm, shared_tmp, local):
    """As prepared data are; each rank's own only on as many ranks as before."""

    def train(rounds, value, folder="run", resume="auto"):
        data = TensorDataset(torch.full((12, 5), value).double())
        for round in begin_rounds(make_towers(comm), rounds, shared_tmp / folder, resume=resume):
            for (x,) in round.take(DataLoader(data, batch_size=2, shuffle=True), local=local):
                round.step(square_loss(round.module, x))

    train(1, 0.0)
    train(2, 0.0)
    for elsewhere in ((), ("other", shared_tmp / "run")):
        with pytest.raises(DataError, match="loader 1 has another data set than before resuming. Give the same"):
            train(3, 1.0, *elsewhere)
    path = shared_tmp / f"run/loaders/data-{comm.rank}.json"
    path.write_text(path.read_text().replace(f" {comm.size}]", f" {comm.size + 1}]"))
    if local:
        train(3, 1.0)


def test_a_loader_that_is_made_anew_in_each_round_goes_on(comm, shared_tmp):
    data, seen = TensorDataset(torch.arange(60.0).view(12, 5).double()), []
    for round in begin_rounds(make_towers(comm), 2, shared_tmp / "run"):
        for (x,) in round.take(DataLoader(data, batch_size=1, shuffle=True)):
            seen.append(float(x[0, 0]))
            round.step(square_loss(round.module, x))
    assert len(set(seen)) == min(6, 12 // comm.size)


class Shuffled(IterableDataset):
    def __iter__(self):
        yield from torch.arange(23.0)[torch.randperm(23)].double()[:, None, None]


@pytest.mark.parametrize("kind", ["distributed", "without batches", "iterable"])
def test_an_evaluation_scores_each_example_once(comm, kind):
    data = TensorDataset(torch.arange(23.0)[:, None].expand(23, 5).double())
    loader = {
        "distributed": DataLoader(data, batch_size=4, sampler=DistributedSampler(data, comm.size, comm.rank)),
        "without batches": DataLoader(data, batch_size=None, shuffle=True),
        "iterable": DataLoader(Shuffled(), batch_size=None),
    }[kind]
    torch.manual_seed(comm.rank)  # as ranks may differ that drew other numbers before
    assert make_towers(comm).evaluate(lambda module, batch: batch[0].mean(), loader) == pytest.approx(11.0)


def test_random_numbers_of_a_loader_are_the_same_in_every_evaluation(comm):
    """Each example once, whatever the order that a process draws, and whatever it masks."""
    torch.manual_seed(comm.rank)

    def noisy(examples):
        x, y = torch.utils.data.default_collate(examples)
        return x + torch.rand_like(x), y

    def score(module, batch):
        return {"mean": batch[0].mean(), "noise": torch.rand(())}

    job = make_job(comm, lr=0.1)
    loader = DataLoader(Digits("test"), batch_size=50, shuffle=True, collate_fn=noisy)
    calibrate = DataLoader(Digits(), batch_size=8, shuffle=True)
    first, second = (job.evaluate(score, loader, calibrate=calibrate)["mean"] for _ in range(2))
    assert first == second
    assert first == pytest.approx(float(Digits("test")._batch.inputs[0].mean()) + 0.5, abs=0.01)


def test_evaluation_is_that_of_the_command(comm, shared_tmp):
    """The same weights and calibration batch; each rank scores some of the batches."""
    job = make_job(comm, lr=0.1)
    loader = DataLoader(Digits(), batch_size=8, shuffle=True)
    test = DataLoader(Digits("test"), batch_size=50)
    for round in begin_rounds(job, 3, shared_tmp / "run"):
        for batch in round.take(loader):
            round.step(compute_loss(round.module, batch))
        scored = job.evaluate(accuracy, test, calibrate=loader, name="accuracy")
    moments = job.training.evaluator.network.moments
    network = networks.Convolutional(**loops.ARGUMENTS).double()
    state = job.state_dict()
    if comm.rank == 0:
        network.load_state_dict(state)
        mean, variance = moments["norm"]
        assert torch.allclose(network.norm.running_mean, mean)
        with torch.no_grad():
            right = [accuracy(network.eval(), batch) * len(batch[1]) for batch in test]
        assert scored == pytest.approx(float(sum(right)) / len(test.dataset))
        line = RunFolder(shared_tmp / "run").metrics()[-1]
        assert (line["score"], line["score_name"]) == (scored, "accuracy")
        for name in ("metrics.jsonl", "summary.json"):  # a score has no loss
            assert "NaN" not in (shared_tmp / "run" / name).read_text()


@pytest.mark.ranks(only=[2])
def test_a_network_is_calibrated_as_it_was_before_where_the_last_round_is_not_evaluated(comm, shared_tmp):
    """It is saved, exported and scored with moments of the weights that it has; without a loader it is refused."""
    loader, batches, saved = DataLoader(Digits(), batch_size=8, shuffle=True), loops.make_batches(comm), []
    for calibrates in (0, 1, 3):
        job, folder = make_job(comm, lr=0.1), shared_tmp / f"{calibrates}"
        if calibrates < 3:
            with pytest.raises(ConfigError, match="moments are unknown after this round. Call evaluate"):
                job.save(shared_tmp / "network.h5")

        def evaluate(round, job=job, last=calibrates):
            if round.number <= last:
                job.evaluate(accuracy, DataLoader(Digits("test"), batch_size=50), calibrate=loader)

        loops.train(job, batches, 3, folder, behind=evaluate)
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


@pytest.mark.ranks(only=[1])
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
        ({"f1": (1, 0), "one": 1.0}, " f1 has 0 examples in all batches"),
    ],
)
def test_a_score_that_is_no_number_is_refused(comm, score, what):
    with pytest.raises(ConfigError, match=re.escape(f"the score{what}")):
        make_towers(comm).evaluate(lambda module, batch: score, [EXAMPLE] * 9)


def test_a_calibration_that_misses_the_network_is_none(comm, shared_tmp):
    job = make_job(comm)
    job.evaluate(lambda module, batch: 0.0, [EXAMPLE] * comm.size, calibrate=[EXAMPLE] * comm.size)
    with pytest.raises(ConfigError, match="calibrate=, a loader of training data, and a score that passes its batches"):
        job.save(shared_tmp / "network.h5")


@pytest.mark.ranks(min=2)
def test_scores_of_other_names_on_a_rank_are_refused(comm):
    job = make_towers(comm)
    assert job.evaluate(lambda module, batch: {"a": 1.0}, [EXAMPLE]) == {"a": 1.0}
    with pytest.raises(ConfigError, match="the score has ..a.. on a rank and ..acc.. on another"):
        job.evaluate(lambda module, batch: {"acc" if comm.rank == 1 else "a": 1.0}, [EXAMPLE] * 9)


def test_the_record_keeps_a_scores_name_and_direction_and_other_examples_resume(comm, shared_tmp):
    watch = Listening()
    for rounds in (1, 2):
        size, settings = {"in_features": 5, "out_features": 3}, loops.SETTINGS | {"method": "local-sgd"}
        job = istmpi.Distributed(torch.nn.Linear, size, comm, example=torch.randn(6, rounds, 5), **settings)
        for round in begin_rounds(job, rounds, shared_tmp / "run", watch, resume="auto"):
            for _ in round.steps():
                round.step(round.module(loops.pair(4)[0].double()).square().mean())
        if rounds == 1:
            batches = [(EXAMPLE, EXAMPLE[:4])] * 9
            job.evaluate(lambda module, batch: 1.0, batches, name="mse", higher_is_better=False)
    assert job.summary.score_name == "mse (lower is better)" and not higher_is_better(job.summary.score_name)
    assert [line["score_name"] for line in job.metrics()] == ["mse (lower is better)"] * 2
    if comm.rank == 0:
        assert "the tensors of a batch to evaluate have different first axes" in "".join(watch.said)


def test_the_record_has_all_scores_of_a_round_also_one_behind_the_last(comm, shared_tmp):
    job = make_towers(comm)
    for round in begin_rounds(job, 2, shared_tmp / "run"):
        loops.take_steps(round)
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
    finished = make_towers(comm)
    assert not finished.metrics()
    assert not [*begin_rounds(finished, 2, shared_tmp / "run", resume="auto")]
    assert finished.metrics() == lines
