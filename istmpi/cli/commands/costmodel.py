"""``istmpi costmodel``: what a run will cost, before it runs, on a login node or a laptop."""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from istmpi.cli import quantities
from istmpi.cli.completion import complete_runs
from istmpi.cli.networks import DEGREE, FEATURES_IN_A_ROW, NODES, Sizes, described
from istmpi.cli.quantities import WholeRange
from istmpi.cli.settings import changes, planning, resolve
from istmpi.config import Run
from istmpi.cost import RIVALS, counted
from istmpi.cost import survey as costs
from istmpi.cost.advice import advise
from istmpi.cost.cluster import LEAST, Cluster, load, network, preset
from istmpi.cost.survey import Scenario
from istmpi.errors import ConfigError, OutputError
from istmpi.foreign import MOST, is_file, one_line
from istmpi.methods import METHODS
from istmpi.names import is_module
from istmpi.report import tables
from istmpi.report.units import number, size

EXAMPLES = 1_000_000
"""In an epoch, where there are no data to count."""
_AMOUNT = quantities.FiniteRange(min=LEAST, max=MOST)
COMPARED = ("data-parallel-broadcast", "data-parallel", "local-sgd", "ist")


@click.command("costmodel")
@click.argument("run", required=False, shell_complete=complete_runs)
@planning
@click.option("--examples", type=WholeRange(min=1), metavar="N", help="In an epoch.  [default: the data's]")
@click.option("--row-features", type=WholeRange(min=1), metavar="N", help="xc with --layers: of a row.  [default: 75]")
@click.option(
    "--nodes", type=WholeRange(min=1), metavar="N", help="gcn, sage with --layers: of a batch.  [default: 100000]"
)
@click.option(
    "--degree", type=_AMOUNT, metavar="N", help="gcn, sage with --layers: neighbours of a node.  [default: 20]"
)
@click.option("--ranks", metavar="P,P,...", help="Numbers of ranks, as 1,2,4, or 1..1024.  [default: 1..32]")
@click.option("--compare", metavar="NAME,...", help=f"What to compare, or all: {', '.join([*METHODS, *RIVALS])}.")
@click.option("--cluster", metavar="NAME|FILE", default="m5.2xlarge", show_default=True, help="A preset or a file.")
@click.option("--bandwidth", metavar="RATE", help="Of a rank in each direction: 2.5Gbit, 300MB.")
@click.option("--latency", metavar="TIME", help="Of a message: 100us.")
@click.option("--flops", metavar="RATE", help="FLOP/s of a rank, or of each: 250G or 250G,250G,100G.")
@click.option("--memory", metavar="SIZE", help="Of a rank: 16GB.")
@click.option("--price", type=_AMOUNT, metavar="MONEY", help="Of a node for an hour.")
@click.option("--watts", type=_AMOUNT, metavar="W", help="Of a node.")
@click.option(
    "--advise",
    "advice",
    is_flag=True,
    help="Method, ranks and local steps to take, why, and the links that methods need: six lines.",
)
@click.option(
    "--most-ranks",
    type=WholeRange(2, quantities.MOST_RANKS),
    default=8,
    show_default=True,
    metavar="P",
    help="For --advise.",
)
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="The figures as CSV.")
@click.option("--plot", metavar="FILE", help="Draw them: .png, .svg or .pdf.")
def command(
    run: str | None,
    assignments: tuple[str, ...],
    layers: str | None,
    examples: int | None,
    row_features: int | None,
    nodes: int | None,
    degree: float | None,
    ranks: str | None,
    compare: str | None,
    advice: bool,
    most_ranks: int,
    as_json: bool,
    as_csv: bool,
    plot: str | None,
    **given: str | None,
) -> None:
    """Say what RUN will cost, as `istmpi train` would run it; without RUN, the paper's Figure 2.

    \b
    istmpi costmodel
    istmpi costmodel speech --layers 4096-4096-35 --examples 84843 --cluster 1gbit --advise
    mpirun -n 8 istmpi measure --out here.json; istmpi costmodel digits --cluster here.json
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other.")
    cluster = _cluster(given)
    sizes = Sizes(row_features or FEATURES_IN_A_ROW, nodes or NODES, DEGREE if degree is None else degree)
    scenario = _scenario(run, assignments, given, layers, examples, cluster, sizes)
    console = Console(emoji=False, highlight=False, soft_wrap=True)
    if advice:
        for line in advise(scenario, most_ranks):
            console.print(escape(line))
        return
    methods = _methods(compare, scenario)
    counts = _ranks(ranks, scenario)
    rows = costs.survey(scenario, methods, counts)
    if not rows:
        raise ConfigError(f"--ranks {ranks}: {' '.join(_ends(scenario, methods, counts[0]))} Ask for fewer.")
    if as_json:
        print(json.dumps({"title": _title(scenario), "cluster": cluster.name, "rows": rows}, indent=1))
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    else:
        _print(scenario, methods, counts, rows)
    if plot:
        _draw(rows, scenario, Path(plot))


def _cluster(given: dict[str, str | None]) -> Cluster:
    """The cluster that the options name, changed as they say."""
    name = given["cluster"]
    path = Path(name)
    cluster = load(path) if path.suffix == ".json" or is_file(path) else preset(name)
    changed = {}
    if given["bandwidth"] or given["latency"]:
        link = cluster.links["alltoallv"]
        latency, rate = link.latency, link.bandwidth
        if given["latency"]:
            latency = quantities.latency("--latency", given["latency"])
        if given["bandwidth"]:
            rate = quantities.bandwidth("--bandwidth", given["bandwidth"])
        changed["links"] = network(latency, rate)
    if given["flops"]:
        changed["flops"] = quantities.speeds("--flops", given["flops"])
    if given["memory"]:
        changed["memory"] = quantities.memory("--memory", given["memory"])
    changed |= {option: given[option] for option in ("price", "watts") if given[option] is not None}
    if not changed:
        return cluster
    return replace(cluster, **changed, name=f"{cluster.name} with {', '.join(f'--{one}' for one in _named(given))}")


def _named(given: dict[str, str | None]) -> list[str]:
    wanted = ("bandwidth", "latency", "flops", "memory", "price", "watts")
    return [option for option in wanted if given[option] is not None]


def _scenario(
    name: str | None,
    assignments: tuple[str, ...],
    given: dict[str, str | None],
    layers: str | None,
    examples: int | None,
    cluster: Cluster,
    sizes: Sizes,
) -> Scenario:
    """What is to be reckoned."""
    shape = None
    paper = name is None and not is_module(given["model"])
    if paper:
        changed = changes(assignments, given)
        run = Run(name="Figure 2 of the paper").override({**costs.FIGURE_2, **changed})
        if "data.source" not in changed:
            shape = costs.FIGURE_2_FEATURES, costs.FIGURE_2_LABELS
    else:
        run = resolve(name or "digits", assignments, given)
    found = described(run, layers, shape, sizes)
    examples = examples or found.examples or EXAMPLES
    return Scenario(found.run, found.architecture, cluster, examples, shared_batch=paper)


def _methods(compare: str | None, scenario: Scenario) -> list[str]:
    """What to compare: of what was not named only methods for which the network has something to deal out."""
    own = scenario.run.method.name
    named = [own] if compare in (None, "all") else compare.split(",")
    for method in named:
        counted(method)  # refuses one that has no cost
        if not scenario.can(method):
            scenario.architecture.require_dealable(())
    if compare is None:
        named = [*COMPARED, *([own] if own not in COMPARED else [])]
    elif compare == "all":
        named = [*RIVALS, *METHODS]
    return [method for method in dict.fromkeys(named) if scenario.can(method)]


def _ranks(text: str | None, scenario: Scenario) -> list[int]:
    shares = counted(scenario.run.method.name).shares(scenario.run)
    given = [len(one) for one in (shares, scenario.cluster.flops) if one and len(one) > 1]
    if text is None and given:
        return [given[0]]
    return quantities.ranks("--ranks", text or "1..32")


def _title(scenario: Scenario) -> str:
    run, widths = scenario.run, scenario.architecture.outline
    batch = "in all for data parallel, a rank for the others" if scenario.shared_batch else "a rank"
    return f"{run.name}: {widths}, batch {run.train.batch} {batch}, J = {run.method.local_steps}"


def _print(scenario: Scenario, methods: list[str], counts: list[int], rows: list[costs.Row]) -> None:
    console = Console(emoji=False, highlight=False)
    cluster = scenario.cluster
    link = cluster.links["alltoallv"]
    speed = " ".join(f"{number(flops)}FLOP/s" for flops in sorted({*cluster.flops}))
    console.print(f"[bold]{escape(_title(scenario))}[/]", soft_wrap=True)
    if scenario.shared_batch:
        console.print("Without RUN this is the paper's network, not yours: istmpi costmodel RUN.", soft_wrap=True)
    console.print(
        f"On {escape(cluster.name)}: {number(8 * link.bandwidth)}bit/s, {link.latency * 1e6:.4g} µs, {speed} a "
        f"rank ({escape(cluster.source)}). An epoch has {scenario.examples:,} examples.\n",
        soft_wrap=True,
    )
    tables.survey(console, rows)
    console.print()
    for line in _remarks(scenario, methods, counts):
        console.print(escape(line), soft_wrap=True)


def _remarks(scenario: Scenario, methods: list[str], counts: list[int]) -> list[str]:
    """How to read the tables, where IST overtakes, where a deal ends, and what fits into memory."""
    lines = [
        "Received: one way, own elements included, and FLOPs with the first input gradient, as the paper counts. "
        "Sent: what MPI is handed.",
        "Speed-up counts examples, not accuracy: with IST an example trains only the subnet that it meets.",
    ]
    if scenario.shared_batch:
        lines.append(
            "Data parallel divides the batch among the ranks, as the paper counts; of a RUN each takes it whole."
        )
    most = max(counts)
    own = scenario.run.method.name
    if most > 1 and len(scenario.cluster.flops) == 1 and counted(own).shares(scenario.run) is None:
        lines += [_overtakes(scenario, own, rival, most) for rival in methods if rival != own]
    if isinstance(scenario.run.method.shares, str):
        lines.append(tables.CHANGING)
    lines += _ends(scenario, methods, most)
    if scenario.cluster.memory and scenario.architecture.groups:
        lines += _fits(scenario, methods, most)
    if scenario.architecture.inexact:
        lines.append(tables.inexact(scenario.architecture))
    return lines


def _ends(scenario: Scenario, methods: list[str], most: int) -> list[str]:
    """Which methods' deals end before so many ranks, and why."""
    limits = {method: scenario.most_ranks(method) for method in methods}
    return [
        f"{method} ends at {limit} ranks: {scenario.narrowest(method)} has {limit} units."
        for method, limit in limits.items()
        if limit is not None and limit < most
    ]


def _overtakes(scenario: Scenario, own: str, rival: str, most: int) -> str:
    ranks = costs.first_ranks(scenario, own, rival, 100_000)
    at = f"at no P with J = {scenario.run.method.local_steps}" if ranks is None else f"from P = {ranks}"
    most = min(most, *(scenario.most_ranks(method) or most for method in (own, rival)))
    steps = costs.first_local_steps(scenario, own, rival, most)
    with_j = "at no J" if steps is None else f"from J = {steps}"
    return f"{own} overtakes {rival} in examples a second {at}; at P = {most} {with_j}."


def _reaches(scenario: Scenario, method: str, ranks: int) -> bool:
    return ranks <= (scenario.most_ranks(method) or ranks)


def _fits(scenario: Scenario, methods: list[str], most: int) -> list[str]:
    lines = []
    for method in methods:
        if not _reaches(scenario, method, most):
            continue
        lengths = costs.widest(scenario, method, most, scenario.cluster.memory)
        shown = "no network"
        if lengths is not None:
            shown = costs.resized(scenario.architecture, lengths).outline.removeprefix("with ")
        lines.append(f"Largest that fits {size(scenario.cluster.memory)} a rank at P = {most} with {method}: {shown}.")
    return lines


def _draw(rows: list[costs.Row], scenario: Scenario, path: Path) -> None:
    try:
        from istmpi.report.cost_plots import draw

        draw(rows, f"{_title(scenario)}; times on {scenario.cluster.name}", path)
    except ImportError:
        raise OutputError("--plot needs matplotlib: pip install 'istmpi[plots]'.") from None
    click.echo(one_line(f"drawn: {path}"), err=True)
