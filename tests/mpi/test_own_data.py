"""Data sets of the user's own: they train as files do, repeat what they draw, and are refused in one line."""

import bad_data
import pytest
from own_data import FILE
from own_runs import own_trained
from resuming import resumed, save
from small import Listening, assert_same_bits, own_run, small_run, trained, whole

from istmpi.data.batches import Batches
from istmpi.data.sources import open_dataset
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError, DataError, DivergedError
from istmpi.program.streams import Rows
from istmpi.tasks import higher_is_better
from istmpi.training.loop import Training
from istmpi.training.run import run_training

TWO = {"model__name": f"{FILE}:Two", "data__source": f"{FILE}:pairs"}


@pytest.mark.parametrize(
    "settings",
    [
        {"method__name": "local-sgd", "data__placement": "by-label"},
        {"data__placement": "sharded", "train__logit_adjustment": 1},
    ],
    ids=str,
)
def test_a_data_set_trains_as_the_file_of_its_examples_does(comm, settings):
    expected, curve = trained(comm, **settings, evaluate__every=2)
    training, progress = trained(comm, **settings, evaluate__every=2, data__source=f"{FILE}:digits")
    assert_same_bits(whole(training), whole(expected))
    assert [(each.loss, each.score) for each in progress] == [(each.loss, each.score) for each in curve]


@pytest.mark.parametrize("method, ahead", [("ist", 0), ("local-sgd", 3)])
def test_what_examples_draw_is_repeated_when_resumed_and_when_read_ahead(comm, shared_tmp, method, ahead):
    settings = {"method__name": method, "data__source": f"{FILE}:noisy", "model__dropout": 0.3}
    expected, curve = trained(comm, **settings, data__ahead=2)
    first = Training(small_run(**settings, data__ahead=ahead), comm)
    rounds = first.rounds()
    losses = [next(rounds).loss, next(rounds).loss]
    rounds.close()
    save(first, shared_tmp / "half.h5")
    second, progress = resumed(comm, shared_tmp / "half.h5", **settings, data__ahead=ahead)
    assert losses + [each.loss for each in progress] == [each.loss for each in curve]
    assert_same_bits(whole(second), whole(expected))
    plain, _ = trained(comm, **{**settings, "data__source": "digits"})
    assert any((whole(plain)[name] != values).any() for name, values in whole(expected).items())


def test_two_inputs_a_loss_and_a_score_of_the_users(comm, shared_tmp):
    method = "ist" if comm.size > 1 else "local-sgd"
    settings = {"method__name": method, "train__rounds": 12, "train__batch": 32, "optimizer__lr": 0.3}
    training, progress = own_trained(comm, **TWO, **settings)
    assert training.score_name == "hits" and progress[-1].score.score > 0.5
    result = evaluate(save(training, shared_tmp / "network.h5"), comm, f"{FILE}:pairs", model=f"{FILE}:Two")
    assert result.score_name == "hits" and result.score.score == pytest.approx(progress[-1].score.score, abs=1e-6)
    # The same network, with the loss and the score by the targets, learns the same.
    by_targets = {**TWO, "model__name": f"{FILE}:Logits", "data__source": f"{FILE}:two_inputs"}
    other, its = own_trained(comm, **by_targets, **settings)
    assert other.score_name == "accuracy"
    assert its[-1].loss == pytest.approx(progress[-1].loss, rel=1e-6)
    assert its[-1].score.score == pytest.approx(progress[-1].score.score, abs=1e-6)


def test_a_score_has_its_direction_and_early_stopping_follows_it(comm):
    settings = {"data__source": f"{FILE}:numbers", "data__validation": 0.2, "train__patience": 2, "evaluate__every": 1}
    training, progress = own_trained(
        comm, **settings, model__name=f"{FILE}:Distance", train__rounds=6, optimizer__lr=0.02, model__outputs=1
    )
    assert training.score_name == "distance (lower is better)" and not higher_is_better(training.score_name)
    assert training.best.score == min(each.validation.score for each in progress if each.validation)
    assert progress[-1].validation.score < progress[0].validation.score


def test_a_loss_and_a_score_that_other_data_do_not_use_are_named(comm, shared_tmp):
    watch = Listening()
    run = own_run(model__name=f"{FILE}:Distance", train__rounds=1, output__folder=str(shared_tmp / "run"))
    run_training(run, comm, watch)
    said = [line for line in watch.said if "Distance has a loss and a score that the run does not use" in line]
    assert len(said) == (comm.rank == 0)


def test_numbers_are_a_regression_in_their_own_units(comm):
    training, progress = own_trained(
        comm, data__source=f"{FILE}:numbers", model__name=f"{FILE}:Line", train__rounds=12, optimizer__lr=0.02
    )
    assert training.score_name == "mean absolute error" and training.dataset.targets is None
    assert progress[-1].score.score < 2.5


def test_collate_may_pad_and_draw(comm):
    settings = {"data__source": f"{FILE}:padded", "model__name": f"{FILE}:Line", "model__outputs": 10}
    settings |= {"model__features": 64, "train__rounds": 12, "train__batch": 32, "optimizer__lr": 0.3}
    training, progress = own_trained(comm, **settings)
    assert progress[-1].score.score > 0.4
    _, at_once = own_trained(comm, **settings | {"train__rounds": 2}, data__ahead=0)
    assert [each.loss for each in at_once] == [each.loss for each in progress[:2]]


def test_each_rank_has_data_of_its_own_where_the_function_takes_its_rank(comm):
    training, progress = trained(comm, data__source=f"{FILE}:of_rank")
    assert training.run.data.placement == "local"
    assert len(training.dataset.train) == len(range(comm.rank, 1437, comm.size))
    assert progress[-1].score.examples == 360


def test_changed_data_are_refused_when_resumed(comm, shared_tmp):
    training, _ = trained(comm, data__source=f"{FILE}:digits", train__rounds=1)
    save(training, shared_tmp / "one.h5")
    with pytest.raises(ConfigError, match="features = "):
        resumed(comm, shared_tmp / "one.h5", data__source=f"{FILE}:noisy", train__rounds=1)


def test_never_more_batches_than_said_are_read_ahead():
    began = []
    split = Rows(100)
    split.ahead, split.batch = 2, lambda rows, key: began.append(rows) or rows
    batches = Batches(split, range(100), 10, seed=0, stream=0)
    for step in [*range(6), 20, 21]:
        assert (batches.at(step) == batches.indices(step)).all()
        assert len(began) <= (step if step < 20 else step - 12) + 3
    split = open_dataset(f"{FILE}:late", ahead=2).train
    batches = Batches(split, range(70, 80), 1, seed=0, stream=0)
    bad = next(step for step in range(10) if batches.indices(step) == [77])
    for step in range(bad):
        batches.at(step)
    with pytest.raises(DataError, match=r"own_data.py:late: train example 77 cannot be read: ValueError: this file is"):
        batches.at(bad)


MISBEHAVING = {name: (name, "Plain", message) for name, (_, message) in bad_data.DATA.items()}
MISBEHAVING |= {name: (name, "mlp", bad_data.DATA[name][1]) for name in ("bytes", "pairs")}
MISBEHAVING |= {name: ("fine", name, row[1]) for name, row in bad_data.NETWORKS.items()}
MISBEHAVING["drops"] = ("drops", "Net", "loss returns a mean over rows, but the collate function made 7 rows of 8")


@pytest.mark.ranks(only=[1])
@pytest.mark.parametrize("data, network, message", MISBEHAVING.values(), ids=MISBEHAVING)
def test_a_data_set_a_loss_a_score_or_a_network_that_misbehaves_is_named(comm, data, network, message):
    """Whatever a user's code returns or raises, one line names the split and its method, or the class's function."""
    own = network if network == "mlp" else f"{bad_data.FILE}:{network}"
    settings = {"data__source": f"{bad_data.FILE}:{data}", "model__name": own, "method__name": "local-sgd"}
    with pytest.raises((ConfigError, DataError)) as refused:
        [*Training(own_run(**settings, train__rounds=1), comm).rounds()]
    said = str(refused.value)
    assert message in said and "\n" not in said
    assert data != "fine" or network in said


def test_a_loss_that_is_not_finite_ends_all_ranks(comm):
    with pytest.raises(DivergedError, match="the loss is no longer finite in round 1, local step 1"):
        own_trained(comm, data__source=f"{FILE}:numbers", model__name=f"{FILE}:NotFinite", model__outputs=1)
