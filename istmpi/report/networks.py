"""A network of one's own as tables for people."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from istmpi.engine.axes import Pattern
from istmpi.report.tables import table_of
from istmpi.units import number


def tables(facts: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Table]:
    """The facts of `istmpi model`: widths, parameters, products, and the weights that ranks would hold."""
    widths = [(width["name"], width["length"], _verdict(width)) for width in facts["widths"]]
    none = ("none", "", "no: its constructor has no integers above 0")
    yield table_of(("width", "units", "can be dealt out"), widths or [none])

    names = (
        (tensor["name"], tensor["axes"], " x ".join(map(str, shapes[tensor["name"]]))) for tensor in facts["parameters"]
    )
    yield table_of(("parameter", "axes", "shape"), names)

    products = []
    for operator in facts["operators"]:
        calls = f"{operator['calls']} times " * (operator["calls"] > 1)
        shape = calls + " x ".join(map(str, Pattern.parse(operator["shape"]).axes))
        names = operator["module"] or "(its own forward)", operator["kind"], operator["parameter"] or "none"
        products.append((*names, shape, *(number(operator[key]) for key in ("flops", "backward_flops"))))
    totals = (sum(operator[key] for operator in facts["operators"]) for key in ("flops", "backward_flops"))
    products.append(("all", "", "", "", *map(number, totals)))
    columns = "product", "kind", "weight", "rows x inner x columns", "FLOPs forward", "backward"
    yield table_of(columns, products)

    elements, flops, replicated = facts["elements"], facts["flops"], facts["replicated"]
    portions = [(1, number(elements), "100%", number(flops), "100%")]
    for ranks, held in facts["held"].items():
        if held is None:
            portions.append((ranks, "a width has fewer units than there are ranks", "", "", ""))
        else:
            its = facts["flops_of_held"][ranks]
            share, of_flops = f"{held / elements:.1%}", f"{its / max(flops, 1):.1%}"
            portions.append((ranks, number(held), share, number(its), of_flops))
    portions.append(("any", f"{number(replicated)} on every rank", f"{replicated / elements:.1%}", "", ""))
    yield table_of(("ranks", "weights that each trains", "of all", "FLOPs to train an example", "of all"), portions)


def _verdict(width: Mapping[str, Any]) -> str:
    if not width["dealt"]:
        return "no: " + width["problem"]
    verdict = "yes" + ", though something spans its units: a normalisation, or their number" * width["spanned"]
    if width["blocks"]:
        verdict += f": whole blocks, {', '.join(width['blocks'])}"
    verdict += ", but not by default" * (not width["by_default"])
    return verdict + f": a residual addition joins {width['residual']}" * bool(width["residual"])
