"""Facts about the launcher of this process, from environment variables and /proc; MPI need not be
up."""

import os
import select
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

LAUNCHERS = {
    "PMI": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "SLURM": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""),
}
"""Variables: rank, number of ranks, number of ranks on this host. Not SLURM_NTASKS: batch scripts
have it, too."""


def launched() -> tuple[int, int]:
    """Return this process's rank and the number of ranks, as the launcher set them; (0, 1) without
    a launcher."""
    for rank, size, _ in LAUNCHERS.values():
        with suppress(KeyError, ValueError):
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def on_this_host() -> tuple[list[int], int]:
    """Return the ranks that run on this host, and how many started here; only this rank and 1 if
    unknown."""
    for name, _, local in LAUNCHERS.values():
        if name in os.environ and os.environ.get(local, "").isdecimal():
            if present := _processes(name):
                return sorted(present), int(os.environ[local])
            break
    return [launched()[0]], 1


def stopped_here() -> tuple[dict[int, int], int]:
    """Return the process of each stopped rank on this host, and the lowest rank here that is not
    stopped."""
    name = rank_variable()
    processes = _processes(name) if name else {}
    stopped = {
        rank: process
        for rank, process in processes.items()
        if process_facts(process)[0] in ("T", "t")
    }
    return stopped, min(processes.keys() - stopped.keys(), default=launched()[0])


def starter() -> tuple[int, str] | None:
    """Return the launcher's process on this host, and its start time; None if there is none or it
    is not visible."""
    name = rank_variable()
    if name is None:
        return None
    process = os.getpid()
    try:
        while name in _environment(process):
            process = _parent(process)
    except PermissionError:  # a process of another user, such as a scheduler
        pass
    except (OSError, ValueError):
        return None
    began = process_facts(process)[1]
    return (process, began) if process > 1 and began else None


def connection_is_closed() -> bool:
    """Return True if MPICH's launcher no longer holds the connection that it gave to this rank."""
    number = os.environ.get("PMI_FD", "")
    if not number.isdecimal():
        return False
    connection = select.poll()
    connection.register(int(number), 0)  # it reports a closed end in any case
    return any(event & select.POLLHUP for _, event in connection.poll(0))


def process_facts(process: int) -> tuple[str, str]:
    """Return a process's state letter and its start time in clock ticks; two empty texts if there
    is none."""
    try:
        state, *facts = (
            Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
        )
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return "", ""
    return state, facts[18]


def terminal_columns() -> int | None:
    """Return the width of the terminal to which mpirun on this host prints ranks' output; None if
    there is none."""
    for name, *_ in LAUNCHERS.values():
        if name in os.environ:
            with suppress(OSError, ValueError):
                process = _above(name)
                if Path(f"/proc/{process}/comm").read_text() == "hydra_pmi_proxy\n":  # of MPICH
                    process = _parent(process)
                output = os.open(f"/proc/{process}/fd/1", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
                try:
                    return os.get_terminal_size(output).columns if os.isatty(output) else None
                finally:
                    os.close(output)
    return None


def rank_variable() -> str | None:
    """Return the name of the launcher's variable with this process's rank; None without a
    launcher."""
    return next(
        (rank for rank, size, _ in LAUNCHERS.values() if rank in os.environ and size in os.environ),
        None,
    )


def _processes(name: str) -> dict[int, int]:
    try:
        environments = {child: _environment(child) for child in _children(_above(name))}
    except (OSError, ValueError):
        return {}
    return {
        int(variables[name]): child
        for child, variables in environments.items()
        if name in variables
    }


def _above(name: str) -> int:
    process = os.getpid()
    while name in _environment(process):
        process = _parent(process)
    return process


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def _children(process: int) -> list[int]:
    threads = Path(f"/proc/{process}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


def _environment(process: int) -> Mapping[str, str]:
    try:
        text = Path(f"/proc/{process}/environ").read_text(errors="replace")
    except FileNotFoundError:
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0"))
