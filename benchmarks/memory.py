"""Peak memory of each rank that trains and evaluates a network of 2 GB, beside one process with the same network.

    mpirun -n 4 python benchmarks/memory.py

Ours is an ordinary `Training` on made-up examples. The one process has PyTorch's own layers and takes one
step of plain SGD on the same number of examples. Resident memory is the kernel's own peak (VmHWM). Anonymous memory
leaves out the libraries and other mapped files, and what ranks share; it is sampled every few milliseconds.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from local_step import bare_network
from reporting import report
from torch.nn import functional

from istmpi.cli.main import main
from istmpi.comm import Communicator, world
from istmpi.config import Run
from istmpi.engine.axes import narrowed
from istmpi.engine.partition import Partition
from istmpi.training.loop import Training

FEATURES = 16384
HIDDEN = (16384, 16384)
LABELS = 10
EXAMPLES = 512
BATCH = 32


def status(field: str) -> float:
    """A line of this process's /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024e-6


@contextmanager
def watched(name: str, peaks: dict[str, float]) -> Iterator[None]:
    """Note the peaks of resident and anonymous memory while the body runs."""
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew.
    over, anonymous = threading.Event(), [status("RssAnon")]

    def sample() -> None:
        while not over.wait(0.003):
            anonymous.append(status("RssAnon"))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    peaks[f"{name}, resident"] = status("VmHWM")
    peaks[f"{name}, anonymous"] = max(anonymous)


def one_process() -> None:
    """Print the peaks of a step of the whole network in plain PyTorch."""
    peaks: dict[str, float] = {}
    with watched("step", peaks):
        network = bare_network([FEATURES, *HIDDEN, LABELS])
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        x, y = torch.randn(BATCH, FEATURES), torch.randint(0, LABELS, (BATCH,))
        functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    print(peaks["step, resident"], peaks["step, anonymous"])


def measured(communicator: Communicator) -> dict[str, float]:
    """This rank's peaks and the parts that explain them, in MB."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)  # The first optimizer imports much of torch.
    figures = {"python, torch and MPI": status("VmRSS")}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "examples.npz"
        if communicator.rank == 0:
            generator = np.random.default_rng(0)
            x = generator.standard_normal((EXAMPLES, FEATURES), dtype=np.float32)
            y = np.arange(EXAMPLES) % LABELS
            np.savez(data, x_train=x, y_train=y, x_test=x[::4], y_test=y[::4])
        run = Run().override(
            {
                "data.source": str(communicator.broadcast_from_root(data)),
                "model.hidden": HIDDEN,
                "method.local_steps": 2,
                "train.rounds": 3,
                "train.batch": BATCH,
                "train.threads": 1,
                "evaluate.every": 3,
            }
        )
        communicator.barrier()
        with watched("set-up", figures):
            training = Training(run, communicator)
        with watched("rounds", figures):
            for progress in training.rounds():
                assert np.isfinite(progress.loss)
        with watched("evaluation", figures):
            training.evaluate()
        communicator.barrier()
    architecture = training.architecture
    groups, parameters = architecture.groups, architecture.parameters
    deal = Partition.draw(architecture.lengths, groups, communicator.size, run.train.seed, 0)
    lengths = narrowed(architecture.lengths, parameters, deal.held(communicator.rank))
    parts = {
        "owned rows": sum(tensor.nbytes for tensor in training.store.tensors.values()) / 1e6,
        "subnet": sum(parameter.size(lengths) * parameter.itemsize for parameter in parameters.values()) / 1e6,
        "staging": sum(communicator.scratch(name, 0).nbytes for name in ("send", "receive")) / 1e6,
        "examples": EXAMPLES * 5 / 4 * FEATURES * 4e-6,
    }
    parts["gradients"] = parts["subnet before the round"] = parts["subnet"]
    rest = figures["rounds, resident"] - figures["python, torch and MPI"] - sum(parts.values())
    return {**figures, **parts, "what the parts leave of rounds": rest}


def benchmark() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one-process", action="store_true", help="the plain PyTorch step alone")
    if parser.parse_args().one_process:
        one_process()
        return
    communicator = world()
    whole = None
    if communicator.rank == 0:
        done = subprocess.run([sys.executable, __file__, "--one-process"], capture_output=True, text=True, check=True)
        whole = [float(figure) for figure in done.stdout.split()]
    resident, anonymous = communicator.broadcast_from_root(whole)
    per_rank = communicator.allgather(measured(communicator))
    if communicator.rank != 0:
        return
    network = "-".join(map(str, (FEATURES, *HIDDEN, LABELS)))
    weights = 4e-6 * sum(a * b for a, b in zip((FEATURES, *HIDDEN), (*HIDDEN, LABELS)))
    rows = [{"MB": name, **{f"rank {rank}": ours[name] for rank, ours in enumerate(per_rank)}} for name in per_rank[0]]
    highest = max(max(ours[f"{phase}, resident"] for phase in ("set-up", "rounds", "evaluation")) for ours in per_rank)
    report(
        "memory",
        f"Memory of {communicator.size} ranks that train {network}",
        rows,
        f"The whole network has {weights:.0f} MB of weights and as much of gradients. One process that takes a step of "
        f"it in plain PyTorch reaches {resident:.0f} MB resident, {anonymous:.0f} MB of it anonymous. The highest rank "
        f"reaches {highest:.0f} MB: {highest / resident:.2f} of that, and {highest / (2 * weights):.2f} of the whole "
        "network's weights and gradients.",
        f"mpirun -n {communicator.size}",
    )


if __name__ == "__main__":
    main(benchmark)
