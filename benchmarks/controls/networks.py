"""Idioms of networks: which are found, trained and refused, and whether the full network says what its subnets do.

    python -m benchmarks.controls.networks --json any-network.json             # keeps a state
    python -m benchmarks.controls.networks --before any-network.json           # sets the state of now beside it

The networks are those of tests/networks. Each is examined, and trained by IST for two rounds on two simulated ranks, on
random data of its shape. Then each unit is there twice in a full network: by the share of a half its outputs must be
those of a subnet with half the units. Of a default deal the largest difference is told, in the largest output.
"""

import argparse
import json
import os
import tempfile
import warnings
from pathlib import Path

from benchmarks.reporting import RESULTS, commit
from istmpi.inspection.examine import inspect
from istmpi.network.architecture import Architecture
from tests.networks.plain import kind_of, outputs_of, quiet, random_values, twinned
from tests.networks.plain import lengths_of as widths_of
from tests.networks.running import network, place, train
from tests.networks.table import ROWS, Row

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


def off(row: Row, table: object) -> str:
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


def summary(verdicts: dict[str, dict[str, str]]) -> str:
    """Return the counts of a state."""
    trained = [verdict for verdict in verdicts.values() if verdict["trained"] != "refused"]
    refused = [row for row in ROWS if row.network in verdicts and verdicts[row.network]["trained"] == "refused"]
    truly = sum(bool(row.trains) for row in refused)
    wrong = sum(verdict["full"] not in ("right", "") for verdict in trained)
    text = f"{len(verdicts)} networks: {len(trained)} are trained, of which {wrong} say something else in full; "
    return text + f"{len(refused)} are refused, {truly} of which could be trained."


def main() -> None:
    """Examine all networks; print and write what is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS / "any-network.md")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        verdicts = {row.network: examined(row, Path(folder)) for row in ROWS}
    if arguments.json:
        arguments.json.write_text(json.dumps(verdicts, indent=1) + "\n")
    before = json.loads(arguments.before.read_text()) if arguments.before else {}
    states = [before, verdicts] if before else [verdicts]
    heads = ["found, and dealt out by default", "loss of two rounds", "full network", "refused"]
    lines = [f"- {name}: {summary(state)}" for name, state in zip(("before", "now"), states)]
    columns = [f"{head}{', now' * number}" for number in range(len(states)) for head in heads]
    lines += ["", f"| network | idiom | {' | '.join(columns)} |", f"| {' | '.join(['---'] * (len(columns) + 2))} |"]
    for row in ROWS:
        keys = ("found", "trained", "full", "words")
        cells = [state[row.network][key] if row.network in state else "not tried" for state in states for key in keys]
        lines.append(f"| {row.name} | {' '.join((kind_of(row).__doc__ or '').split())} | {' | '.join(cells)} |")
    text = "\n".join(lines) + "\n"
    print(text)
    arguments.out.write_text(f"# Any network: {len(ROWS)} idioms\n\n{__doc__}\nAt {commit()}.\n\n{text}")


if __name__ == "__main__":
    main()
