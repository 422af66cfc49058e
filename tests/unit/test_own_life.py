"""The whole life of a program's run: epochs on other ranks, schedules, the best network, and what its loop keeps."""

import json

import pytest
import torch
from loops import begin_rounds
from perceptron import Perceptron
from resuming import stop_after
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import istmpi
from istmpi.errors import ConfigError
from istmpi.simulated import simulate
from istmpi.training.watch import Watch

SCORES = (1.0, 3.0, 2.0, 3.0, 4.0, 4.0, 0.0, 1.0, 9.0)
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
Y = (X.sum(dim=1) > 0).long()
LOADER = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
IN_A_ROUND = 24


def make_job(comm, **settings):
    given = {"method": "local-sgd", "local_steps": 3, "seed": 5, "threads": 1, "device": "cpu", "checkpoint_every": 1}
    return istmpi.Distributed(Perceptron, {"features": 4, "outputs": 2}, comm, **{"example": X[:4]} | given | settings)


def take_steps(round, *loader):
    for x, y in round.take(*loader):
        round.step(functional.cross_entropy(round.module(x), y))


def accuracy(module, batch):
    return (module(batch[0]).argmax(dim=1) == batch[1]).float().mean()


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def train(folder, ranks, body=take_steps, epochs=4, resume="auto", **settings):
    """Train a job in epochs on simulated ranks; return the metrics, and what ``body`` returned on each rank."""

    def program(comm):
        job = make_job(comm, **settings)
        options = {"folder": folder, "resume": resume, "watch": Watch(), "signals": False}
        return [body(round) for round in job.epochs(epochs, LOADER, accumulate=2, **options)]

    outcome = simulate(program, ranks)
    outcome.require()
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()], outcome.results


def test_epochs_of_a_loop_are_as_many_examples_on_other_ranks_and_its_rate_keeps_falling(tmp_path):
    first, other = 3, 1
    named = {"optimizer": adamw, "groups": {"*.bias": {"lr": 0.1}}}
    named |= {"schedule": "cosine", "warm_up": 5, "checkpoint_keep": 99}

    def look(round):
        take_steps(round)
        return round.epoch, round.ends_epoch

    train(tmp_path, first, **named)
    stop_after(tmp_path, 2)
    lines, (epochs, *_) = train(tmp_path, other, look, **named)
    assert 240 <= lines[-1]["examples"] < 240 + IN_A_ROUND * other
    rates = [line["learning_rate"] for line in lines if 3 * line["round"] > 5]
    assert rates == sorted(rates, reverse=True) and 0 < rates[-1] < rates[0] / 2
    numbers = [number for number, _ in epochs]
    # A round ends an epoch exactly if the next one begins in a later one.
    assert [ends for _, ends in epochs] == [a < b for a, b in zip(numbers, [*numbers[1:], 5])]
    assert numbers[0] == 2 * IN_A_ROUND * first // 60 + 1
    assert len(train(tmp_path, other, epochs=6, **named)[0]) > len(lines)


@pytest.mark.parametrize("schedule", ["cosine", "one-cycle"])
def test_a_schedule_by_name_gives_a_users_optimizer_the_rates_of_a_named_one(tmp_path, schedule):
    settings = {"schedule": schedule, "warm_up": 0 if schedule == "one-cycle" else 4}

    def rates(round):
        take_steps(round)
        return round.rate

    named = train(tmp_path / "named", 2, rates, optimizer="adamw", lr=0.01, **settings)
    assert train(tmp_path / "own", 2, rates, optimizer=adamw, **settings)[1] == named[1]


def test_a_schedule_of_the_fraction_multiplies_the_rate_of_each_group(tmp_path):
    def rates(round):
        take_steps(round)
        return [group["lr"] for group in round.optimizer.param_groups] if round.under_way else round.rate

    settings = {"groups": {"*.bias": {"lr": 0.1}}, "schedule": lambda fraction: 1 - fraction, "optimizer_state": "keep"}
    _, (rates, _) = train(tmp_path, 2, rates, optimizer=adamw, **settings)
    steps = 3 * len(rates)
    assert rates == pytest.approx([0.1 * (1 - step / steps) for step in range(2, steps, 3)])


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"warm_up": 3}, "warm_up goes with an optimizer by name, with a schedule by name, such as"),
        ({"schedule": "cosine", "least_lr": 0.02}, "least_lr = 0.02 is above"),
        ({"schedule": lambda fraction: -1.0}, "schedule returns -1.0 at local step 1; it must be a number of at"),
        ({"optimizer": [adamw, adamw]}, "optimizer is 2 optimizers; a job has one for its network"),
        ({"optimizer": "sgd", "schedule": lambda fraction: 1.0}, "only a schedule by name goes with a name"),
        ({"epochs": 0}, "epochs = 0 must be a number above 0"),
        ({"body": lambda round: [*round.take(LOADER)]}, "accumulate = 1 differs from 2 of job.epochs"),
        ({"body": lambda round: [*round.take(accumulate=2)]}, "give accumulate= and local= to job.epochs"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        train(tmp_path, 1, **{"optimizer": adamw} | settings)


def test_epochs_need_a_loader_whose_examples_can_be_counted(tmp_path):
    def program(comm):
        job = make_job(comm)
        with pytest.raises(ConfigError, match=r"epochs cannot count the examples of list\. Give a DataLoader"):
            next(job.epochs(1, [X]))
        for round in begin_rounds(job, 1, tmp_path):
            with pytest.raises(ConfigError, match="go with job.epochs, not job.rounds"):
                _ = round.epoch
            with pytest.raises(ConfigError, match="round 1: round.take.. without a loader goes with job.epochs"):
                next(round.take())
            take_steps(round, LOADER)

    simulate(program, 2).require()


def keep_all(job):
    """Call the job's functions for a run's whole life, in each round; return what the loop knows afterwards."""
    for round in job.rounds(9, folder=job.run_folder, resume="auto", watch=Watch(), signals=False):
        take_steps(round, LOADER)
        job.keep(seen=[*job.kept.get("seen", []), (round.number, job.communicator.rank)], mean=torch.ones(2) / 3)
        made = torch.tensor(SCORES[round.number - 1])
        job.evaluate(lambda *_, made=made: made, [X], name="made", best=job.file, patience=job.patience)
        if round.number == job.stops_after:
            return None
    return job.best.round, job.best.score, job.kept["seen"]


def live(folder, ranks, stops_after=0, file="best.h5", patience=3):
    def program(comm):
        job = make_job(comm)
        job.run_folder, job.stops_after, job.file, job.patience = folder, stops_after, file, patience
        return keep_all(job)

    outcome = simulate(program, ranks)
    outcome.require()
    return outcome.results


@pytest.mark.parametrize("stops_after", [0, 6])
def test_the_best_network_is_saved_and_patience_ends_the_run_also_after_a_resume(tmp_path, stops_after):
    if stops_after:
        live(tmp_path, 2, stops_after)
    (round, score, _), _ = live(tmp_path, 2)
    assert (round, score) == (5, 4.0) and len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 8
    with istmpi.open_checkpoint(tmp_path / "best.h5") as checkpoint:
        assert checkpoint.header.round == 5


def test_the_best_network_may_be_a_state_dict(tmp_path):
    lived = live(tmp_path, 2, file="best.pt", patience=0)
    assert live(tmp_path, 2, file="best.pt", patience=0) == lived, "a program of a finished run started again"
    Perceptron(4, 2).load_state_dict(torch.load(tmp_path / "best.pt"))
    with pytest.raises(ConfigError, match="best = 'best.bin' must end in .h5, or in .pt for a state dict"):
        live(tmp_path / "other", 1, file="best.bin")


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_resumed_loop_gets_what_each_rank_kept_or_on_other_ranks_what_rank_0_kept(tmp_path, ranks):
    """The round in which the program left its loop is not saved, and counts once."""
    live(tmp_path, 2, stops_after=3, patience=0)
    for rank, (_, _, seen) in enumerate(live(tmp_path, ranks, patience=0)):
        before = rank if ranks == 2 else 0
        assert seen == [*[(number, before) for number in (1, 2)], *[(number, rank) for number in range(3, 10)]]


def test_only_what_a_file_can_hold_is_kept(tmp_path):
    def program(comm):
        job = make_job(comm)
        with pytest.raises(ConfigError, match="keep: a has a Linear; only tensors, numbers, text, lists, tuples and"):
            job.keep(a=[{"b": torch.nn.Linear(1, 1)}])
        with pytest.raises(ConfigError, match="the run has no folder before job.rounds"):
            job.evaluate(accuracy, [(X, Y)], best="best.h5")

    simulate(program, 1).require()


def test_autocast_computes_the_passes_of_a_round_in_bfloat16_and_gives_float32(tmp_path):
    def program(comm):
        job = make_job(comm, autocast=True)
        for round in begin_rounds(job, 1, tmp_path):
            for x, _ in round.take(LOADER):
                outputs = round.module(x)
                with torch.autocast("cpu", torch.bfloat16):
                    assert torch.equal(outputs, round.module.layers(x).float())
                assert outputs.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
                with pytest.raises(RuntimeError):
                    round.module(x[:, :1])
                assert not torch.is_autocast_enabled("cpu")
                round.step(outputs.square().mean())
        scored = job.evaluate(lambda module, batch: module(batch).float().abs().mean(), [X])
        assert scored != job.evaluate(lambda module, batch: module(batch).bfloat16().abs().mean(), [X])

    simulate(program, 1).require()


@pytest.mark.parametrize("method", ["ist", "local-sgd", "data-parallel"])
def test_two_networks_train_each_other_as_two_jobs(tmp_path, method):
    def program(comm):
        jobs = [make_job(comm, method=method), make_job(comm, method=method, seed=6)]
        loops = [begin_rounds(job, 2, tmp_path / str(number)) for number, job in enumerate(jobs)]
        for maker, judge in zip(*loops, strict=True):
            for _ in zip(maker.steps(), judge.steps(), strict=True):
                made = functional.pad(maker.module(X), (0, 2))
                judge.step(judge.module(made.detach()).square().mean() - judge.module(X).mean())
                maker.step(judge.module(made).mean())
        return [job.summary.last.round for job in jobs]

    outcome = simulate(program, 2)
    outcome.require()
    assert outcome.results == [[2, 2], [2, 2]]


def test_several_scores_are_exact_over_ranks_and_in_the_report(tmp_path):
    """Five batches on two ranks, the last of one example: a mean of means would differ. A score may be called loss."""

    def hits(module, batch):
        right = (batch[1] == 1).float()
        return {"ones": right.mean(), "loss": (right[batch[0][:, 0] > 0].sum(), int((batch[0][:, 0] > 0).sum()))}

    def program(comm):
        job = make_job(comm)
        for round in begin_rounds(job, 2, tmp_path):
            take_steps(round, LOADER)
            scores = job.evaluate(hits, DataLoader(TensorDataset(X[:41], Y[:41]), 10), best="best.h5")
        assert job.evaluate(accuracy, [(X, Y)], name="round", best="other.h5") == job.best.score
        return scores, job.metrics()[-1]["loss"] == job.summary.last.loss

    outcome = simulate(program, 2)
    outcome.require()
    ones, recall = Y[:41].double().mean(), Y[:41][X[:41, 0] > 0].double().mean()
    assert outcome.results == [(pytest.approx({"ones": float(ones), "loss": float(recall)}), True)] * 2
    (curve,) = istmpi.read_curves([tmp_path])
    assert curve.further["loss"] == pytest.approx(float(recall)) and curve.score_name == "ones"
