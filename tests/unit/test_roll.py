"""Who is missed, after how long, what is said of it, and when the job ends: reckoned without any rank."""

import os
import threading
import time

import pytest

from istmpi.comm.hang_report import (
    Member,
    Missing,
    Sighting,
    deadline,
    describe_missing,
    describe_slow_call,
    find_circle,
    find_missing,
    find_stuck,
    keep_stacks,
)
from istmpi.comm.whereabouts import SETTING_UP, Wait, Whereabouts, bytes_of_others

MEMBERS = [Member(rank, f"n{rank}", 100 + rank) for rank in range(4)]
WAIT = Wait("alltoallv", "all", 7, (0, 1, 2, 3), 0.0)


def seen(phase="compute", still=1.0, met=6, waits=False, group="some", of=(1, 2)):
    """``waits``: True in a wait for the ranks ``of`` in the first call on the communicator ``group``."""
    waiting = (Wait("broadcast", group, 1, of, 0.0),) if waits else ()
    return Sighting(phase, 3, 5, still, {"all": met}, waiting)


def found_in(answers, silent_for=None, states=None, wait=WAIT, limit=30.0):
    return find_missing(wait, MEMBERS, 0, answers, silent_for or {}, {}, states or {}, limit)


@pytest.mark.parametrize(("patience", "slowest", "seconds"), [(30, 0.0, 300), (30, 2.0, 30), (30, 20.0, 60)])
def test_the_deadline_is_the_patience_or_three_of_the_slowest_rounds(patience, slowest, seconds):
    assert deadline(patience, slowest) == seconds


@pytest.mark.parametrize(
    "answers, missing",
    [
        ({1: seen(still=29.0), 2: seen(still=31.0)}, "1 slow, 2 still, 3 silent"),
        # Who has come is not missing, whatever it does now.
        ({1: seen(met=7, waits=True), 2: seen(met=8, still=100.0), 3: seen(met=7, still=100.0)}, ""),
        # It may have been stopped in the very call.
        ({1: seen(met=7), 2: seen(met=7)}, "3 silent"),
        # Who waits for others itself is named only where nobody else is.
        ({1: seen(waits=True), 2: seen(met=7), 3: seen(still=50.0)}, "3 still"),
        ({1: seen(waits=True), 2: seen(met=7), 3: seen(met=7)}, "1 waits"),
    ],
)
def test_a_rank_that_does_not_answer_is_silent_and_one_that_does_is_slow_or_still(answers, missing):
    assert ", ".join(f"{one.member.rank} {one.why}" for one in found_in(answers)) == missing
    assert "respond" in describe_slow_call("hop (alltoallv)", 40.0)
    of_two = Wait("alltoallv", "all", 7, (0, 2), 0.0)
    assert [one.member.rank for one in found_in({1: seen(), 2: seen(), 3: seen()}, wait=of_two)] == [2]


def waiting(*of, still=40.0, met=6):
    return seen(still=still, met=met, waits=True, group="".join(map(str, of)), of=of)


@pytest.mark.parametrize(
    "sightings, circle",
    [
        ([waiting(1), waiting(0)], {0, 1}),
        ([waiting(1), waiting(2), waiting(0), waiting(0)], {0, 1, 2, 3}),
        # Rank 2 computes, and ranks 0 and 1 wait for it alone.
        ([waiting(1), waiting(2), seen(still=99.0)], set()),
        # Rank 1 waits for rank 0, which has reached this call.
        ([waiting(1), Sighting("hop", 3, 5, 40.0, {"1": 1}, waiting(0).waiting)], set()),
        ([waiting(1), waiting(0, still=29.0)], set()),
    ],
)
def test_ranks_that_wait_for_each_other_in_different_calls_wait_in_a_circle(sightings, circle):
    assert find_circle(dict(enumerate(sightings)), 30.0) == circle
    if {0, 1} <= circle:
        (missing,) = found_in(dict(enumerate(sightings)), wait=Wait("alltoallv", "all", 7, (1,), 0.0))
        assert missing.why == "circle" and "wait for it, in compute" in missing.condition


@pytest.mark.parametrize(
    ("why", "hurry", "last"), [("silent", False, 30), ("silent", True, 0), ("still", False, 60), ("circle", True, 30)]
)
def test_nobody_is_waited_for_beyond_a_second_deadline_and_with_a_stop_beyond_the_first(why, hurry, last):
    def stuck(why, since, hurry):
        return bool(find_stuck([Missing(MEMBERS[1], why, since)], 30.0, hurry))

    assert stuck(why, last, hurry) and not (last and stuck(why, last - 1, hurry))
    assert not stuck("slow", 1e6, True) and not stuck("waits", 1e6, True)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("T", "its process is stopped (kill -CONT 102 resumes it)"),
        ("D", "its process waits for a disk or a device"),
        ("", "its process has ended"),
        ("R", "its process does not answer"),
        (None, "its process does not answer: it is stopped, or its host is gone"),
    ],
)
def test_a_line_says_who_where_and_what_holds_it(state, words):
    one = Missing(MEMBERS[2], "silent", 0.0, seen(), 33.0, state)
    said = describe_missing(one, 30.4, "hop (alltoallv)", ("compute", 1.25), 60.0)
    assert said.startswith(f"waiting for rank 2 on n2 (process 102) in hop (alltoallv) for 30 s: {words}")
    assert "last seen 33 s ago in compute, round 3, local step 5." in said
    assert said.endswith("The slowest phase so far was compute, 1.25 s. The job ends at 60 s if nothing changes.")
    assert "\n" not in said


def test_a_rank_knows_where_it_is():
    here = Whereabouts()
    assert str(Sighting.from_whereabouts(here, time.monotonic())) == SETTING_UP
    here.begin_round(1)
    with here.enter("other"), here.enter("compute"):
        here.step(4)
        with here.enter("all-reduce"):
            assert str(Sighting.from_whereabouts(here, time.monotonic())) == "all-reduce, round 1, local step 4"
    assert str(Sighting.from_whereabouts(here, time.monotonic())) == "between rounds, round 1"
    assert here.slowest_round == 0.0 and here.slowest_phase[0] in ("other", "compute", "all-reduce")
    here.begin_round(2)
    assert here.slowest_round > 0
    here.arrive("all")
    with here.waits("barrier", "all", (0, 1)):
        (wait,) = here.waiting.values()
        sighting = Sighting.from_whereabouts(here, wait.since + 2.0)
    assert (wait.number, wait.trains, sighting.waiting, sighting.arrivals) == (1, True, (wait,), {"all": 1})
    assert not here.waiting


@pytest.mark.parametrize("first", ["who watches", "who trains"])
def test_what_a_stopped_process_did_not_do_counts_as_no_round(monkeypatch, first):
    """Whoever of the two runs first behind an hour of sleep, and a round that begins then is as long as it is."""
    clock = [1000.0]
    monkeypatch.setattr("istmpi.comm.whereabouts.time.monotonic", lambda: clock[0])
    here = Whereabouts()
    here.begin_round(1)
    here.watch(clock[0])
    with here.enter("compute"):
        clock[0] += 3600
        assert first == "who trains" or here.watch(clock[0])
    clock[0] += 0.5
    here.begin_round(2)
    assert first == "who watches" or here.watch(clock[0])
    assert here.slowest_round <= 0.5 and here.slowest_phase[1] <= 0.5 and here.awake_since >= 4600
    for round in range(3, 12):
        clock[0] += 4
        assert not here.watch(clock[0])
        here.begin_round(round)
    assert here.slowest_round == 4
    assert deadline(30, here.slowest_round) == 30


def test_bytes_of_the_thread_that_watches_are_no_progress(tmp_path):
    (tmp_path / "file").write_bytes(bytes(2**20))

    def grown(read):
        before = bytes_of_others()
        read()
        return bytes_of_others() - before

    assert grown((tmp_path / "file").read_bytes) < 2**16

    def another_reads():
        thread = threading.Thread(target=(tmp_path / "file").read_bytes)
        thread.start()
        thread.join()

    assert grown(another_reads) >= 2**20


def test_stacks_do_not_wait_for_a_disk_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr("istmpi.comm.hang_report._SECONDS_TO_WRITE", 0.2)
    assert keep_stacks({1: "its threads"}, tmp_path) == f"Stack traces: {tmp_path / 'stacks'}."
    os.mkfifo(tmp_path / "stacks" / "rank0.txt")
    assert keep_stacks({0: "its threads"}, tmp_path).endswith(f"written to {tmp_path / 'stacks'} (it does not answer).")
