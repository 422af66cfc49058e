"""Resuming from a special place, and on other ranks; a wider network. test_interrupted.py stops runs anywhere."""

import numpy as np
import pytest
from own_runs import DEEP, own_trained
from resuming import resumed, save, stop_at
from small import Listening, assert_same_bits, own_run, small_run, trained, whole

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.comm import Communicator
from istmpi.config.methods import METHODS
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError
from istmpi.training.loop import Training
from istmpi.training.run import load_initial_weights, run_training

COMMON = {"model__dropout": 0.3, "model__bias": True, "method__redeal": 0.5, "method__local_steps": 4}
MOMENTUM = COMMON | {"optimizer__momentum": 0.9}
DILOCO = COMMON | {"method__name": "diloco", "optimizer__name": "adam", "optimizer__lr": 0.01}


def test_a_stop_before_the_first_step_loses_nothing(comm, shared_tmp):
    expected, _ = trained(comm, **MOMENTUM)
    training = Training(small_run(**MOMENTUM), comm)
    training.stop._signal = "a test"
    assert list(training.rounds()) == [] and training.rounds_done == 0
    path = save(training, shared_tmp / "stopped.h5")
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.own == {} and not any("/" in name for name in checkpoint.tensors)
    assert_same_bits(whole(resumed(comm, path, **MOMENTUM)[0]), whole(expected))


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("method, inside", [(name, bool(i % 2)) for i, name in enumerate(METHODS) if name != "joint"])
def test_other_ranks_continue_the_loss_curve(comm, shared_tmp, method, inside):
    """Saved by all ranks between rounds or as one was dropped, gone on with by one fewer, or by one alone."""
    run = {"method__name": method, "train__rounds": 8, "method__local_steps": 4, "model__hidden": (24, 24)}
    run |= {"train__batch": 64, "method__optimizer_state": "carry", "optimizer__momentum": 0.5}
    training = Training(small_run(**run), comm)
    rounds = training.rounds()
    before = [next(rounds) for _ in range(4)]
    if inside:
        stop_at(training, 4, 2)
        assert list(rounds) == [] and training.rounds_done == 4
    path = save(training, shared_tmp / "saved.h5")
    saved, ranks = whole(training), comm.size - 1 if list(METHODS).index(method) % 4 < 2 else 1
    with open_checkpoint(path) as checkpoint:
        own = {name: tensor.rows() for name, tensor in checkpoint.own.items() if name in saved and "/" in name}
    for name, values in own.items():  # of the ranks' optimizer states it is their mean
        saved[name] = sum(np.split(values, comm.size)) / comm.size
    assert all(values.any() for name, values in saved.items() if name.endswith("/momentum_buffer"))
    some = Communicator(comm.mpi.Split(comm.rank < ranks))
    if comm.rank < ranks:
        other = Training(small_run(**run), some)
        other.resume(path)
        assert_same_bits(whole(other), saved)
        after = list(other.rounds())
        assert after[-1].round == 8
        curve = [progress.loss for progress in before]
        assert after[0].loss < (curve[0] + curve[1]) / 2 and after[-1].loss < curve[-1]


@pytest.mark.ranks(only=[3])
def test_kept_state_begins_again_on_other_ranks_and_is_kept_from_there(comm, shared_tmp):
    """The first two ranks resume a run of three: their Adam counts its steps from there, also after another stop."""
    run = DILOCO | {"train__rounds": 6}
    training, _ = trained(comm, **run | {"train__rounds": 2})
    path, saved = save(training, shared_tmp / "three.h5"), whole(training)
    two = Communicator(comm.mpi.Split(comm.rank < 2))
    if comm.rank < 2:
        other = Training(small_run(**run), two)
        rounds, note = other.resume(path)
        assert rounds.startswith("train.rounds = 2 in the checkpoint")
        assert note == (
            "optimizer_state = keep: each rank begins with a new optimizer state, because the checkpoint is from 3 "
            "ranks, and this run has 2"
        )
        assert_same_bits(whole(other), saved)
        progress = other.rounds()
        next(progress), next(progress)
        assert {int(state["step"]) for state in other.method.subnet.optimizer.state.values()} == {8}
        middle = save(other, shared_tmp / "two.h5")
        list(progress)
        again = Training(small_run(**run), two)
        assert again.resume(middle) == []
        list(again.rounds())
        assert_same_bits(whole(again), whole(other))


def test_a_checkpoint_says_what_becomes_of_optimizer_state(comm, shared_tmp):
    """A run that names the method's default resumes one that left it out; another state is another run."""
    run = DILOCO | {"train__rounds": 2}
    path = save(trained(comm, **run | {"train__rounds": 1})[0], shared_tmp / "saved.h5")
    resumed(comm, path, **run | {"method__optimizer_state": "keep"})
    with pytest.raises(ConfigError, match="method.optimizer_state = keep in the checkpoint, reset here"):
        resumed(comm, path, **run | {"method__optimizer_state": "reset"})


def test_the_state_of_another_run_is_refused_with_the_difference(comm, shared_tmp):
    training, _ = trained(comm, train__rounds=1)
    path = save(training, shared_tmp / "saved.h5")
    other = Training(small_run(model__hidden=(13, 12), train__seed=6, data__crop=3), comm)
    with pytest.raises(ConfigError) as refused:
        other.resume(path)
    for difference in ("model.hidden = [13, 11]", "train.seed = 5", "data.crop = 0"):
        assert f"{difference} in the checkpoint, " in str(refused.value)
    assert refused.value.everywhere
    free = Training(small_run(optimizer__lr=0.05, train__rounds=9, evaluate__every=3, checkpoint__keep=7), comm)
    saved = "in the checkpoint"
    assert free.resume(path) == [f"optimizer.lr = 0.1 {saved}, 0.05 here", f"train.rounds = 1 {saved}, 9 here"]


@pytest.mark.parametrize("own", [False, True], ids=["shared", "local"])
def test_other_features_under_the_same_labels_are_refused(comm, shared_tmp, own):
    """What a run is scored on is no part of its state, and may change."""
    source = str(shared_tmp / ("data-{rank}.npz" if own else "data.npz"))
    random = np.random.default_rng(0)
    arrays = {"x_train": random.normal(size=(40, 5)).astype(np.float32), "y_train": random.integers(0, 3, 40)}
    arrays |= {"x_test": arrays["x_train"][:9], "y_test": arrays["y_train"][:9]}
    settings = {"data__source": source, "train__rounds": 2, "model__dtype": "float32"}

    def write():
        comm.barrier()
        if own or comm.rank == 0:
            np.savez(source.format(rank=comm.rank), **arrays)
        comm.barrier()

    write()
    saved = save(trained(comm, **settings)[0], shared_tmp / "saved.h5")
    arrays["x_test"] = arrays["x_test"] + 1
    write()
    resumed(comm, saved, **settings)
    if comm.size > 1 and own:  # nobody's own data are those of another number of ranks
        assert resumed(Communicator(comm.mpi.Split(comm.rank)), saved, **settings)[0].done
    if comm.rank == comm.size - 1 or not own:
        arrays["x_train"][7, 2] += 1
    write()
    with pytest.raises(ConfigError, match="features = .* in the checkpoint"):
        resumed(comm, saved, **settings)


def test_minutes_end_a_resumed_run_only_between_rounds(comm, shared_tmp):
    """Training takes longer than a billionth of a minute."""
    training, progress = trained(comm, train__max_minutes=1e-9)
    assert [one.round for one in progress] == [1] and progress[0].score and training.done
    path = save(training, shared_tmp / "done.h5")
    assert resumed(comm, path, train__max_minutes=1e-9)[1] == []
    assert [one.round for one in resumed(comm, path, train__max_minutes=0.0)[1]] == [2, 3, 4]


@pytest.mark.ranks(only=[3])
def test_of_blocks_only_what_several_ranks_hold_is_saved_as_their_own(comm, shared_tmp):
    half, _ = own_trained(comm, **DEEP | {"method__share_every": 3, "train__rounds": 2})
    with open_checkpoint(save(half, shared_tmp / "half.h5")) as checkpoint:
        assert checkpoint.own and not any("sections.1.1" in name for name in checkpoint.own)


# ---- a run that begins with another's weights


NO_NORM = {"model__norm": "none", "model__bias": True}


def test_a_run_begins_where_another_ended(comm, shared_tmp):
    first = small_run(**NO_NORM, output__folder=str(shared_tmp / "first"), train__rounds=3)
    score = run_training(first, comm).last.score
    file = str(shared_tmp / "first/network.h5")
    for method in ("ist", "local-sgd"):
        training = Training(small_run(**NO_NORM, method__name=method, train__init=file, train__seed=8), comm)
        assert load_initial_weights(training)[0].endswith("6 of 6 parameters fit, 1,119 of 1,119 weights.")
        again = training.evaluate()
        assert (again.score, again.loss) == (score.score, pytest.approx(score.loss, rel=1e-6))
    watch = Listening()
    second = small_run(**NO_NORM, output__folder=str(shared_tmp / "second"), train__rounds=1, train__init=file)
    run_training(second, comm, watch)
    if comm.rank == 0:
        assert watch.said == [f"initial weights from {file}: 6 of 6 parameters fit, 1,119 of 1,119 weights."]
        (shared_tmp / "first/network.h5").unlink()
    comm.barrier()
    more = second.override({"train.rounds": 2})
    assert run_training(more, comm, resume="auto").last.round == 2  # what goes on does not read it


def test_a_file_that_fits_nothing_ends_the_run_before_it_begins(comm, shared_tmp):
    run_training(small_run(output__folder=str(shared_tmp / "wide"), train__rounds=1), comm)
    narrow = {"train__init": str(shared_tmp / "wide/network.h5"), "output__folder": str(shared_tmp / "narrow")}
    with pytest.raises(ConfigError, match="no parameter in it fits the network: wrong shape, ignored: hidden1"):
        run_training(small_run(model__hidden=[3, 5], **narrow), comm)
    assert not (shared_tmp / "narrow").exists()


# ---- a wider network begins with a narrower one's weights

RESNET = {"model__name": "resnet", "model__blocks": [1, 4], "method__partition": ["blocks2", "inner1"]}
CASES = {
    "mlp": ({"model__hidden": [6, 5]}, {"model__hidden": [13, 11]}),
    "sums that are scaled": (
        {"model__hidden": [6, 5], "model__norm": "none", "model__scale": "share"},
        {"model__hidden": [6, 11], "model__norm": "none", "model__scale": "share"},
    ),
    "resnet": (
        RESNET | {"model__channels": [4, 5], "model__inner": [4, 5]},
        RESNET | {"model__channels": [7, 5], "model__inner": [4, 9]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wider_network_begins_as_the_narrow_one_and_trains_all_weights(comm, shared_tmp, case):
    narrow, wide = CASES[case]
    path = save(own_trained(comm, **narrow, train__rounds=1)[0], shared_tmp / "narrow.h5")
    settings = wide | {"train__init": str(path), "train__widen": True, "train__rounds": 1}
    training = Training(own_run(**settings), comm)
    assert "narrower in the file, in the first places here" in "\n".join(load_initial_weights(training))
    before = whole(training)
    losses = [evaluate(file, comm).score.loss for file in (path, save(training, shared_tmp / "wide.h5"))]
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)
    list(training.rounds())
    after = whole(training)
    # New units are no copies: all weights between them train.
    assert all(np.any(before[name] != after[name]) for name in before)


def test_another_network_is_not_widened(comm, shared_tmp):
    """A longer axis, and a kernel of another size, are no narrower network."""
    path = save(own_trained(comm, model__hidden=[6, 5], train__rounds=1)[0], shared_tmp / "network.h5")
    settings = {"model__hidden": [9, 4], "train__init": str(path), "train__widen": True}
    lines = "\n".join(load_initial_weights(Training(own_run(**settings), comm)))
    assert "wrong shape, ignored: hidden2.linear.weight" in lines and "places here: hidden1.linear.weight" in lines
