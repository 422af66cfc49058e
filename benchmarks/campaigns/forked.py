"""One command line of istmpi in a fork of this process: its libraries are loaded once, not for every command."""

import contextlib
import gc
import importlib
import io
import os
import pkgutil
import re
import resource
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NOTE = re.compile(r"istmpi: (.* is skipped: .*|--\S+ is now --\S+; the old name still works.*)")
"""Lines that may stand before the message of an error."""
OUTPUTS = ("out.h5", "out.csv", "out.html", "out.png", "out.json", "out.onnx", "out.npz")
"""Names under which a command line asks for a result: after an error there must be none."""


@dataclass(frozen=True)
class Limits:
    """What a command may use."""

    seconds: float = 40.0
    """By the clock; of processor time half of it."""
    megabytes: int = 700
    """Of memory beyond what this process has."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    """Negative: the signal that ended it."""
    timed_out: bool
    out: str
    err: str
    left: tuple[str, ...]
    """Files that it left behind and that nobody asked for."""


def load_libraries() -> None:
    """Import all that istmpi may import, apart from MPI, which every process starts for itself."""
    import istmpi

    for module in pkgutil.walk_packages(istmpi.__path__, "istmpi."):
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
    for name in ("soundfile", "threadpoolctl", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"):
        importlib.import_module(name)
    importlib.import_module("matplotlib.pyplot")
    importlib.import_module("PIL.Image").init()
    gc.freeze()  # a fork that collects garbage would copy every page of it


OF_MPI = ("ompi.", "pmix", "prte")
"""How the names begin of what an MPI library has among the temporary files, and removes some time after a process."""


def run(words: Sequence[str], folder: Path, limits: Limits) -> Outcome:
    """Run ``istmpi words...`` in ``folder``; what it writes to the terminal goes to files beside the folder."""
    scratch = folder.with_name(f"{folder.name}.tmp")
    scratch.mkdir()
    before = _files(folder)
    streams = [folder.with_name(f"{folder.name}.{name}") for name in ("out", "err")]
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _become(words, folder, scratch, streams, limits)
    code, timed_out = _wait(child, limits.seconds)
    out, err = (path.read_bytes().decode("utf-8", "replace") for path in streams)
    left = [str(name) for name in _files(folder) - before if _is_left_over(name, code)]
    left += [f"$TMPDIR/{name}" for name in _files(scratch) if not name.parts[0].startswith(OF_MPI)]
    shutil.rmtree(scratch, ignore_errors=True)  # an MPI library may be removing its own files there
    for path in streams:
        path.unlink()
    return Outcome(code, timed_out, out, err, tuple(sorted(left)))


def problems(outcome: Outcome, refused: bool, codes: Sequence[int]) -> list[str]:
    """What is wrong with the way in which a command ended; ``refused``: its input must not have been taken."""
    lines = outcome.err.splitlines()
    found = []
    if outcome.timed_out:
        found.append("hang")
    elif outcome.code < 0:
        found.append(f"signal {signal.Signals(-outcome.code).name}")
    if "Traceback (most" in outcome.err + outcome.out:
        found.append(f"traceback: {_signature(lines)}")
    elif outcome.code >= 0 and outcome.code not in codes:
        found.append(f"exit code {outcome.code}")
    elif outcome.code == 1 and not lines:
        pass  # a verdict, on the standard output
    elif outcome.code == 130 and 130 in codes and not outcome.err.strip():
        pass  # a KeyboardInterrupt that code raised, which cannot be told from Ctrl-C where that raises it
    elif outcome.code > 0:
        strange = [line for line in lines[:-1] if not NOTE.fullmatch(line)]
        if strange or not lines or not lines[-1].startswith("istmpi: "):
            found.append(f"{len(lines)} lines: {(strange or lines or [''])[0][:60]!r}")
    elif any("Warning" in line for line in lines):
        found.append(f"warning: {next(line for line in lines if 'Warning' in line)[-80:]}")
    if re.search(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]", (outcome.out + outcome.err).replace("\r\n", "\n")):
        found.append("control characters")
    if len(max(lines, default="")) > 2000:
        found.append("a line of more than 2,000 characters")
    if refused and outcome.code == 0:
        found.append("taken in silence")
    if outcome.left and not outcome.timed_out and outcome.code >= 0:
        found.append(f"left behind: {outcome.left[0]}")
    return found


def _signature(lines: Sequence[str]) -> str:
    """The last line of istmpi's in a traceback, and the exception."""
    places = [line for line in lines if line.startswith("  File ") and "istmpi/" in line]
    last = re.search(r"(istmpi/\S+)\", line (\d+)", places[-1]) if places else None
    place = f"{last[1]}:{last[2]} " if last else ""
    errors = [line for line in lines if re.match(r"[A-Za-z_.]+(Error|Exception|Warning|Interrupt)\b", line)]
    return place + (errors[-1][:100] if errors else lines[-1][:100])


def _files(folder: Path) -> set[Path]:
    """All files in a folder; a subfolder may vanish meanwhile, as an MPI library's do."""
    return {Path(parent, name).relative_to(folder) for parent, _, names in os.walk(folder) for name in names}


def _is_left_over(name: Path, code: int) -> bool:
    """Hidden files are temporary ones, but for those of a run that may go on."""
    return (name.name.startswith(".") and len(name.parts) == 1) or (code != 0 and str(name) in OUTPUTS)


def _wait(child: int, seconds: float) -> tuple[int, bool]:
    """The exit code of a child; it and its own are ended when its time is up."""
    watched = os.pidfd_open(child)
    try:
        timed_out = not select.select([watched], [], [], seconds)[0]
    finally:
        os.close(watched)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code, timed_out or code == -signal.SIGXCPU


def _become(words: Sequence[str], folder: Path, scratch: Path, streams: Sequence[Path], limits: Limits) -> None:
    """Be the command: this process does not return."""
    code, leave = 99, os._exit  # istmpi replaces it
    try:
        os.setsid()
        os.chdir(folder)
        os.environ["TMPDIR"] = str(scratch)
        for descriptor, path in enumerate(streams, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(os.fdopen(descriptor, "wb"), encoding="utf-8", errors=errors, write_through=True)
            for descriptor, errors in ((1, "strict"), (2, "backslashreplace"))
        )
        status = Path("/proc/self/status").read_text()
        data = int(re.search(r"VmData:\s+(\d+)", status)[1]) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (data + limits.megabytes * 2**20,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limits.seconds // 2), int(limits.seconds)))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = _command(words)
    finally:
        leave(code)


def _command(words: Sequence[str]) -> int:
    from istmpi import comm
    from istmpi.cli.main import istmpi, main

    sys.argv = ["istmpi", *words]
    try:
        main(lambda: istmpi(list(words), standalone_mode=False))
    except SystemExit as ended:
        mpi = comm.mpi.if_up()
        if mpi:
            mpi.Finalize()
        sys.stdout.flush()
        sys.stderr.flush()
        return int(ended.code or 0)
    return 98
