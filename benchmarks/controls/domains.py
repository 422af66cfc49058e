"""Experts by domain: networks that never exchange anything, weighted by their likelihood of a text, and dense ones.

    python -m benchmarks.controls.domains --cells FOLDER --processes 1          # resumes; four domains
    python -m benchmarks.controls.domains --cells FOLDER --ranks 8 --seeds 2    # eight domains, two seeds
    python -m benchmarks.controls.domains --cells FOLDER --report               # only the table

Every rank has the text of one domain: a language of programs, or of Debian's manual pages (`apt-get download`). An
expert is the part of a rank where all widths are dealt out once, the residual stream's too, so that nothing is left to
average. All networks of a rank are as large. A cell is a run of simulated ranks; its network is scored in one process
on the test documents of each domain. Rates are 3 times apart; the best one, by the validation text of the ranks, gets
neighbours on both sides.
"""

from __future__ import annotations

import gzip
import random
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.controls.rivals import interval, record_in
from benchmarks.processes import cells_parser, run_cells
from benchmarks.reporting import keep_cell, report, restore_cells, store_cells
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.cli.networks import describe_run
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.cost import phase_costs
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset
from istmpi.deploy.network import CalibratedNetwork
from istmpi.errors import DivergedError
from istmpi.evaluation.likelihood import Answer, Mixture
from istmpi.simulated import simulate
from istmpi.tasks import NextToken
from istmpi.training.loop import Training

NAME, FACTOR, RATE = "domains", 3.0, 0.006
TRAIN, TEST, DOCUMENT = 1_200_000, 150_000, 40_000
"""The most bytes of a domain for training and for testing, and of one document."""
MANUALS = {"german": "manpages-de", "french": "manpages-fr", "spanish": "manpages-es", "russian": "manpages-ru"}
LIBRARIES = ("libjs-jquery", "libjs-jquery-ui", "libjs-underscore", "libjs-bootstrap4", "libjs-mathjax")
PROGRAMS = {
    "python": (Path(sysconfig.get_paths()["stdlib"]), "*.py"),
    "c": (Path("/usr/include"), "*.h"),
    "perl": (Path("/usr/share/perl"), "**/*.pm"),
}
DOMAINS = ("python", "c", "german", "french", "javascript", "perl", "spanish", "russian")
STEPS, LOCAL_STEPS = 300, 20
WINDOWS = 256
"""The windows of each domain's test documents that are scored."""
TEXT = {"data.length": 128, "data.validation": 0.02, "train.batch": 8, "train.threads": 1}
ADAMW = {"optimizer.name": "adamw", "optimizer.schedule": "cosine", "optimizer.warm_up": 20, "optimizer.clip": 1.0}
NETWORK = {"model.name": "transformer", "model.layers": 2, "model.head_dim": 16}
DEAL = {"method.name": "ist", "method.redeal": 0.0, "evaluate.form": "likelihood"}
APART = ["embed", "heads1", "heads2", "hidden1", "hidden2"]
"""The groups without which ranks share nothing."""
EXPERTS, RANDOM, STREAM, ALONE = "experts", "experts, random split", "experts, common stream", "one rank, all domains"
ROWS: Mapping[str, Mapping[str, object]] = {
    EXPERTS: DEAL | {"method.partition": APART},
    "dense, local SGD": {"method.name": "local-sgd"},
    RANDOM: DEAL | {"method.partition": APART},
    "dense, SparseLoCo": {"method.name": "sparse-loco"},
    STREAM: DEAL,
    ALONE: {"method.name": "local-sgd"},
}
FORMS = {"likelihood": "by likelihood", "mean": "plain mean", "told": "the right domain told"}


class Cell(NamedTuple):
    """A run of a row; its name is its file's."""

    row: str
    ranks: int
    """The number of domains."""
    rate: float
    seed: int

    @property
    def name(self) -> str:
        row = self.row.replace(", ", "-").replace(" ", "-")
        return f"{row}-D{self.ranks}-n{STEPS}-lr{self.rate:g}-s{self.seed}"

    @property
    def members(self) -> int:
        return 1 if self.row == ALONE else self.ranks

    def run(self, folder: Path) -> Run:
        """Return the settings; all experts together are so many times as wide as one."""
        experts = self.ranks if "experts" in self.row else 1
        widths = {
            "model.embed": 64 * (experts if self.row in (EXPERTS, RANDOM) else 1),
            "model.heads": [4 * experts] * 2,
            "model.hidden": [176 * experts] * 2,
        }
        names = {RANDOM: f"random{self.ranks}-{{rank}}.h5", ALONE: f"all{self.ranks}.h5"}
        data = {
            "data.source": str(folder / names.get(self.row, "domain-{rank}.h5")),
            "data.placement": "shared" if self.row == ALONE else "local",
            "train.seed": self.seed,
        }
        rounds = {
            "train.rounds": STEPS // LOCAL_STEPS,
            "method.local_steps": LOCAL_STEPS,
            "evaluate.every": STEPS // LOCAL_STEPS,
            "evaluate.examples": 128,
            "optimizer.lr": self.rate,
        }
        state = {} if self.row == "dense, SparseLoCo" else {"method.optimizer_state": "carry"}
        return Run().override({**TEXT, **ADAMW, **NETWORK, **ROWS[self.row], **state, **widths, **data, **rounds})


def collect(domain: str, raw: Path) -> list[bytes]:
    """Return the documents of a domain in a random order, none longer than `DOCUMENT`."""
    if domain in PROGRAMS:
        folder, pattern = PROGRAMS[domain]
        files = sorted(folder.glob(pattern))
    else:
        packages = LIBRARIES if domain == "javascript" else [MANUALS[domain]]
        ending = ".js" if domain == "javascript" else ".gz"
        files = [file for package in packages for file in unpacked(package, raw) if file.suffix == ending]
    texts = []
    for file in files:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        # Minified programs are another domain.
        if file.is_file() and ".min." not in file.name and len(content) > 500:
            texts.append(content[:DOCUMENT])
    texts = sorted(set(texts))
    random.Random(0).shuffle(texts)
    return texts


def unpacked(package: str, raw: Path) -> list[Path]:
    """Return the files of a Debian package."""
    folder = raw / package
    if not folder.exists():
        subprocess.run(["apt-get", "download", package], cwd=raw, check=True)
        (archive,) = raw.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
    return [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.is_symlink()]


def divide(texts: list[bytes]) -> dict[str, list[bytes]]:
    """Return the documents of each split."""
    splits: dict[str, list[bytes]] = {"test": [], "train": []}
    limits = {"test": TEST, "train": TRAIN}
    for text in texts:
        for split, taken in splits.items():
            if sum(map(len, taken)) < limits[split]:
                taken.append(text)
                break
    return splits


def write(path: Path, parts: list[dict[str, list[bytes]]]) -> None:
    """Prepare a file of the documents of several parts."""
    source = path.with_suffix("")
    for split in ("train", "test"):
        (source / split).mkdir(parents=True)
        texts = [text for part in parts for text in part[split]]
        random.Random(1).shuffle(texts)
        for number, text in enumerate(texts):
            (source / split / f"{number:05}.txt").write_bytes(text)
    prepare("text", source, path)


def prepare_domains(folder: Path, count: int) -> None:
    """Prepare a file of each domain, of each part of a random split, and of all domains."""
    if (folder / f"all{count}.h5").exists():
        return
    raw = folder / "raw"
    raw.mkdir(exist_ok=True)
    domains = [divide(collect(domain, raw)) for domain in DOMAINS[:count]]
    for number, domain in enumerate(domains):
        print(DOMAINS[number], {split: sum(map(len, texts)) for split, texts in domain.items()}, flush=True)
        if not (folder / f"domain-{number}.h5").exists():
            write(folder / f"domain-{number}.h5", [domain])
    for number in range(count):
        part = [{split: texts[number::count] for split, texts in domain.items()} for domain in domains]
        write(folder / f"random{count}-{number}.h5", part)
    write(folder / f"all{count}.h5", domains)


def measured(run: Run, path: Path, communicator: Communicator) -> dict:
    """Train, and write the network; return what the run recorded. Collective."""
    training = Training(run, communicator)
    try:
        *_, last = training.rounds()
    except DivergedError as error:
        return {"diverged": str(error), "validation": 99.0}
    header, pieces, _ = training.collect_state(calibrated=True)
    commit(path, header, pieces, "direct", communicator)
    communicator.barrier()
    return {"validation": last.validation.loss, "test": last.score.loss, "bytes": last.bytes}


def read_windows(folder: Path, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of windows of a domain's test documents, spread evenly."""
    split = open_dataset(str(folder / f"domain-{number}.h5"), length=128).test
    batch = split.batch(np.arange(WINDOWS) * len(split) // WINDOWS)
    return batch.inputs[0], batch.targets


class Told(nn.Module):
    """An expert that answers for all others, by what it has answered already."""

    def __init__(self, logits: torch.Tensor):
        super().__init__()
        self.logits = logits

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        return self.logits


@torch.no_grad()
def score(path: Path, folder: Path, count: int) -> dict[str, list[float]]:
    """Return the nats of a token of each domain, by the form of the network."""
    with open_checkpoint(path) as checkpoint:
        network = CalibratedNetwork(checkpoint).module
    found: dict[str, list[float]] = {}
    for number in range(count):
        inputs, targets = read_windows(folder, number)
        if isinstance(network, Mixture):
            outputs = [subnet(inputs) for subnet in network.subnets.values()]
            answer = Answer(inputs)
            for logits in outputs:
                answer.add(Told(logits))
            forms = {
                "likelihood": answer.log_probabilities,
                "mean": torch.stack(outputs).mean(0),
                "told": outputs[number],
            }
        else:
            forms = {"": network(inputs)}
        for form, logits in forms.items():
            loss = float(NextToken.loss(logits, targets, reduction="sum")) / len(inputs)
            found.setdefault(form, []).append(loss)
    return found


def simulated(cell: Cell, folder: Path, end: float) -> str:
    """Run a cell unless it would begin too late, and keep what it found; return a line that says it."""
    start = time.perf_counter()
    if start >= end:
        return ""
    path = folder / f"{cell.name}.h5"
    found, *_ = simulate(partial(measured, cell.run(folder), path), cell.members).require()
    found["nats"] = {} if "diverged" in found else score(path, folder, cell.ranks)
    path.unlink(missing_ok=True)
    keep_cell(folder / f"{cell.name}.json", cell.name, start, found)
    return f"{cell.name}: {found['validation']:.4f} { ({form: mean(each) for form, each in found['nats'].items()}) }"


class Campaign:
    """The cells that are there, and those that come next."""

    def __init__(self, folder: Path, seeds: int):
        self._folder, self._record, self._seeds = folder, record_in(folder), seeds

    def tried(self, row: str, ranks: int) -> dict[int, float]:
        """Return the validation losses of the rates that were tried, by their place on the grid: 0 is the first."""
        found = {place: self._record(Cell(row, ranks, rate_at(place), 0)) for place in range(-5, 6)}
        return {place: record["validation"] for place, record in found.items() if record}

    def best(self, row: str, ranks: int) -> int:
        tried = self.tried(row, ranks)
        return min(tried, key=tried.__getitem__, default=0)

    def next_places(self, row: str, ranks: int) -> list[int]:
        tried, best = self.tried(row, ranks), self.best(row, ranks)
        return [place for place in ((best + 1, best - 1) if tried else (0,)) if place not in tried]

    def todo(self, rows: list[str], ranks: int) -> Iterator[Cell]:
        """Yield the cells that can be run now: rates first, then seeds."""
        for row in rows:
            yield from (Cell(row, ranks, rate_at(place), 0) for place in self.next_places(row, ranks)[:1])
        for row in rows:
            yield from (cell for cell in self.cells(row, ranks) if not self._record(cell))

    def cells(self, row: str, ranks: int) -> list[Cell]:
        """Return the cells at the best rate: of one seed until it is inside its grid."""
        if not self.tried(row, ranks):
            return []
        seeds = 1 if self.next_places(row, ranks) else self._seeds
        return [Cell(row, ranks, rate_at(self.best(row, ranks)), seed) for seed in range(seeds)]

    def lines(self, row: str, ranks: int) -> Iterator[dict[str, Any]]:
        """Yield a line of the table for each form of a row's network."""
        cells = self.cells(row, ranks)
        found = list(filter(None, map(self._record, cells)))
        for form in found[0]["nats"] if found else ():
            if form == "told" and row == RANDOM:
                continue
            means = [mean(record["nats"][form]) for record in found]
            trained, beside = memory(cells[0], self._folder)
            edge = ", edge" * bool(self.next_places(row, ranks))
            yield {
                "domains": ranks,
                "network": f"{row}{', ' * bool(form)}{FORMS.get(form, '')}",
                "rate": f"{cells[0].rate:g}{edge}",
                "seeds": len(means),
                "nats a byte": f"{mean(means):.4f}",
                "+-": f"{interval(means):.4f}" if len(means) > 1 else "",
                **{DOMAINS[place]: f"{found[0]['nats'][form][place]:.3f}" for place in range(ranks)},
                "MB sent": f"{found[0]['bytes'] / 1e6:.1f}",
                "MB trained": f"{trained:.2f}",
                "MB beside": f"{beside:.2f}",
            }


def rate_at(place: int) -> float:
    return float(f"{RATE * FACTOR**place:.2g}")


def memory(cell: Cell, folder: Path) -> tuple[float, float]:
    """Return the plan's megabytes of a rank: weights, gradients and optimizer; what it holds beside them."""
    planned = describe_run(cell.run(folder), None, ranks=cell.members)
    cost, _ = phase_costs(planned.run, planned.architecture, cell.members, planned.examples, planned.smaller)[0]
    held = cost.largest.memory
    return float(held.network + held.gradients + held.optimizer) / 1e6, float(held.owned + held.copies) / 1e6


def main() -> None:
    """Run the cells that are not there, and report."""
    parser = cells_parser(__doc__)
    parser.add_argument("--ranks", type=int, choices=(4, 8), default=4, help="number of domains (4)")
    parser.add_argument("--only", action="append", help="rows that begin so; may be repeated")
    parser.add_argument("--seeds", type=int, default=1, help="of each best rate (1)")
    parser.add_argument("--processes", type=int, help="cells at a time (one a core)")
    options = parser.parse_args()
    options.cells.mkdir(exist_ok=True)
    restore_cells(NAME, options.cells, options.results)
    prepare_domains(options.cells, options.ranks)
    campaign = Campaign(options.cells, options.seeds)
    rows = [row for row in ROWS if row.startswith(tuple(options.only or ("",)))]
    if not options.report:
        todo = partial(campaign.todo, rows, options.ranks)
        run_cells(todo, simulated, options.cells, options.minutes, options.processes)
    lines = [line for row in ROWS for line in campaign.lines(row, options.ranks)]
    if lines:
        notes = (
            f"Nats a byte of the test documents of each domain (first seed) and their mean; {STEPS} local steps of 8 "
            f"windows of 128 bytes a rank, rounds of {LOCAL_STEPS}. Rates: the best of neighbours 3 times apart by the "
            "ranks' validation text, with a worse one on both sides unless the rate is on the edge. MB sent: by all "
            "ranks, evaluations left out. MB trained: a rank's weights, gradients and optimizer, as planned; beside: "
            "its rows of the full network, copies and fed-back errors. Every rank has a domain; the random split "
            "deals out the same documents. One rank makes as many steps as each of several."
        )
        name = NAME if options.ranks == 4 else f"{NAME}-{options.ranks}"
        store_cells(NAME, options.cells.glob("*-D?-*.json"), options.results)
        report(name, "Experts by domain", lines, notes, folder=options.results)


if __name__ == "__main__":
    main()
