"""A network of one's own as tables for people."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from istmpi.engine.axes import Pattern
from istmpi.report.tables import add_row, plain_table
from istmpi.report.units import number


def tables(facts: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Table]:
    """The facts of `istmpi model`: widths, parameters, products, and the weights that ranks would hold."""
    widths = plain_table("width", "units", "can be dealt out")
    for width in facts["widths"]:
        verdict = "no: " + width["problem"]
        if width["dealt"]:
            verdict = "yes" + ", though something spans its units: a normalisation, or their number" * width["spanned"]
            if width["blocks"]:
                verdict += f": whole blocks, {', '.join(width['blocks'])}"
            verdict += ", but not by default" * (not width["by_default"])
            if width["residual"]:
                verdict += f": a residual addition joins {width['residual']}"
        add_row(widths, width["name"], width["length"], verdict)
    if not facts["widths"]:
        add_row(widths, "none", "", "no: its constructor has no integers above 0")
    yield widths

    parameters = plain_table("parameter", "axes", "shape")
    for parameter in facts["parameters"]:
        add_row(parameters, parameter["name"], parameter["axes"], " x ".join(map(str, shapes[parameter["name"]])))
    yield parameters

    products = plain_table("product", "kind", "weight", "rows x inner x columns", "FLOPs forward", "backward")
    for operator in facts["operators"]:
        calls = f"{operator['calls']} times " * (operator["calls"] > 1)
        add_row(
            products,
            operator["module"] or "(its own forward)",
            operator["kind"],
            operator["parameter"] or "none",
            calls + " x ".join(map(str, Pattern.parse(operator["shape"]).axes)),
            number(operator["flops"]),
            number(operator["backward_flops"]),
        )
    totals = (sum(operator[figure] for operator in facts["operators"]) for figure in ("flops", "backward_flops"))
    add_row(products, "all", "", "", "", *map(number, totals))
    yield products

    elements, flops = facts["elements"], facts["flops"]
    portions = plain_table("ranks", "weights that each trains", "of all", "FLOPs to train an example", "of all")
    add_row(portions, 1, number(elements), "100%", number(flops), "100%")
    for ranks, held in facts["held"].items():
        if held is None:
            add_row(portions, ranks, "a width has fewer units than there are ranks", "", "", "")
        else:
            its = facts["flops_of_held"][ranks]
            add_row(portions, ranks, number(held), f"{held / elements:.1%}", number(its), f"{its / max(flops, 1):.1%}")
    replicated = facts["replicated"]
    add_row(portions, "any", f"{number(replicated)} on every rank", f"{replicated / elements:.1%}", "", "")
    yield portions
