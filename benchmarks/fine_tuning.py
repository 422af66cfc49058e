"""Seconds and bytes of a step of fine-tuning on slow hosts: LoRA and all weights, PyTorch's DDP and FSDP, and istmpi.

    sudo -E env PATH="$PATH" python -m benchmarks.fine_tuning --cells FOLDER --rates 1gbit,100mbit
    python -m benchmarks.fine_tuning --cells FOLDER --report

A cell trains the network of `examples/fine_tuning.py`, which has random weights and texts, on emulated hosts of a core
each. Its figures are the mean seconds of a step and the bytes that a host's interface sent in it. istmpi's are those of
a whole round, divided by its local steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import istmpi
from benchmarks import reporting
from benchmarks.emulated import Cluster, alone, obstacle
from benchmarks.reporting import ROOT, keep_cell, restore_cells, store_cells
from benchmarks.time_to_accuracy.peers import connect, disconnect, sent_by_this_host
from istmpi.code import import_user_module
from istmpi.comm import read_launcher

NAME = "fine-tuning"
EXAMPLE = f"{ROOT}/examples/fine_tuning.py:Gpt2"
SHAPES = {"GPT-2, 124 M": ("12", "768", "12"), "4 layers of 256, 16 M": ("4", "256", "4")}
"""Layers, width and heads of a network, with its number of weights in its name."""
RANKS = {"LoRA, rank 8": "8", "all weights": "0"}
PROGRAMS = {
    "one host": "alone",
    "DDP": "ddp",
    "FSDP": "fsdp",
    "istmpi, local SGD": "local-sgd",
    "istmpi, SparseLoCo": "sparse-loco",
}
LOCAL_STEPS = 20
LENGTH = 128
RATE = 1e-4
TITLE = "A step of fine-tuning on slow hosts"
NOTES = """Random weights and texts: the figures are seconds and bytes, no accuracy. A step has one text of 128 tokens
a host. A host has one CPU core, so its steps take seconds; on a GPU they take milliseconds, and the network's part is
larger. Bytes are those that a host's interface sends in a step, with headers. Speed: tokens a second of all hosts
together, beside one host that trains alone. DDP and FSDP (`fully_shard` of each block) run over gloo; istmpi takes 20
local steps a round. For GPT-2's shape its rounds had 2 steps to save time: the exchange beyond two steps of one host is
then divided among 20. FSDP sends frozen weights, too, because each host stores only its part of them."""


@dataclass(frozen=True)
class Case:
    rate: str
    shape: str
    trained: str
    program: str
    hosts: int

    @property
    def name(self) -> str:
        words = f"{self.hosts}-{self.rate}-{self.shape}-{self.trained}-{self.program}"
        return f"{NAME}-" + "".join(letter if letter.isalnum() else "-" for letter in words)

    @property
    def steps(self) -> int:
        """The steps to measure, after a first one."""
        return 2 if self.is_large else 5

    @property
    def is_large(self) -> bool:
        return self.shape.startswith("GPT-2")

    @property
    def local_steps(self) -> int:
        """istmpi's local steps in a measured round."""
        return 2 if self.is_large else LOCAL_STEPS


@dataclass
class Meter:
    """Seconds and bytes since its start, from a moment when all hosts have arrived."""

    meet: Callable[[], None]
    seconds: float = 0.0
    sent: int = 0

    def start(self) -> None:
        self.meet()
        self.sent = sent_by_this_host() or 0
        self.seconds = time.perf_counter()

    def stop(self, steps: int) -> dict[str, float]:
        self.meet()
        seconds = time.perf_counter() - self.seconds
        return {"seconds": seconds / steps, "sent": ((sent_by_this_host() or 0) - self.sent) / steps}


def draw_texts() -> Iterator[torch.Tensor]:
    random = torch.Generator().manual_seed(1 + read_launcher()[0])
    while True:
        yield torch.randint(0, 50257, (1, LENGTH), generator=random)


def wrap(network: nn.Module, program: str) -> nn.Module:
    """Return the network as DDP or FSDP train it."""
    if program == "ddp":
        return DistributedDataParallel(network)
    if program == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in network.gpt2.transformer.h:
            fully_shard(block, mesh=mesh)
        fully_shard(network, mesh=mesh)
    return network


def train_by_torch(case: Case, kind: type[nn.Module], sizes: dict[str, str]) -> dict[str, float]:
    program = PROGRAMS[case.program]
    rank, ranks = read_launcher()
    if program != "alone":
        connect(ranks, rank)
    network = wrap(kind(**sizes), program)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE)
    meter = Meter(dist.barrier if program != "alone" else lambda: None)
    texts = draw_texts()
    for step in range(case.steps + 1):
        if step == 1:
            meter.start()
        network(next(texts)).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = meter.stop(case.steps)
    if program != "alone":
        disconnect()
    return found


def train_by_istmpi(case: Case, kind: type[nn.Module], sizes: dict[str, str]) -> dict[str, float]:
    texts = draw_texts()
    how = {"method": PROGRAMS[case.program], "local_steps": case.local_steps, "optimizer": "adamw", "lr": RATE}
    job = istmpi.Distributed(kind, sizes, example=next(texts), threads=1, **how)
    meter = Meter(job.communicator.barrier)
    with TemporaryDirectory() as folder:
        for round in job.rounds(3, folder=f"{folder}/run"):
            # The second round, with the exchange that follows it.
            if round.number == 2:
                meter.start()
            if round.number == 3:
                return meter.stop(case.local_steps)
            for tokens in round.take(texts):
                round.step(round.module(tokens))
    raise AssertionError("there are three rounds")


def work(case: Case, out: Path) -> None:
    """Train on this host; rank 0 writes what was measured."""
    torch.set_num_threads(1)
    module, name = import_user_module("", EXAMPLE, "Class")
    layers, embed, heads = SHAPES[case.shape]
    sizes = {"layers": layers, "embed": embed, "heads": heads, "rank": RANKS[case.trained]}
    train = train_by_istmpi if case.program.startswith("istmpi") else train_by_torch
    found = train(case, getattr(module, name), sizes)
    if read_launcher()[0] == 0:
        out.write_text(json.dumps(found), encoding="utf-8")


def measure(case: Case, cluster: Cluster) -> dict[str, float]:
    with TemporaryDirectory() as folder:
        out = Path(folder, "found.json")
        command = [
            sys.executable,
            "-m",
            "benchmarks.fine_tuning",
            "--work",
            json.dumps(asdict(case)),
            "--out",
            str(out),
        ]
        code = cluster.run(command)
        assert code == 0, f"{case.name} failed with exit code {code}"
        return json.loads(out.read_text(encoding="utf-8"))


def write_report(cells: Path, results: Path) -> None:
    files = sorted(cells.glob(f"{NAME}-*.json"))
    store_cells(NAME, files, results)
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    alone_seconds = {
        (record["shape"], record["trained"]): record["seconds"] for record in records if record["hosts"] == 1
    }
    rows = []
    for record in records:
        base = alone_seconds[record["shape"], record["trained"]]
        seconds = record["seconds"]
        sent = record["sent"]
        measured = record["local steps"]
        if record["program"].startswith("istmpi") and measured < LOCAL_STEPS:
            # The exchange of a short round, divided among as many steps as the other rounds have.
            seconds = base + max(seconds - base, 0.0) * measured / LOCAL_STEPS
            sent *= measured / LOCAL_STEPS
        speed = record["hosts"] * base / seconds
        rows.append(
            {
                "network": record["shape"],
                "trained": record["trained"],
                "hosts": record["hosts"],
                "line": record["rate"] if record["hosts"] > 1 else "",
                "program": record["program"],
                "s a step": f"{seconds:.2f}",
                "MB a step and host": f"{sent / 1e6:.2f}",
                "speed beside one host": f"{speed:.2f}",
                "commit": record["commit"],
            }
        )
    orders = {"network": list(SHAPES), "trained": list(RANKS), "program": list(PROGRAMS)}
    rows.sort(
        key=lambda row: (
            *(orders[name].index(row[name]) for name in ("network", "trained")),
            row["hosts"],
            row["line"],
            orders["program"].index(row["program"]),
        )
    )
    reporting.report(NAME, TITLE, rows, NOTES, folder=results, lines="emulated, TCP")


def list_cases(rates: list[str], shapes: list[str], hosts: int) -> Iterator[Case]:
    for shape in shapes:
        for trained in RANKS:
            yield Case("1gbit", shape, trained, "one host", 1)  # on any line: it sends nothing
            for rate in rates:
                for program in list(PROGRAMS)[1:]:
                    yield Case(rate, shape, trained, program, hosts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, help="the folder of the cells")
    parser.add_argument("--hosts", type=int, default=2, help="emulated hosts (2)")
    parser.add_argument("--rates", default="1gbit,100mbit", help="line rates, in tc's words")
    parser.add_argument("--shapes", type=int, nargs="*", default=[1, 0], help="numbers of networks: 0 is GPT-2 (1 0)")
    parser.add_argument("--minutes", type=float, default=600, help="no cell begins after that")
    parser.add_argument("--results", type=Path, default=reporting.RESULTS, help="where the report goes")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(Case(**json.loads(options.work)), options.out)
        return
    restore_cells(NAME, options.cells, options.results)
    if not options.report:
        why_not = obstacle()
        if why_not:
            parser.error(why_not)
        shapes = [list(SHAPES)[number] for number in options.shapes]
        run_cases(list_cases(options.rates.split(","), shapes, options.hosts), options.cells, options.minutes)
    write_report(options.cells, options.results)


def run_cases(cases: Iterator[Case], cells: Path, minutes: float) -> None:
    """Measure the cases that have no cell yet."""
    end = time.perf_counter() + 60 * minutes
    cluster = Cluster("finetuning")
    with alone("finetuning"):
        for case in cases:
            path = cells / f"{case.name}.json"
            if path.exists() or time.perf_counter() > end:
                continue
            cluster.up(case.hosts, case.rate)
            began = time.perf_counter()
            found = measure(case, cluster)
            keep_cell(path, case.name, began, asdict(case) | {"local steps": case.local_steps} | found)
            print(f"{case.name}: {found['seconds']:.2f} s a step, {found['sent'] / 1e6:.2f} MB", flush=True)
        cluster.down()


if __name__ == "__main__":
    main()
