"""Shares that change from round to round: weights, bytes, checkpoints, and the same run once more from its log."""

import json

import numpy as np
import oracle
import pytest
from resuming import save, stop_at
from small import assert_same_bits, small_run, whole

from istmpi.cost import round_bytes
from istmpi.engine.shares import balance_shares
from istmpi.training.loop import Training
from istmpi.training.progress import LastRound

pytestmark = pytest.mark.ranks(only=[3])

MOMENTUM = {"optimizer__momentum": 0.9, "optimizer__lr": 0.01, "method__optimizer_state": "carry"}
CASES = {
    "a part redealt, momentum carried": {"method__redeal": 0.3, **MOMENTUM},
    "layer norm, a bias, an outer step": {"model__norm": "layer", "model__bias": True, "method__outer_momentum": 0.5},
}
ROUNDS = 12


def auto(**settings):
    return small_run(**{"method__shares": "auto", "train__rounds": ROUNDS, "optimizer__lr": 0.03} | settings)


@pytest.fixture
def measured(monkeypatch):
    """``measured(seconds)``: what is measured of local steps is that, rank by rank, however busy the machine is."""
    from_ranks = LastRound.from_ranks

    def settle(seconds):
        def measure(took, nbytes, examples, phases, saving):
            compute = [{**one, "compute": its} for one, its in zip(phases, seconds)]
            return from_ranks(took, nbytes, examples, compute, saving)

        monkeypatch.setattr(LastRound, "from_ranks", measure)

    return settle


def log_of(done, folder, rank):
    if rank == 0:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(one.record()) + "\n" for one in done))
    return str(folder)


@pytest.mark.parametrize("case", CASES)
def test_bytes_weights_and_the_same_run_once_more(comm, shared_tmp, measured, monkeypatch, case):
    measured([4.0, 1.0, 1.2])
    run = auto(**CASES[case])
    training = Training(run, comm)
    done = list(training.rounds())
    used = [one.last_round.shares for one in done]
    assert [number for number in range(1, ROUNDS) if used[number] != used[number - 1]] == [4, 8]
    assert used[0] == (1 / comm.size,) * comm.size and used[4] == balance_shares(used[0], [4.0, 1.0, 1.2])
    assert used[-1][0] < min(used[-1][1:]), "rank 0 is the slow one"
    assert comm.allgather(used) == [used] * comm.size
    for number, one in enumerate(done):
        planned = round_bytes(run, training.architecture, comm.size, number, training.shares)
        assert one.last_round.bytes == sum(planned), f"round {number}"
    mine = whole(training)
    weights, losses = oracle.train(run, training.architecture, comm.size, training.architecture.groups, used)
    for name, expected in weights.items():
        np.testing.assert_allclose(mine[name], expected.numpy(), rtol=1e-7, atol=1e-9, err_msg=name)
    np.testing.assert_allclose([one.loss for one in done], losses, rtol=1e-6)
    slowest = done[-1].slowest
    assert slowest.rank == 0 and slowest.slower == pytest.approx(4 / 1.1 - 1)
    # Its log once more, with nobody slowed down.
    monkeypatch.undo()
    log = log_of(done, shared_tmp, comm.rank)
    comm.barrier()
    again = Training(auto(**CASES[case], method__shares=log), comm)
    told = list(again.rounds())
    assert [one.last_round.shares for one in told] == used
    assert [one.loss for one in told] == [one.loss for one in done] and told[-1].bytes == done[-1].bytes
    assert_same_bits(whole(again), mine)


def test_a_log_goes_on_from_a_checkpoint(comm, shared_tmp):
    """From one behind a dropped round, and of a run that made its shares itself."""
    log = log_of_changes(comm, shared_tmp)
    settings = {"method__redeal": 0.3, "method__optimizer_state": "carry", "optimizer__momentum": 0.5}
    run = auto(**settings, method__shares=log)
    peace = Training(run, comm)
    losses = [one.loss for one in peace.rounds()]
    training = Training(run, comm)
    stop_at(training, 5, 1)
    rounds = training.rounds()
    before = [next(rounds).loss for _ in range(5)]
    assert list(rounds) == [] and training.rounds_done == 5
    path = save(training, shared_tmp / "checkpoint.h5")
    gone_on = Training(run, comm)
    gone_on.resume(path)
    assert before + [one.loss for one in gone_on.rounds()] == losses
    assert_same_bits(whole(gone_on), whole(peace))
    anew = Training(auto(**settings), comm)
    assert "method.shares" in anew.resume(path)[0]
    assert [anew.shares.of(number) for number in (5, 6)] == [training.shares.of(number) for number in (5, 6)]
    assert len(list(anew.rounds())) == ROUNDS - 5


def log_of_changes(comm, folder):
    """Other shares from the third, the sixth and the seventh round on."""
    if comm.rank == 0:
        kinds = [[1 / 3] * 3, [0.5, 0.3, 0.2], [0.1, 0.3, 0.6], [0.4, 0.4, 0.2]]
        lines = []
        for number in range(ROUNDS):
            shares = kinds[(number >= 2) + (number >= 5) + (number >= 6)]
            lines.append({"round": number + 1, "ranks": 3} | {f"rank{r}_share": one for r, one in enumerate(shares)})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    comm.barrier()
    return str(folder / "metrics.jsonl")


def test_ranks_that_are_as_fast_change_no_bit(comm, measured):
    measured([1.04, 1.0, 1.0])
    plain, auto_ones = Training(auto(method__shares=None), comm), Training(auto(), comm)
    losses = [[one.loss for one in training.rounds()] for training in (plain, auto_ones)]
    assert losses[0] == losses[1]
    assert_same_bits(whole(plain), whole(auto_ones))


def test_a_finish_that_deals_nothing_has_no_shares(comm):
    done = list(Training(auto(method__finish="local-sgd:50%", train__rounds=4), comm).rounds())
    assert [bool(one.last_round.shares) for one in done] == [True, True, False, False]
