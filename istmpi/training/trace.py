"""Writes the trace of ``--profile ROUND``: every rank's work in a round, for ui.perfetto.dev or chrome://tracing.

The trace has a process for each rank, with the operators that torch's profiler sees; the phases of the round, and the
evaluation and checkpoint behind it, as ranges around them; and each call that hands values to MPI in a row of its own.
Ranks on other hosts than rank 0's have other clocks: their round is drawn to begin when rank 0's does, for all leave
the barrier before it together.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from istmpi.comm import Sent
from istmpi.errors import ConfigError, OutputError
from istmpi.foreign import reason
from istmpi.record import RunFolder
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.transfers import following

ROW_OF_MPI = "MPI"
"""The thread in a trace that has the calls of MPI."""
WHOLE_ROUND = "other"
"""The phase around all others of a round."""

Event = dict[str, Any]


def require_round(round: int | None, rounds: int) -> None:
    """Refuse, with a ConfigError, a round beyond the run's last one."""
    if round is not None and not 1 <= round <= rounds:
        raise ConfigError(f"--profile {round}: the run has rounds 1 to {rounds}. Name one of them.")


def profiled(
    training: Training, round: int | None, folder: RunFolder, note: Callable[[str], None]
) -> Iterator[Progress]:
    """Pass on the rounds of a training; leave a trace of one round, and of the caller's work behind it, in the folder.

    Collective. ``note`` counts on rank 0; it is told of a trace that cannot be had, and training continues.
    """
    if round is not None and round <= training.rounds_done:
        note(f"--profile {round}: that round is done already; nothing is profiled.")
    rounds = training.rounds()
    while True:
        if training.rounds_done + 1 != round:
            progress = next(rounds, None)
            if progress is None:
                return
            yield progress
            continue
        with _recording(training, round) as recorded:
            progress = next(rounds, None)
            if progress:
                yield progress
        _leave(recorded, round, training, folder, note)
        if progress is None:
            return


@contextmanager
def _recording(training: Training, round: int) -> Iterator[list[Event]]:
    """Record this rank's work in a list of events that is filled in the end, times in µs since 1970."""
    activities = [ProfilerActivity.CPU]
    if training.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    events: list[Event] = []
    sent: list[Sent] = []

    def phase(name: str) -> record_function:
        return record_function(f"round {round}" if name == WHOLE_ROUND else name)

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it says on every rank's stderr that it began and ended
    unix = time.time() - time.perf_counter()
    followed = following(training.communicator, training.clock, phase, sent.append)
    with profile(activities=activities) as profiler, followed:
        yield events
    events += [_call(message, unix) for message in sent]
    try:
        with tempfile.TemporaryDirectory(prefix="istmpi-trace-") as name:
            path = Path(name) / "trace.json"
            profiler.export_chrome_trace(str(path))
            events += _absolute(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:  # the other ranks have theirs
        words = f"operators are missing: {reason(error)}"
        events.append({"ph": "i", "s": "p", "name": words, "tid": ROW_OF_MPI, "ts": 1e6 * time.time()})


def _call(sent: Sent, unix: float) -> Event:
    seconds = sent.ended - sent.began
    facts = {"bytes": sent.bytes, "MB/s": round(sent.bytes / seconds / 1e6, 3) if seconds > 0 else 0.0}
    at = (sent.began + unix) * 1e6
    return {
        "ph": "X",
        "cat": "mpi",
        "name": sent.call,
        "tid": ROW_OF_MPI,
        "ts": at,
        "dur": seconds * 1e6,
        "args": facts,
    }


def _absolute(trace: dict[str, Any]) -> list[Event]:
    start = trace.get("baseTimeNanoseconds", 0) / 1e3
    kept = [event for event in trace["traceEvents"] if isinstance(event.get("pid"), int)]
    return [{**event, "ts": event["ts"] + start} for event in kept if not event["name"].startswith("process_")]


def _leave(
    recorded: list[Event], round: int, training: Training, folder: RunFolder, note: Callable[[str], None]
) -> None:
    """Write the trace of all ranks on rank 0."""
    packed = zlib.compress(json.dumps(recorded).encode(), 1)
    per_rank = training.communicator.gather_to_root(packed)
    if per_rank is None:
        return
    name = f"trace-round-{round}.json"
    events = merged([json.loads(zlib.decompress(part)) for part in per_rank], training.hosts, f"round {round}")
    try:
        folder.write(name, json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))
    except OutputError as error:
        note(f"{error} The run goes on without a trace.")
    else:
        note(f"trace of round {round}, all ranks: {folder.path / name} (open it in ui.perfetto.dev)")


def merged(per_rank: Sequence[Sequence[Event]], hosts: Sequence[str], whole: str) -> list[Event]:
    """Merge the events of all ranks, rank r's in process r; times in µs since rank 0 began the ``whole`` round."""
    begins = [min((event["ts"] for event in events if event["name"] == whole), default=0.0) for events in per_rank]
    merged = []
    for rank, (events, host, begin) in enumerate(zip(per_rank, hosts, begins, strict=True)):
        merged += [
            {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank} on {host}"}},
            {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}},
        ]
        origin = begins[0] if host == hosts[0] else begin
        for event in events:
            event = {**event, "pid": rank, "ts": round(event["ts"] - origin, 3)}
            if "id" in event:
                event["id"] = f"{rank}.{event['id']}"  # arrows join events of equal numbers
            merged.append(event)
    return merged
