"""Tables of plans, costs and comparisons, for the console."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from istmpi.config import Run
from istmpi.cost.cluster import Cluster
from istmpi.cost.evaluation import pass_bytes
from istmpi.cost.holdings import Holdings
from istmpi.cost.survey import Row
from istmpi.foreign import printable
from istmpi.models.architecture import Architecture
from istmpi.optim import schedules
from istmpi.report.comparison import Comparison
from istmpi.report.sheets import notes, sheets, verdict
from istmpi.units import counted, duration, number, size

CHANGING = (
    "Shares change during the run; these figures assume equal shares. "
    "A faster rank will hold, compute and send more."
)


def make_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Return a table without lines. Values have any type; rich does not read them as markup."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(plain(column))
    for row in rows:
        table.add_row(*map(plain, row))
    return table


def plain(value: object, style: str = "") -> Text:
    """Return a value as one line that is what it says: no markup, and no character that a terminal
    obeys."""
    return Text(printable(str(value)), style)


def in_lines(text: str, style: str = "") -> Text:
    return Text("\n").join(plain(line, style) for line in text.split("\n"))


def headed(head: object, text: object) -> Text:
    return Text.assemble(plain(head, "bold"), plain(text))


def plan(console: Console, run: Run, network: Architecture, figures: Mapping[str, Any]) -> None:
    phases, ranks = figures["phases"], figures["ranks"]
    dealt = ", ".join(figures["dealt_out"]) or "nothing"
    console.print(
        headed(run.name, f": {phases[0]['method']} on {counted(ranks, 'rank')}, {dealt} dealt out")
    )
    shapes = Table(box=None, pad_edge=False)
    for title in "parameter", "axes", "network", "largest subnet":
        shapes.add_column(title, overflow="fold")
    for each in figures["parameters"]:
        sizes = (" x ".join(map(str, each[key])) for key in ("network", "largest_subnet"))
        shapes.add_row(*map(plain, (each["name"], each["axes"], *sizes)))
    console.print(shapes)

    def memory(*kinds: str) -> tuple[str, str, str]:
        its, alone = (
            size(sum(figures[whose][kind] for kind in kinds))
            for whose in ("memory_of_largest_rank", "memory_of_one_process")
        )
        return its, "", alone

    of_whom, sent = ("largest_rank", "all_ranks", "one_process"), phases[0]["round_bytes"]
    rows = (
        ("weights trained", *(number(figures["weights"][whose]) for whose in of_whom)),
        (
            "FLOPs a local step",
            *(number(figures["flops_per_local_step"][whose]) for whose in of_whom),
        ),
        ("bytes sent a round", size(sent / ranks), size(sent), size(0)),
        ("memory: process, owned rows", memory("process", "owned")[0]),
        ("memory: network, gradients, optimizer", *memory("network", "gradients", "optimizer")),
        ("memory: buffers, activations, copies", *memory("buffers", "activations", "copies")),
        ("memory: a pass of an evaluation, at least", size(pass_bytes(run, network, ranks))),
    )
    console.print(make_table(("", "each rank", "all ranks", "one process"), rows))
    if isinstance(run.method.shares, str):
        console.print(CHANGING)
    for phase in phases:
        method = f" of {phase['method']}" if len({each["method"] for each in phases}) > 1 else ""
        if phases[0]["side"] and len(phases) > 1:
            flops = number(phase["flops_per_local_step"])
            method += f" on images of {phase['side']} x {phase['side']} ({flops}FLOP a local step)"
        console.print(
            f"{counted(phase['rounds'], 'round')}{method} with {phase['local_steps']} local steps: "
            f"{number(phase['examples'])} examples, {size(phase['sent_bytes'])} sent by all ranks"
        )
    if figures["sent_bytes"] is not None:
        console.print(
            f"this run's seed: {figures['sent_bytes']:,} bytes sent by all ranks, without evaluations"
        )
    steps = sum(phase["rounds"] * phase["local_steps"] for phase in phases)
    console.print(f"learning rate {schedules.in_words(run.optimizer, steps)}")
    for remark in (inexact(network) if network.inexact else "", figures["warning"]):
        if remark:
            console.print(plain(remark), soft_wrap=True)


def inexact(network: Architecture) -> str:
    modules = ", ".join(module or "its own forward" for module in network.inexact)
    return f"FLOPs of subnets are overestimated: {modules} count as in the full network."


FEW_UNITS, FEW_CHANNELS = 16, 256
"""The fewest units of a layer on a rank, and fewest channels of a residual stream, that give no
warning."""


def warn_of_widths(network: Architecture, held: Holdings) -> str:
    """Return a warning if subnets are too narrow to learn well, or if factors are not exact; else
    an empty text."""
    warnings = [_too_narrow(network, held)]
    for group, deviation in network.table.fading.items():
        if group in held.groups and held.ranks > 1:
            warnings.append(
                f"sums over units of {group} have no exact factor: equal halves differ by "
                f"{deviation:.1%}. This is less with more units."
            )
    text = " ".join(filter(None, warnings))
    return f"warning: {text}" if text else ""


def _too_narrow(network: Architecture, held: Holdings) -> str:
    groups = [name for name in held.groups if name not in network.blocks]
    if held.ranks == 1 or not groups:
        return ""
    axes = [axis for parameter in network.parameters.values() for axis in parameter.pattern.axes]
    segments = [segment for axis in axes for segment in axis.segments]
    lengths = network.lengths  # a unit of a multiplier is several channels
    wide = {}
    for group in groups:
        positions = [segment.length(lengths) for segment in segments if group in segment.names]
        wide[group] = min(positions) // lengths[group]
    fewest, name = min(
        (min(part.lengths[name] for part in held.parts) * wide[name], name) for name in groups
    )
    units = lengths[name] * wide[name]
    if units < FEW_CHANNELS and network.table.residual.keys() >= {*groups}:
        cure = "Give the class an argument for a width inside its blocks"
        if {*network.groups} - network.table.residual.keys():
            cure = "Deal out a width inside its blocks (method.partition)"
        return (
            f"only {name} is dealt out, a residual stream of {units} channels: subnets learn little. {cure}, "
            "or use local-sgd."
        )
    return (
        f"on {held.ranks} ranks, a rank trains {fewest} of the {units:,} units of {name}: a narrow subnet "
        "learns little. Use fewer ranks or more units."
    ) * (fewest < FEW_UNITS)


def _speed(row: Row) -> str:
    speed_up = row["speed_up"]
    return (
        f"{f'{speed_up:,.0f}' if speed_up >= 100 else f'{speed_up:.3g}'} ({row['efficiency']:.0%})"
    )


TABLES: dict[str, Callable[[Row], str]] = {
    "Mfloat received a step, all ranks": lambda row: f"{row['received_floats_per_step'] / 1e6:.5g}",
    "GFLOP a step, all ranks": lambda row: f"{row['flops_per_step'] / 1e9:.2f}",
    "Sent a step and rank": lambda row: size(row["sent_bytes_per_step_and_rank"]),
    "Memory a rank": lambda row: size(row["memory_bytes"]),
    "Time of an epoch": lambda row: duration(row["seconds_per_epoch"]),
    "Speed-up (efficiency)": _speed,
}

FIGURE = 11


def survey(console: Console, rows: Sequence[Row]) -> None:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = {(row["method"], row["ranks"]): row for row in rows}
    for title, cell in TABLES.items():
        for shown in _side_by_side(methods, console.width):
            table = Table(
                title=title, title_justify="left", title_style="bold", box=None, pad_edge=False
            )
            table.min_width = min(len(title), console.width)
            for heading in ("ranks", *shown):
                table.add_column(plain(heading), justify="right", no_wrap=heading != "ranks")
            for ranks in sorted({row["ranks"] for row in rows}):
                its = (cells.get((method, ranks)) for method in shown)
                table.add_row(str(ranks), *(cell(row) if row else "" for row in its))
            console.print(table, "")


def _side_by_side(methods: Sequence[str], width: int) -> Iterator[list[str]]:
    group, used = [], len("ranks")
    for method in methods:
        needed = max(len(method), FIGURE) + 2
        if group and used + needed > width:
            yield group
            group, used = [], len("ranks")
        group.append(method)
        used += needed
    yield group


def cluster(console: Console, cluster: Cluster) -> None:

    def fitted(name: str) -> str:
        error = cluster.measured.get(name, {}).get("median_relative_error")
        return "" if error is None else f"{error:.0%}"

    def latency(seconds: float) -> str:
        return f"{seconds * 1e6:.1f} µs"

    def rate(seconds_per_byte: float) -> str:
        """Write bytes a second. A fit gives 0 to bytes whose time it does not see; they have no
        rate to show."""
        return f"{size(1 / seconds_per_byte)}/s" if seconds_per_byte else ""

    links = [
        (name, latency(link.latency), rate(link.seconds_per_byte), fitted(name))
        for name, link in cluster.links.items()
    ]
    handled = rate(cluster.handle_seconds_per_byte)
    touched = rate(cluster.touch_seconds_per_byte)
    rows = [
        *links,
        ("transfers", latency(cluster.transfer_seconds), handled, fitted("transfer")),
        (
            "products",
            latency(cluster.product_seconds),
            f"{number(cluster.flops[0])}FLOP/s",
            fitted("products"),
        ),
        ("beside products", "", touched, fitted("steps")),
        ("local step", latency(cluster.step_seconds), "", ""),
        ("deal", latency(cluster.deal_seconds), "", ""),
    ]
    console.print(headed(cluster.name, f", {cluster.source}"))
    console.print(make_table(("", "latency", "rate", "median error of the fit"), rows))


def comparison(console: Console, compared: Comparison) -> None:
    console.print(plain(verdict(compared)), soft_wrap=not console.is_terminal)
    console.print()
    for sheet in sheets(compared):
        console.print(plain(sheet.title, "bold"), soft_wrap=True)
        table = Table(box=None, pad_edge=False)
        table.add_column(plain(sheet.corner), vertical="top")
        for name in sheet.columns:
            table.add_column(
                in_lines(name.replace(" (", "\n(").replace(", ", ",\n")), justify="right"
            )
        for (name, cells), best in zip(sheet.rows, sheet.best or [frozenset()] * len(sheet.rows)):
            marked = (
                in_lines(cell, "bold" if place in best else "") for place, cell in enumerate(cells)
            )
            table.add_row(plain(name), *marked)
        console.print(table)
        console.print()
    for line in notes(compared):
        console.print(plain(line), soft_wrap=True)
