"""The link rate that each method needs to compute 95% of its time, by the cost model, for the networks that ship.

    python -m benchmarks.scale.link_rates  # prints the table of docs/costs.md, in a minute
    python -m benchmarks.scale.link_rates --write  # puts it there

Nothing is trained or timed: the rates follow from bytes and FLOPs alone. A rank computes as many FLOP/s as the preset
``m5.2xlarge`` says, messages have no latency, and a method that sends while it computes is given that time.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.cli.networks import describe_run
from istmpi.cluster import time
from istmpi.cluster.figures import Cluster, preset
from istmpi.cluster.time import round_time
from istmpi.config import Run
from istmpi.cost import cost
from istmpi.network.architecture import Architecture

PAGE = Path(__file__).parents[2] / "docs" / "costs.md"
RANKS, LOCAL_STEPS = 8, 20
TENTH = "ist, redeal 0.1"
METHODS = (
    "ist",
    TENTH,
    "local-sgd",
    "diloco",
    "streaming-diloco",
    "sparse-loco",
    "dynamic-averaging",
    "codistillation",
    "data-parallel",
)
"""fedavg is left out: its rounds are passes, not local steps."""


@dataclass(frozen=True)
class Network:
    """A line of the table: a run, and what is changed in it."""

    name: str
    run: str
    layers: str | None = None
    data: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


DECLARED = (
    Network("mlp 64-512-512-10", "digits", "64-512-512-10"),
    Network("mlp 4096-4096-35", "speech", "4096-4096-35"),
    Network("mlp 4096-8192-8192-35", "speech", "4096-8192-8192-35"),
    Network("mlp 3072-2048-2048-10", "cifar10", "3072-2048-2048-10"),
    Network("xc 135909-512-670091", "xc", "135909-512-670091"),
    Network("gcn 128-256-256-40, 100,000 nodes", "graph", "128-256-256-40"),
)
"""Those that are planned without running their code."""
PROVED = (
    Network("resnet 18, 32 x 32", "cifar10", data="images", settings={"model.name": "resnet"}),
    Network("vgg 11, 32 x 32", "cifar10", data="images", settings={"model.name": "vgg"}),
    Network("transformer, 4 layers, 256 wide", "digits", data="text", settings={"model.name": "transformer"}),
)


def lines(networks: Sequence[Network]) -> Iterator[str]:
    """The table's lines of some networks."""
    with tempfile.TemporaryDirectory() as folder:
        for one in networks:
            yield _line(one, Path(folder))


def head() -> list[str]:
    """The table's first two lines."""
    titles = ["network", "batch of a rank", "weights, MB", "ms a step of IST, of local SGD", *METHODS]
    return [f"| {' | '.join(titles)} |", f"| --- |{' ---: |' * (len(titles) - 1)}"]


def link_rate(run: Run, architecture: Architecture, method: str, cluster: Cluster) -> float:
    """Bits per second, in each direction, at which a rank computes so much of a round's time."""
    return time.link_rate(cost(run, architecture, RANKS, method), cluster)


def _line(one: Network, folder: Path) -> str:
    run = Run.load(one.run).override({**one.settings, "method.local_steps": LOCAL_STEPS})
    if one.data:
        run = run.override({"data.source": _data(one.data, folder)})
    found = describe_run(run, one.layers)
    run, architecture, cluster = found.run, found.architecture, preset("m5.2xlarge")
    tenth = run.override({"method.redeal": 0.1})
    plans = [cost(run, architecture, RANKS, method) for method in ("ist", "local-sgd")]
    step = [1e3 * round_time(plan, cluster).compute / LOCAL_STEPS for plan in plans]
    megabytes = plans[0].held.network_bytes / 1e6
    rates = [
        _shown(link_rate(tenth if method == TENTH else run, architecture, method.split(",")[0], cluster))
        for method in METHODS
    ]
    batch = "the graph" if run.model.name == "gcn" else str(run.train.batch)
    cells = [one.name, batch, _rounded(megabytes, 3), f"{_rounded(step[0], 3)}, {_rounded(step[1], 3)}", *rates]
    return f"| {' | '.join(cells)} |"


def _shown(rate: float) -> str:
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if rate >= size:
            return f"{_rounded(rate / size, 2)} {unit}"
    return f"{_rounded(rate / 1e3, 2)} kbit/s"


def _rounded(number: float, digits: int) -> str:
    return f"{float(f'{number:.{digits}g}'):,.10g}"


def _data(kind: str, folder: Path) -> str:
    """A file whose examples have the shape of such data; no value matters."""
    if kind == "images":
        x, y = np.zeros((20, 3, 32, 32), np.uint8), np.arange(20) % 10
        np.savez(folder / "images.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        return str(folder / "images.npz")
    from click.testing import CliRunner

    from istmpi.cli.main import istmpi

    (folder / "text.txt").write_text("what a network reads. " * 2000)
    arguments = ["prepare", "text", str(folder / "text.txt"), str(folder / "text.h5")]
    CliRunner().invoke(istmpi, arguments, standalone_mode=False, catch_exceptions=False)
    return str(folder / "text.h5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/costs.md")
    table = [*head(), *lines((*DECLARED, *PROVED))] if parser.parse_args().write else None
    if table is None:
        for line in (*head(), *lines((*DECLARED, *PROVED))):
            print(line, flush=True)
        return
    page = PAGE.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(page) if line.startswith("| network |"))
    last = next(number for number, line in enumerate(page[first:], first) if not line.startswith("|"))
    PAGE.write_text("\n".join([*page[:first], *table, *page[last:], ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
