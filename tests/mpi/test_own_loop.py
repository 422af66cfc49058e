"""A user's own loop: the same bits as `istmpi train`, resumed too; and what may be done with its module."""

import copy
import itertools
import math
from collections import Counter
from contextlib import nullcontext

import loops
import networks
import numpy as np
import pytest
import torch
from small import Listening, assert_same_bits, on_root, whole

from istmpi.comm import stopping
from istmpi.errors import ConfigError, StoppedError
from istmpi.methods.base import Method
from istmpi.models.moe import with_loss

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
    {"method": "joint", "optimizer": "adam"},
]


def join_settings(settings):
    return "-".join(map(str, settings.values())) if isinstance(settings, dict) else "by hand" * settings


@pytest.fixture
def looks_often(monkeypatch):
    """A file that asks for a stop is seen at once, also inside a round that could be finished soon."""
    monkeypatch.setattr(stopping, "_SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(Method, "finished_within", 0.0)


@pytest.mark.ranks(only=[2])
@pytest.mark.parametrize(
    "settings, by_hand",
    [(settings, False) for settings in METHODS] + [(METHODS[1], True)],
    ids=join_settings,
)
def test_it_trains_to_the_bits_of_the_command(comm, shared_tmp, settings, by_hand):
    training = loops.make_training(comm, rounds=2, **settings)
    progress = list(training.rounds())
    job = loops.make_job(comm, lr=0.1, **settings)
    loops.train(job, training.batches, 2, shared_tmp / "run", by_hand)
    assert_same_bits(whole(job.training), whole(training))
    assert job.training.tally.counts.bytes == progress[-1].bytes
    if not by_hand:
        assert job.summary.last.loss == progress[-1].loss


COSINE = {
    "optimizer": loops.rmsprop,
    "groups": {"*.bias": {"weight_decay": 0.0, "lr": 0.001}, "dense.*": {"weight_decay": 0.1}},
    "schedule": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12),
}
RESUMED = {
    "ist": pytest.param(METHODS[1] | {"lr": 0.1}, marks=pytest.mark.both),
    "a user's optimizer, ist": COSINE | {"method": "ist", "optimizer_state": "reset"},
    "a user's optimizer, local-sgd": COSINE | {"method": "local-sgd", "optimizer_state": "carry"},
}


@pytest.mark.parametrize("settings", RESUMED.values(), ids=RESUMED)
def test_a_resumed_loop_trains_to_the_bits_of_an_uninterrupted_one(comm, shared_tmp, settings, looks_often):
    """The scale of a scaler grows in some steps, and is the same at the end."""
    rates, with_groups = [], settings["method"] == "local-sgd" and settings["optimizer"] is loops.rmsprop
    scaled = settings["method"] == "local-sgd"
    first, second, third = [torch.amp.GradScaler("cpu", growth_interval=5) if scaled else None for _ in range(3)]

    def note(round):
        rates.append([group["lr"] for group in round.optimizer.param_groups] if with_groups else round.rate)

    uninterrupted, batches = loops.make_job(comm, **settings), loops.make_batches(comm, method=settings["method"])
    loops.train(uninterrupted, batches, 4, shared_tmp / "whole", behind=note, scaler=first)
    folder = shared_tmp / "halves"
    message = loops.train_until_stopped(loops.make_job(comm, **settings), batches, folder, 2, scaler=second)
    assert f"stopped by the file {folder / 'STOP'}, after " in message and " of 4 rounds; saved in" in message
    resumed = loops.make_job(comm, **settings)
    assert loops.train(resumed, batches, 4, folder, resume="auto", scaler=third) in (3, 4)
    assert_same_bits(whole(resumed.training), whole(uninterrupted.training))
    assert not scaled or third.state_dict() == first.state_dict() and first.get_scale() == 2**18
    if with_groups:
        cosine = [0.01 * (1 + math.cos(math.pi * step / 12)) / 2 for step in (2, 5, 8, 11)]
        assert rates == [[pytest.approx(rate / 10), *[pytest.approx(rate)] * (len(rates[0]) - 1)] for rate in cosine]


@pytest.mark.parametrize("method", [pytest.param("ist", marks=pytest.mark.both), "data-parallel"])
def test_a_stop_file_that_only_rank_0_sees_stops_all_ranks(comm, shared_tmp, method, looks_often):
    """Both where the ranks are about to compare a new loader, and where the file was there before the run."""
    batches, folder = loops.make_batches(comm), shared_tmp / "run"
    for _ in range(2):
        job = loops.make_job(comm, method=method)
        with pytest.raises(StoppedError, match="STOP, after [12] of 4 rounds; saved in"):
            loops.train(job, batches, 4, folder, resume="auto", behind=lambda _: comm.rank or (folder / "STOP").touch())


@pytest.mark.ranks(only=[3])
def test_a_program_that_ends_in_a_dropped_round_decides_again(comm, shared_tmp, looks_often):
    """A patience that counts the score of a dropped round would end the run a round early."""
    batches, folder, job = loops.make_batches(comm), shared_tmp / "run", loops.make_job(comm)

    def end(round):
        comm.barrier()
        if round.number == 2:
            job.end()

    assert "STOP, after 1 of 4 rounds; saved in" in loops.train_until_stopped(job, batches, folder, 1, end)
    resumed = loops.make_job(comm)
    assert loops.train(resumed, batches, 4, folder, resume="auto") == 2
    assert resumed.summary.ended == "all 4 rounds are done"


@pytest.mark.ranks(only=[3])
def test_a_program_ends_its_rounds_early(comm, shared_tmp):
    job, batches = loops.make_job(comm, lr=0.1), loops.make_batches(comm)
    loops.train(job, batches, 4, shared_tmp / "run", behind=lambda round: round.number == 2 and job.end())
    assert (job.summary.last.round, job.summary.ended) == (2, "ended by the program")
    more, uninterrupted = loops.make_job(comm, lr=0.1), loops.make_job(comm, lr=0.1)
    assert loops.train(more, batches, 4, shared_tmp / "run", resume="auto") == 3
    assert [line["round"] for line in more.metrics()] == [1, 2, 3, 4]
    planned = uninterrupted.cost()["round_bytes"]
    loops.train(uninterrupted, batches, 4, shared_tmp / "whole")
    assert_same_bits(whole(more.training), whole(uninterrupted.training))
    assert planned == pytest.approx(uninterrupted.training.tally.counts.bytes / 4, rel=0.3)


PLACES = ("before", "inside", "last", "after", "error", "error inside")


@pytest.mark.parametrize("place, method", [*((place, "ist") for place in PLACES), ("inside", "data-parallel")])
def test_the_next_call_discards_a_round_left_before_its_end_and_reports_it_once(comm, shared_tmp, method, place):
    """The job has the weights from before a round that a break or an error leaves; after the last step, the round's."""
    job, watch = loops.make_job(comm, lr=0.1, method=method), Listening()

    def leave(round, step):
        if round.number == 2 and step == {"before": 0, "last": 3, "after": 4, "error": 4}.get(place, 1):
            if place.startswith("error"):
                raise KeyError
            return True
        return False

    def take(round):
        """Whether the loop over rounds is left in this round."""
        if leave(round, 0):
            return True
        for step in round.steps():
            round.step(loops.compute_loss(round.module, (loops.EXAMPLE, loops.ZEROS)))
            if leave(round, step + 1):
                return True
        return leave(round, 4)

    def train():
        for round in loops.begin_rounds(job, 5, shared_tmp / "run", watch):
            if take(round):
                break
            job.training.method.publish()
            before.update({name: values.clone() for name, values in job.training.store.tensors.items()})

    before = {}
    with pytest.raises(KeyError) if place.startswith("error") else nullcontext():
        train()
    job.metrics()
    job.metrics()
    job.training.method.publish()
    kept = place in ("after", "error")
    same = [torch.equal(job.training.store.tensors[name], values) for name, values in before.items()]
    assert all(same) != kept and job.training.rounds_done == 1 + kept
    fate = ", after its last local step: the job keeps the round's weights" if kept else ": this round is discarded."
    notes = [said for said in watch.said if "left its loop" in said]
    assert comm.rank or (len(notes) == 1 and notes[0].startswith(f"the program left its loop in round 2{fate}"))


@pytest.mark.parametrize("method", ["ist", "local-sgd", "data-parallel"])
def test_a_module_can_be_copied_and_averaged_in_its_round(comm, shared_tmp, method):
    """copy.deepcopy and AveragedModel make a module that computes the same, also after the round."""
    job, copies = loops.make_job(comm, lr=0.1, method=method), []
    for round in loops.begin_rounds(job, 2, shared_tmp / "run"):
        average = torch.optim.swa_utils.AveragedModel(round.module)
        for _ in round.steps():
            copies.append((copy.deepcopy(round.module), round.module(loops.EXAMPLE.double()).detach()))
            round.step(loops.compute_loss(round.module, (loops.EXAMPLE, loops.ZEROS)))
        average.update_parameters(round.module)
    for module, outputs in copies:
        assert torch.equal(module(loops.EXAMPLE.double()), outputs)


def test_steps_without_a_note_have_no_loss_and_one_note(comm, shared_tmp):
    """A loop that calls round.optimizer.step() alone is told once to call round.note(loss)."""
    job, watch = loops.make_job(comm, lr=0.1, method="local-sgd"), Listening()
    for round in loops.begin_rounds(job, 2, shared_tmp / "run", watch):
        for _ in round.steps():
            loops.compute_loss(round.module, (loops.EXAMPLE, loops.ZEROS)).backward()
            round.optimizer.step()
    assert [line["loss"] for line in job.metrics()] == [None, None]
    expected = ["no loss is recorded: call round.note(loss) after each round.optimizer.step()."]
    assert comm.rank or [note for note in watch.said if "no loss" in note] == expected


def test_it_begins_with_given_weights_and_a_second_loop_goes_on_from_the_first(comm, shared_tmp):
    module = networks.TwoTowers(5)
    on_root(comm, lambda: torch.save(module.state_dict(), shared_tmp / "weights.pt"))
    given = comm.broadcast_from_root({name: values.numpy() for name, values in module.state_dict().items()})
    job = loops.make_towers(comm, init=str(shared_tmp / "weights.pt"), lr=0.01, scale="none", method="local-sgd")
    for rounds in (1, 2):
        for round in loops.begin_rounds(job, rounds, shared_tmp / f"{rounds}"):
            starts = {name: values.numpy().copy() for name, values in round.module.state_dict().items()}
            assert all(np.allclose(starts[name], values, atol=1e-6) for name, values in given.items())
            loops.take_steps(round)
        ends = job.state_dict()
        given = comm.broadcast_from_root({name: values.numpy() for name, values in ends.items()} if ends else None)


@pytest.mark.ranks(only=[2])
def test_a_schedule_that_follows_scores_resumes(comm, shared_tmp):
    """The rates are those of a scheduler in one process that is given the same scores."""
    examples, scores = [loops.EXAMPLE] * comm.size, [0.5, 0.6, 0.6, 0.55, 0.7]
    batches = loops.make_batches(comm)

    def plateau(optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=0)

    def train(rounds, folder, resume=None):
        job, rates = loops.make_job(comm, optimizer=loops.rmsprop, schedule=plateau), {}

        def behind(round):
            rates[round.number] = round.rate
            job.evaluate(lambda module, x: 0 * module(x.double()).mean(), examples, calibrate=examples)
            job.evaluate(lambda module, x: scores[round.number - 1], examples)

        loops.train(job, batches, rounds, shared_tmp / folder, resume=resume, behind=behind)
        return job, rates

    alone = loops.rmsprop([torch.nn.Parameter(torch.zeros(1))])
    scheduler, expected = plateau(alone), []
    for score in scores:
        expected.append(alone.param_groups[0]["lr"])
        scheduler.step(score)
    uninterrupted, rates = train(4, "whole")
    assert [*rates.values()] == expected[:4] and expected[4] == 0.01 / 4
    train(3, "halves")
    resumed, rates = train(4, "halves", "auto")
    assert rates == {4: expected[3]}
    assert_same_bits(whole(resumed.training), whole(uninterrupted.training))
    finished, _ = train(4, "halves", "auto")
    found = [job.evaluate(lambda module, x: module(x.double()).mean(), examples) for job in (resumed, finished)]
    assert found[1] == pytest.approx(found[0], rel=1e-12), "the file has the moments of the normalisations"
    assert train(5, "elsewhere", shared_tmp / "halves")[1] == {5: expected[4]}
    on_root(comm, (shared_tmp / "halves" / "metrics.jsonl").unlink)
    with pytest.raises(ConfigError, match="ReduceLROnPlateau needs the scores of earlier rounds"):
        train(5, "without a record", shared_tmp / "halves")


@pytest.mark.parametrize("method, by_hand", [("ist", False), ("data-parallel", True)])
def test_gradients_of_several_batches_add_up(comm, shared_tmp, method, by_hand):
    """Two halves of a batch make the step of the whole one, scaled or not; by hand, too, with a pass back for each."""
    trained, scaler = [], torch.amp.GradScaler("cpu")
    for parts in (1, 2):
        job = loops.make_towers(comm, hidden=8, method=method)
        for round in loops.begin_rounds(job, 2, shared_tmp / f"{parts}"):
            batches = (torch.randn(8, 5, generator=loops.seeded(comm.rank + 10 * step)) for step in range(100))
            halves = (half.double() for batch in batches for half in batch.chunk(parts))
            if by_hand:
                for _ in round.steps():
                    for x in itertools.islice(halves, parts):
                        (round.module(x, x).diagonal().square().mean() / parts).backward()
                    round.optimizer.step()
            else:
                for x in round.take(halves, accumulate=parts):
                    y = round.module(x, x).diagonal()
                    round.step(with_loss(y, y.square().mean()).square().mean(), scaler if parts == 2 else None)
        trained.append(whole(job.training))
    for name, values in trained[0].items():
        np.testing.assert_allclose(trained[1][name], values, rtol=1e-10)


@pytest.mark.parametrize("method, dtype", [("local-sgd", torch.bfloat16), ("data-parallel", torch.float16)])
def test_a_scaler_and_autocast_train(comm, shared_tmp, method, dtype):
    """A gradient that is not finite on one rank is a step that no rank takes, where gradients are averaged."""
    job, scaler = loops.make_towers(comm, dtype="float32", method=method), torch.amp.GradScaler("cpu")
    for round in loops.begin_rounds(job, 2, shared_tmp / "run"):
        for step in round.steps():
            with torch.autocast("cpu", dtype):
                loss = round.module(*loops.pair(8)).float().square().mean()
            before = [values.detach().clone() for values in round.module.parameters()]
            overflows = method == "data-parallel" and step == 1 and comm.rank == 0
            round.step(loss * (1e38 if overflows else 1), scaler)
            moved = any(not torch.equal(*both) for both in zip(before, round.module.parameters(), strict=True))
            assert moved != (method == "data-parallel" and step == 1)


def train_towers(comm, folder, around=lambda module: module, rounds=3):
    """Train two towers whose module is used through ``around``; return the job."""
    example = dict(zip(("left", "right"), loops.pair(6)))
    job = loops.make_towers(comm, hidden=8, lr=0.1, method=loops.choose_method(comm), example=example)
    for round in loops.begin_rounds(job, rounds, folder):
        module = around(round.module)
        for step in round.steps():
            x = torch.randn(8, 5, generator=loops.seeded(10 * round.number + step), dtype=torch.float64)
            round.step(loops.square_loss(module, x))
        for hook in getattr(module, "hooks", ()):
            hook.remove()
    return job


def test_hooks_on_the_module_are_called_in_each_local_step(comm, shared_tmp):
    called = []

    def hooked(module):
        last = module.tower[2]
        module.hooks = [
            module.register_forward_pre_hook(lambda *_: called.append("module")),
            last.register_forward_hook(lambda *_: called.append("forward")),
            last.register_full_backward_hook(lambda *_: called.append("backward")),
            last.weight.register_post_accumulate_grad_hook(lambda _: called.append("gradient")),
        ]
        return module

    job = train_towers(comm, shared_tmp / "hooked", hooked)
    assert called[:3] == ["module", "forward", "forward"]
    assert Counter(called) == {"module": 9, "forward": 18, "backward": 18, "gradient": 9}
    assert_same_bits(whole(job.training), whole(train_towers(comm, shared_tmp / "plain").training))


def test_a_compiled_module_is_compiled_anew_only_where_its_widths_change(comm, shared_tmp):
    """By a backend that compiles nothing; the weights are those of the plain module."""
    compiled, widths = [], set()

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    def around(module):
        widths.add(module.tower[0].out_features)
        return torch.compile(module, backend=backend)

    job = train_towers(comm, shared_tmp / "compiled", around, rounds=5)
    assert len(compiled) == len(widths)
    assert_same_bits(whole(job.training), whole(train_towers(comm, shared_tmp / "plain", rounds=5).training))
