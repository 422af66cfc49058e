"""What a checkpoint costs: bandwidth of writing and reading, memory meanwhile, and the stall of one in the background.

    mpirun -n 4 python -m benchmarks.checkpoint.checkpoint --folder FOLDER
    mpirun -n 2 python -m benchmarks.checkpoint.checkpoint --folder FOLDER --stall

Bandwidth: 2 GB of weights, by every writer that h5py has here, against plain ``pwrite`` and ``fsync`` of the same bytes
from the same ranks to the same folder, in turns; reading against plain ``preadv`` of the same file, once from storage
(its pages dropped from memory before) and once from the page cache. Stall: rounds of training with a checkpoint begun
before them against rounds without, in turns; it is what all of a round takes longer.
"""

import argparse
import os
import time
from pathlib import Path
from statistics import median

import h5py
import numpy as np

from benchmarks.reporting import report
from benchmarks.scale.memory import status
from istmpi.checkpoint.saver import Saver, commit, prepare_folder
from istmpi.checkpoint.search import require_valid
from istmpi.checkpoint.writers import WRITERS
from istmpi.cli.main import main
from istmpi.comm import Communicator, world
from istmpi.config import Run
from istmpi.training.loop import Training

_AT_ONCE = 2**30


def seconds(work, communicator: Communicator) -> float:
    """From when all ranks begin until the last is through."""
    communicator.barrier()
    start = time.perf_counter()
    work()
    return max(communicator.allgather(time.perf_counter() - start))


def plain_write(path: Path, pieces, communicator: Communicator) -> None:
    """Every rank's values one after the other, in a file of all ranks."""
    mine = sum(len(piece.bytes) for piece in pieces)
    at = sum(communicator.allgather(mine)[: communicator.rank])
    if communicator.rank == 0:
        path.touch()
    communicator.barrier()
    descriptor = os.open(path, os.O_WRONLY)
    for piece in pieces:
        values, done = piece.bytes, 0
        while done < len(values):
            done += os.pwrite(descriptor, values[done : done + _AT_ONCE], at + done)
        at += done
    os.fsync(descriptor)
    os.close(descriptor)


def plain_read(path: Path, tensors, communicator: Communicator) -> None:
    """This rank's share of the file, into the same memory."""
    size, mine = path.stat().st_size, sum(values.nbytes for values in tensors)
    at = min(size * communicator.rank // communicator.size, size - mine)
    descriptor = os.open(path, os.O_RDONLY)
    for values in tensors:
        buffer, done = memoryview(values.numpy()).cast("B"), 0
        while done < len(buffer):
            done += os.preadv(descriptor, [buffer[done : done + _AT_ONCE]], at + done)
        at += done
    os.close(descriptor)


def forget(path: Path, communicator: Communicator) -> None:
    """Have the next reader fetch the file from storage."""
    if communicator.rank == 0:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def bandwidth(communicator: Communicator, folder: Path, megabytes: int, repeats: int) -> None:
    width = int((megabytes * 1e6 / 4 / 2) ** 0.5)
    run = Run().override({"model.hidden": [width, width, width], "train.threads": 1})
    training = Training(run, communicator)
    header, pieces, _ = training.collect_state()
    total = sum(communicator.allgather(sum(len(piece.bytes) for piece in pieces))) / 1e6
    writers = [name for name in WRITERS if name == "direct" or h5py.get_config().mpi]
    times: dict[str, list[float]] = {}
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    plain = folder / "plain.bin"
    for _ in range(repeats):
        for writer in writers:
            file = folder / f"{writer}.h5"

            def read(file=file):
                training.resume(file)

            def read_plainly(file=file):
                plain_read(file, training.store.tensors.values(), communicator)

            ways = {
                f"write, {writer}": lambda file=file, writer=writer: commit(file, header, pieces, writer, communicator),
                f"write, pwrite ({writer})": lambda: plain_write(plain, pieces, communicator),
                "read, resume (storage)": read,
                "read, preadv (storage)": read_plainly,
                "read, resume (cached)": read,
                "read, preadv (cached)": read_plainly,
                "check, resume": lambda file=file: require_valid(file, communicator),
            }
            for name, work in ways.items():
                if "storage" in name:
                    forget(file, communicator)
                times.setdefault(name, []).append(seconds(work, communicator))
            if communicator.rank == 0:
                file.unlink()
                plain.unlink()
    peak = max(communicator.allgather(status("VmHWM") - before))
    if communicator.rank:
        return
    rows = [
        {"what": name, "median s": median(taken), "MB/s": total / median(taken), "least s": min(taken)}
        for name, taken in times.items()
    ]

    def ratio(plain: str, ours: str) -> str:
        return f"{median(one / other for one, other in zip(times[plain], times[ours], strict=True)):.2f}"

    writing = ", ".join(f"{writer} {ratio(f'write, pwrite ({writer})', f'write, {writer}')}" for writer in writers)
    reading = {where: ratio(f"read, preadv ({where})", f"read, resume ({where})") for where in ("storage", "cached")}
    report(
        f"checkpoint-{'-'.join(writers)}",
        f"Checkpoints of {total:,.0f} MB by {communicator.size} ranks",
        rows,
        f"Bandwidth of writing over that of pwrite, median of the ratios of {repeats} turns: {writing}; of "
        f"reading over preadv {reading['storage']} from storage, {reading['cached']} from the page cache (`check` "
        f"reads every byte and compares checksums, as a resumed run does first). While saving and loading no rank's "
        f"memory grew by more than {peak:,.0f} MB; its rows have {total / communicator.size:,.0f} MB. `write` includes "
        f"layout, checksums, syncing and renaming.",
        f"mpirun -n {communicator.size}",
    )


def stall(communicator: Communicator, folder: Path, repeats: int) -> None:
    settings = {
        "model.hidden": [4096, 4096],
        "method.local_steps": 20,
        "train.threads": 1,
        "train.rounds": 10**6,
        "evaluate.every": 10**6,
    }
    training = Training(Run().override(settings), communicator)
    prepare_folder(folder)
    saver = Saver(folder, training.run.checkpoint, communicator)
    assert saver.background
    rounds = training.rounds()
    next(rounds)

    def with_checkpoint() -> None:
        saver.save(*training.collect_state())
        next(rounds)

    without, with_one, begin = [], [], []
    for _ in range(repeats):
        without.append(seconds(lambda: next(rounds), communicator))
        begin.append(seconds(lambda: saver.save(*training.collect_state()), communicator))
        saver.wait()
        without.append(seconds(lambda: next(rounds), communicator))
        with_one.append(seconds(with_checkpoint, communicator))
        saver.wait()
    size = sum(communicator.allgather(sum(tensor.nbytes for tensor in training.store.tensors.values()))) / 1e6
    if communicator.rank:
        return
    base = np.array(without).reshape(-1, 2).mean(axis=1)
    ratios = np.array(with_one) / base
    rows = [
        {"round": "without a checkpoint", "median s": float(np.median(without)), "least s": min(without)},
        {"round": "with one begun before it", "median s": median(with_one), "least s": min(with_one)},
        {"round": "beginning one, alone", "median s": median(begin), "least s": min(begin)},
    ]
    report(
        "checkpoint-stall",
        f"The stall of a background checkpoint of {size:,.0f} MB, {communicator.size} ranks",
        rows,
        f"Median of the ratios of {repeats} turns: {np.median(ratios):.3f} (quartiles {np.quantile(ratios, 0.25):.3f} "
        f"and {np.quantile(ratios, 0.75):.3f}). Beginning one copies the rows; checksums and writing go on beside the "
        f"round, on cores that here all compute.",
        f"mpirun -n {communicator.size}",
    )


def benchmark() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where to write; needs twice the megabytes")
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--stall", action="store_true")
    arguments = parser.parse_args()
    communicator = world()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.stall:
        stall(communicator, arguments.folder, arguments.repeats)
    else:
        bandwidth(communicator, arguments.folder, arguments.megabytes, arguments.repeats)


if __name__ == "__main__":
    main(benchmark)
