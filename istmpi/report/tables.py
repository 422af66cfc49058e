"""Tables of plans, costs and comparisons, for the console."""

from collections.abc import Callable, Iterator, Sequence

from rich.columns import Columns
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from istmpi.config import Run
from istmpi.config.sections import Optimizer
from istmpi.cost import Cost
from istmpi.cost.cluster import Cluster
from istmpi.cost.evaluation import pass_bytes
from istmpi.cost.survey import Row
from istmpi.models.architecture import Architecture
from istmpi.report.comparison import Comparison
from istmpi.report.sheets import notes, sheets
from istmpi.report.units import duration, number, size
from istmpi.report.verdict import verdict

CHANGING = "Shares change on the way: the figures are for equal ones. A faster rank will hold, compute and send more."
"""Said of costs where nobody knows the shares beforehand."""


def plan(console: Console, run: Run, network: Architecture, phases: Sequence[tuple[Cost, int]], alone: Cost) -> None:
    """What one run would hold, compute and send; ``alone`` is the same on one rank.

    ``phases``: the methods that it uses one after the other, each with its rounds; the shapes are the first one's.
    """
    cost = phases[0][0]
    largest, one = cost.largest, alone.largest
    console.print(
        f"[bold]{escape(run.name)}[/]: {cost.method} on {cost.ranks} ranks, "
        f"{escape(', '.join(cost.groups)) or 'nothing'} dealt out"
    )
    shapes = Table(box=None, pad_edge=False)
    for title in "parameter", "axes", "network", "largest subnet":
        shapes.add_column(title, overflow="fold")
    for name, parameter in network.parameters.items():
        pattern = parameter.pattern
        both = network.lengths, largest.part.lengths
        shapes.add_row(
            escape(name), escape(str(pattern)), *(" x ".join(map(str, pattern.shape(lengths))) for lengths in both)
        )
    console.print(shapes)
    memory, whole = largest.memory, one.memory
    costs = Table("", "each rank", "all ranks", "one process", box=None, pad_edge=False)
    products = [part.flops.products for part in cost.parts]
    costs.add_row("weights trained", number(largest.elements), number(cost.held.held_elements), number(one.elements))
    costs.add_row(
        "FLOPs a local step", number(max(products)), number(cost.flops("products")), number(one.flops.products)
    )
    costs.add_row("bytes sent a round", size(cost.round_bytes / cost.ranks), size(cost.round_bytes), size(0))
    costs.add_row("memory: owned rows", size(memory.owned), "", "")
    trained, its = (one.network + one.gradients + one.optimizer for one in (memory, whole))
    costs.add_row("memory: network, gradients, optimizer", size(trained), "", size(its))
    rest = memory.buffers + memory.activations + memory.copies
    costs.add_row("memory: buffers, activations, copies", size(rest), "", size(whole.activations + whole.copies))
    costs.add_row("memory: a pass of an evaluation, at least", size(pass_bytes(run, network, cost.ranks)), "", "")
    console.print(costs)
    if isinstance(run.method.shares, str):
        console.print(CHANGING)
    first = 0
    for phase, rounds in phases:
        consumed = number(rounds * phase.local_steps * phase.examples_per_step)
        method = f" of {phase.method}" if len({of.method for of, _ in phases}) > 1 else ""
        if len(phases) > 1 and phases[0][0].side:
            method += f" on images of {phase.side} x {phase.side} ({number(phase.flops('products'))}FLOP a local step)"
        console.print(
            f"{rounds} round{'s' * (rounds > 1)}{method} with {phase.local_steps} local steps: {consumed} examples, "
            f"{size(phase.sent_bytes(first, rounds))} sent by all ranks"
        )
        first += rounds
    steps = sum(rounds * phase.local_steps for phase, rounds in phases)
    console.print(f"learning rate {learning_rate(run.optimizer, steps)}")
    if network.inexact:
        console.print(escape(inexact(network)))


def learning_rate(optimizer: Optimizer, steps: int) -> str:
    """The learning rate of a run of so many local steps, in words."""
    words = [f"{optimizer.lr:g}"]
    if optimizer.warm_up:
        words.append(f"warmed up over {optimizer.warm_up:,} of {steps:,} local steps")
    if optimizer.schedule == "cosine":
        words.append(f"falling to 0 along a cosine over the last {steps - optimizer.warm_up:,} local steps")
    elif optimizer.schedule == "step":
        shares = " and ".join(f"{at:.4g}" for at in optimizer.milestones)
        falls = ", ".join(f"{step:,}" for step in optimizer.falls(steps))
        words.append(f"times {optimizer.decay:g} behind {shares} of the run (local steps {falls} of {steps:,})")
    return ", ".join(words)


def inexact(network: Architecture) -> str:
    """What to know of FLOPs that are told too large."""
    modules = ", ".join(module or "its own forward" for module in network.inexact)
    return f"FLOPs of subnets are less than said: those of {modules} are told as in the full network."


def _speed(row: Row) -> str:
    speed_up = row["speed_up"]
    return (
        f"{speed_up:,.0f} ({row['efficiency']:.0%})" if speed_up >= 100 else f"{speed_up:.3g} ({row['efficiency']:.0%})"
    )


TABLES: dict[str, Callable[[Row], str]] = {
    "Mfloat received a step, all ranks": lambda row: f"{row['received_floats_per_step'] / 1e6:.5g}",
    "GFLOP a step, all ranks": lambda row: f"{row['flops_per_step'] / 1e9:.2f}",
    "Sent a step and rank": lambda row: size(row["sent_bytes_per_step_and_rank"]),
    "Sent an example": lambda row: size(row["sent_bytes_per_example"]),
    "FLOPs an example": lambda row: number(row["flops_per_example"]),
    "Memory a rank": lambda row: size(row["memory_bytes"]),
    "Trained in a round": lambda row: f"{row['trained_share_per_round']:.1%}",
    "Time of an epoch": lambda row: duration(row["seconds_per_epoch"]),
    "Speed-up (efficiency)": _speed,
    "Price of an epoch": lambda row: f"{row['price_per_epoch']:.3g}",
    "Energy of an epoch": lambda row: f"{row['kwh_per_epoch']:.3g} kWh",
}
"""Each a table with a row for every number of ranks and a column for every method."""

FIGURE = 11
"""Columns that a figure needs with its unit, at most."""

NEEDS = {"Price of an epoch": "price_per_epoch", "Energy of an epoch": "kwh_per_epoch"}


def survey(console: Console, rows: Sequence[Row]) -> None:
    """All tables of a survey, side by side where the console is wide enough."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = {(row["method"], row["ranks"]): row for row in rows}
    tables = []
    for title, cell in TABLES.items():
        if title in NEEDS and NEEDS[title] not in rows[0]:
            continue
        for shown in _side_by_side(methods, console.width):
            table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
            table.min_width = min(len(title), console.width)
            table.add_column("ranks", justify="right")
            for method in shown:
                table.add_column(escape(method), justify="right", no_wrap=True)
            for ranks in sorted({row["ranks"] for row in rows}):
                found = [cells.get((method, ranks)) for method in shown]
                table.add_row(str(ranks), *(cell(row) if row else "" for row in found))
            tables.append(table)
    console.print(Columns(tables, padding=(1, 4)))


def _side_by_side(methods: Sequence[str], width: int) -> Iterator[list[str]]:
    """The methods in groups, each as many as have room in a table on a console of that width, with whole names."""
    group, used = [], len("ranks")
    for method in methods:
        needed = max(len(method), FIGURE) + 2
        if group and used + needed > width:
            yield group
            group, used = [], len("ranks")
        group.append(method)
        used += needed
    yield group


def cluster(console: Console, found: Cluster) -> None:
    """What was measured, with the median relative error of each fit."""
    table = Table("", "latency", "rate", "median error of the fit", box=None, pad_edge=False)
    for name, link in found.links.items():
        rate = f"{size(link.bandwidth)}/s" if link.seconds_per_byte else ""
        error = found.measured[name].get("median_relative_error")
        table.add_row(
            escape(name),
            f"{link.latency * 1e6:.1f} µs",
            rate,
            "one rank sends nothing" if error is None else f"{error:.0%}",
        )
    error = found.measured["transfer"]["median_relative_error"]
    table.add_row(
        "transfers",
        f"{found.transfer_seconds * 1e6:.1f} µs",
        f"{size(1 / found.handle_seconds_per_byte)}/s",
        f"{error:.0%}",
    )
    error = found.measured["products"]["median_relative_error"]
    table.add_row(
        "products", f"{found.product_seconds * 1e6:.1f} µs", f"{number(found.flops[0])}FLOP/s", f"{error:.0%}"
    )
    error = found.measured["steps"]["median_relative_error"]
    rate = f"{size(1 / found.touch_seconds_per_byte)}/s" if found.touch_seconds_per_byte else ""
    table.add_row("beside products", "", rate, f"{error:.0%}")
    table.add_row("local step", f"{found.step_seconds * 1e6:.1f} µs", "", "")
    table.add_row("deal", f"{found.deal_seconds * 1e6:.1f} µs", "", "")
    console.print(f"[bold]{escape(found.name)}[/], {escape(found.source)}")
    console.print(table)


def comparison(console: Console, found: Comparison) -> None:
    """The verdict on a comparison, all its tables one below the other, the best figures bold, and how to read them."""
    console.print(escape(verdict(found)), soft_wrap=not console.is_terminal)
    console.print()
    for sheet in sheets(found):
        console.print(f"[bold]{escape(sheet.title)}[/]", soft_wrap=True)
        table = Table(box=None, pad_edge=False)
        table.add_column(escape(sheet.corner), vertical="top")
        for name in sheet.columns:
            table.add_column(escape(name.replace(" (", "\n(").replace(", ", ",\n")), justify="right")
        for (name, cells), best in zip(sheet.rows, sheet.best or [frozenset()] * len(sheet.rows)):
            table.add_row(escape(name), *(_marked(cell, place in best) for place, cell in enumerate(cells)))
        console.print(table)
        console.print()
    for line in notes(found):
        console.print(escape(line), soft_wrap=True)


def _marked(cell: str, best: bool) -> str:
    return f"[bold]{escape(cell)}[/]" if best else escape(cell)
