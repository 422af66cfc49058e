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
from collections.abc import Callable, Collection, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from istmpi.errors import ConfigError, did_you_mean
from istmpi.names import SHIPPED, find_place, has_table
from istmpi.network.source import Source, find_source, load, load_class
from istmpi.network.user import UserNetwork
from istmpi.settings import Field, Meta, check_value, holds_list
from istmpi.tasks import CLASSIFICATION, GRAPH, OWN, SPARSE_ROWS, TASKS, TEXT

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
ACCEPTED_INPUTS = {"xc": SPARSE_ROWS, "gcn": GRAPH, "sage": GRAPH, "gat": GRAPH}
"""The inputs of networks that accept only one kind and are not inspected."""
PACKAGE = Path(__file__).parents[1]
_MISSING = inspect.Parameter.empty
Loaded = tuple["type[nn.Module]", Source]
"""A network's class and its source."""


@cache
def read_arguments(network: str) -> tuple[Field, ...]:
    """Return name, type with description, and default of each setting of a built-in network."""
    module, _, name = SHIPPED[network].partition(":")
    path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (kind,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    (constructor,) = (
        node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    clauses = read_clauses(ast.get_docstring(kind) or "")
    dealt = _dealt(kind)
    arguments = constructor.args.args[1:]  # without self
    values = constructor.args.defaults
    # Only the last arguments have defaults.
    defaults = dict(zip([argument.arg for argument in arguments[-len(values) :]], values))
    fields = []
    for argument in arguments:
        name = argument.arg
        if name not in DATA_ARGUMENTS and argument.annotation:
            hint = _hint(name, ast.unparse(argument.annotation), dealt)
            fields.append((name, Annotated[hint, clauses.get(name, "")], _value(defaults[name])))
    return tuple(fields)


def _hint(name: str, annotation: str, dealt: Collection[str]) -> Any:
    """Return an argument's type, with the limits that widths and dropout have."""
    if name in dealt:
        return WIDTHS
    if name == "dropout":
        return SHARE
    return TYPES[annotation]


def usable(network: str, given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Check a network's arguments without its constructor, and return them.

    Only a network whose table is written by hand is checked: others refuse arguments themselves.
    Unknown names are not checked. An integer counts as a list where a built-in network takes one.
    Raises ConfigError, which names ``source``, for a wrong type or range.
    """
    arguments = dict(given)
    origin = find_origin(network)
    for name, hint, _ in origin.read_settings():
        if name not in arguments:
            continue
        # As --hidden 64 gives it.
        if holds_list(hint) and type(arguments[name]) is int:
            arguments[name] = [arguments[name]]
        arguments[name] = origin.check(arguments[name], hint, f"model.{name}", source)
    return arguments


def read_clauses(docstring: str) -> dict[str, str]:
    """Return the clause of each argument in a class's docstring, as a sentence."""
    # After the text before the first name, names and their clauses alternate.
    parts = re.split(r"``(\w+)``: ", " ".join(docstring.split()))[1:]
    return {
        name: text[0].upper() + text[1:].rstrip(" ;.") + "."
        for name, text in zip(parts[::2], parts[1::2])
    }


def _dealt(kind: ast.ClassDef) -> tuple[str, ...]:
    """Return the names in a class's ``DEALT``, read from its syntax tree; () without one."""
    for node in kind.body:
        target: ast.expr
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        else:
            continue
        if node.value and ast.unparse(target) == "DEALT":
            return ast.literal_eval(node.value)
    return ()


def _value(node: ast.expr) -> Any:
    # literal_eval computes no powers, such as 2**16.
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _value(node.left) ** _value(node.right)
    return ast.literal_eval(node)


class Origin:
    """A user's own network, and what depends on whether a network is one."""

    is_inspected = True
    """True if an inspection of the class finds the table."""

    def __init__(self, name: str):
        self.name = name

    def read_settings(self) -> tuple[Field, ...]:
        """Return the settings that are known before the class is loaded."""
        return ()

    def check(self, value: Any, hint: Any, setting: str, source: str) -> Any:
        """Return the value of a setting; raise ConfigError if the constructor would not."""
        return value

    def load(self) -> Loaded:
        return load(self.name)

    def open(
        self, given: type[nn.Module] | None, facts: Collection[str]
    ) -> tuple[Callable[[], Loaded], dict[str, Any]]:
        """Return a function that loads the class, and its arguments with their defaults.

        ``given``: the class, if it is loaded already. ``facts``: what the data define.
        """
        if given:
            loaded = (given, find_source(given))
        else:
            loaded = self.load()
        return lambda: loaded, _signature(self.name, loaded[0])


class ShippedNetwork(Origin):
    """A network that ships as a plain module, whose constructor checks its arguments."""

    def read_settings(self) -> tuple[Field, ...]:
        return read_arguments(self.name)

    def load(self) -> Loaded:
        return _load_shipped(self.name)


class WrittenNetwork(ShippedNetwork):
    """A network that ships with a table written by hand. A plan needs neither its class nor
    torch."""

    is_inspected = False

    def check(self, value: Any, hint: Any, setting: str, source: str) -> Any:
        return check_value(value, hint, setting, source)

    def load(self) -> Loaded:
        # Reading the source of all its imports takes 0.1 s, and no inspection needs it.
        network_class, _ = load_class(find_place(self.name))
        return network_class, Source()

    def open(
        self, given: type[nn.Module] | None, facts: Collection[str]
    ) -> tuple[Callable[[], Loaded], dict[str, Any]]:
        arguments = {fact: _MISSING for fact in facts if fact != "shape"}
        for argument, _, default in self.read_settings():
            arguments[argument] = default
        return self.load, arguments


@cache
def _load_shipped(name: str) -> Loaded:
    return load(find_place(name))


def find_origin(name: str) -> Origin:
    if has_table(name):
        return WrittenNetwork(name)
    if name in SHIPPED:
        return ShippedNetwork(name)
    return Origin(name)


def user_network(
    name: str,
    shape: tuple[int, ...],
    outputs: int,
    settings: Mapping[str, Any],
    task: str = CLASSIFICATION,
    example: tuple[Any, ...] | None = None,
    network: type[nn.Module] | None = None,
) -> UserNetwork:
    """Return the network ``name``.

    ``outputs``: 0 if the data do not define it. ``example``: a batch's inputs of the user's own
    task, for which settings may give shape, features and outputs. ``network``: the class; None runs
    the code of ``name``, unless the network's table is written by hand.

    Raises ConfigError if its settings do not fit, or if its code cannot be loaded.
    """
    _require_fitting_inputs(name, task)
    facts: dict[str, Any] = {"shape": tuple(shape), "features": 0, "outputs": outputs}
    if shape:
        facts["features"] = prod(shape)
    if task == OWN:
        # Data of an own task need not have these facts, so settings may give them.
        facts = _replace_facts(facts, settings)
        settings = {key: value for key, value in settings.items() if key not in DATA_ARGUMENTS}
    origin = find_origin(name)
    loader, arguments = origin.open(network, facts)
    facts.update(_facts_by_other_names(settings, shape, outputs))
    defaults = {}
    for argument, default in arguments.items():
        if argument not in DATA_ARGUMENTS and argument not in facts:
            defaults[argument] = default
    _require_known_settings(name, settings, defaults)
    values = {argument: settings.get(argument, default) for argument, default in defaults.items()}
    _require_complete(name, values, arguments, facts)
    inputs = tuple(shape)
    # A class that asks only for features takes flat examples.
    if "features" in arguments and "shape" not in arguments and example is None:
        inputs = (facts["features"],)
    return UserNetwork(
        name=name,
        load=loader,
        facts={fact: value for fact, value in facts.items() if fact in arguments},
        settings=values,
        inputs=inputs,
        outputs=outputs,
        tokens=TASKS[task].inputs == TEXT,
        sparse=TASKS[task].inputs == SPARSE_ROWS,
        graph=TASKS[task].inputs == GRAPH,
        is_inspected=origin.is_inspected,
        defaults={key: value for key, value in defaults.items() if value is not _MISSING},
        example=example,
    )


def written_network(
    name: str, shape: tuple[int, ...], outputs: int, settings: Mapping[str, Any], task: str
) -> UserNetwork | None:
    """Return the network ``name`` if its table is written by hand, without its class; otherwise
    None. Raises ConfigError if its settings do not fit."""
    if find_origin(name).is_inspected:
        return None
    return user_network(name, shape, outputs, settings, task)


def _require_fitting_inputs(name: str, task: str) -> None:
    """Raise ConfigError if a network takes other inputs than a task's data have."""
    advice = TASKS[task].network
    if name == "mlp" and advice:
        raise ConfigError(f"model.name = 'mlp' {advice}")
    inputs = ACCEPTED_INPUTS.get(name, TASKS[task].inputs)
    if inputs != TASKS[task].inputs:
        raise ConfigError(
            f"model.name = {name!r} takes {inputs}, but these data are for {task}. "
            "Use another network."
        )


def _replace_facts(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of an own task's data, which settings may give, without unknown ones."""
    replaced = {}
    for fact, value in facts.items():
        if value or fact in settings:
            replaced[fact] = settings.get(fact, value)
    return replaced


def _facts_by_other_names(
    settings: Mapping[str, Any], shape: tuple[int, ...], outputs: int
) -> dict[str, int]:
    """Return the facts of the data that other common names of arguments stand for."""
    channels = shape[0] if len(shape) > 1 else 0
    of_data = {"outputs": outputs, "channels": channels}
    facts = {}
    for argument, fact in ALSO_FILLED_IN.items():
        # A run may set such an argument itself.
        if argument not in settings and of_data[fact]:
            facts[argument] = of_data[fact]
    return facts


def _require_known_settings(
    name: str, settings: Mapping[str, Any], defaults: Mapping[str, Any]
) -> None:
    """Raise ConfigError for a setting that the class lacks, or that the data decide."""
    # In a run file both would be model.scale.
    for taken in {"scale", "init"} & defaults.keys():
        raise ConfigError(
            f"{name}: its argument {taken} has the name of istmpi's setting model.{taken}. "
            "Rename it."
        )
    for setting in settings:
        if setting in DATA_ARGUMENTS:
            raise ConfigError(
                f"{name}: model.{setting} is {DATA_ARGUMENTS[setting]}, which comes from the data. "
                "Leave it out."
            )
        if setting not in defaults:
            option = " (--hidden)" if setting == "hidden" else ""
            near = did_you_mean(setting, defaults, "model.")
            raise ConfigError(f"{name}: unknown setting model.{setting}{option}{near}")


def _require_complete(
    name: str,
    values: Mapping[str, Any],
    arguments: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> None:
    """Raise ConfigError if an argument has no value: no default, setting or fact."""
    for argument, value in values.items():
        if value is _MISSING:
            names = ", ".join([*DATA_ARGUMENTS, *ALSO_FILLED_IN])
            raise ConfigError(
                f"{name}: its argument {argument} has no default, and the data do not define it "
                f"({names}). Give --set model.{argument}=..., or a default."
            )
    for fact, meaning in DATA_ARGUMENTS.items():
        if fact not in facts and arguments.get(fact) is _MISSING:
            raise ConfigError(
                f"{name}: its argument {fact} is {meaning}, which these data do not define. "
                f"Set it: --set model.{fact}=10."
            )


def require_known(name: str) -> None:
    if name not in SHIPPED and ":" not in name:
        cure = did_you_mean(name, SHIPPED)
        if "." in name:
            cure = ". Give your network as FILE.py:Class or package.module:Class."
        raise ConfigError(f"model.name = {name!r} is not known{cure}")


def _signature(name: str, kind: type[nn.Module]) -> dict[str, Any]:
    """Return the constructor's arguments and their defaults, `_MISSING` without one."""
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
