"""The source of a round's batches: the loader of `round.take`, or that of `job.epochs`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from istmpi.code import shown
from istmpi.errors import ConfigError
from istmpi.methods.local_training import LocalTraining
from istmpi.program.epochs import Passes
from istmpi.program.streams import Stream


@dataclass(frozen=True)
class Source:
    """A loader, the number of its batches in a local step, and if each rank has its own data
    set."""

    loader: Iterable[Any]
    accumulate: int
    local: bool


def choose_source(
    loader: Iterable[Any] | None, accumulate: int, local: bool, passes: Passes | None, number: int
) -> Source:
    """Return the source of round ``number``: of `round.take`'s arguments, or of ``passes`` if these
    have no loader. Raises ConfigError if they contradict each other."""
    require_least("accumulate", accumulate, 1, number)
    if loader is not None:
        if passes and loader is passes.loader and accumulate != passes.accumulate:
            raise ConfigError(
                f"round {number}: accumulate = {accumulate} differs from {passes.accumulate} of "
                "job.epochs. Write round.take(), and give accumulate= to job.epochs."
            )
        return Source(loader, accumulate, local)
    if passes is None:
        raise ConfigError(f"round {number}: round.take() without a loader goes with job.epochs.")
    if accumulate > 1 or local:
        raise ConfigError(
            f"round {number}: give accumulate= and local= to job.epochs, which has the loader."
        )
    return Source(passes.loader, passes.accumulate, passes.local)


def require_least(argument: str, value: Any, least: int, number: int) -> None:
    if not isinstance(value, int) or value < least:
        raise ConfigError(
            f"round {number}: {argument} = {shown(value)} must be a whole number of at least "
            f"{least}."
        )


def require_alone(source: Source, method: str) -> None:
    """Raise ConfigError unless all ranks of a ``method`` that adds up outputs take the same
    batches, one in each local step."""
    if source.accumulate > 1 or source.local:
        argument = "local = True"
        if source.accumulate > 1:
            argument = f"accumulate = {source.accumulate}"
        raise ConfigError(
            f"{argument} does not go with {method}, whose ranks take the same batches, one in "
            "each local step."
        )


def require_in_pass(source: Source, method: LocalTraining) -> None:
    if source.accumulate > 1 and method.spec.in_passes:
        raise ConfigError(
            f"accumulate = {source.accumulate} does not go with {method.spec.name}, which counts "
            "in epochs."
        )


def find_place_in_pass(method: LocalTraining, stream: Stream, step: int) -> tuple[int, int] | None:
    """Return the pass of local step ``step`` over this rank's examples, and the batch's number in
    it; None if the method does not count in passes."""
    batches = method.job.batches
    if not method.spec.in_passes:
        return None
    # fedavg counts its local steps from the numbers that `Distributed` got.
    if stream.examples != batches.examples:
        raise ConfigError(
            f"{method.spec.name} trains for epochs over this rank's {batches.examples} "
            f"examples, but the loader has {stream.examples}. Give Distributed the loader's "
            "examples= and batch=."
        )
    return divmod(step, batches.in_a_pass)
