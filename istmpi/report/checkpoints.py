"""Checkpoints as tables for people."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from rich.markup import escape
from rich.table import Table

from istmpi.checkpoint.difference import TensorDifference
from istmpi.checkpoint.summary import Entry
from istmpi.foreign import printable
from istmpi.report.units import duration, number, size

SHOWN_CLASSES = 12


def listing(entries: Iterable[Entry], verified: bool) -> Table:
    """The files of a folder."""
    table = _table("file", "round", "local steps", "ranks", "method", "size", "age", "contents")
    for entry in entries:
        position = ["", "", "", ""]
        if entry.round is not None:
            position = [f"{entry.round} of {entry.rounds}", _steps(entry), entry.ranks, entry.method]
        verdict = "valid" if verified else "can be opened"
        age = _age(entry.modified)
        _row(table, entry.file, *position, size(entry.bytes), age, entry.problem or verdict)
    return table


def facts(contents: Mapping[str, Any]) -> Table:
    """What the header and the small datasets say."""
    header, run = contents["header"], contents["header"]["run"]
    data, method = header["data"], run["method"]
    shape = " x ".join(map(str, data["shape"]))
    ranks = f"{header['ranks']} rank{'s' * (header['ranks'] > 1)}"
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
        "saved by": f"{ranks}; " + ", ".join(f"{name} {version}" for name, version in header["versions"].items()),
        "data": f"{data['source']}, kind {data['kind']}, {data['task']}, examples {shape}",
        "classes": _classes(contents["classes"]) if contents["classes"] else f"none, {data['outputs']} numbers",
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


def tensors(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Parameters, slots or the tensors of a round that was stopped."""
    table = _table(title, "axes", "shape", "dtype", "bytes")
    for tensor in rows:
        shape = " x ".join(map(str, tensor["shape"]))
        _row(table, tensor["name"], tensor["axes"], shape, tensor["dtype"], size(tensor["bytes"]))
    if len(rows) > 1:
        _row(table, "all", "", "", "", size(sum(tensor["bytes"] for tensor in rows)))
    return table


def norms(contents: Mapping[str, Any]) -> Table:
    """Calibrated moments, and those that examples are normalised with."""
    table = _table("normalisation", "units", "mean", "deviation")
    inputs = {"input": contents["input"]} if contents["input"] else {}
    for name, moments in {**inputs, **contents["norms"]}.items():
        ranges = (f"{low:.4g} to {high:.4g}" for low, high in (moments["mean"], moments["std"]))
        _row(table, name, moments["units"], *ranges)
    return table


def deal(dealt: Mapping[str, Any]) -> Table:
    """Which units each rank would hold."""
    table = _table(f"deal of round {dealt['round']}", *dealt["units"])
    for rank in range(dealt["ranks"]):
        held = []
        for parts in dealt["units"].values():
            first = ", ".join(map(str, parts[rank]["first"]))
            more = ", ..." * (parts[rank]["count"] > len(parts[rank]["first"]))
            held.append(f"{parts[rank]['count']}: {first}{more}")
        _row(table, f"rank {rank}", *(held or ["everything: this method deals nothing out"]))
    return table


def settings(differences: Mapping[str, tuple[Any, Any]]) -> Table:
    """Settings and facts that two checkpoints do not share."""
    table = _table("differs", "first", "second")
    for name, pair in differences.items():
        _row(table, name, *("not set" if value is None else value for value in pair))
    return table


def values(differences: Iterable[TensorDifference]) -> Table:
    """Tensors that two checkpoints do not share."""
    table = _table("differs", "elements", "largest difference", "relative")
    for tensor in differences:
        if tensor.problem:
            _row(table, tensor.name, tensor.problem, "", "")
            continue
        largest = ["", ""] if tensor.largest is None else [f"{tensor.largest:.3g}", f"{tensor.largest_relative:.3g}"]
        _row(table, tensor.name, f"{tensor.differing:,} of {tensor.elements:,}", *largest)
    return table


def _table(*columns: str) -> Table:
    return Table(*(escape(printable(column)) for column in columns), box=None, pad_edge=False)


def _row(table: Table, *cells: object) -> None:
    table.add_row(*(escape(printable(str(cell))) for cell in cells))


def _steps(entry: Entry) -> str:
    return "" if entry.local_steps is None else str(entry.local_steps)


def _classes(names: Sequence[str]) -> str:
    return f"{len(names)}: {', '.join(names[:SHOWN_CLASSES])}{', ...' * (len(names) > SHOWN_CLASSES)}"


def _age(modified: str) -> str:
    if not modified:
        return ""
    minutes = round((datetime.now(timezone.utc) - datetime.fromisoformat(modified)).total_seconds() / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h" if minutes < 2880 else f"{minutes // 1440} days"
