"""Prepared files as an earlier istmpi made them of values too close together for float32: less an offset."""

from dataclasses import replace

import numpy as np

from istmpi.data.dense.split import build_material
from istmpi.data.holdout import draw_test
from istmpi.data.labels import read_labels
from istmpi.data.moments import OFFSETS, subtract
from istmpi.data.writer import write as write_file


def offset_of(values):
    """The middle of columns that are narrow beside their largest value, 0 of others; None where none is."""
    low, high = values.min(axis=0), values.max(axis=0)
    narrow = high - low < 2.0**-12 * np.maximum(abs(low), abs(high))
    return np.where(narrow, low / 2 + high / 2, 0.0) if narrow.any() else None


def write(path, x, y):
    """A prepared file of columns x and labels y, one in five for testing; returns its name."""
    test = draw_test(len(y))
    task, classes, labels = read_labels({"train": y[~test], "test": y[test]}, None, "made")
    x_of = {"train": x[~test], "test": x[test]}
    offsets = {"x": offset_of(x_of["train"])}
    if task == "regression":
        offsets["y"] = offset_of(labels["train"])
    offsets = {name: offset for name, offset in offsets.items() if offset is not None}
    if "x" in offsets:
        x_of = {split: subtract(rows, offsets["x"]) for split, rows in x_of.items()}
    if "y" in offsets:
        labels = {split: subtract(rows, offsets["y"]) for split, rows in labels.items()}
    splits = {split: (x_of[split], labels[split]) for split in x_of}
    material = build_material("made", task, splits, classes, np.dtype(np.float32), x.shape[1])
    datasets = {**material.datasets, **{OFFSETS[name]: offset for name, offset in offsets.items()}}
    write_file("arrays", replace(material, datasets=datasets), path, reading={"type": "floats"})
    return str(path)
