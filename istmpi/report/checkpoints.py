"""Checkpoints as tables for people."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from istmpi.foreign import printable
from istmpi.report.tables import table_of
from istmpi.units import counted, duration, number, size

SHOWN_CLASSES = 12


def listing(entries: Iterable[Mapping[str, Any]]) -> Table:
    def row(entry: Mapping[str, Any]) -> Iterator[object]:
        yield entry["file"]
        yield "" if entry["round"] is None else f"{entry['round']} of {entry['rounds']}"
        yield from ("" if entry[key] is None else entry[key] for key in ("local_steps", "ranks", "method"))
        yield from (size(entry["bytes"]), entry["modified"], entry["problem"] or "can be opened")

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
        table.add_row(f"[bold]{name}", escape(printable(value)))
    return table


def _network(model: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    if not table:
        return model["name"]
    settings = ", ".join(f"{name} = {value!r}" for name, value in table["settings"].items())
    return f"{model['name']} with {settings or 'no settings'}; source {table['source']}"


def tensors(title: str, tensors: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (tensor["name"], tensor["axes"], " x ".join(map(str, tensor["shape"])), tensor["dtype"], size(tensor["bytes"]))
        for tensor in tensors
    ]
    if len(rows) > 1:
        rows.append(("all", "", "", "", size(sum(tensor["bytes"] for tensor in tensors))))
    return table_of((title, "axes", "shape", "dtype", "bytes"), rows)


def _first(values: Sequence[object], count: int) -> str:
    return f"{', '.join(map(str, values))}{', ...' * (count > len(values))}"
