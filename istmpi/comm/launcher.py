"""The launcher that started this process, as far as variables and /proc show it before MPI is up."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

LAUNCHERS = {
    "PMI": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "SLURM": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""),
}
"""The variables with a rank, the number of ranks, and that on its host; SLURM_NTASKS stands in scripts, too."""


def launched() -> tuple[int, int]:
    """This process's rank and the number of ranks as its launcher told it, before MPI is up; (0, 1) without one."""
    for rank, size, _ in LAUNCHERS.values():
        with suppress(KeyError, ValueError):
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def on_this_host() -> tuple[list[int], int]:
    """The ranks that run on this host, and how many were started there; this one alone where that cannot be seen."""
    for name, _, local in LAUNCHERS.values():
        if name in os.environ and os.environ.get(local, "").isdecimal():
            if present := _processes(name):
                return sorted(present), int(os.environ[local])
            break
    return [launched()[0]], 1


def stopped_here() -> tuple[dict[int, int], int]:
    """The ranks of this host whose processes are stopped, with these, and the first rank that is not."""
    name = rank_variable()
    processes = _processes(name) if name else {}
    stopped = {rank: process for rank, process in processes.items() if process_facts(process)[0] in ("T", "t")}
    return stopped, min(processes.keys() - stopped.keys(), default=launched()[0])


def starter() -> tuple[int, str] | None:
    """The process that started this rank, and when that began; None without a launcher, or where none can be seen."""
    name = rank_variable()
    if name is None:
        return None
    process = os.getpid()
    try:
        while name in _environment(process):
            process = _parent(process)
    except PermissionError:  # another user's, as a scheduler's are
        pass
    except (OSError, ValueError):
        return None
    began = process_facts(process)[1]
    return (process, began) if process > 1 and began else None


def process_facts(process: int) -> tuple[str, str]:
    """The system's letter for a process's state, and when it began, in its own ticks; empty where there is none."""
    try:
        state, *facts = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return "", ""
    return state, facts[18]


def terminal_columns() -> int | None:
    """The width of the terminal where mpirun, on this host, prints what ranks print; None where there is none."""
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
    """The variable in which a launcher told this process its rank, if one did."""
    return next((rank for rank, size, _ in LAUNCHERS.values() if rank in os.environ and size in os.environ), None)


def _processes(name: str) -> dict[int, int]:
    try:
        environments = {child: _environment(child) for child in _children(_above(name))}
    except (OSError, ValueError):
        return {}
    return {int(variables[name]): child for child, variables in environments.items() if name in variables}


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
