"""Tables of plans, costs and comparisons, for the console."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from istmpi.cluster.figures import Cluster
from istmpi.cluster.survey import Row
from istmpi.config import Run
from istmpi.cost.counts import Memory
from istmpi.cost.holdings import Holdings
from istmpi.cost.passing import pass_bytes
from istmpi.foreign import printable
from istmpi.network.architecture import Architecture
from istmpi.optim import schedules
from istmpi.report.comparison import Comparison
from istmpi.report.sheets import notes, sheets, verdict
from istmpi.report.waits import describe_waits
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
    """Return a value as one line that is what it says.

    It has no markup, and no character that a terminal obeys.
    """
    return Text(printable(str(value)), style)


def in_lines(text: str, style: str = "") -> Text:
    return Text("\n").join(plain(line, style) for line in text.split("\n"))


def head_text(head: object, text: object) -> Text:
    return Text.assemble(plain(head, "bold"), plain(text))


def plan(console: Console, run: Run, network: Architecture, figures: Mapping[str, Any]) -> None:
    """Print the plan of a run; ``figures`` are those of its JSON."""
    phases = figures["phases"]
    ranks = counted(figures["ranks"], "rank")
    dealt = ", ".join(figures["dealt_out"]) or "nothing"
    console.print(head_text(run.name, f": {phases[0]['method']} on {ranks}, {dealt} dealt out"))
    console.print(_list_parameters(figures))
    of_a_pass = float(pass_bytes(run, network, figures["ranks"]))
    console.print(_list_costs(figures, of_a_pass))
    if isinstance(run.method.shares, str):
        console.print(CHANGING)
    for phase in phases:
        console.print(_describe_phase(phase, phases))
    if figures["sent_bytes"] is not None:
        sent = f"{figures['sent_bytes']:,} bytes sent by all ranks"
        console.print(f"this run's seed: {sent} in rounds")
    if not run.train.group_size:
        console.print("bytes inside groups and memory need --group-size N")
    if "group" in figures:
        console.print(_describe_group(figures["ranks"], figures["group"]))
    if "evaluations" in figures:
        console.print(_describe_evaluations(figures["evaluations"]))
    if "saving" in figures:
        console.print(f"saving: {_describe_saving(figures['saving'])}")
    if "waits" in figures and figures["ranks"] > 1:
        console.print(describe_waits(figures["waits"]))
    if "seconds" in figures:
        console.print(_describe_seconds(figures["seconds"]))
    steps = sum(phase["rounds"] * phase["local_steps"] for phase in phases)
    console.print(f"learning rate {schedules.describe(run.optimizer, steps)}")
    if network.inexact:
        console.print(plain(inexact(network)), soft_wrap=True)
    if figures["warning"]:
        console.print(plain(figures["warning"]), soft_wrap=True)


def _describe_group(ranks: int, group: Mapping[str, Any]) -> str:
    leader = size(float(Memory(**group["leader"]).total))
    member = size(float(Memory(**group["member"]).total))
    groups = counted(ranks, "replica group")
    evaluation = ""
    if group["evaluation_bytes"]:
        evaluation = f", {size(group['evaluation_bytes'])} an evaluation"
    return (
        f"{groups} of {group['members']}: {size(group['round_bytes'])} a round{evaluation} inside "
        f"all groups; memory of a leader {leader}, of another member {member}"
    )


def _describe_evaluations(evaluations: Mapping[str, Any]) -> str:
    times = "1 evaluation, after the last round"
    if evaluations["count"] > 1:
        times = (
            f"{evaluations['count']} evaluations, every {counted(evaluations['every'], 'round')}"
        )
    if evaluations["sent"] is None:
        return times
    sent = f"{evaluations['sent']:,} bytes sent by all ranks"
    if evaluations["least"] != evaluations["sent"]:
        least = f"{evaluations['least']:,}"
        sent = f"{least} to {sent}, as scores choose the form of the network"
    return f"{times}: {sent}"


def _describe_saving(planned: Mapping[str, Any]) -> str:
    if planned["sent"] is None:
        return f"not predicted ({planned['unknown']})"
    sent = f"{planned['sent']:,} bytes sent by all ranks"
    return f"{sent}; about {size(planned['rows'])} more if hosts share no folder"


def _describe_seconds(seconds: Mapping[str, Any]) -> str:
    parts = [f"{seconds['rounds']:.3g} s in rounds"]
    missing = []
    for name in ("evaluations", "saving"):
        if seconds[name] is None:
            missing.append(name)
            continue
        parts.append(f"{seconds[name]:.3g} s in {name}")
    unknown = ", ".join([*missing, "loading"])
    return f"on {seconds['cluster']}: {', '.join(parts)}; not predicted: {unknown}"


def _list_parameters(figures: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("parameter", "axes", "network", "largest subnet"):
        # A long name is broken, not cut: it may be copied.
        table.add_column(title, overflow="fold")
    for parameter in figures["parameters"]:
        whole = " x ".join(map(str, parameter["network"]))
        largest = " x ".join(map(str, parameter["largest_subnet"]))
        table.add_row(*map(plain, (parameter["name"], parameter["axes"], whole, largest)))
    return table


def _list_costs(figures: Mapping[str, Any], of_a_pass: float) -> Table:
    """Return the table of weights, FLOPs, bytes and memory of a rank, all ranks, one process.
    ``of_a_pass``: bytes of a pass of an evaluation."""
    ranks = figures["ranks"]
    # All ranks together; a process alone sends nothing.
    sent = figures["phases"][0]["round_bytes"]

    def costs(title: str, figure: str) -> tuple[str, ...]:
        values = figures[figure]
        groups = ("largest_rank", "all_ranks", "one_process")
        return (title, *(number(values[group]) for group in groups))

    def memory(title: str, *kinds: str) -> tuple[str, ...]:
        rank = sum(figures["memory_of_largest_rank"][kind] for kind in kinds)
        process = sum(figures["memory_of_one_process"][kind] for kind in kinds)
        return (f"memory: {title}", size(rank), "", size(process))

    # What a process takes of itself is the same for each, so that row has a single figure.
    process = sum(figures["memory_of_largest_rank"][kind] for kind in ("process", "owned"))
    rows = (
        costs("weights trained", "weights"),
        costs("FLOPs a local step", "flops_per_local_step"),
        ("bytes sent a round", size(sent / ranks), size(sent), size(0)),
        ("memory: process, owned rows", size(process)),
        memory("network, gradients, optimizer", "network", "gradients", "optimizer"),
        memory("buffers, activations, copies", "buffers", "activations", "copies"),
        ("memory: a pass of an evaluation, at least", size(of_a_pass)),
    )
    return make_table(("", "each rank", "all ranks", "one process"), rows)


def _describe_phase(phase: Mapping[str, Any], phases: Sequence[Mapping[str, Any]]) -> str:
    """Return a phase's rounds and costs, with what distinguishes it from other phases."""
    method = ""
    if len({other["method"] for other in phases}) > 1:
        method = f" of {phase['method']}"
    if phases[0]["side"] and len(phases) > 1:
        flops = number(phase["flops_per_local_step"])
        method += f" on images of {phase['side']} x {phase['side']} ({flops}FLOP a local step)"
    return (
        f"{counted(phase['rounds'], 'round')}{method} with {phase['local_steps']} local steps: "
        f"{number(phase['examples'])} examples, {size(phase['sent_bytes'])} sent by all ranks"
    )


def inexact(network: Architecture) -> str:
    modules = ", ".join(module or "its own forward" for module in network.inexact)
    return f"FLOPs of subnets are overestimated: {modules} count as in the full network."


FEW_UNITS = 16
"""The fewest units of a layer on a rank that give no warning."""
FEW_CHANNELS = 256
"""The fewest channels of a residual stream that give no warning."""


def warn_of_widths(network: Architecture, held: Holdings) -> str:
    """Return a warning if subnets are too narrow to learn well, or if factors are not exact.

    Otherwise return an empty text.
    """
    warnings = [_too_narrow(network, held)]
    for group, deviation in network.table.fading.items():
        if group in held.groups and held.ranks > 1:
            warnings.append(
                f"sums over units of {group} have no exact factor: equal halves differ by "
                f"{deviation:.1%}. This is less with more units."
            )
    text = " ".join(filter(None, warnings))
    if not text:
        return ""
    return f"warning: {text}"


def _too_narrow(network: Architecture, held: Holdings) -> str:
    """Return a warning if a rank gets few units of a layer; empty if it does not."""
    # Blocks are dealt out whole, so few of them make no layer narrow.
    groups = [name for name in held.groups if name not in network.blocks]
    if held.ranks == 1 or not groups:
        return ""
    lengths = network.lengths
    channels = {group: _channels_of_unit(network, group) for group in groups}
    units = []
    for group in groups:
        # A unit may stand for several channels, and narrow is what has few of these.
        fewest = min(part.lengths[group] for part in held.parts)
        units.append((fewest * channels[group], group))
    fewest, name = min(units)
    total = lengths[name] * channels[name]
    if total < FEW_CHANNELS and network.table.residual.keys() >= {*groups}:
        cure = "Give the class an argument for a width inside its blocks"
        if {*network.groups} - network.table.residual.keys():
            cure = "Deal out a width inside its blocks (method.partition)"
        return (
            f"only {name} is dealt out, a residual stream of {total} channels: subnets learn "
            f"little. {cure}, or use local-sgd."
        )
    if fewest >= FEW_UNITS:
        return ""
    return (
        f"on {held.ranks} ranks, a rank trains {fewest} of the {total:,} units of {name}: "
        "a narrow subnet learns little. Use fewer ranks or more units."
    )


def _channels_of_unit(network: Architecture, group: str) -> int:
    """Return the channels of a unit: several if the group is a multiplier of channels."""
    lengths = network.lengths
    sizes = []
    for parameter in network.parameters.values():
        for axis in parameter.pattern.axes:
            for segment in axis.segments:
                if group in segment.names:
                    sizes.append(segment.length(lengths))
    return min(sizes) // lengths[group]


def _write_speed(row: Row) -> str:
    speed_up = row["speed_up"]
    # Three digits, but no exponent for a large number.
    form = ",.0f" if speed_up >= 100 else ".3g"
    return f"{speed_up:{form}} ({row['efficiency']:.0%})"


TABLES: dict[str, Callable[[Row], str]] = {
    "Mfloat received a step, all ranks": lambda row: f"{row['received_floats_per_step'] / 1e6:.5g}",
    "GFLOP a step, all ranks": lambda row: f"{row['flops_per_step'] / 1e9:.2f}",
    "Sent a step and rank": lambda row: size(row["sent_bytes_per_step_and_rank"]),
    "Memory a rank": lambda row: size(row["memory_bytes"]),
    "Time of an epoch": lambda row: duration(row["seconds_per_epoch"]),
    "Speed-up (efficiency)": _write_speed,
}
OF_GROUPS: dict[str, Callable[[Row], str]] = {
    "Sent a round inside all groups": lambda row: size(row["sent_bytes_inside_groups_per_round"]),
    "Memory of a member that does not lead": lambda row: size(row["memory_of_member_bytes"]),
}

FIGURE = 11
"""The width of a figure in characters."""


def survey(console: Console, rows: Sequence[Row]) -> None:
    """Print a table of each cost, by ranks and methods, in the console's width."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    by_method = {(row["method"], row["ranks"]): row for row in rows}
    for title, write in (TABLES | OF_GROUPS).items():
        if title in OF_GROUPS and "members" not in rows[0]:
            continue
        for shown in _divide_by_width(methods, console.width):
            table = Table(
                title=title, title_justify="left", title_style="bold", box=None, pad_edge=False
            )
            table.min_width = min(len(title), console.width)
            for heading in ("ranks", *shown):
                table.add_column(plain(heading), justify="right", no_wrap=heading != "ranks")
            for ranks in sorted({row["ranks"] for row in rows}):
                cells = []
                for method in shown:
                    row = by_method.get((method, ranks))
                    cells.append(write(row) if row else "")
                table.add_row(str(ranks), *cells)
            console.print(table, "")


def _divide_by_width(methods: Sequence[str], width: int) -> Iterator[list[str]]:
    """Yield groups of methods whose columns are beside each other in ``width`` characters."""
    group: list[str] = []
    # The first column names the ranks.
    used = len("ranks")
    for method in methods:
        # Two spaces part the columns.
        needed = max(len(method), FIGURE) + 2
        if group and used + needed > width:
            yield group
            group = []
            used = len("ranks")
        group.append(method)
        used += needed
    yield group


def cluster(console: Console, cluster: Cluster) -> None:
    """Print a cluster's latencies and rates, with the errors of their fits."""

    def error(name: str) -> str:
        median = cluster.measured.get(name, {}).get("median_relative_error")
        if median is None:
            return ""
        return f"{median:.0%}"

    def latency(seconds: float) -> str:
        return f"{seconds * 1e6:.1f} µs"

    def rate(seconds_per_byte: float) -> str:
        """Write bytes a second; nothing for a fit of 0, which did not see the bytes' time."""
        if not seconds_per_byte:
            return ""
        return f"{size(1 / seconds_per_byte)}/s"

    rows = []
    for name, link in cluster.links.items():
        rows.append((name, latency(link.latency), rate(link.seconds_per_byte), error(name)))
    # An assumed link is not a result.
    if "inside" in cluster.measured:
        inside = cluster.inside
        times = (latency(inside.latency), rate(inside.seconds_per_byte))
        rows.append(("inside a group", *times, error("inside")))
    handled = rate(cluster.handle_seconds_per_byte)
    flops = f"{number(cluster.flops[0])}FLOP/s"
    rows += [
        ("transfers", latency(cluster.transfer_seconds), handled, error("transfer")),
        ("products", latency(cluster.product_seconds), flops, error("products")),
        ("beside products", "", rate(cluster.touch_seconds_per_byte), error("steps")),
    ]
    fixed = {"local step": cluster.step_seconds, "deal": cluster.deal_seconds}
    fixed |= {"small call": cluster.call_seconds, "file of a save": cluster.save_seconds}
    fixed["evaluation"] = cluster.evaluation_seconds
    rows += [(name, latency(seconds), "", "") for name, seconds in fixed.items()]
    console.print(head_text(cluster.name, f", {cluster.source}"))
    console.print(make_table(("", "latency", "rate", "median error of the fit"), rows))


def comparison(console: Console, compared: Comparison) -> None:
    """Print the verdict, the tables and the notes of a comparison."""
    # A log's lines are not broken, so that they can be searched.
    console.print(plain(verdict(compared)), soft_wrap=not console.is_terminal)
    console.print()
    for sheet in sheets(compared):
        console.print(plain(sheet.title, "bold"), soft_wrap=True)
        table = Table(box=None, pad_edge=False)
        table.add_column(plain(sheet.corner), vertical="top")
        for name in sheet.columns:
            # Settings of a group stand in lines of their own, for a narrow column.
            lines = name.replace(" (", "\n(").replace(", ", ",\n")
            table.add_column(in_lines(lines), justify="right")
        for (name, cells), best in zip(sheet.rows, sheet.best or [frozenset()] * len(sheet.rows)):
            marked = []
            for place, cell in enumerate(cells):
                marked.append(in_lines(cell, "bold" if place in best else ""))
            table.add_row(plain(name), *marked)
        console.print(table)
        console.print()
    for line in notes(compared):
        console.print(plain(line), soft_wrap=True)
