"""What the constructors of the networks that ship take, read from their files' text: no network need be imported.

Of each argument the class's docstring says what it is, in a clause that begins with its name: ````hidden``: widths.``
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from istmpi.models.own import FACTS
from istmpi.names import NETWORKS
from istmpi.settings import Field, Meta, checked

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


def arguments_of(network: str) -> Iterator[Field]:
    """Name, described type and default of each argument that is no fact of the data."""
    module, _, kind = NETWORKS[network].partition(":")
    path = Path(__file__).with_name(f"{module.rpartition('.')[2]}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
    (made,) = (node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    clauses = described(ast.get_docstring(found) or "")
    arguments, dealt = made.args.args, _dealt(found)
    defaults = dict(zip([one.arg for one in arguments[-len(made.args.defaults) :]], made.args.defaults))
    for one in arguments[1:]:
        if one.arg not in FACTS:
            kind = WIDTHS if one.arg in dealt else SHARE if one.arg == "dropout" else TYPES[ast.unparse(one.annotation)]
            hint = Annotated[kind, clauses.get(one.arg, "")]
            yield one.arg, hint, _value(defaults[one.arg])


def usable(network: str, given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Arguments of one of `istmpi.names.DECLARED`, whose constructor may never see them; one width serves as a list.

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
