"""When a job's time is up, as the scheduler's environment says."""

from types import SimpleNamespace

import pytest

from istmpi.comm import stopping, world
from istmpi.comm.stopping import StopSign, end_of_job
from istmpi.errors import ConfigError


def test_the_end_of_a_jobs_time_is_the_environments(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1700000000")
    assert end_of_job() == 1.7e9


@pytest.mark.parametrize("end", ["soon", "nan", "inf", ""])
def test_an_end_that_is_no_time_is_refused(monkeypatch, end):
    monkeypatch.setenv("SLURM_JOB_END_TIME", end)
    with pytest.raises(ConfigError, match=f"SLURM_JOB_END_TIME = '{end}' must be the Unix time"):
        end_of_job()


@pytest.mark.parametrize("step", [-7200.0, 7200.0])
def test_a_wish_to_stop_is_seen_when_it_comes_although_the_clock_was_set(monkeypatch, tmp_path, step):
    clock = SimpleNamespace(time=lambda: 1.7e9, monotonic=lambda: 50.0)
    monkeypatch.setattr(stopping, "time", clock)
    by_file, by_deadline = StopSign(world(), tmp_path / "STOP"), StopSign(world(), deadline=1.7e9 + 60)
    assert not by_file.asked() and not by_deadline.asked()
    clock.time, clock.monotonic = (lambda: 1.7e9 + step), (lambda: 60.0)
    (tmp_path / "STOP").touch()
    assert by_file.asked() and not by_deadline.asked()
    clock.monotonic = lambda: 115.0
    assert by_deadline.asked()
