"""Reads the ranks' shares of units from settings or an earlier run's metrics, or adapts them to
measured times."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from istmpi.comm import Communicator
from istmpi.comm.root import ask_root
from istmpi.engine.axes import narrow
from istmpi.engine.shares import AUTO, LEAD, Shares, equal, name_share
from istmpi.errors import ConfigError
from istmpi.foreign import is_file
from istmpi.methods.base import Method
from istmpi.record import METRICS, RunFolder
from istmpi.training.progress import LastRound


def choose_shares(setting: str | Sequence[float] | None, communicator: Communicator) -> Shares:
    """Return the shares of a new run; ``setting`` is method.shares. Collective.

    Raises ConfigError or DataError on every rank if they are invalid.
    """
    ranks = communicator.size
    if not isinstance(setting, str):
        return Shares(ranks, setting)
    if setting == AUTO:
        return Shares(ranks, follows=True)
    log = ask_root(communicator, partial(_read, Path(setting), ranks))
    return Shares(ranks, log=log)


def adapt_shares(shares: Shares, method: Method, round: int, last: LastRound) -> LastRound:
    """Adapt the shares of later rounds to the times in ``last``; return ``last`` with its round's
    shares. Collective.

    The shares stay as they are if a rank's subnet could not be built with the new shares.
    """
    job = method.job
    # Fixed shares are in the settings, and need no line in the metrics.
    if not shares.changing or not method.spec.groups(job.run, job.architecture):
        return last
    trained = tuple(shares.of(round) or equal(shares.ranks))
    next_shares = shares.measured(round, last.compute)
    begins = round + LEAD
    # Shares that would begin after the last round are not set: the metrics have no line for them.
    if next_shares and begins < job.course.rounds:
        if _can_be_built(method, begins, next_shares):
            shares.change(round, next_shares)
    return replace(last, shares=trained)


def _can_be_built(method: Method, round: int, shares: Sequence[float]) -> bool:
    job = method.job
    network = job.architecture
    # A share may leave a rank fewer units than its network can be built of.
    deal = method.spec.deal(job.run, network, job.communicator.size, round, shares)
    usable = False
    with suppress(ConfigError):
        network.require_usable(
            narrow(network.lengths, network.parameters, deal.held(job.communicator.rank))
        )
        usable = True
    return all(job.communicator.allgather(usable))


def _read(path: Path, ranks: int) -> dict[int, tuple[float, ...]]:
    if path.is_dir():
        path = path / METRICS
    if not is_file(path):
        raise ConfigError(
            f"method.shares = {str(path)!r} does not exist; give auto, numbers, or a metrics.jsonl."
        )
    log: dict[int, tuple[float, ...]] = {}
    for line in RunFolder(path.parent).lines(path.name):
        if name_share(0) not in line:
            continue
        if line.whole("ranks", 1) != ranks:
            raise ConfigError(
                f"method.shares = {str(path)!r}: round {line.whole('round')} has shares of "
                f"{line.whole('ranks')} ranks; this run has {ranks}. Use as many, or auto."
            )
        log[line.whole("round", 1) - 1] = tuple(
            line.figure(name_share(rank), 1e-12) for rank in range(ranks)
        )
    if not log:
        raise ConfigError(
            f"method.shares = {str(path)!r}: its rounds have no shares. Give the metrics of a run "
            "with shares = auto."
        )
    return log
