"""Seconds of a local step of a replica group of two processes, beside a rank with two threads, on two cores.

    python -m benchmarks.groups

A figure is the fastest of the rounds after the first, of ten local steps each.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.reporting import report
from istmpi.comm import world
from istmpi.config import Run
from istmpi.data.prepare import prepare
from istmpi.training.run import run_training

BATCHES = (32, 128, 512)
STEPS = 10
NETWORKS = {
    "mlp 64-1024-1024-10": {"model.name": "mlp", "model.hidden": [1024, 1024], "model.norm": "layer"},
    "resnet of 32 and 64 channels": {
        "model.name": "resnet",
        "model.blocks": [1, 1],
        "model.channels": [32, 64],
        "model.inner": [32, 64],
    },
    "decoder of 2 layers, 32 tokens": {
        "model.name": "transformer",
        "model.layers": 2,
        "model.embed": 64,
        "model.heads": [4, 4],
        "model.head_dim": 16,
        "model.hidden": [256, 256],
        "data.length": 32,
        "optimizer.name": "adamw",
    },
}
NOTES = """Two cores: members have a thread each, and average gradients over gloo and the loopback interface.
A figure is the fastest of three rounds of ten local steps, local SGD, one group or one rank, single precision.
NCCL, GPUs and sockets were never measured."""
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon")


def time_steps(folder: Path, processes: int) -> dict[str, float]:
    """Return the seconds of a step by network and batch, on the processes of one group. Collective."""
    seconds = {}
    for name, settings in NETWORKS.items():
        for batch in BATCHES:
            out = folder / f"{name}-{batch}-{processes}"
            run = Run().override(
                {
                    "method.name": "local-sgd",
                    "method.local_steps": STEPS,
                    "train.rounds": 4,
                    "train.batch": batch,
                    "train.group_size": processes,
                    "train.threads": 2 // processes,
                    "evaluate.every": 1000,
                    "output.folder": str(out),
                    **({"data.source": str(folder / "text.h5")} if "data.length" in settings else {}),
                    **settings,
                }
            )
            run_training(run, world())
            metrics = out / "metrics.jsonl"
            if world().rank == 0:
                _, *later = map(json.loads, metrics.read_text().splitlines())
                seconds[f"{name}, {batch}"] = min(line["compute_seconds"] for line in later) / STEPS
    return seconds


def main() -> None:
    if len(sys.argv) == 3:
        folder, processes = Path(sys.argv[1]), int(sys.argv[2])
        seconds = time_steps(folder, processes)
        if world().rank == 0:
            (folder / f"{processes}.json").write_text(json.dumps(seconds))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "documents").mkdir()
        text = " ".join(WORDS[place * place % 5] for place in range(4_000))
        for number in range(4):
            (folder / "documents" / f"{number}.txt").write_text(text)
        prepare("text", folder / "documents", folder / "text.h5")
        for processes in (1, 2):
            command = ["mpirun", "-n", str(processes), sys.executable, "-m", "benchmarks.groups", name, str(processes)]
            subprocess.run(command, check=True)
        alone, together = (json.loads((folder / f"{processes}.json").read_text()) for processes in (1, 2))
    rows = [
        {
            "network, batch": case,
            "a rank, ms a step": f"{1000 * seconds:.2f}",
            "a group of two": f"{1000 * together[case]:.2f}",
            "ratio": f"{together[case] / seconds:.2f}",
        }
        for case, seconds in alone.items()
    ]
    report("groups", "A local step of a replica group of two processes, beside a rank with two threads", rows, NOTES)


if __name__ == "__main__":
    main()
