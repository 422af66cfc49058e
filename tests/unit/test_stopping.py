"""When a job's time is up, as the scheduler's environment says."""

import pytest

from istmpi.comm.stopping import end_of_job
from istmpi.errors import ConfigError


def test_the_end_of_a_jobs_time_is_the_environments(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1700000000")
    assert end_of_job() == 1.7e9


@pytest.mark.parametrize("end", ["soon", "nan", "inf", ""])
def test_an_end_that_is_no_time_is_refused(monkeypatch, end):
    monkeypatch.setenv("SLURM_JOB_END_TIME", end)
    with pytest.raises(ConfigError, match=f"SLURM_JOB_END_TIME = '{end}' must be the Unix time"):
        end_of_job()
