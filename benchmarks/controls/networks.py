"""Idioms of networks: which are found, trained and refused, and whether the full network says what its subnets do.

    python -m benchmarks.controls.networks

The networks are those of tests/networks. Each is examined, and trained by IST for two rounds on two simulated ranks, on
random data of its shape. Then each unit is there twice in a full network: by the share of a half its outputs must be
those of a subnet with half the units. Of a default deal the largest difference is told, in the largest output. Method
joint trains each network for two rounds on four simulated ranks, by the command and in a loop of one's own; it counts
as trained if all losses are finite, and the bytes are those that were predicted.
"""

import argparse
import math
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import istmpi
from benchmarks.reporting import RESULTS, commit
from istmpi.comm.communicator import Communicator
from istmpi.cost import round_bytes
from istmpi.errors import IstmpiError
from istmpi.inspection.examine import inspect
from istmpi.network.architecture import Architecture
from istmpi.network.table import Table
from istmpi.simulated import simulate
from tests.networks.plain import kind_of, outputs_of, quiet, random_values, twinned
from tests.networks.plain import lengths_of as widths_of
from tests.networks.running import network, place, train
from tests.networks.table import NODES, OUTPUTS, ROWS, TOKENS, VOCABULARY, Row

ALIKE = 1e-6
"""The share of the largest output by which outputs may differ."""


def examined(row: Row, folder: Path) -> dict[str, str]:
    """Return what is found, whether it trains, and how far the full network is off."""
    try:
        table = inspect(network(row))
        found = " ".join(table.dealt) or "nothing"
        wrong = {*table.groups} - {*row.dealt.split()}
        missed = {*row.dealt.split()} - {*table.groups}
        remarks = [f"{name} is not interchangeable" for name in sorted(wrong)]
        found += "".join(f", not {name}" for name in sorted(missed)) + "".join(f"; {remark}" for remark in remarks)
    except Exception:  # training says why
        table, found = None, "-"
    run = train(row, folder, train__rounds=2)
    words = run.refused or run.stopped
    trained = f"{run.losses[0]:.2f}, {run.losses[-1]:.2f}" if run.losses else "refused"
    full = off(row, table) if run.losses and table else ""
    return {"found": found, "trained": trained, "full": full, "words": short(words, row)}


def sums_by_command(row: Row, folder: Path) -> str:
    """Return whether joint trains a network as `istmpi train` does, or the words of its refusal."""
    run = train(row, folder, ranks=4, method__name="joint", train__rounds=2)
    if run.refused or run.stopped:
        return short(run.refused or run.stopped, row)
    is_right = run.counted == run.planned and all(math.isfinite(loss) for loss in run.losses)
    return "trained" if is_right else f"wrong: losses {run.losses}, {run.counted} bytes, {run.planned} predicted"


def sums_in_own_loop(row: Row, folder: Path) -> str:
    """Return whether joint trains a network in a loop of one's own, or the words of its refusal."""
    if row.shape == NODES:
        return "a graph is for the command"
    try:
        losses, sent, planned = simulate(lambda communicator: own_loop(row, folder, communicator), 4).require()[0]
    except IstmpiError as error:
        return short(str(error), row)
    is_right = sent == planned and all(math.isfinite(loss) for loss in losses)
    return "trained" if is_right else f"wrong: losses {losses}, {sent} bytes, {planned} predicted"


def own_loop(row: Row, folder: Path, communicator: Communicator) -> tuple[list[float], int, int]:
    """Train two rounds on random values; return the losses, the bytes of all ranks and those that were predicted."""
    random = torch.Generator().manual_seed(0)
    if row.shape == TOKENS:
        x = torch.randint(0, VOCABULARY, (16, *row.shape), generator=random)
        y = torch.randint(0, VOCABULARY, (16, *row.shape), generator=random)
    else:
        x = torch.randn(16, *row.shape, generator=random, dtype=getattr(torch, row.dtype))
        y = torch.arange(16) % OUTPUTS
    settings: dict[str, Any] = {name.replace(".", "_"): value for name, value in row.settings.items()}
    settings["dtype"] = row.dtype
    job = istmpi.Distributed(
        kind_of(row),
        dict(network(row).facts),
        communicator,
        example=x[:4],
        method="joint",
        local_steps=2,
        lr=0.05,
        batch=4,
        device="cpu",
        threads=1,
        **settings,
    )
    losses = []
    for round in job.rounds(2, folder=folder / f"own-{row.name}"):
        for inputs, targets in round.take(DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)):
            outputs = round.outputs(round.module(inputs))
            loss = cross_entropy(outputs.flatten(0, -2), targets.flatten())
            losses.append(float(loss))
            round.step(loss)
    architecture = job.training.architecture
    planned = sum(sum(round_bytes(job.run, architecture, communicator.size, number)) for number in range(2))
    assert job.summary and job.summary.last
    return losses, job.summary.last.bytes, planned


def off(row: Row, table: Table) -> str:
    """Return how far the outputs of a full network of twins are from those of a subnet."""
    lengths = widths_of(row)
    groups = [name for name in table.dealt if name not in table.blocks and name not in row.means.split()]
    if {*groups} - {*row.dealt.split()}:
        return "units are mixed"
    architecture = Architecture(row.network, table, row.dtype, network(row))
    largest = 0.0
    for group in groups:
        full = quiet(architecture.build(architecture.lengths, {group: 0.5}))
        narrow = {**architecture.lengths, group: lengths[group] // 2}
        subnet = quiet(architecture.build(narrow, {group: 0.5}))
        values = random_values(subnet)
        made = outputs_of(row, subnet, values, True)
        difference = outputs_of(row, full, twinned(table, values, group, lengths), True) - made
        largest = max(largest, float(difference.abs().max() / made.abs().max()))
    return "right" if largest < ALIKE else f"off by {largest:.0%}"


def short(words: str, row: Row) -> str:
    """Return the words of a refusal without the name of the network, and no more than a line."""
    words = words.removeprefix("rank 0: ").replace(f"{place(row)}: ", "").replace("|", "/")
    words = words.replace("it has no width that can be dealt out (", "no width: ").partition(". Use another")[0]
    return f"{words[:150]} ..." if len(words) > 154 else words


def main() -> None:
    """Examine and train all networks; print and write what is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "any-network.md")
    parser.add_argument("--only", action="append", help="the name of a network; may be repeated")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [row for row in ROWS if row.name in (arguments.only or [row.name])]
    verdicts = []
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = name
        folder = Path(name)
        for row in rows:
            verdict = examined(row, folder)
            verdict["joint"] = sums_by_command(row, folder)
            verdict["loop"] = sums_in_own_loop(row, folder)
            verdicts.append(verdict)
    trained = [verdict for verdict in verdicts if verdict["trained"] != "refused"]
    other = sum(verdict["full"] not in ("right", "") for verdict in trained)
    joint, loop = (sum(verdict[way] == "trained" for verdict in verdicts) for way in ("joint", "loop"))
    lines = [
        f"{len(rows)} networks. IST trains {len(trained)}, of which {other} say something else in full, and refuses "
        f"the others. joint trains {joint} by the command and {loop} in a loop of one's own, and refuses the others.",
        "",
        "| network | idiom | found, and dealt out by default | loss of two rounds | full network | refused | joint "
        "| joint, own loop |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row, verdict in zip(rows, verdicts):
        idiom = " ".join((kind_of(row).__doc__ or "").split())
        lines.append(f"| {' | '.join([row.name, idiom, *verdict.values()])} |")
    text = "\n".join(lines) + "\n"
    print(text)
    arguments.out.write_text(f"# Any network: {len(rows)} idioms\n\n{__doc__}\nAt {commit()}.\n\n{text}")


if __name__ == "__main__":
    main()
