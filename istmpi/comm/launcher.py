"""Facts about the launcher of this process, from environment variables and /proc.

MPI need not be up.
"""

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


def read_launcher() -> tuple[int, int]:
    """Return this process's rank and the number of ranks, as the launcher set them.

    Return (0, 1) without a launcher.
    """
    for rank, size, _ in LAUNCHERS.values():
        with suppress(KeyError, ValueError):
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def on_this_host() -> tuple[list[int], int]:
    """Return the ranks that run on this host, and how many started here.

    Return only this rank and 1 if they are unknown.
    """
    for name, _, local in LAUNCHERS.values():
        if name in os.environ and os.environ.get(local, "").isdecimal():
            present = _processes(name)
            if present:
                return sorted(present), int(os.environ[local])
            break
    return [read_launcher()[0]], 1


def find_stopped_ranks() -> tuple[dict[int, int], int]:
    """Return each stopped rank's process here, and the lowest rank here that is not stopped."""
    name = rank_variable()
    processes: dict[int, int] = {}
    if name is not None:
        processes = _processes(name)
    stopped = {}
    for rank, process in processes.items():
        state, _ = process_facts(process)
        if state in ("T", "t"):  # by a signal or a debugger
            stopped[rank] = process
    this_rank, _ = read_launcher()
    return stopped, min(processes.keys() - stopped.keys(), default=this_rank)


def find_launcher() -> tuple[int, str] | None:
    """Return the launcher's process on this host, and its start time.

    Return None if there is none or it is not visible.
    """
    name = rank_variable()
    if name is None:
        return None
    process = os.getpid()
    try:
        # The launcher is the nearest process above a rank that has no rank itself (decision 20).
        while name in _environment(process):
            process = _parent(process)
    except PermissionError:  # a process of another user, such as a scheduler
        pass
    except (OSError, ValueError):
        return None
    _, started = process_facts(process)
    if process <= 1 or not started:
        return None
    return process, started


def connection_is_closed() -> bool:
    """Return True if MPICH's launcher no longer holds the connection that it gave to this rank."""
    number = os.environ.get("PMI_FD", "")
    if not number.isdecimal():
        return False
    connection = select.poll()
    connection.register(int(number), 0)  # it reports a closed end in any case
    return any(event & select.POLLHUP for _, event in connection.poll(0))


def process_facts(process: int) -> tuple[str, str]:
    """Return a process's state letter and its start time in clock ticks.

    Both are empty texts if there is no such process.
    """
    try:
        state, *facts = _read_stat(process)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return "", ""
    return state, facts[18]  # field 22 of /proc/PROCESS/stat


def terminal_columns() -> int | None:
    """Return the width of the terminal to which mpirun on this host prints ranks' output.

    Return None if there is none.
    """
    for name, *_ in LAUNCHERS.values():
        if name in os.environ:
            with suppress(OSError, ValueError):
                return _columns_of_output(_above(name))
    return None


def _columns_of_output(process: int) -> int | None:
    if Path(f"/proc/{process}/comm").read_text() == "hydra_pmi_proxy\n":
        # MPICH has one on each host, which sends the output to mpirun.
        process = _parent(process)
    output = os.open(f"/proc/{process}/fd/1", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        if not os.isatty(output):
            return None
        return os.get_terminal_size(output).columns
    finally:
        os.close(output)


def rank_variable() -> str | None:
    """Return the name of the launcher's variable with this process's rank.

    Return None without a launcher.
    """
    for rank, size, _ in LAUNCHERS.values():
        if rank in os.environ and size in os.environ:
            return rank
    return None


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
    return int(_read_stat(process)[1])


def _read_stat(process: int) -> list[str]:
    """Return the fields of /proc/PROCESS/stat from the state on."""
    text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    # The program's name stands before, in brackets; it may hold blanks and brackets itself.
    _, _, fields = text.rpartition(")")
    return fields.split()


def _children(process: int) -> list[int]:
    threads = Path(f"/proc/{process}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


def _environment(process: int) -> Mapping[str, str]:
    try:
        text = Path(f"/proc/{process}/environ").read_text(errors="replace")
    except FileNotFoundError:
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0"))
