"""Train three methods in two minutes and predict their time over slow links."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from istmpi.cli.options import bandwidth, flag, real, text, whole
from istmpi.cli.output import console, table
from istmpi.comm import read_launcher
from istmpi.errors import ConfigError, IstmpiError
from istmpi.record import SETTINGS, home
from istmpi.units import in_seconds, number

if TYPE_CHECKING:
    from rich.console import Console

METHODS = "ist,local-sgd,data-parallel"
NETWORK = ("--hidden", "1024,1024", "--threads", "1")
REMARK = (
    "The built-in digits and a network of 1.1 million weights; 10 local steps a round, no method "
    "tuned. IST gains nothing on a fast link or for a small network: it trains subnets and saves "
    "bytes."
)
LATENCY = 100e-6  # seconds, of a link between sites
LONGER = "Give it more time with --seconds."


@click.command("demo")
@whole("--ranks", "P", "Ranks to start.", 2, 16, default=4)
@text("--rate", "RATE,...", "Link rates to predict for.", default="10Mbit,50Mbit,250Mbit")
@real("--seconds", "S", "Training time of each method.", 1, 600, default=15)
@text("--out", "FOLDER", "Folder of runs and report; demo in $ISTMPI_RUNS (runs) by default.")
@flag("--brief", "Print the prediction alone.")
def command(ranks: int, rate: str, seconds: float, out: str | None, brief: bool) -> None:
    """Train the digits with three methods on this machine, and predict the time of each over slow
    links.

    The command starts mpirun itself: istmpi compare trains, istmpi measure measures this machine,
    and the model of istmpi costmodel predicts the seconds over links of each RATE.
    """
    rank, ranks_of_job = read_launcher()
    if rank > 0:
        # Rank 0 prints the error below.
        sys.exit(ConfigError.exit_code)
    if ranks_of_job > 1:
        raise ConfigError("istmpi demo starts its ranks itself: run it without mpirun.")
    if shutil.which("mpirun") is None:
        raise ConfigError(
            "istmpi demo needs mpirun on the PATH. Install MPI or load its module; "
            "see istmpi doctor."
        )
    rates = [bandwidth("--rate", text) for text in rate.split(",")]
    folder = home(out or "", "demo")
    stdout = console(soft_wrap=True)
    stdout.print(f"{ranks} ranks on this machine. {REMARK}\n", markup=False)
    compare = ["compare", "digits", "--methods", METHODS, *NETWORK, "--out", str(folder)]
    compare += ["--max-minutes", str(seconds / 60), "--evaluate-every", "1", "--rounds", "60"]
    if brief:
        compare.append("-q")
    _start(ranks, compare)
    cluster = folder / "cluster.json"
    measure = ["measure", "digits", *NETWORK, "--out", str(cluster)]
    with stdout.status("measuring this machine"):
        _start(ranks, measure, stdout=subprocess.DEVNULL)
    _predict(folder, cluster, ranks, rates, stdout)
    stdout.print(
        f"\nReport: {folder / 'report.html'}. Advice for your links: istmpi costmodel --advise",
        markup=False,
    )


def _predict(folder: Path, measured: Path, ranks: int, rates: list[float], stdout: Console) -> None:
    from istmpi.cli.networks import describe_run
    from istmpi.cluster.figures import load, network
    from istmpi.cluster.time import round_time
    from istmpi.config import Run
    from istmpi.cost import cost
    from istmpi.report.comparison import compare, find_reached
    from istmpi.report.curves import read_curves

    curves = sorted(read_curves([folder]), key=lambda curve: METHODS.index(curve.method))
    machine = load(measured)
    targets = compare(curves).targets
    if not targets:
        problem = "A method has an accuracy of 0 after its seconds, so nothing is predicted."
        stdout.print(f"\n{problem} {LONGER}", markup=False)
        return
    target = targets[-1]  # the hardest that all methods reached
    rounds = []
    costs = []
    for curve in curves:
        point = find_reached(curve.points, target)
        assert point is not None, "all runs reach the default targets"
        rounds.append(point.round)
        plan = describe_run(Run.load(str(Path(curve.source) / SETTINGS)), None)
        costs.append(cost(plan.run, plan.architecture, ranks))
    times = table("link", *(curve.method for curve in curves))
    for rate in rates:
        cluster = replace(machine, links=network(LATENCY, rate))
        seconds = [round_time(cost_of_method, cluster).total for cost_of_method in costs]
        cells = [in_seconds(count * spent) for count, spent in zip(rounds, seconds)]
        times.add_row(f"{number(8 * rate)}bit/s", *cells)  # a rate is in bytes a second
    stdout.print(f"\nPredicted training time to an accuracy of {target:g}")
    stdout.print(times)
    stdout.print(
        "These seconds are predicted. The rounds were trained here; the cost model predicts a "
        "round's time from this machine's speed and such a link, with "
        f"{1e6 * LATENCY:g} µs a message.",
        markup=False,
    )


def _start(ranks: int, words: list[str], stdout: int | None = None) -> None:
    """Run istmpi on ``ranks`` ranks of this host. Raises IstmpiError if it fails."""
    # Open MPI starts more ranks than there are cores, and as root, only if told.
    variables = {
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    if os.geteuid() == 0:
        variables["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
        variables["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    # The user's own variables go before these.
    variables |= os.environ
    # All ranks are on this host, which MPICH's gforker does not tell them.
    variables["MPI_LOCALNRANKS"] = str(ranks)
    command = [_launcher(), "-n", str(ranks), sys.executable, "-m", "istmpi", *words]
    code = subprocess.run(command, env=variables, stdout=stdout).returncode
    if code:
        raise IstmpiError(
            f"{shlex.join(command)} failed with exit code {code}; see its output above."
        )


def _launcher() -> str:
    """Return MPICH's launcher for one host; mpirun if there is none.

    It listens to nobody on the network.
    """
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        return "mpirun"
    alone = Path(mpirun).with_name("mpiexec.gforker")
    version = subprocess.run(
        [mpirun, "--version"], capture_output=True, text=True, errors="replace"
    ).stdout
    # HYDRA is MPICH's usual launcher, so this mpirun is MPICH's.
    return str(alone) if "HYDRA" in version and os.access(alone, os.X_OK) else "mpirun"
