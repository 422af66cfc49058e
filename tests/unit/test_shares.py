"""Shares that follow the measured times: AdapTrain's law, where it ends, and what is remembered of it."""

import json
from contextlib import nullcontext
from math import sqrt
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from istmpi.cli.run_options import changes
from istmpi.config import Run
from istmpi.engine.partition import Partition
from istmpi.engine.shares import CHANGE, LEAD, LEAST, ROUNDS, Shares, balance_shares, equal
from istmpi.errors import ConfigError, DataError
from istmpi.methods.limits import with_method
from istmpi.training.share_log import choose_shares


def test_the_law_is_adaptrains():
    shares, seconds = (0.5, 0.3, 0.2), (4.0, 1.0, 2.0)
    wanted = [0.5 / 2, 0.3, 0.2 / sqrt(2)]
    assert balance_shares(shares, seconds) == pytest.approx([one / sum(wanted) for one in wanted], rel=1e-5)


def carried_out(speeds, cost, rounds=120):
    """The shares of every round of a run whose ranks need ``speed * cost(share)`` seconds."""
    shares, used = Shares(len(speeds), follows=True), []
    for round in range(rounds):
        present = shares.of(round) or equal(len(speeds))
        used.append(present)
        seconds = [speed * cost(share * len(speeds)) for speed, share in zip(speeds, present)]
        if (wanted := shares.measured(round, seconds)) is not None:
            shares.change(round, wanted)
    return used


@given(st.lists(st.floats(1, 6), min_size=2, max_size=8), st.floats(0, 0.5), st.floats(0, 1))
def test_times_become_equal_without_going_past(speeds, constant, linear):
    """Whatever part of a step costs the same, grows with the share, or with its square."""

    def cost(share):
        return constant + (1 - constant) * (linear * share + (1 - linear) * share**2)

    used = carried_out(speeds, cost)
    assert used[-1] == used[-2 * (ROUNDS + LEAD)], "settled"
    floor = 1.1 * LEAST / len(speeds)
    for of_one, of_other, fast, slow in zip(*used[-1:], *used[-1:], speeds, speeds):
        assert fast != slow or of_one == of_other
    times = [speed * cost(share * len(speeds)) for speed, share in zip(speeds, used[-1]) if share > floor]
    # Shares have settled if none would change by 5% more: the roots of the seconds are within (1 +- 5%) of their mean.
    assert max(times) / min(times) < ((1 + CHANGE) / (1 - CHANGE)) ** 2
    slowest, fastest = speeds.index(max(speeds)), speeds.index(min(speeds))
    for rank, way in (slowest, 1), (fastest, -1):
        course = [shares[rank] for shares in used]
        assert all(way * (one - other) > -2 * CHANGE * one for one, other in zip(course, course[1:])), "no way back"


def test_no_rank_is_left_without_a_part():
    """Where its time does not fall with its share, as when it waits for its data."""
    used = carried_out([1, 1, 1, 40], lambda share: 1)
    assert used[-1][3] == pytest.approx(LEAST / 4, rel=0.15) and used[-1] == used[-10]
    assert all(len(part) >= 1 for part in Partition.draw({"a": 16}, ["a"], 4, 0, 0, used[-1]).units["a"])


def test_ranks_that_are_about_as_fast_and_a_single_slow_round_change_nothing():
    assert set(carried_out([1.0, 1.05, 0.98], lambda share: share)) == {equal(3)}
    shares, without = Shares(2, follows=True), Shares(2, follows=True)
    for round in range(20):
        assert shares.measured(round, (1.0, 9.0 if round % ROUNDS == 1 else 1.0)) is None
        assert without.measured(round, (float(round % 2), 0.0)) is None, "a round without times says nothing"


def test_a_change_has_a_lead_and_is_measured_before_the_next():
    """The next round's deal is drawn when the round begins that is being measured."""
    shares, changed = Shares(2, follows=True), []
    for round in range(20):
        if (wanted := shares.measured(round, (1.0, 2.0))) is not None:
            before = shares.of(round + LEAD - 1)
            shares.change(round, wanted)
            assert shares.of(round + LEAD - 1) == before and shares.of(round + LEAD) == wanted != before
            changed.append(round)
    assert changed == [2, 6, 10, 14, 18][: len(changed)] and len(changed) > 2


def test_a_checkpoint_remembers_what_is_decided_and_what_was_trained_last():
    shares = Shares(2, follows=True)
    assert shares.known(5) == {}
    shares.change(5, (0.6, 0.4))
    assert shares.known(5) == {}
    assert shares.known(6) == {5: (0.5, 0.5), 7: (0.6, 0.4)}
    assert shares.known(8) == {7: (0.6, 0.4)} == Shares(2, log=shares.known(8)).known(8)
    assert shares.known(9) == {8: (0.6, 0.4)}
    gone_on = Shares(2, follows=True)
    gone_on.restore({5: (0.5, 0.5), 7: (0.6, 0.4)}, 2)
    assert [gone_on.of(round) for round in (6, 7, 30)] == [(0.5, 0.5), (0.6, 0.4), (0.6, 0.4)] and gone_on.follows
    elsewhere = Shares(3, follows=True)
    elsewhere.restore({5: (0.5, 0.5)}, 2)
    assert elsewhere.of(7) is None


ALONE = SimpleNamespace(size=2, rank=0, agreed=nullcontext, broadcast_from_root=lambda value: value)


def read(path):
    return choose_shares(str(path), ALONE)


def test_a_log_gives_every_round_its_shares(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = [{"round": n, "ranks": 2, "rank0_share": 0.5 + n / 100, "rank1_share": 0.5 - n / 100} for n in (1, 2, 3)]
    file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"round": 4, "ranks": 2}]))
    for found in read(file), read(tmp_path):
        assert found.changing and not found.follows
        assert [found.of(round) for round in range(5)] == [(0.51, 0.49), (0.52, 0.48), *[(0.53, 0.47)] * 3]


@pytest.mark.parametrize(
    "line, says",
    [
        ({"round": 1, "ranks": 3, "rank0_share": 0.5, "rank1_share": 0.5}, "3 ranks; this run has 2"),
        ({"round": 1, "ranks": 2, "rank0_share": 0.5}, "rank1_share is missing"),
        ({"round": 1, "ranks": 2, "rank0_share": 0.5, "rank1_share": -1}, "rank1_share is -1"),
        ({"round": 0, "ranks": 2, "rank0_share": 0.5, "rank1_share": 0.5}, "round is 0"),
    ],
)
def test_a_log_that_cannot_be_used_is_refused(tmp_path, line, says):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises((ConfigError, DataError), match=says):
        read(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        read(tmp_path / "other.jsonl")


def test_what_is_typed():
    def typed(text):
        return Run().override(changes((f"method.shares={text}",), {})).method.shares

    assert typed("auto") == typed('"auto"') == "auto" and typed("runs/a/metrics.jsonl") == "runs/a/metrics.jsonl"
    assert typed("1,2.5") == typed("[1, 2.5]") == (1.0, 2.5) and typed("1e2,1") == (100.0, 1.0)
    for wrong in "1;2", "nan,1", "true":
        with pytest.raises(ConfigError, match=r"method\.shares"):
            typed(wrong)


def test_a_comparison_leaves_them_out_where_nothing_is_dealt():
    for shares in ("auto", [1, 2]):
        assert with_method(Run().override({"method.shares": shares}), "local-sgd").method.shares is None
