"""Tables for the console: checkpoints, and a user's own networks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from istmpi.engine.axes import Pattern
from istmpi.report.tables import make_table, plain
from istmpi.units import counted, duration, number, size

SHOWN_CLASSES = 12


def listing(entries: Iterable[Mapping[str, Any]]) -> Table:
    """Return the table of checkpoint files; a file that cannot be read has None for its facts."""
    rows = []
    for entry in entries:
        # Only a readable file says how far its run was.
        position = ""
        if entry["round"] is not None:
            position = f"{entry['round']} of {entry['rounds']}"
        row = [entry["file"], position]
        for key in ("local_steps", "ranks", "method"):
            value = entry[key]
            if value is None:
                value = ""
            row.append(value)
        # These facts are the file system's, so an unreadable file has them, too.
        row += [size(entry["bytes"]), entry["modified"], entry["problem"] or "readable"]
        rows.append(row)
    columns = ("file", "round", "local steps", "ranks", "method", "size", "written", "contents")
    return make_table(columns, rows)


def facts(contents: Mapping[str, Any]) -> Table:
    """Return the table of a checkpoint's facts."""
    header = contents["header"]
    run = header["run"]
    lines = {
        "run": f"{run['name']}, method {run['method']['name']}, seed {run['train']['seed']}",
        "network": _network(run["model"], header["network"]),
        "position": f"{header['round']} of {run['train']['rounds']} rounds",
        "loss": f"{header['loss']:.4f}",
        "so far": _describe_cost(header),
        "saved by": _describe_writer(header),
        "data": _describe_data(header["data"]),
        "classes": _describe_classes(contents["classes"], header["data"]),
        "calibrated": _describe_calibration(contents),
        "format": f"{contents['format']}, version {contents['version']}",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in lines.items():
        table.add_row(plain(name, "bold"), plain(value))
    return table


def _describe_cost(header: Mapping[str, Any]) -> str:
    examples = number(header["examples"])
    return f"{examples} examples, {duration(header['seconds'])}, {size(header['bytes'])} sent"


def _describe_writer(header: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    return f"{counted(header['ranks'], 'rank')}; {versions}"


def _describe_data(data: Mapping[str, Any]) -> str:
    shape = " x ".join(map(str, data["shape"]))
    return f"{data['source']}, kind {data['kind']}, {data['task']}, examples {shape}"


def _describe_classes(names: Sequence[str], data: Mapping[str, Any]) -> str:
    if not names:
        return f"none, {data['outputs']} numbers"
    first = ", ".join(map(str, names[:SHOWN_CLASSES]))
    if len(names) > SHOWN_CLASSES:
        first += ", ..."
    return f"{len(names)}: {first}"


def _describe_calibration(contents: Mapping[str, Any]) -> str:
    temperature = contents["header"]["temperature"]
    words = "yes"
    if not contents["calibrated"]:
        words = "no: predictions need --calibrate-on"
    # A temperature of 1 changes no output.
    if temperature != 1:
        words += f"; outputs divided by a temperature of {temperature:.4g}"
    return words


def _network(model: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    if not table:
        return model["name"]
    settings = ", ".join(f"{name} = {value!r}" for name, value in table["settings"].items())
    return f"{model['name']} with {settings or 'no settings'}; source {table['source']}"


def tensors(title: str, tensors: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for tensor in tensors:
        shape = " x ".join(map(str, tensor["shape"]))
        rows.append((tensor["name"], tensor["axes"], shape, tensor["dtype"], size(tensor["bytes"])))
    if len(rows) > 1:
        rows.append(("all", "", "", "", size(sum(tensor["bytes"] for tensor in tensors))))
    return make_table((title, "axes", "shape", "dtype", "bytes"), rows)


def tables(facts: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Table]:
    """Yield the tables of `istmpi model`.

    They have widths, parameters, products, and the weights that ranks would hold.
    """
    widths = [(width["name"], width["length"], _verdict(width)) for width in facts["widths"]]
    if not widths:
        widths = [("none", "", "no: its constructor has no integers above 0")]
    yield make_table(("width", "units", "can be dealt out"), widths)

    parameters = []
    for tensor in facts["parameters"]:
        shape = " x ".join(map(str, shapes[tensor["name"]]))
        parameters.append((tensor["name"], tensor["axes"], shape))
    yield make_table(("parameter", "axes", "shape"), parameters)
    yield _list_products(facts["operators"])
    yield _list_portions(facts)


def _list_products(operators: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of a network's products, with their FLOPs for an example."""
    rows = []
    for operator in operators:
        sizes = []
        for axis in Pattern.parse(operator["shape"]).axes:
            # A sum of segments has + signs, which must not be read across the x.
            sizes.append(f"({axis})" if len(axis.segments) > 1 else str(axis))
        shape = " x ".join(sizes)
        if operator["calls"] > 1:
            shape = f"{operator['calls']} times {shape}"
        rows.append(
            (
                operator["module"] or "(its own forward)",
                operator["kind"],
                operator["parameter"] or "none",
                shape,
                number(operator["flops"]),
                number(operator["backward_flops"]),
            )
        )
    forward = sum(operator["flops"] for operator in operators)
    backward = sum(operator["backward_flops"] for operator in operators)
    rows.append(("all", "", "", "", number(forward), number(backward)))
    columns = ("product", "kind", "weight", "rows x inner x columns", "FLOPs forward", "backward")
    return make_table(columns, rows)


def _list_portions(facts: Mapping[str, Any]) -> Table:
    """Return the table of the weights and FLOPs of a rank, by the number of ranks."""
    elements = facts["elements"]
    flops = facts["flops"]
    dealt = [(width["length"], width["name"]) for width in facts["widths"] if width["by_default"]]
    # The narrowest width limits the number of ranks.
    fewest, narrowest = min(dealt, default=(0, ""))
    rows: list[tuple[object, ...]] = [(1, number(elements), "100%", number(flops), "100%")]
    for ranks, held in facts["held"].items():
        if held is None:
            problem = f"too many ranks: {narrowest} has {counted(fewest, 'unit')}"
            rows.append((ranks, problem, "", "", ""))
            continue
        flops_of_held = facts["flops_of_held"][ranks]
        share = f"{held / elements:.1%}"
        # A network without products has 0 FLOPs.
        share_of_flops = f"{flops_of_held / max(flops, 1):.1%}"
        rows.append((ranks, number(held), share, number(flops_of_held), share_of_flops))
    replicated = facts["replicated"]
    share = f"{replicated / elements:.1%}"
    # Weights without a dealt axis do not depend on the number of ranks.
    rows.append(("any", f"{number(replicated)} of these on every rank", share, "", ""))
    columns = ("ranks", "weights each trains", "of all", "FLOPs to train an example", "of all")
    return make_table(columns, rows)


def _verdict(width: Mapping[str, Any]) -> str:
    """Return in words if a width can be dealt out, and the reason."""
    if not width["dealt"]:
        return "no: " + width["problem"]
    if width["unscaled"]:
        return f"no: no factor makes its sums right, in {width['unscaled']}"
    verdict = "yes"
    if width["blocks"]:
        verdict += f": whole blocks, {', '.join(width['blocks'])}"
    if not width["by_default"]:
        verdict += ", but not by default"
    if width["residual"]:
        verdict += f": a residual addition joins {width['residual']}"
    return verdict
