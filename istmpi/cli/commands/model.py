"""Report which widths of your network can be dealt out, with proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from istmpi.cli import options
from istmpi.cli.options import as_json, flag, text, whole
from istmpi.cli.output import print_json, say, wide_console
from istmpi.cli.run_options import read_assignments
from istmpi.errors import ConfigError
from istmpi.foreign import toml_value
from istmpi.names import is_own
from istmpi.tasks import CLASSIFICATION, NEXT_TOKEN, OWN

if TYPE_CHECKING:
    from istmpi.inspection.inference import Inferred
    from istmpi.network.architecture import Architecture
    from istmpi.network.table import Operator

ASSUMED = (
    "The examples are digits, included: 1x8x8, 10 classes. Give --data, --shape or --example for "
    "others."
)


@click.command("model")
@click.argument("network", metavar="NET")
@text("--data", "DATA", "Data that set the network's input shape and outputs.  [default: digits]")
@text("--shape", "NxN...", "Shape of an example, instead of data: 3x32x32.")
@whole("--outputs", "N", "Classes, or numbers to predict, for --shape.", 1)
@flag(
    "--tokens",
    "Examples are windows of tokens, for --shape; --outputs is the size of their vocabulary.",
)
@text(
    "--example",
    "FILE.py:NAME",
    "Instead of data: a batch's inputs, or a function that returns them, for istmpi.Distributed.",
)
@text("--ranks", "P,P,...", "Numbers of ranks to report a rank's part for.", default="2,4,8")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="An argument: model.hidden=512.",
)
@as_json
def command(
    network: str,
    data: str | None,
    shape: str | None,
    outputs: int | None,
    tokens: bool,
    example: str | None,
    ranks: str,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Report which widths of NET, a torch.nn.Module (FILE.py:Class or package.module:Class), can be
    dealt out.

    \b
    istmpi model mynet.py:Net --data mine.h5
    istmpi model mynet.py:Net --shape 3x32x32 --outputs 10 --set model.channels=128
    istmpi model train.py:Net --example train.py:first_inputs --set model.features=20

    The integer arguments of NET's constructor are the widths; `shape`, `features` and `outputs` are
    filled in. Each width is doubled to find the parameter axes that depend on it. The proof
    permutes the width's units, which must leave the outputs unchanged. Next come NET's products
    with their FLOPs for an example, and the weights that each of P ranks would train. This command
    runs the code of NET.
    """
    counts = options.ranks("--ranks", ranks)
    if (shape is None) != (outputs is None) or sum(map(bool, (shape, data, example))) > 1:
        raise click.UsageError("give --data, --example, or both --shape and --outputs.")
    if tokens and shape is None:
        raise click.UsageError("--tokens needs --shape; with data, leave it out.")
    if example:
        examples = _describe_example(example)
    elif shape is not None and outputs is not None:
        examples = _describe_shape(shape, outputs, tokens)
    else:
        examples = _describe_data(network, data)
    _report(network, examples, _arguments(assignments), counts, as_json)
    if not (example or shape or data):
        say(ASSUMED, err=True)


def _find_refusal(architecture: Architecture, scaled: bool) -> ConfigError | None:
    """Return the reason why the network's widths cannot be dealt out, if there is one."""
    try:
        architecture.require_dealable(architecture.table.dealt, scaled)
    except ConfigError as error:
        return error
    return None


@dataclass(frozen=True)
class _Examples:
    """The examples that the network gets. ``inputs``: those of a batch of the user's own task."""

    shape: tuple[int, ...]
    outputs: int
    task: str
    inputs: tuple[Any, ...] | None = None


def _report(
    network: str,
    examples: _Examples,
    arguments: dict[str, Any],
    counts: Sequence[int],
    as_json: bool,
) -> None:
    """Print the facts of a network with ``arguments``, for ``counts`` of ranks. Raises ConfigError
    if it is refused."""
    from istmpi.config.learner import OWN_SETTINGS
    from istmpi.inspection.examine import examine
    from istmpi.network.architecture import Architecture
    from istmpi.network.arguments import user_network

    # istmpi's own settings of a network are no arguments of its constructor.
    settings = {name: arguments.pop(name) for name in OWN_SETTINGS if name in arguments}
    inspected = user_network(
        network, examples.shape, examples.outputs, arguments, examples.task, examples.inputs
    )
    try:
        table, inferred = examine(inspected)
    except ConfigError as error:
        if as_json:
            # A program that reads the JSON gets the reason, too.
            print_json({"network": network, "refused": str(error)})
        raise
    architecture = Architecture(network, table, "float32", inspected)
    facts = _facts(architecture, inferred, counts)
    facts |= {"network": network, "shape": list(examples.shape), "outputs": examples.outputs}
    refusal = _find_refusal(architecture, settings.get("scale") != "none")
    facts["refused"] = str(refusal or "")
    # The facts are printed first: they show why the network is refused.
    if as_json:
        print_json(facts)
    else:
        _show(facts, inferred)
    if refusal:
        raise refusal


def _describe_data(network: str, data: str | None) -> _Examples:
    from istmpi.data.holdout import TestSplit
    from istmpi.data.sources import open_dataset

    scoring = network if is_own(network) else ""
    # Only shapes are read, so any split will do.
    dataset = open_dataset(data or "digits", scoring=scoring, test=TestSplit(0.2))
    return _Examples(tuple(dataset.shape), dataset.outputs, dataset.task, dataset.example)


def _describe_shape(shape: str, outputs: int, tokens: bool) -> _Examples:
    task = NEXT_TOKEN if tokens else CLASSIFICATION
    return _Examples(options.shape("--shape", shape), outputs, task)


def _describe_example(name: str) -> _Examples:
    from istmpi.data.callable.example import load_example
    from istmpi.trees import list_tensors

    inputs = load_example(name)
    return _Examples(tuple(next(list_tensors(inputs)).shape[1:]), 0, OWN, inputs)


def _show(facts: Mapping[str, Any], inferred: Inferred) -> None:
    from istmpi.report.checkpoints import tables

    shapes = {name: axes.shape(inferred.lengths) for name, axes in inferred.parameters.items()}
    for table in tables(facts, shapes):
        wide_console().print(table, "")
    if facts["warning"]:
        say(facts["warning"])


def _facts(network: Architecture, inferred: Inferred, counts: Sequence[int]) -> dict[str, Any]:
    from istmpi.cost.holdings import Holdings
    from istmpi.engine.partition import Cut
    from istmpi.network.table import flops
    from istmpi.report.tables import warn_of_widths

    table = network.table
    dealt = table.dealt
    whole = Holdings(network.parameters, network.lengths, dealt, Cut(1))
    held: dict[str, float | None] = dict.fromkeys(map(str, counts))
    flops_of_held = held.copy()
    warning = ""
    for count in counts:
        # Each rank needs a unit of each group.
        if any(network.lengths[name] < count for name in dealt):
            continue
        holdings = Holdings(network.parameters, network.lengths, dealt, Cut(count))
        largest = holdings.parts[0]  # of blocks the odds count
        held[str(count)] = float(holdings.bytes(largest) / 4)  # float32 has 4 bytes
        flops_of_held[str(count)] = float(flops(table.operators, largest.lengths))
        # The fewest ranks with a warning are enough: more ranks have narrower subnets.
        warning = warning or warn_of_widths(network, holdings)
    return {
        "settings": dict(table.settings),
        "widths": _widths(network, inferred),
        "parameters": [
            {"name": name, "axes": str(axes)} for name, axes in inferred.parameters.items()
        ],
        "elements": whole.network_elements,
        "replicated": whole.shared_bytes // 4,
        "flops": flops(table.operators, network.lengths),
        "held": held,
        "flops_of_held": flops_of_held,
        "operators": [_operator(operator, inferred.lengths) for operator in table.operators],
        "inexact": list(table.inexact),
        "warning": warning,
        "source": table.source,
    }


def _widths(network: Architecture, inferred: Inferred) -> list[dict[str, Any]]:
    """Return the facts of each width, as in the JSON."""
    table = network.table
    unscaled = {}
    for place, names in table.unscaled.items():
        for name in names:
            unscaled[name] = place
    widths = []
    for finding in inferred.findings:
        name = finding.width.name
        widths.append(
            {
                "name": name,
                "length": finding.units,
                "blocks": [block.path for block in finding.blocks],
                "dealt": finding.proved,
                "by_default": name in table.dealt,
                "residual": table.residual.get(name, ""),
                "problem": finding.problem,
                "unscaled": unscaled.get(name, ""),
            }
        )
    return widths


def _operator(operator: Operator, lengths: Mapping[str, int]) -> dict[str, Any]:
    forward, backward = operator.flops(lengths)
    return {
        "module": operator.module,
        "kind": operator.kind,
        "parameter": operator.parameter,
        "axis": operator.axis,
        "calls": operator.calls,
        "examples": operator.examples,
        "shape": str(operator.shape),
        "flops": forward,
        "backward_flops": backward,
    }


def _arguments(assignments: tuple[str, ...]) -> dict[str, Any]:
    """Return the constructor's arguments that --set gives: numbers, lists or texts."""
    arguments = {}
    for name, value in read_assignments(assignments):
        section, _, argument = name.partition(".")
        if section != "model":
            raise ConfigError(
                f"--set {name}: only arguments of the network can be set here, "
                "such as model.hidden=512."
            )
        try:
            arguments[argument] = toml_value(value)
        except ValueError:  # a text without its quotes
            arguments[argument] = value
    return arguments
