"""A network of one's own as tables for people."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from istmpi.report.units import number


def tables(facts: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Table]:
    """The facts of `istmpi model`: its widths, its parameters, its products, and what ranks would hold."""
    widths = _table("width", "units", "can be dealt out")
    for width in facts["widths"]:
        verdict = "no: " + width["problem"]
        if width["dealt"]:
            verdict = "yes" + ", though something spans its units: a normalisation, or their number" * width["spanned"]
        _row(widths, width["name"], width["length"], verdict)
    yield widths

    parameters = _table("parameter", "axes", "shape")
    for parameter in facts["parameters"]:
        _row(parameters, parameter["name"], parameter["axes"], " x ".join(map(str, shapes[parameter["name"]])))
    yield parameters

    products = _table("product", "kind", "FLOPs of an example")
    for operator in facts["operators"]:
        kind = operator["kind"] + ("" if operator["parameter"] else ", without weights")
        _row(products, operator["module"] or "(its own forward)", kind, number(operator["flops"]))
    _row(products, "all, forward", "", number(sum(operator["flops"] for operator in facts["operators"])))
    yield products

    elements = facts["elements"]
    portions = _table("ranks", "weights that each trains", "of all")
    _row(portions, 1, number(elements), "100%")
    for ranks, held in facts["held"].items():
        if held is None:
            _row(portions, ranks, "a width has fewer units than there are ranks", "")
        else:
            _row(portions, ranks, number(held), f"{held / elements:.1%}")
    _row(portions, "any", f"{number(facts['replicated'])} on every rank", f"{facts['replicated'] / elements:.1%}")
    yield portions


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False)


def _row(table: Table, *cells: object) -> None:
    """A row of plain text: names may have brackets in them."""
    table.add_row(*(escape(str(cell)) for cell in cells))
