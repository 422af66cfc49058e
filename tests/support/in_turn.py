"""Runs istmpi's commands one after another in one process, for most of what a command takes is its start.

    python in_turn.py NOTES      the commands of NOTES/commands; what each rank says of number N is in NOTES/N-RANK-...
    python in_turn.py NOTES here           here, and after each its exit code

A command is a list of words, which after ``alone`` are for rank 0, or Python code, which knows its ``rank``.
"""

import json
import os
import signal
import sys

from istmpi.cli.main import main
from istmpi.signals import SIGNALS, receiver

ALONE = "alone"


def run(step, rank):
    """The exit code of a command."""
    try:
        if isinstance(step, str):
            exec(step, {"rank": rank})
        elif step[0] != ALONE or rank == 0:
            sys.argv = ["istmpi", *step[step[0] == ALONE :]]
            main()
    except SystemExit as ended:
        return ended.code or 0
    return 0


def start():
    notes, *here = sys.argv[1:]
    rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", 0)))
    receiver()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with open(f"{notes}/commands") as file:
        steps = json.load(file)
    for number, step in enumerate(steps):
        said = f"{notes}/{number}-{rank}"
        for name, stream in () if here else (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(f"{said}-{name}", os.O_CREAT | os.O_WRONLY), stream)
        code = run(step, rank)
        sys.stdout.flush()
        # A process that ends with an error ignores signals, and MPI ends its job.
        for each, handler in handlers.items():
            signal.signal(each, handler)
        if library := sys.modules.get("mpi4py.MPI"):
            library._set_abort_status(0)
        if here:
            print("exit code", code, flush=True)
        else:
            with open(f"{said}-code", "w") as file:
                file.write(str(code))


start()
