"""Tables for the console: checkpoints, and a user's own networks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from istmpi.engine.axes import Pattern
from istmpi.report.tables import plain, table_of
from istmpi.units import counted, duration, number, size

SHOWN_CLASSES = 12


def listing(entries: Iterable[Mapping[str, Any]]) -> Table:
    def row(entry: Mapping[str, Any]) -> Iterator[object]:
        yield entry["file"]
        yield "" if entry["round"] is None else f"{entry['round']} of {entry['rounds']}"
        yield from (
            "" if entry[key] is None else entry[key] for key in ("local_steps", "ranks", "method")
        )
        yield from (size(entry["bytes"]), entry["modified"], entry["problem"] or "readable")

    columns = "file", "round", "local steps", "ranks", "method", "size", "written", "contents"
    return table_of(columns, map(row, entries))


def facts(contents: Mapping[str, Any]) -> Table:
    header, run = contents["header"], contents["header"]["run"]
    data, method = header["data"], run["method"]
    shape, names = " x ".join(map(str, data["shape"])), contents["classes"]
    calibrated = "yes" if contents["calibrated"] else "no: predictions need --calibrate-on"
    if header["temperature"] != 1:
        calibrated += f"; outputs divided by a temperature of {header['temperature']:.4g}"
    table = Table.grid(padding=(0, 2))
    for name, value in {
        "run": f"{run['name']}, method {method['name']}, seed {run['train']['seed']}",
        "network": _network(run["model"], header["network"]),
        "position": f"{header['round']} of {run['train']['rounds']} rounds",
        "loss": f"{header['loss']:.4f}",
        "so far": f"{number(header['examples'])} examples, {duration(header['seconds'])}, {size(header['bytes'])} sent",
        "saved by": f"{counted(header['ranks'], 'rank')}; "
        + ", ".join(f"{name} {version}" for name, version in header["versions"].items()),
        "data": f"{data['source']}, kind {data['kind']}, {data['task']}, examples {shape}",
        "classes": f"{len(names)}: {_first(names[:SHOWN_CLASSES], len(names))}"
        if names
        else f"none, {data['outputs']} numbers",
        "calibrated": calibrated,
        "format": f"{contents['format']}, version {contents['version']}",
    }.items():
        table.add_row(plain(name, "bold"), plain(value))
    return table


def _network(model: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    if not table:
        return model["name"]
    settings = ", ".join(f"{name} = {value!r}" for name, value in table["settings"].items())
    return f"{model['name']} with {settings or 'no settings'}; source {table['source']}"


def tensors(title: str, tensors: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            tensor["name"],
            tensor["axes"],
            " x ".join(map(str, tensor["shape"])),
            tensor["dtype"],
            size(tensor["bytes"]),
        )
        for tensor in tensors
    ]
    if len(rows) > 1:
        rows.append(("all", "", "", "", size(sum(tensor["bytes"] for tensor in tensors))))
    return table_of((title, "axes", "shape", "dtype", "bytes"), rows)


def _first(values: Sequence[object], count: int) -> str:
    return f"{', '.join(map(str, values))}{', ...' * (count > len(values))}"


def tables(facts: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Table]:
    """Yield the tables of `istmpi model`: widths, parameters, products, and the weights that ranks
    would hold."""
    widths = [(width["name"], width["length"], _verdict(width)) for width in facts["widths"]]
    none = ("none", "", "no: its constructor has no integers above 0")
    yield table_of(("width", "units", "can be dealt out"), widths or [none])

    names = (
        (tensor["name"], tensor["axes"], " x ".join(map(str, shapes[tensor["name"]])))
        for tensor in facts["parameters"]
    )
    yield table_of(("parameter", "axes", "shape"), names)

    products = []
    for operator in facts["operators"]:
        calls = f"{operator['calls']} times " * (operator["calls"] > 1)
        sizes = []
        for axis in Pattern.parse(operator["shape"]).axes:
            sizes.append(f"({axis})" if len(axis.segments) > 1 else str(axis))
        shape = calls + " x ".join(sizes)
        names = (
            operator["module"] or "(its own forward)",
            operator["kind"],
            operator["parameter"] or "none",
        )
        products.append(
            (*names, shape, *(number(operator[key]) for key in ("flops", "backward_flops")))
        )
    totals = (
        sum(operator[key] for operator in facts["operators"]) for key in ("flops", "backward_flops")
    )
    products.append(("all", "", "", "", *map(number, totals)))
    columns = "product", "kind", "weight", "rows x inner x columns", "FLOPs forward", "backward"
    yield table_of(columns, products)

    fewest, narrowest = min(
        ((its["length"], its["name"]) for its in facts["widths"] if its["by_default"]),
        default=(0, ""),
    )
    elements, flops, replicated = facts["elements"], facts["flops"], facts["replicated"]
    portions = [(1, number(elements), "100%", number(flops), "100%")]
    for ranks, held in facts["held"].items():
        if held is None:
            portions.append(
                (ranks, f"too many ranks: {narrowest} has {counted(fewest, 'unit')}", "", "", "")
            )
        else:
            its = facts["flops_of_held"][ranks]
            share, of_flops = f"{held / elements:.1%}", f"{its / max(flops, 1):.1%}"
            portions.append((ranks, number(held), share, number(its), of_flops))
    portions.append(
        ("any", f"{number(replicated)} on every rank", f"{replicated / elements:.1%}", "", "")
    )
    yield table_of(
        ("ranks", "weights each trains", "of all", "FLOPs to train an example", "of all"), portions
    )


def _verdict(width: Mapping[str, Any]) -> str:
    if not width["dealt"]:
        return "no: " + width["problem"]
    if width["unscaled"]:
        return f"no: no factor makes its sums right, in {width['unscaled']}"
    verdict = "yes"
    if width["blocks"]:
        verdict += f": whole blocks, {', '.join(width['blocks'])}"
    verdict += ", but not by default" * (not width["by_default"])
    return verdict + f": a residual addition joins {width['residual']}" * bool(width["residual"])
