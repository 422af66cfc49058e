"""Predict a run's bytes, FLOPs, memory and time, without training."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from istmpi.cli import options
from istmpi.cli.networks import DEGREE, FEATURES_IN_A_ROW, NODES, describe_run
from istmpi.cli.options import as_json, real, text, whole
from istmpi.cli.output import console, print_json, say, table
from istmpi.cli.run_options import add_planning_options, changes, resolve, run_argument
from istmpi.cluster import survey as costs
from istmpi.cluster.advice import COLUMNS, Advice, advise
from istmpi.cluster.figures import LEAST, Cluster, Link, find_cluster, network
from istmpi.cluster.survey import Scenario
from istmpi.config import Run
from istmpi.config.methods import METHODS
from istmpi.cost import RIVALS, find_method
from istmpi.errors import ConfigError, OutputError
from istmpi.foreign import MOST
from istmpi.methods.group_limits import require_groups
from istmpi.names import is_module
from istmpi.report import tables
from istmpi.units import counted, number

EXAMPLES = 1_000_000
COMPARED = ("data-parallel-broadcast", "data-parallel", "local-sgd", "ist")
CLUSTER_OPTIONS = ("bandwidth", "latency", "flops", "memory")


@click.command("costmodel")
@run_argument
@add_planning_options
@whole("--examples", "N", "Examples in an epoch.  [default: from the data]", 1)
@whole("--row-features", "N", "xc with --layers: features in a row.", 1, default=FEATURES_IN_A_ROW)
@whole("--nodes", "N", "gcn, sage with --layers: nodes in a batch.", 1, default=NODES)
@real(
    "--degree", "N", "gcn, sage with --layers: neighbours of a node.", LEAST, MOST, default=DEGREE
)
@text("--ranks", "P,P,...", "Numbers of ranks: 1,2,4 or 1..1024.  [default: 1..32]")
@text("--compare", "NAME,...", f"Methods to compare, or all: {', '.join([*METHODS, *RIVALS])}.")
@text("--cluster", "NAME|FILE", "Cluster: a preset or a file.", default="m5.2xlarge")
@text("--bandwidth", "RATE", "Bandwidth of a rank in each direction: 2.5Gbit, 300MB.")
@text("--latency", "TIME", "Latency of a message: 100us.")
@text("--flops", "RATE", "FLOP/s of every rank, or of each: 250G or 250G,250G,100G.")
@text("--memory", "SIZE", "Memory of a rank: 16GB.")
@click.option(
    "--advise",
    "advice",
    is_flag=True,
    help="Recommend method, ranks and local steps, and report the links that methods need.",
)
@whole("--most-ranks", "P", "For --advise.", 2, options.MOST_RANKS, default=8)
@as_json
@text("--plot", "FILE", "Plot the figures to a .png, .svg or .pdf.")
def command(
    run: str | None,
    assignments: tuple[str, ...],
    layers: str | None,
    examples: int | None,
    row_features: int,
    nodes: int,
    degree: float,
    ranks: str | None,
    compare: str | None,
    advice: bool,
    most_ranks: int,
    as_json: bool,
    plot: str | None,
    **parameters: Any,
) -> None:
    """Predict the cost of RUN as istmpi train would run it. Without RUN, predict Figure 2 of the
    IST paper.

    \b
    istmpi costmodel
    istmpi costmodel speech --layers 4096-4096-35 --examples 84843 --cluster 1gbit --advise
    mpirun -n 8 istmpi measure --out here.json; istmpi costmodel digits --cluster here.json
    """
    if advice:
        _require_none({"--json": as_json, "--ranks": ranks, "--compare": compare, "--plot": plot})
    cluster = _cluster(parameters)
    is_paper = run is None and not is_module(parameters["model"])
    shape = None
    if is_paper:
        resolved, shape = _describe_paper(changes(assignments, parameters))
    else:
        resolved = resolve(run, assignments, parameters, methods=_list_compared(compare))
    planned = describe_run(resolved, layers, shape, row_features, nodes, degree)
    examples = examples or planned.examples or EXAMPLES
    scenario = Scenario(planned.run, planned.architecture, cluster, examples, shared_batch=is_paper)
    if advice:
        return _advise(advise(scenario, most_ranks))
    return _survey(scenario, compare, ranks, as_json, plot)


def _require_none(values: Mapping[str, Any]) -> None:
    """Raise UsageError for options that do not go with --advise."""
    for option, value in values.items():
        if value:
            raise click.UsageError(f"{option} does not go with --advise.")


def _describe_paper(changed: Mapping[str, Any]) -> tuple[Run, tuple[int, int] | None]:
    """Return the run of the paper's Figure 2, and its numbers of features and labels."""
    run = Run(name="Figure 2 of the paper").override({**costs.FIGURE_2, **changed})
    if "data.source" in changed:
        return run, None
    return run, (costs.FIGURE_2_FEATURES, costs.FIGURE_2_LABELS)


def _list_compared(compare: str | None) -> list[str]:
    """Return the methods that --compare names."""
    if compare == "all":
        return [*METHODS]
    return compare.split(",") if compare else []


def _survey(
    scenario: Scenario, compare: str | None, ranks: str | None, as_json: bool, plot: str | None
) -> None:
    """Print and plot the cost of methods on numbers of ranks."""
    cluster = scenario.cluster
    methods = _methods(compare, scenario)
    counts = _ranks(ranks, scenario)
    rows = costs.survey(scenario, methods, counts)
    # No method has units for so many ranks.
    if not rows:
        ends = " ".join(_ends(scenario, methods, counts[0]))
        raise ConfigError(f"--ranks {ranks}: {ends} Give fewer ranks.")
    if as_json:
        figures: dict[str, Any] = {"title": _title(scenario), "cluster": cluster.name}
        if scenario.run.train.group_size > 1:
            figures["inside"] = asdict(cluster.inside)
        print_json({**figures, "rows": rows})
    else:
        _print(scenario, methods, max(counts), rows)
    if plot:
        _plot(rows, f"{_title(scenario)}; times on {cluster.name}", plot)


def _plot(rows: Sequence[costs.Row], title: str, file: str) -> None:
    from istmpi.report.cost_plots import draw_costs

    try:
        draw_costs(rows, title, Path(file))
    except ImportError:
        raise OutputError("--plot needs matplotlib: pip install 'istmpi[plots]'.") from None
    say(f"drawn: {file}", err=True)


def _cluster(parameters: Mapping[str, Any]) -> Cluster:
    """Return the cluster of --cluster with the figures of the other options."""
    cluster = find_cluster(parameters["cluster"])
    texts = {
        option: parameters[option] for option in CLUSTER_OPTIONS if parameters[option] is not None
    }
    if not texts:
        return cluster
    changed: dict[str, Any] = {}
    if texts.get("latency") or texts.get("bandwidth"):
        # An option that is not given keeps the figure of the cluster's main link.
        link = cluster.links["alltoallv"]
        latency = link.latency
        bandwidth = link.bandwidth
        if texts.get("latency"):
            latency = options.latency("--latency", texts["latency"])
        if texts.get("bandwidth"):
            bandwidth = options.bandwidth("--bandwidth", texts["bandwidth"])
        changed["links"] = network(latency, bandwidth)
    if "flops" in texts:
        changed["flops"] = options.speeds("--flops", texts["flops"])
    if "memory" in texts:
        changed["memory"] = options.memory("--memory", texts["memory"])
    named = ", ".join(f"--{option}" for option in texts)
    return replace(cluster, **changed, name=f"{cluster.name} with {named}")


def _methods(compare: str | None, scenario: Scenario) -> list[str]:
    """Return the methods to compare. Raises ConfigError for one that the network cannot use."""
    method_of_run = scenario.method.name
    if compare is None or compare == "all":
        named = [method_of_run]
    else:
        named = compare.split(",")
    for method in named:
        find_method(method)  # refuses one that has no cost
        train = scenario.run.train
        require_groups(train, method, scenario.architecture, train.group_size)
        if not scenario.can(method):
            scenario.architecture.require_dealable(())
    if compare is None:
        # Repeated names are dropped below.
        named = [*COMPARED, method_of_run]
    elif compare == "all":
        named = [*RIVALS, *METHODS]
    # Methods that the user did not name are left out if they are impossible.
    return list(filter(scenario.can, dict.fromkeys(named)))


def _ranks(text: str | None, scenario: Scenario) -> list[int]:
    method = scenario.method.name
    shares = find_method(method).shares(scenario.run)
    if text is None:
        # A value for each rank says how many ranks there are.
        for values in (shares, scenario.cluster.flops):
            if values and len(values) > 1:
                return [len(values)]
        counts = options.ranks("--ranks", "1..32")
        return [count for count in counts if scenario.divides(method, count)]
    return options.ranks("--ranks", text)


def _title(scenario: Scenario) -> str:
    run = scenario.run
    batch = "a rank"
    if scenario.shared_batch:
        batch = "in total for data parallel, per rank for the others"
    return (
        f"{run.name}: {scenario.architecture.outline}, batch {run.train.batch} {batch}, "
        f"J = {run.method.local_steps}"
    )


def _advise(advice: Advice) -> None:
    listing = table(*COLUMNS)
    for row in advice.rows:
        listing.add_row(*row)
    stdout = console(soft_wrap=True)
    stdout.print(advice.first, "", listing, "", *advice.notes, sep="\n")


def _print(scenario: Scenario, methods: list[str], ranks: int, rows: Sequence[costs.Row]) -> None:
    stdout = console()
    cluster = scenario.cluster
    link = cluster.links["alltoallv"]
    # Equal ranks are one speed.
    speed = " ".join(f"{number(flops)}FLOP/s" for flops in sorted({*cluster.flops}))
    stdout.print(_title(scenario), style="bold", soft_wrap=True)
    if scenario.shared_batch:
        stdout.print(
            "This is the paper's network; for yours: istmpi costmodel RUN.", soft_wrap=True
        )
    examples = counted(scenario.examples, "example")
    stdout.print(
        f"On {cluster.name}: {_write_rate(link)}, {link.latency * 1e6:.4g} µs, {speed} a "
        f"rank ({cluster.source}). An epoch has {examples}.",
        soft_wrap=True,
    )
    for line in _describe_groups(scenario):
        stdout.print(line, soft_wrap=True)
    stdout.print()
    tables.survey(stdout, rows)
    stdout.print()
    for line in _remarks(scenario, methods, ranks):
        stdout.print(line, soft_wrap=True)


def _describe_groups(scenario: Scenario) -> Iterator[str]:
    """Yield a line on replica groups, if a rank is one, and on the link between members."""
    members = scenario.run.train.group_size
    if members < 2:
        return
    inside = scenario.cluster.inside
    source = "assumed"
    if "inside" in scenario.cluster.measured:
        source = "measured"
    yield (
        f"A rank is a replica group of {members} processes. Their link: {_write_rate(inside)}, "
        f"{inside.latency * 1e6:.4g} µs ({source})."
    )


def _write_rate(link: Link) -> str:
    # A measured link without seconds a byte saw no difference between sizes.
    if not link.seconds_per_byte:
        return "any rate"
    return f"{number(8 * link.bandwidth)}bit/s"


def _remarks(scenario: Scenario, methods: list[str], ranks: int) -> Iterator[str]:
    """Yield the lines below the tables, on how to read them."""
    yield (
        "Received counts as the paper does: one way, with a rank's own elements. FLOPs include the "
        "first input gradient. Sent: bytes given to MPI."
    )
    yield "Speed-up counts examples, not accuracy: with IST an example trains only one subnet."
    if scenario.shared_batch:
        yield (
            "Data parallel splits the batch among the ranks, as in the paper; in a RUN each rank "
            "takes a whole batch."
        )
    if isinstance(scenario.method.shares, str):
        yield tables.CHANGING
    yield from _ends(scenario, methods, ranks)
    if scenario.architecture.inexact:
        yield tables.inexact(scenario.architecture)


def _ends(scenario: Scenario, methods: list[str], ranks: int) -> Iterator[str]:
    for method in methods:
        limit = scenario.most_ranks(method)
        if limit is not None and limit < ranks:
            narrowest = scenario.narrowest(method)
            units = scenario.architecture.lengths[narrowest]
            held = ""
            if limit > units:
                held = f", each held by {limit // units} ranks"
            yield f"{method} allows at most {limit} ranks: {narrowest} has {units} units{held}."
