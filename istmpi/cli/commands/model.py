"""Report which widths of your network can be dealt out, with proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from istmpi.cli import options
from istmpi.cli.options import as_json, flag, text, whole
from istmpi.cli.output import print_json, say, wide_console
from istmpi.cli.run_options import assigned
from istmpi.errors import ConfigError
from istmpi.foreign import toml_value
from istmpi.names import is_own
from istmpi.tasks import CLASSIFICATION, NEXT_TOKEN

if TYPE_CHECKING:
    from istmpi.inspection.inference import Inferred
    from istmpi.models.architecture import Architecture
    from istmpi.models.table import Operator


@click.command("model")
@click.argument("network", metavar="NET")
@text("--data", "DATA", "Data that set the network's input shape and outputs.  [default: digits]")
@text("--shape", "NxN...", "Shape of an example, instead of data: 3x32x32.")
@whole("--outputs", "N", "Classes, or numbers to predict, for --shape.", 1)
@flag(
    "--tokens",
    "Examples are windows of tokens, for --shape; --outputs is the size of their vocabulary.",
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
    ranks: str,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Report which widths of NET, a torch.nn.Module (FILE.py:Class or package.module:Class), can be
    dealt out.

    \b
    istmpi model mynet.py:Net --data mine.h5
    istmpi model mynet.py:Net --shape 3x32x32 --outputs 10 --set model.channels=128

    The integer arguments of NET's constructor are the widths; `shape`, `features` and `outputs` are
    filled in. Each width is doubled to find the parameter axes that depend on it. The proof
    permutes the width's units, which must leave the outputs unchanged. Next come NET's products
    with their FLOPs for an example, and the weights that each of P ranks would train. This command
    runs the code of NET.
    """
    counts = options.ranks("--ranks", ranks)
    if (shape is None) != (outputs is None) or (shape and data):
        raise click.UsageError("give --data, or both --shape and --outputs.")
    if tokens and shape is None:
        raise click.UsageError("--tokens needs --shape; with data, leave it out.")
    task = NEXT_TOKEN if tokens else CLASSIFICATION
    if shape is None:
        from istmpi.data.holdout import TestSplit
        from istmpi.data.sources import open_dataset

        dataset = open_dataset(
            data or "digits", scoring=network if is_own(network) else "", test=TestSplit(0.2)
        )
        example, outputs, task, inputs = (
            tuple(dataset.shape),
            dataset.outputs,
            dataset.task,
            dataset.example,
        )
    else:
        inputs, example = None, options.shape("--shape", shape)

    from istmpi.config.learner import OWN_SETTINGS
    from istmpi.inspection.examine import examine
    from istmpi.models.architecture import Architecture
    from istmpi.models.arguments import user_network
    from istmpi.report.checkpoints import tables

    arguments = _arguments(assignments)
    settings = {name: arguments.pop(name) for name in OWN_SETTINGS if name in arguments}
    inspected = user_network(network, example, outputs, arguments, task, inputs)
    try:
        table, inferred = examine(inspected)
    except ConfigError as error:
        if as_json:
            print_json({"network": network, "refused": str(error)})
        raise
    described = Architecture(network, table, "float32", inspected)
    facts = _facts(described, inferred, counts) | {
        "network": network,
        "shape": list(example),
        "outputs": outputs,
    }
    refusal = None
    try:
        described.require_dealable(table.dealt, settings.get("scale") != "none")
    except ConfigError as error:
        refusal = error
    facts["refused"] = str(refusal or "")
    if as_json:
        print_json(facts)
    else:
        shapes = {name: axes.shape(inferred.lengths) for name, axes in inferred.parameters.items()}
        for shown in tables(facts, shapes):
            wide_console().print(shown, "")
        if facts["warning"]:
            say(facts["warning"])
    if refusal:
        raise refusal


def _facts(network: Architecture, inferred: Inferred, counts: Sequence[int]) -> dict[str, Any]:
    from istmpi.cost.holdings import Holdings
    from istmpi.models.table import flops
    from istmpi.report.tables import warn_of_widths

    table, dealt = network.table, network.table.dealt
    possible = [count for count in counts if all(network.lengths[name] >= count for name in dealt)]
    holdings = {
        count: Holdings(network.parameters, network.lengths, dealt, count)
        for count in [1, *possible]
    }
    largest = {count: holdings[count].parts[0] for count in possible}  # of blocks the odds count
    held = {count: float(holdings[count].bytes(part) / 4) for count, part in largest.items()}
    warnings = (warn_of_widths(network, holdings[count]) for count in possible)
    unscaled = {name: place for place, names in table.unscaled.items() for name in names}
    products = {
        count: float(flops(table.operators, part.lengths)) for count, part in largest.items()
    }
    return {
        "settings": dict(table.settings),
        "widths": [
            {
                "name": finding.width.name,
                "length": finding.units,
                "blocks": [block.path for block in finding.blocks],
                "dealt": finding.proved,
                "by_default": finding.width.name in dealt,
                "residual": table.residual.get(finding.width.name, ""),
                "problem": finding.problem,
                "unscaled": unscaled.get(finding.width.name, ""),
            }
            for finding in inferred.findings
        ],
        "parameters": [
            {"name": name, "axes": str(axes)} for name, axes in inferred.parameters.items()
        ],
        "elements": holdings[1].network_elements,
        "replicated": holdings[1].shared_bytes // 4,
        "flops": flops(table.operators, network.lengths),
        "held": {str(count): held.get(count) for count in counts},
        "flops_of_held": {str(count): products.get(count) for count in counts},
        "operators": [_operator(operator, inferred.lengths) for operator in table.operators],
        "inexact": list(table.inexact),
        "warning": next(filter(None, warnings), ""),
        "source": table.source,
    }


def _operator(operator: Operator, lengths: Mapping[str, int]) -> dict[str, Any]:
    forward, backward = operator.flops(lengths)
    facts = {
        name: getattr(operator, name)
        for name in ("module", "kind", "parameter", "axis", "calls", "examples")
    }
    return {**facts, "shape": str(operator.shape), "flops": forward, "backward_flops": backward}


def _arguments(assignments: tuple[str, ...]) -> dict[str, Any]:
    arguments = {}
    for name, value in assigned(assignments):
        section, _, argument = name.partition(".")
        if section != "model":
            raise ConfigError(
                f"--set {name}: only arguments of the network can be set here, such as model.hidden=512."
            )
        try:
            arguments[argument] = toml_value(value)
        except ValueError:
            arguments[argument] = value
    return arguments
