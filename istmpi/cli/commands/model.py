"""``istmpi model``: what a network of one's own is made of, and which of its widths can be dealt out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from istmpi.cli.quantities import WholeRange
from istmpi.cli.settings import assigned
from istmpi.foreign import toml_value
from istmpi.tasks import CLASSIFICATION, NEXT_TOKEN

if TYPE_CHECKING:
    from istmpi.models.operators import Operator


@click.command("model")
@click.argument("network", metavar="NET")
@click.option("--data", metavar="DATA", help="Data whose shape and outputs the network is for.  [default: digits]")
@click.option("--shape", metavar="NxN...", help="In place of data: the shape of an example, as 3x32x32.")
@click.option("--outputs", type=WholeRange(min=1), metavar="N", help="With --shape: classes, or numbers to predict.")
@click.option("--tokens", is_flag=True, help="With --shape: examples are windows of tokens, of so many outputs.")
@click.option("--ranks", default="2,4,8", show_default=True, metavar="P,P,...", help="What each of P ranks would hold.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="An argument, as model.hidden=512.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
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
    """Say which widths of NET, a torch.nn.Module named FILE.py:Class or package.module:Class, can be dealt out.

    \b
    istmpi model mynet.py:Net --data mine.h5
    istmpi model mynet.py:Net --shape 3x32x32 --outputs 10 --set model.channels=128

    The integers among the arguments of its constructor are its widths; `shape`, `features` and `outputs` are filled in.
    Each width is doubled, to see which axes of which parameters go with it, and proved: its units are permuted, which
    must leave the outputs as they were. Then come its products with their FLOPs for an example, and what each of P
    ranks would train. The code of NET is run.
    """
    from istmpi.cli import quantities

    counts = quantities.ranks("--ranks", ranks)
    if (shape is None) != (outputs is None) or (shape and data):
        raise click.UsageError("give --data, or both --shape and --outputs.")
    if tokens and shape is None:
        raise click.UsageError("--tokens goes with --shape; data tell what they are.")
    task = NEXT_TOKEN if tokens else CLASSIFICATION
    if shape is None:
        from istmpi.data.sources import open_dataset

        dataset = open_dataset(data or "digits")
        example, outputs, task = tuple(dataset.shape), dataset.outputs, dataset.task
    else:
        example = quantities.shape("--shape", shape)

    from istmpi.models.inference import infer
    from istmpi.models.operators import flops
    from istmpi.models.table import dealt_by_default
    from istmpi.models.tracing import trace
    from istmpi.models.user import user_network

    own = user_network(network, example, outputs, _arguments(assignments), task)
    inferred = infer(own)
    traced = trace(own, inferred.widths, inferred.blocks)
    patterns, blocks = inferred.parameters.values(), inferred.blocks
    dealt = dealt_by_default(patterns, inferred.groups, traced.residual, own.preferred, blocks)
    subnets = {count: inferred.narrow(dealt, count) for count in counts}
    facts = {
        "network": network,
        "shape": list(example),
        "outputs": outputs,
        "settings": dict(own.settings),
        "widths": [
            {
                "name": of.width.name,
                "length": of.units,
                "blocks": [block.path for block in of.blocks],
                "dealt": of.proved,
                "by_default": of.width.name in dealt,
                "residual": traced.residual.get(of.width.name, ""),
                "spanned": of.spanned,
                "problem": of.problem,
            }
            for of in inferred.findings
        ],
        "parameters": [{"name": name, "axes": str(axes)} for name, axes in inferred.parameters.items()],
        "elements": inferred.elements,
        "replicated": inferred.replicated(dealt),
        "flops": flops(traced.operators, inferred.lengths),
        # Of whole blocks the odds count.
        "held": {
            str(count): None if narrow is None else float(inferred.held(narrow)) for count, narrow in subnets.items()
        },
        "flops_of_held": {
            str(count): None if narrow is None else float(flops(traced.operators, narrow))
            for count, narrow in subnets.items()
        },
        "operators": [_operator(one, inferred.lengths) for one in traced.operators],
        "inexact": list(traced.inexact),
        "source": own.source.hash,
    }
    if as_json:
        click.echo(json.dumps(facts, indent=2, default=str))
        return
    from rich.console import Console

    from istmpi.report.networks import tables

    console = Console(emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = 1000
    shapes = {name: axes.shape(inferred.lengths) for name, axes in inferred.parameters.items()}
    for table in tables(facts, shapes):
        console.print(table, "")


def _operator(operator: Operator, lengths: Mapping[str, int]) -> dict[str, Any]:
    forward, backward = operator.flops(lengths)
    facts = {name: getattr(operator, name) for name in ("module", "kind", "parameter", "axis", "calls", "examples")}
    return {**facts, "shape": str(operator.shape), "flops": forward, "backward_flops": backward}


def _arguments(assignments: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of the network that ``--set`` gives; ConfigError for a setting that is none."""
    from istmpi.errors import ConfigError

    arguments = {}
    for name, text in assigned(assignments):
        section, _, argument = name.partition(".")
        if section != "model":
            raise ConfigError(f"--set {name}: only arguments of the network can be set here, as model.hidden=512.")
        try:
            arguments[argument] = toml_value(text)
        except ValueError:
            arguments[argument] = text
    return arguments
