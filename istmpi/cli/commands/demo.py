"""``istmpi demo``: in two minutes what a slow network costs three methods, on this machine alone."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import click
from rich.console import Console

from istmpi import emulated
from istmpi.cli import quantities
from istmpi.cli.quantities import FiniteRange, WholeRange
from istmpi.cli.reporting import draw, print_comparison, write_page
from istmpi.comm import launched
from istmpi.errors import ConfigError, IstmpiError
from istmpi.report.units import number

METHODS = "ist,local-sgd,data-parallel"
NETWORK = ("--hidden", "1024,1024", "--threads", "1")
REMARK = (
    "The built-in digits, a network of 1.1 million weights, every method with 10 local steps a round, none tuned. With "
    "a fast network, or a small one to train, IST is no faster: it trains subnets and saves bytes."
)


@click.command("demo")
@click.option("--ranks", type=WholeRange(2, 16), default=4, show_default=True, metavar="P", help="Ranks to start.")
@click.option("--rate", default="50Mbit", show_default=True, metavar="RATE", help="Of the network, of each rank.")
@click.option(
    "--seconds", type=FiniteRange(1, 600), default=15, show_default=True, metavar="S", help="Training of each method."
)
@click.option("--reckon", is_flag=True, help="Add the network's time even where it can be emulated.")
@click.option("--out", default="runs/demo", show_default=True, metavar="FOLDER", help="Where runs and report go.")
def command(ranks: int, rate: str, seconds: float, reckon: bool, out: str) -> None:
    """Train the digits with three methods over a slow network, and compare what each needs.

    It starts mpirun by itself. As root on Linux each rank is a host of its own, in a network namespace
    whose line has the RATE; elsewhere the ranks train without it, and the time that their bytes would take is added.
    """
    rank, others = launched()
    if rank > 0:
        sys.exit(ConfigError.exit_code)
    if others > 1:
        raise ConfigError("istmpi demo starts its ranks itself: call it without mpirun.")
    if shutil.which("mpirun") is None:
        raise ConfigError("istmpi demo needs mpirun on the PATH. Install MPI, or load its module; see istmpi doctor.")
    bytes_a_second = quantities.bandwidth("--rate", rate)
    reason = "as asked" if reckon else emulated.obstacle()
    console = Console(emoji=False, highlight=False, soft_wrap=True)
    how = f"added to the time for the bytes that they send ({reason})" if reason else "emulated by network namespaces"
    console.print(f"{ranks} ranks, a network of {number(8 * bytes_a_second)}bit/s each, {how}", markup=False)
    console.print(REMARK + "\n", markup=False)
    words = [sys.executable, "-m", "istmpi", "compare", "digits", "--methods", METHODS, *NETWORK, "--out", out]
    words += ["--max-minutes", str(seconds / 60), "--evaluate-every", "3"]
    if not reason:
        _emulated(ranks, bytes_a_second, [*words, "--rounds", "400"])
    else:
        _reckoned(ranks, bytes_a_second, [*words, "--rounds", "60"], Path(out), console)
    console.print(f"\nits page: {Path(out) / 'report.html'}; more of it: istmpi costmodel --advise", markup=False)


def _emulated(ranks: int, bytes_a_second: float, words: list[str]) -> None:
    """Compare over a network that is slow."""
    cluster = emulated.Cluster("demo")
    with emulated.alone("demo"):
        try:
            cluster.up(ranks, f"{round(8 * bytes_a_second)}bit")
            code = cluster.run(words)
        finally:
            cluster.down()
    _require(code, words)


def _reckoned(ranks: int, bytes_a_second: float, words: list[str], folder: Path, console: Console) -> None:
    """Compare on this machine, and add to each round the seconds that its bytes would take."""
    from istmpi.report.comparison import compare
    from istmpi.report.curves import read_curves, slowed

    with console.status("training three methods"):
        done = subprocess.run(["mpirun", "-n", str(ranks), *words, "-q"], env=_environment())
    _require(done.returncode, words)
    found = compare([slowed(curve, bytes_a_second) for curve in read_curves([folder])])
    print_comparison(found)
    title = f"digits over {number(8 * bytes_a_second)}bit/s, reckoned: {METHODS.replace(',', ', ')} on {ranks} ranks"
    write_page({"digits": found}, title, folder / "report.html")
    with suppress(ImportError):
        draw({"digits": found}, title, folder / "report.png")


def _environment() -> dict[str, str]:
    """This one, in which Open MPI starts more ranks than there are cores, as root, too."""
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    mapping = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    return {**allowed, **mapping, **os.environ}


def _require(code: int, words: list[str]) -> None:
    if code:
        raise IstmpiError(f"{shlex.join(words)} ended with exit code {code}; what it said is above.")
