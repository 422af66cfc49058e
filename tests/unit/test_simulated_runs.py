"""Whole runs on simulated ranks: what mpirun computes, under any schedule, and however a rank is lost."""

import json
from dataclasses import replace

import networks
import pytest
import torch
from replay_cases import MLP
from replaying import RECORD, arithmetic, passed_on, replayed, run_of  # noqa: F401
from small import Listening, small_run
from torch.utils.data import DataLoader, TensorDataset

import istmpi
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.errors import ConfigError
from istmpi.record import SUMMARY, RunFolder
from istmpi.simulated import KINDS, Faults, Kill, simulate
from istmpi.simulated.schedules import Schedules, simulate_training

SHORT = {"train__rounds": 2, "method__local_steps": 2}


RECORDED = json.loads(RECORD.read_text())


@pytest.mark.usefixtures("passed_on")
@pytest.mark.parametrize("case", list(MLP)[::5])
def test_the_recorded_bits_and_messages_come_out_when_ranks_stop_and_are_slow(case, tmp_path):
    number = list(MLP).index(case)
    run = run_of(MLP[case], 3, tmp_path)
    expected = RECORDED["runs"]["3 ranks"][case]
    faults = Faults.draw(number, 3, ["stops", "slow"], 300)
    for outcome in simulate(lambda comm: replayed(comm, run), 3, faults).require():
        compared = expected if RECORDED["arithmetic"] == arithmetic() else ("messages", "bytes")
        assert {name: outcome[name] for name in compared} == {name: expected[name] for name in compared}


@pytest.mark.parametrize(
    "settings",
    [
        {"method__redeal": 0.5, "optimizer__momentum": 0.9, "method__optimizer_state": "carry"},
        {"method__name": "dynamic-averaging", "method__threshold": 0.012},
    ],
    ids=["ist redealt", "dynamic-averaging"],
)
def test_schedules_with_delays_stops_slow_and_lost_ranks_keep_the_law(settings):
    schedules = Schedules(small_run(**SHORT | settings), 3, KINDS)
    seen = [(schedule.seed, schedule.finding, *schedule.kinds) for schedule in schedules.run(range(2, 7))]
    assert [one for one in seen if one[1]] == []
    assert {kind for _, _, *kinds in seen for kind in kinds} == {*KINDS}


def test_weights_in_pieces_come_to_the_same(monkeypatch):
    monkeypatch.setattr("istmpi.comm.exchange.PIECE_BYTES", 1000)
    pieces, whole = (Schedules(small_run(comm__exchange=way, **SHORT), 3, ()) for way in ("pieces", "alltoallv"))
    assert pieces.reached == whole.reached and max(pieces.calls) > max(whole.calls)


def test_an_all_reduce_that_does_not_wait_for_its_messages_is_found(monkeypatch):
    schedules = Schedules(small_run(method__name="data-parallel", **SHORT), 3, ())
    assert schedules.reached.bytes
    monkeypatch.setattr(Communicator, "all_done", staticmethod(lambda requests: True))
    assert any(schedule.finding for schedule in schedules.run(range(5)))


def test_a_run_killed_at_any_call_and_resumed_comes_to_the_same_weights():
    """Every 113th call of each rank, before it does anything or when its part is posted."""
    schedules = Schedules(small_run(**SHORT), 3, KINDS)
    found = []
    kills = [Kill(rank, call) for rank in range(3) for call in range(5 + rank, schedules.calls[rank], 113)]
    for number, kill in enumerate(kills):
        schedule = schedules.run_killed(number, replace(Faults(number), kills=[replace(kill, posted=bool(number % 2))]))
        assert schedule.outcomes[0].dead == {kill.rank}
        found.append(schedule.finding)
    assert len(found) >= 6 and not any(found)


def test_parallel_hdf5_and_shares_that_follow_the_clock_are_refused_in_one_line():
    with pytest.raises(ConfigError, match="^checkpoint.writer = 'mpio' needs an MPI library, .* Use direct"):
        simulate_training(Run().override({"checkpoint.writer": "mpio"}), 2, Faults())
    with pytest.raises(ConfigError, match="^method.shares = 'auto' follows measured times"):
        Schedules(small_run(method__shares="auto"), 2, KINDS)


def test_the_command_trains_without_mpi_and_says_that_it_is_simulated(forked, tmp_path):
    run = tmp_path / "small.toml"
    run.write_text(small_run(**SHORT).toml())
    program = "import sys; sys.modules['mpi4py'] = None; from istmpi.cli.main import main; main()"
    result = forked("simulate", run, "--ranks", 5, "--out", tmp_path / "out", program=program)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("simulated: 5 ranks that take turns in this process\n")
    assert "MPI        simulated" in result.stdout and "ranks      5 on 1 host" in result.stdout
    assert "round 2/2" in result.stdout
    assert " of virtual time\nfaults     none\n" in result.stdout
    assert (tmp_path / "out" / "network.h5").is_file()


def test_a_lost_rank_ends_the_command_as_it_ends_mpirun(istmpi_command, tmp_path):
    run = tmp_path / "small.toml"
    run.write_text(small_run(train__rounds=6, **{"method__local_steps": 2, "checkpoint__every": 1}).toml())
    seed = next(seed for seed in range(99) for kill in Faults.draw(seed, 3).kills if 100 < kill.call < 200)
    command = ("simulate", run, "--ranks", 3, "--out", tmp_path / "out")
    code, out, err = istmpi_command(*command, "--faults", seed)
    assert code == 137 and "; came about: rank " in out
    assert err.startswith("istmpi: rank ") and err.endswith("the launcher ends the job.\n")


def test_the_command_tries_schedules_and_tells_findings(answer, refusal, tmp_path):
    run = tmp_path / "small.toml"
    run.write_text(small_run(**SHORT).toml())
    out = answer("simulate", run, "--ranks", 2, "--schedules", 3, "--faults", 5)
    assert out.startswith("3 schedules of 2 ranks in ") and out.endswith("): 0 findings\n")
    said = "istmpi: --json does not go with --schedules, which prints only findings."
    assert refusal("simulate", "--schedules", 1, "--json").startswith(said)


def test_a_run_killed_before_its_summary_is_completed_by_the_same_command(tmp_path, monkeypatch):
    folder, write = RunFolder(tmp_path / "run"), RunFolder.write
    run = small_run(output__folder=str(folder.path))
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write", lambda *of: 1 / 0 if of[1] == SUMMARY else write(*of))
        assert isinstance(simulate_training(run, 2, Faults()).ended, ZeroDivisionError)
    files = [folder.path / "network.h5", folder.path / "metrics.jsonl"]
    before = [file.read_bytes() for file in files]
    assert not (folder.path / SUMMARY).exists()
    others = '{"last": {"round": 4, "loss": 0.5}}'
    no_end = '{"last": {}, "ended": null}'
    kinds = [(1, '{"ended": "all', " cannot be read"), (2, None, ""), (1, others, " is not of round 4")]
    for ranks, damage, told in [*kinds, (1, no_end, ": ended is None; it must be text")]:
        if damage:
            (folder.path / SUMMARY).write_text(damage)
        ear, left = Listening(), folder.path / f".progress.png.{ranks}-0a.tmp"
        left.touch()
        simulate_training(run, ranks, Faults(), ear, "auto").require()
        assert not left.exists()
        assert any("nothing left to train" in said for said in ear.said) == (not damage)
        assert any(f"summary.json{told}" in said for said in ear.said) == bool(damage)
        assert [file.read_bytes() for file in files] == before
    last, summary = folder.metrics()[-1], json.loads((folder.path / SUMMARY).read_text())["last"]
    assert summary["score"]["score"] == pytest.approx(last["score"]) and summary["round"] == last["round"] == 4
    assert [summary[fact] for fact in ("seconds", "bytes", "loss")] == [last[f] for f in ("seconds", "bytes", "loss")]


def test_a_run_s_folder_is_resumed_as_train_resumes_it(istmpi_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = ["--out", "run", "--rounds", "2", "--hidden", "16"]
    for words in (first, ["run", "--rounds", "3"], ["--resume", "run", "--rounds", "4"]):
        assert istmpi_command("simulate", *words, "--ranks", "2", "-q")[0] == 0
    assert [line["round"] for line in RunFolder(tmp_path / "run").metrics()] == [1, 2, 3, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_folder_of_a_program_s_run_is_refused_with_its_cure(refusal, tmp_path):
    run = Run().override({"data.source": "{rank}", "model.name": "mine/net.py:Net"})
    (tmp_path / "run.toml").write_text(run.toml())
    for command in ("train", "simulate", "costmodel"):
        said = refusal(command, tmp_path)
        assert f"{tmp_path} is a run of a program" in said and "mpirun -n P python mine/net.py" in said
        assert "resume='auto'" in said


def test_a_program_of_its_own_rounds_runs_on_simulated_ranks(tmp_path):
    """With job.rounds as it stands in a program: with signals, which threads of a process cannot take."""

    def program(comm):
        example = (torch.zeros(6, 5),) * 2
        job = istmpi.Distributed(networks.TwoTowers, {"features": 5}, comm, example=example, device="cpu")
        data = TensorDataset(torch.arange(100.0).view(20, 5) / 100)
        for round in job.rounds(2, folder=tmp_path / "run"):
            for (x,) in round.take(DataLoader(data, batch_size=4)):
                round.step(round.module(x, x).square().mean())
        return job.summary.last.round

    assert simulate(program, 2).require() == [2, 2]
