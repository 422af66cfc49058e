"""The arguments of the constructors of the networks that ship, read from their files' text: no network is imported.

The class's docstring describes each argument in a clause that begins with its name: ````hidden``: widths.``
"""

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from istmpi.names import SHIPPED
from istmpi.settings import Field, Meta, checked

DATA_ARGUMENTS = {
    "shape": "the shape of an example",
    "features": "the number of values of an example",
    "outputs": "the number of classes, or of values to predict",
}
ALSO_FILLED_IN = {"num_classes": "outputs", "n_classes": "outputs", "in_channels": "channels"}
"""Names that others give to facts of the data. A run that sets one itself keeps it, as a setting like all others."""
TYPES = {"int": int, "float": float, "str": str, "bool": bool, "tuple[int, ...]": tuple[int, ...]}
WIDTHS = Annotated[
    tuple[Annotated[int, Meta(ge=1)], ...],
    Meta(min_length=1, extra={"must": "name at least one layer of at least one unit"}),
]
SHARE = Annotated[float, Meta(ge=0, lt=1)]


@cache
def arguments_of(network: str) -> tuple[Field, ...]:
    """Name, described type and default of each argument that no data fill in."""
    module, _, name = SHIPPED[network].partition(":")
    path = Path(__file__).with_name(f"{module.rpartition('.')[2]}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (kind,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    (constructor,) = (node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    clauses, dealt = described(ast.get_docstring(kind) or ""), _dealt(kind)
    arguments, values = constructor.args.args[1:], constructor.args.defaults
    defaults = dict(zip([argument.arg for argument in arguments[-len(values) :]], values))
    fields = []
    for name, annotation in ((argument.arg, argument.annotation) for argument in arguments):
        if name not in DATA_ARGUMENTS:
            hint = WIDTHS if name in dealt else SHARE if name == "dropout" else TYPES[ast.unparse(annotation)]
            fields.append((name, Annotated[hint, clauses.get(name, "")], _value(defaults[name])))
    return tuple(fields)


def usable(network: str, given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The arguments of a network whose constructor may never see them; a single width serves as a list.

    ConfigError names ``source`` and the first argument of another type.
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
    return {name: text[0].upper() + text[1:].rstrip(" ;.") + "." for name, text in zip(parts[::2], parts[1::2])}


def _dealt(kind: ast.ClassDef) -> tuple[str, ...]:
    (names,) = (node.value for node in kind.body if isinstance(node, ast.Assign) and node.targets[0].id == "DEALT")
    return ast.literal_eval(names)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _value(node.left) ** _value(node.right)
    return ast.literal_eval(node)
