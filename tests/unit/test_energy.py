"""The energy of a job: RAPL where every host has it, else sacct, else watts; a folder stands in for the CPUs."""

import pytest

from istmpi.training.energy import Energy, HostJoules, Meter, choose_energy


@pytest.fixture
def cpus(tmp_path, monkeypatch):
    """``cpus(0, microjoules)`` sets a counter; parts of CPUs and other domains count as well, and must not be read."""

    def write(number, microjoules, name="package-"):
        folder = tmp_path / f"intel-rapl:{number}"
        folder.mkdir(exist_ok=True)
        (folder / "name").write_text(f"{name}{number}\n")
        (folder / "energy_uj").write_text(f"{microjoules}\n")
        (folder / "max_energy_range_uj").write_text("10000000\n")

    monkeypatch.setattr("istmpi.training.energy.COUNTERS", tmp_path)
    write("0:0", 0, "core")
    write("9", 0, "psys")
    return write


def test_counters_are_added_up_over_cpus_and_over_their_limit_and_without_one_there_is_no_energy(cpus, tmp_path):
    assert Meter().describe().joules is None
    cpus("0", 9_000_000)
    cpus("1", 100)
    meter = Meter()
    cpus("0", 1_000_000)
    meter.read()
    cpus("0", 3_000_000)
    cpus("1", 500_100)
    cpus("0:0", 999)
    assert meter.describe().joules == pytest.approx(2 + 2 + 0.5)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("secret")
    assert Meter().describe().joules is None


def test_ranks_of_a_host_count_once_and_every_host_must_count():
    first, second, blind = HostJoules("a", 3.0), HostJoules("b", 4.0), HostJoules("c", None)
    assert choose_energy([first, first, second], None, 1.0) == Energy(7.0, "RAPL")
    assert choose_energy([first, blind], None, 1.0) is None
    assert choose_energy([first, blind], 50.0, 2.0) == Energy(200.0, "train.watts")


@pytest.mark.parametrize("lines, joules", [("1200\\n\\n700\\n", 1200.0), ("\\n0\\n", None)])
def test_in_a_job_slurm_counts_before_watts_do(tmp_path, monkeypatch, lines, joules):
    program = tmp_path / "sacct"
    program.write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    expected = Energy(joules, "sacct") if joules else Energy(10.0, "train.watts")
    assert choose_energy([HostJoules("a", None)], 5.0, 2.0) == expected
