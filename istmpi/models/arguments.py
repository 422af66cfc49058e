"""What the constructors of the networks that ship take, read from their files' text: no network need be imported.

Of each argument the class's docstring says what it is, in a clause that begins with its name: ````hidden``: widths.``
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
    "features": "how many numbers an example has",
    "outputs": "how many classes there are, or numbers to predict",
}
"""What the data tell a constructor, by the name of its argument."""
TYPES = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "tuple[int, ...]": tuple[int, ...],
}
"""By what stands in the constructor."""
WIDTHS = Annotated[
    tuple[Annotated[int, Meta(ge=1)], ...],
    Meta(min_length=1, extra={"must": "name at least one layer, each at least one unit wide"}),
]
"""Of arguments that are dealt out."""
SHARE = Annotated[float, Meta(ge=0, lt=1)]
"""Of dropout."""


@cache
def arguments_of(network: str) -> tuple[Field, ...]:
    """Name, described type and default of each argument that is no fact of the data."""
    module, _, kind = SHIPPED[network].partition(":")
    path = Path(__file__).with_name(f"{module.rpartition('.')[2]}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
    (made,) = (node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    clauses = described(ast.get_docstring(found) or "")
    arguments, dealt = made.args.args, _dealt(found)
    defaults = dict(zip([one.arg for one in arguments[-len(made.args.defaults) :]], made.args.defaults))
    fields = []
    for name, annotation in ((one.arg, one.annotation) for one in arguments[1:]):
        if name not in DATA_ARGUMENTS:
            kind = WIDTHS if name in dealt else SHARE if name == "dropout" else TYPES[ast.unparse(annotation)]
            fields.append((name, Annotated[kind, Meta(description=clauses.get(name, ""))], _value(defaults[name])))
    return tuple(fields)


def usable(network: str, given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Arguments of a network with a table of its own, whose constructor may never see them; one width serves as a list.

    ConfigError names ``source`` and the first that its constructor could not take; names that it lacks are kept.
    """
    hints = {name: hint for name, hint, _ in arguments_of(network)}
    found = dict(given)
    for name, value in given.items():
        if name == "hidden" and type(value) is int:
            value = [value]
        if name in hints:
            found[name] = checked(value, hints[name], f"model.{name}", source)
    return found


def _dealt(found: ast.ClassDef) -> tuple[str, ...]:
    (names,) = (node.value for node in found.body if isinstance(node, ast.Assign) and node.targets[0].id == "DEALT")
    return ast.literal_eval(names)


def described(docstring: str) -> dict[str, str]:
    """What a docstring says of each argument, as sentences."""
    parts = re.split(r"``(\w+)``: ", " ".join(docstring.split()))[1:]
    return {name: text[0].upper() + text[1:].rstrip(" ;.") + "." for name, text in zip(parts[::2], parts[1::2])}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _value(node.left) ** _value(node.right)
    return ast.literal_eval(node)
