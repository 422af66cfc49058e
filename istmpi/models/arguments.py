"""The arguments of networks' constructors: those named in `DATA_ARGUMENTS` are filled in from the
data.

Other arguments are settings, with the constructor's names, types and defaults. The data give
`ALSO_FILLED_IN` too. The arguments of built-in networks are read from the text of their files,
without an import. A class's docstring describes each argument in a clause that begins with its
name: ````hidden``: widths.``
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from istmpi.errors import ConfigError, did_you_mean
from istmpi.models.source import Source, load, load_class, source_of
from istmpi.models.tables import has_table
from istmpi.models.user import UserNetwork
from istmpi.names import SHIPPED, place_of
from istmpi.settings import Field, Meta, checked
from istmpi.tasks import CLASSIFICATION, OWN, TASKS

if TYPE_CHECKING:
    from torch import nn

DATA_ARGUMENTS = {
    "shape": "the shape of an example",
    "features": "the number of values of an example",
    "outputs": "the number of classes, or of values to predict",
}
ALSO_FILLED_IN = {"num_classes": "outputs", "n_classes": "outputs", "in_channels": "channels"}
"""Other common names for facts of the data. A run may set such an argument itself, as an ordinary
setting."""
TYPES = {"int": int, "float": float, "str": str, "bool": bool, "tuple[int, ...]": tuple[int, ...]}
WIDTHS = Annotated[
    tuple[Annotated[int, Meta(ge=1)], ...],
    Meta(min_length=1, extra={"must": "name at least one layer of at least one unit"}),
]
SHARE = Annotated[float, Meta(ge=0, lt=1)]
ACCEPTED_INPUTS = {"xc": "sparse rows", "gcn": "a graph", "sage": "a graph", "gat": "a graph"}
"""The inputs of networks that accept only one kind and are not inspected."""
_MISSING = inspect.Parameter.empty


@cache
def arguments_of(network: str) -> tuple[Field, ...]:
    """Return name, type with description, and default of each setting of a built-in network."""
    module, _, name = SHIPPED[network].partition(":")
    path = Path(__file__).with_name(f"{module.rpartition('.')[2]}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (kind,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    (constructor,) = (
        node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    clauses, dealt = described(ast.get_docstring(kind) or ""), _dealt(kind)
    arguments, values = constructor.args.args[1:], constructor.args.defaults
    defaults = dict(zip([argument.arg for argument in arguments[-len(values) :]], values))
    fields = []
    for name, annotation in ((argument.arg, argument.annotation) for argument in arguments):
        if name not in DATA_ARGUMENTS:
            hint = (
                WIDTHS
                if name in dealt
                else SHARE
                if name == "dropout"
                else TYPES[ast.unparse(annotation)]
            )
            fields.append((name, Annotated[hint, clauses.get(name, "")], _value(defaults[name])))
    return tuple(fields)


def usable(network: str, given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Check arguments of a built-in network without its constructor, and return them. Unknown names
    are not checked.

    An integer for hidden counts as a list. Raises ConfigError, which names ``source``, for a wrong
    type or range.
    """
    hints = {name: hint for name, hint, _ in arguments_of(network)}
    arguments = dict(given)
    for name, value in given.items():
        if name == "hidden" and type(value) is int:
            value = [value]
        if name in hints:
            arguments[name] = checked(value, hints[name], f"model.{name}", source)
    return arguments


def described(docstring: str) -> dict[str, str]:
    parts = re.split(r"``(\w+)``: ", " ".join(docstring.split()))[1:]
    return {
        name: text[0].upper() + text[1:].rstrip(" ;.") + "."
        for name, text in zip(parts[::2], parts[1::2])
    }


def _dealt(kind: ast.ClassDef) -> tuple[str, ...]:
    (names,) = (
        node.value
        for node in kind.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "DEALT"
    )
    return ast.literal_eval(names)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _value(node.left) ** _value(node.right)
    return ast.literal_eval(node)


def user_network(
    name: str,
    shape: tuple[int, ...],
    outputs: int,
    settings: Mapping[str, Any],
    task: str = CLASSIFICATION,
    example: tuple[Any, ...] | None = None,
    network: type[nn.Module] | None = None,
) -> UserNetwork:
    """Return the network ``name``. Raises ConfigError if its settings do not fit, or if its code
    cannot be loaded.

    ``outputs``: 0 if the data do not define it. ``example``: a batch's inputs of the user's own
    task, for which settings may give shape, features and outputs. ``network``: the class; None runs
    the code of ``name``, unless the network's table is written by hand.
    """
    if name == "mlp" and (advice := TASKS[task].network):
        raise ConfigError(f"model.name = 'mlp' {advice}")
    if (inputs := ACCEPTED_INPUTS.get(name, TASKS[task].inputs)) != TASKS[task].inputs:
        raise ConfigError(
            f"model.name = {name!r} takes {inputs}, but these data are for {task}. Use another network."
        )
    facts = {"shape": tuple(shape), "features": prod(shape) if shape else 0, "outputs": outputs}
    if task == OWN:
        facts = {
            fact: settings.get(fact, value)
            for fact, value in facts.items()
            if value or fact in settings
        }
        settings = {
            setting: value for setting, value in settings.items() if setting not in DATA_ARGUMENTS
        }
    if has_table(name):  # its class may stay unloaded: a plan needs no torch
        facts.pop("shape", None)
        arguments = dict.fromkeys(facts, _MISSING) | {
            argument: default for argument, _, default in arguments_of(name)
        }
        loader = partial(_shipped, name)
    else:
        loaded = (
            (network, source_of(network))
            if network
            else _shipped(name)
            if name in SHIPPED
            else load(name)
        )
        arguments, loader = _signature(name, loaded[0]), lambda: loaded
        of_data = {"outputs": outputs, "channels": shape[0] if len(shape) > 1 else 0}
        also = {
            argument: of_data[fact]
            for argument, fact in ALSO_FILLED_IN.items()
            if argument not in settings
        }
        facts |= {argument: value for argument, value in also.items() if value}
    filled_in = {*DATA_ARGUMENTS, *facts}
    defaults = {
        argument: default for argument, default in arguments.items() if argument not in filled_in
    }
    for taken in {"scale", "init"} & defaults.keys():
        raise ConfigError(
            f"{name}: its argument {taken} has the name of istmpi's setting model.{taken}. Rename it."
        )
    for setting in settings:
        if fact := DATA_ARGUMENTS.get(setting):
            raise ConfigError(
                f"{name}: model.{setting} is {fact}, which comes from the data. Leave it out."
            )
        if setting not in defaults:
            option = " (--hidden)" * (setting == "hidden")
            near = did_you_mean(setting, defaults, "model.")
            raise ConfigError(f"{name}: unknown setting model.{setting}{option}{near}")
    values = {argument: settings.get(argument, default) for argument, default in defaults.items()}
    for argument, value in values.items():
        if value is _MISSING:
            raise ConfigError(
                f"{name}: its argument {argument} has no default, and the data do not define it "
                f"({', '.join([*DATA_ARGUMENTS, *ALSO_FILLED_IN])}). Give --set model.{argument}=..., or a "
                "default."
            )
    for fact, meaning in DATA_ARGUMENTS.items():
        if fact not in facts and arguments.get(fact) is _MISSING:
            raise ConfigError(
                f"{name}: its argument {fact} is {meaning}, which these data do not define. Set it: "
                f"--set model.{fact}=10."
            )
    flat = "features" in arguments and "shape" not in arguments and example is None
    return UserNetwork(
        name,
        loader,
        {fact: value for fact, value in facts.items() if fact in arguments},
        values,
        inputs=(facts["features"],) if flat else tuple(shape),
        outputs=outputs,
        tokens=TASKS[task].of_tokens,
        sparse=TASKS[task].ranks_labels,
        graph=TASKS[task].of_nodes,
        defaults={
            argument: default for argument, default in defaults.items() if default is not _MISSING
        },
        example=example,
    )


@cache
def _shipped(name: str) -> tuple[type[nn.Module], Source]:
    # Reading the source of all its imports takes 0.1 s; a written table needs none.
    place = place_of(name)
    return (load_class(place)[0], Source()) if has_table(name) else load(place)


def require_known(name: str) -> None:
    if name not in SHIPPED and ":" not in name:
        more = ". Give your network as FILE.py:Class or package.module:Class."
        raise ConfigError(
            f"model.name = {name!r} is not known{more if '.' in name else did_you_mean(name, SHIPPED)}"
        )


def _signature(name: str, kind: type[nn.Module]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(kind).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name}: its constructor's arguments cannot be read ({error})."
        ) from None
    return {
        name: given.default
        for name, given in parameters.items()
        if given.kind in (given.KEYWORD_ONLY, given.POSITIONAL_OR_KEYWORD) or name in DATA_ARGUMENTS
    }
