"""``istmpi``: finds the command, and turns whatever ends it into one message, from one rank, and an exit code."""

import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

import click

from istmpi import __version__, comm
from istmpi.cli.lazy import LazyGroup
from istmpi.errors import IstmpiError, UserError

ALONE = ("report", "runs", "costmodel", "prepare", "checkpoint", "predict", "export", "job")
"""Commands that need no MPI: each process is on its own, however many were started."""

EXIT_CODES = """\b
Exit codes: 0 done, 1 an error of istmpi's own, 2 input that cannot be used,
3 the loss is no longer finite, 74 a result cannot be written,
75 stopped early and saved (train --resume auto goes on; so does the same compare), 130 interrupted."""


@click.group(
    cls=LazyGroup,
    commands={
        "train": "Train a network on all ranks of an MPI job.",
        "compare": "Train one run with several methods and say what each needs to reach a score.",
        "report": "Compare finished runs: table, pictures, HTML; no MPI.",
        "runs": "List the runs that ship with istmpi.",
        "costmodel": "Say what a run will cost in bytes, FLOPs, memory and time; no MPI, no training.",
        "calibrate": "Measure this cluster's network and ranks for costmodel.",
        "prepare": "Turn raw data into one file that training reads.",
        "checkpoint": "List, show, verify and compare checkpoints.",
        "evaluate": "Score a trained network on data.",
        "predict": "Run a trained network on files.",
        "export": "Write a trained network for PyTorch, ONNX or NumPy.",
        "job": "Print scripts that run istmpi on SLURM and EC2.",
        "doctor": "Look at MPI, hosts, cores, network, GPUs and the folder for checkpoints.",
    },
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name="istmpi")
def istmpi() -> None:
    """Independent Subnet Training over MPI: train a network across machines with a slow network between them."""


def main(program: Callable[[], object] = lambda: istmpi(standalone_mode=False)) -> NoReturn:
    """The console script. Whatever ends the program on one rank ends it on all, with that rank's message."""
    code, together = _outcome(program)
    if code and not together:
        comm.abort_at_exit(code)
    elif code:
        # Once one rank is gone a launcher sends this to those that are slower to leave; their own code must stay.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(code)


def _outcome(program: Callable[[], object]) -> tuple[int, bool]:
    """Run the program; its exit code, and whether all ranks end with it by themselves."""
    try:
        return int(program() or 0), True
    except click.exceptions.Abort:
        return 130, False
    except click.ClickException as error:
        return _report(UserError(error.format_message()))
    except IstmpiError as error:
        return _report(error)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(f"istmpi: rank {comm.current_rank()}: {error.code}", file=sys.stderr, flush=True)
        return error.code if isinstance(error.code, int) else int(error.code is not None), False
    except KeyboardInterrupt:
        return 130, False
    except BaseException:
        print(f"istmpi: rank {comm.current_rank()} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return 1, False


def _report(error: IstmpiError) -> tuple[int, bool]:
    """Say what is wrong, from one rank; processes that know nothing of each other each say it."""
    alone = not set(ALONE).isdisjoint(sys.argv[1:2]) or "--dry-run" in sys.argv
    if not alone:
        error = comm.meet_with(error)
    rank = comm.current_rank()
    if not error.everywhere and not (alone and rank == 0):
        print(f"istmpi: rank {rank}: {error}", file=sys.stderr, flush=True)
    elif rank == 0:
        print(f"istmpi: {error}", file=sys.stderr, flush=True)
    if error.everywhere:
        comm.leave_together()
    return error.exit_code, error.everywhere
