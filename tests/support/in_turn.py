"""Runs istmpi's commands one after another in one process, for most of what a command takes is its start.

    python in_turn.py NOTES [here]

The commands are those of NOTES/commands: each a list of words, which after ``alone`` are for rank 0, or Python code,
which knows its ``rank``. What a rank says of command N is in NOTES/N-RANK-...; or ``here``, with its exit code.
Pictures take as long as short runs: there is no matplotlib before the code ``allow_pictures()``.
"""

import gc
import json
import os
import signal
import sys

from istmpi.cli.main import main
from istmpi.signals import SIGNALS, receiver

NOTES, *HERE = sys.argv[1:]
ALONE = "alone"
RANK = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", 0)))


def code_of(step):
    """Run a command; its exit code."""
    try:
        if isinstance(step, str):
            exec(step, {"rank": RANK, "allow_pictures": lambda: sys.modules.pop("matplotlib")})
        elif step[0] != ALONE or RANK == 0:
            sys.argv = ["istmpi", *step[step[0] == ALONE :]]
            main()
    except SystemExit as ended:
        return ended.code or 0
    return 0


# As in tests/conftest.py: much of the time of short runs is Python's search for garbage among PyTorch's objects.
gc.set_threshold(50_000, 20, 20)
sys.modules["matplotlib"] = None
receiver()
handlers = {number: signal.getsignal(number) for number in SIGNALS}
with open(f"{NOTES}/commands") as file:
    steps = json.load(file)
for number, step in enumerate(steps):
    gc.collect()
    gc.freeze()
    said = f"{NOTES}/{number}-{RANK}"
    for name, stream in () if HERE else (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(f"{said}-{name}", os.O_CREAT | os.O_WRONLY), stream)
    code = code_of(step)
    print(f"exit code {code}\n" * bool(HERE), end="", flush=True)
    # A process that ends with an error ignores signals, and MPI ends its job.
    for each, handler in handlers.items():
        signal.signal(each, handler)
    if library := sys.modules.get("mpi4py.MPI"):
        library._set_abort_status(0)
    with open(f"{said}-code", "w") as file:
        file.write(str(code))
