"""A decoder on text: IST beside one rank, local SGD and the controls, and what the full network's scale is worth.

    python -m benchmarks.controls.decoder  # an hour on two cores; again to go on
    python -m benchmarks.controls.decoder --large  # the main rows with five million weights
    python -m benchmarks.controls.decoder --only IST  # the rows whose names contain that
    python -m benchmarks.controls.decoder --report  # the table anew

The corpus is the modules of Python's own standard library that are one file, bytes as tokens; what it was is said by
its size and hash. All rows take as many local steps of each rank, from the same initial weights, by AdamW whose state
is carried, with a cosine. A row is one ``mpirun -n P istmpi train`` (MPIRUN names another launcher), and a file in
benchmarks/cells-decoder, which is not run again.
"""

import argparse
import hashlib
import json
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from benchmarks.controls.small_images import train
from benchmarks.reporting import HERE, RESULTS, report

RANKS = 4
NETWORK = {"layers": 4, "embed": 128, "head_dim": 16, "heads": 8, "hidden": 344}
LARGE = {"layers": 6, "embed": 256, "head_dim": 16, "heads": 16, "hidden": 688}
LARGE_ROUNDS = {"train.rounds": "20", "evaluate.every": "20"}
COMMON = {
    "model.name": "transformer",
    "data.length": "64",
    "train.batch": "16",
    "train.threads": "1",
    "train.rounds": "40",
    "method.local_steps": "10",
    "method.optimizer_state": "carry",
    "optimizer.name": "adamw",
    "optimizer.lr": "0.003",
    "optimizer.schedule": "cosine",
    "optimizer.warm_up": "20",
    "optimizer.clip": "1",
    "evaluate.every": "40",
}
LOCAL_SGD = {"method.name": "local-sgd"}
TENTH = {"method.redeal": "0.1"}
FITTED = TENTH | {"model.scale": "fitted"}
EQUAL_FLOPS = {"method.local_steps": "36"}
ROWS: dict[str, tuple[int, dict[str, str], float]] = {
    "one rank": (1, LOCAL_SGD, 1),
    "local SGD": (RANKS, LOCAL_SGD, 1),
    "IST": (RANKS, {}, 1),
    "IST, a tenth redealt": (RANKS, TENTH, 1),
    "IST, a tenth redealt, not scaled": (RANKS, TENTH | {"model.scale": "none"}, 1),
    "IST, a tenth redealt, fitted": (RANKS, FITTED, 1),
    "IST, fitted": (RANKS, {"model.scale": "fitted"}, 1),
    "IST, never redealt, fitted": (RANKS, {"method.redeal": "0", "model.scale": "fitted"}, 1),
    "narrow network, local SGD": (RANKS, LOCAL_SGD, RANKS),
    "IST, a tenth redealt, fitted, a finish of local SGD": (
        RANKS,
        FITTED | {"method.finish": "local-sgd:20%"},
        1,
    ),
    "DiLoCo": (RANKS, {"method.name": "diloco"}, 1),
    "IST, a tenth redealt, fitted, shared parts every 4th round": (RANKS, FITTED | {"method.share_every": "4"}, 1),
    "IST, a tenth redealt, fitted, twice as wide": (RANKS, FITTED, 0.5),
    "local SGD on 2": (2, LOCAL_SGD, 1),
    "IST on 2, a tenth redealt, fitted": (2, FITTED, 1),
    "IST on 2, fitted": (2, {"model.scale": "fitted"}, 1),
    "IST on 8, a tenth redealt, fitted": (8, FITTED, 1),
    "IST on 8, fitted": (8, {"model.scale": "fitted"}, 1),
    "narrow network, local SGD on 8": (8, LOCAL_SGD, 8),
    "local SGD on 8": (8, LOCAL_SGD, 1),
    "IST, a tenth redealt, fitted, rounds of 36 steps": (RANKS, FITTED | EQUAL_FLOPS, 1),
    "IST, never redealt, fitted, rounds of 36 steps": (RANKS, FITTED | EQUAL_FLOPS | {"method.redeal": "0"}, 1),
    "narrow network, local SGD, rounds of 36 steps": (RANKS, LOCAL_SGD | EQUAL_FLOPS, RANKS),
}
"""What is compared: the ranks, the settings that differ, and how many times narrower each layer is."""
MAIN = (
    "one rank",
    "local SGD",
    "IST, a tenth redealt, fitted",
    "IST, never redealt, fitted",
    "narrow network, local SGD",
    "IST, a tenth redealt, fitted, rounds of 36 steps",
    "narrow network, local SGD, rounds of 36 steps",
)
"""Those that the large network trains, too."""
NOTES = (
    "Nats are the mean loss of the full network over 512 windows of the test documents; bits a byte follow from them. "
    "MB are those that all ranks handed to MPI. A local step of a rank takes 16 windows of 64 bytes, so four ranks "
    "read four times as many as one; with rounds of 36 steps IST and the narrow network take about the FLOPs of local "
    "SGD. One learning rate for all, tuned for none; one seed."
)


def main() -> None:
    """Run the rows that are not there yet, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="the main rows with five million weights")
    parser.add_argument("--only", action="append", help="rows whose names contain this; may be repeated")
    parser.add_argument("--cells", type=Path, default=HERE / "cells-decoder", help="the folder of the rows")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the report goes (results/)")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    sizes, rows = (LARGE, MAIN) if options.large else (NETWORK, tuple(ROWS))
    cells = options.cells / "large" if options.large else options.cells
    cells.mkdir(exist_ok=True, parents=True)
    data = options.cells / "text.h5"
    size, digest = prepare(data)
    for name in rows:
        ranks, settings, narrower = ROWS[name]
        cell = cell_of(cells, name)
        asked = not options.only or any(part in name for part in options.only)
        if asked and not (options.report or cell.exists()):
            common = COMMON | (LARGE_ROUNDS if options.large else {}) | network(sizes, narrower)
            with tempfile.TemporaryDirectory() as folder:
                found = train(Path(folder) / "run", ranks, common | {"data.source": str(data)} | settings)
            cell.write_text(json.dumps(found))
    done = {name: cell_of(cells, name) for name in rows if cell_of(cells, name).exists()}
    table = [row(name, json.loads(cell.read_text())) for name, cell in done.items()]
    title = "A decoder on the text of Python's standard library"
    notes = f"{NOTES} The corpus: {size:,} bytes, SHA-256 {digest[:16]}; the network: {sizes}."
    report("decoder-large" if options.large else "decoder", title, table, notes, folder=options.results)


def prepare(path: Path) -> tuple[int, str]:
    """Prepare the corpus where it is not yet; its bytes, and their hash."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    contents = [file.read_bytes() for file in files]
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            for file, content in zip(files, contents):
                (Path(folder) / file.name).write_bytes(content)
            subprocess.run(["istmpi", "prepare", "text", folder, path], check=True)
    return sum(map(len, contents)), hashlib.sha256(b"".join(contents)).hexdigest()


def network(sizes: dict[str, int], narrower: float) -> dict[str, str]:
    """The settings of a network, its layers so many times narrower."""
    layers = sizes["layers"]
    widths = {name: str([int(sizes[name] / narrower)] * layers) for name in ("heads", "hidden")}
    rest = {name: str(sizes[name]) for name in ("layers", "embed", "head_dim")}
    return {f"model.{name}": value for name, value in {**rest, **widths}.items()}


def cell_of(folder: Path, name: str) -> Path:
    """The file of a row."""
    return folder / f"{name.replace(', ', '-').replace(' ', '-')}.json"


def row(name: str, summary: dict) -> dict[str, object]:
    """A line of the table."""
    last = summary["last"]
    return {
        "method": name,
        "ranks": summary["ranks"],
        "local steps": last["local_steps"],
        "nats a token": f"{last['score']['loss']:.3f}",
        "perplexity": f"{last['score']['score']:.2f}",
        "bits a byte": f"{last['score']['bits_per_byte']:.3f}",
        "MB sent": f"{last['bytes'] / 1e6:.0f}",
        "seconds": f"{last['seconds']:.0f}",
    }


if __name__ == "__main__":
    main()
