"""The campaign of lost ranks: a run that goes wrong is a finding in its table, and both arms of goodput are alike."""

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("benchmarks")
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def lines(rounds, without=()):
    for number in range(1, rounds + 1):
        seconds = {} if number in without else {"round_seconds": 2.0}
        yield {"round": number, "time": str(BEGAN + timedelta(seconds=4 * number)), "score": 0.9, **seconds}


@pytest.fixture
def campaign(tmp_path):
    from survival import Campaign

    return Campaign(tmp_path, 1, 4, 4, None)


def leaves(monkeypatch, run):
    """Have ``run(folder, faults, command)`` stand for all that is started; the exit code is what it returns."""

    def stand_in(command, **_):
        folder = Path(command[command.index("--out") + 1])
        folder.mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, run(folder, command[command.index("train") - 1], command) or 0)

    monkeypatch.setattr("survival.subprocess.run", stand_in)


def stands(folder, faults, command):
    raise subprocess.TimeoutExpired(command, 1)


def leaves_nothing(folder, faults, command):
    return 1


def leaves_half_a_line(folder, faults, command):
    (folder / "metrics.jsonl").write_text('{"round": 1}\n{"rou')
    (folder / "summary.json").write_text("{}")


@pytest.mark.parametrize(
    ("run", "why"),
    [(stands, "not over after"), (leaves_nothing, "exit code 1"), (leaves_half_a_line, "not each round told once")],
)
def test_a_run_that_goes_wrong_is_a_finding_and_the_next_one_follows(monkeypatch, capsys, campaign, run, why):
    from survival import cost, goodput, kills

    leaves(monkeypatch, run)
    kills(campaign)
    told = capsys.readouterr().out
    assert told.count(f"| NO: {why}") == 4 and "0 of 4 went on." in told
    goodput(campaign)
    assert capsys.readouterr().out.count(f"| NO: {why}") == 2
    cost(campaign)
    assert capsys.readouterr().out.count("NO: turn ") == 12


def test_goodput_loses_the_same_ranks_either_way_and_counts_a_lost_round(monkeypatch, capsys, campaign):
    from survival import goodput

    started = []

    def run(folder, faults, command):
        started.append((faults, "--survive" in command, command[command.index("-n") + 1]))
        lost = [int(one.split(":")[2]) for one in faults.split(",") if one]
        rounds = 60
        if "--survive" not in command and faults:
            done = len(list((folder / "checkpoints").glob("*"))) * 10
            (folder / "checkpoints").mkdir(exist_ok=True)
            for at in range(10, done + lost[0], 10):
                (folder / "checkpoints" / f"round-{at:08}.h5").touch()
            return 137
        losing = lost if "--survive" in command else ()
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines(rounds, losing)))
        (folder / "summary.json").write_text("{}")

    leaves(monkeypatch, run)
    goodput(campaign)
    told = capsys.readouterr().out
    (together, _, _), first, second, last = started
    (one, at), (other, then) = [(int(fault.split(":")[0]), int(fault.split(":")[2])) for fault in together.split(",")]
    assert first == (f"{one}:compute:{at}", False, "4")
    assert second == (f"{other - (one < other)}:compute:{then - (at - 1) // 10 * 10}", False, "3")
    assert last == ("", False, "2")
    assert told.count("| 238.0 | 120.0 | 0.50 |") == 2, told
    assert "counts as the median of the rounds beside it" in told


def test_seconds_of_a_lost_round_are_those_of_its_neighbours():
    from survival import counted

    assert counted([{"round_seconds": 1.0}, {}, {"round_seconds": 4.0}, {}, {}]) == [1.0, 2.5, 4.0, 4.0, 0.0]
