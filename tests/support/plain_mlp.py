"""A checkpoint's mlp written out in NumPy."""

import json
import math

import h5py
import numpy as np

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "leaky-relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def plain(path, x):
    """The outputs for raw examples, from the file with h5py and NumPy alone, in double precision."""
    with h5py.File(path) as file:
        model = json.loads(file.attrs["run"])["model"]
        if "input" in file and "mean" in file["input"]:
            x = (x - file["input/mean"][...]) / file["input/std"][...]
        x = x.astype(np.float64)
        stages = [*(f"hidden{number}" for number in range(1, len(model["hidden"]) + 1)), "labels"]
        scale = json.loads(file.attrs["scale"])
        for before, stage in zip(["features", *stages], stages):
            values = {name.removeprefix(f"{stage}."): file["model"][name][...] for name in file["model"]}
            factor = 1 if f"norm/{stage}" in file else scale.get(before, 1)
            x = x @ values["linear.weight"].T * factor + values.get("linear.bias", 0)
            if f"norm/{stage}" in file:
                x = (x - file[f"norm/{stage}/mean"][...]) / file[f"norm/{stage}/std"][...]
            elif model["norm"] == "layer" and stage != "labels":
                x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
            x = x * values.get("norm.weight", 1) + values.get("norm.bias", 0)
            x = x if stage == "labels" else ACTIVATIONS[model["activation"]](x)
        x = x / file.attrs.get("temperature", 1)
        if "output" in file:
            x = x * file["output/std"][...] + file["output/mean"][...]
    return x
