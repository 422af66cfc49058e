"""Weights to begin with, networks of users, counts far too large, and files that are none."""

import json
import os
import random
import shutil
import socket
import struct
from pathlib import Path
from typing import Any

import click

from benchmarks.campaigns.bad.cases import TINY, Assets, Case, one_of
from benchmarks.campaigns.bad.meanings import says

FITS = says("4 of 4 parameters fit")


def initial(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """A .safetensors whose header lies, or a state dict whose names have a prefix."""
    import torch
    from safetensors.torch import load_file

    weights = load_file(assets.digits / "network.safetensors")
    words = ["train", "digits", *TINY, "--threads", "1", "--max-minutes", "0.05", "--init"]
    if draw.random() < 0.3:
        prefix = draw.choice(("module.", "model.", "module.model.", "_orig_mod.", "", "net."))
        odd = draw.choice(("", "", "nan", "inf", "strided", "half", "object"))
        state: dict[str, Any] = {prefix + name: tensor.clone() for name, tensor in weights.items()}
        if odd in ("nan", "inf"):
            name = draw.choice([name for name in state if name.endswith(("hidden1.weight", "labels.weight"))])
            state[name].flatten()[0] = float(odd)
        elif odd == "strided":
            state = {name: torch.stack([tensor, tensor], -1)[..., 0] for name, tensor in state.items()}
        elif odd == "half":
            state = {name: tensor.half() for name, tensor in state.items()}
        elif odd == "object":
            state["x"] = folder
        torch.save({"state_dict": state} if draw.random() < 0.3 else state, folder / "x.pt")
        refused = odd in ("nan", "inf", "object")
        dry = ["--dry-run"] if odd not in ("nan", "inf") else []  # a dry run looks at names and shapes
        return Case([*words, "x.pt", *dry], refused, right=FITS, taken=not refused)
    kind = draw.choice(LIES)
    content = _safetensors(draw, kind, {name: tensor.float().numpy() for name, tensor in weights.items()})
    (folder / "x.safetensors").write_bytes(content)
    dry = one_of(draw, (["--dry-run"], ["--dry-run"], [])) if kind != "nan" else []
    refused = kind not in ("nothing", "metadata", "padded", "twice")  # the library takes the last of two equal names
    return Case([*words, "x.safetensors", *dry], refused, right=None if refused or not dry else FITS, taken=not refused)


LIES = (
    "nothing", "metadata", "shifted", "longer", "shorter", "gap", "overlap", "float shape", "shape", "dtype", "nan",
    "backwards", "negative", "huge", "twice", "missing", "boolean", "text", "length", "padded",
)  # fmt: skip


def _safetensors(draw: random.Random, kind: str, weights: dict[str, Any]) -> bytes:
    """Weights in a file that lies in one way."""
    header: dict[str, Any] = {}
    data = b""
    for name, array in weights.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    entry = header[draw.choice(sorted(header))]
    start, end = entry["data_offsets"]
    changes: dict[str, Any] = {
        "shifted": {"data_offsets": [start + 4, end + 4]},
        "overlap": {"data_offsets": [0, end - start]} if start else {"data_offsets": [4, end + 4]},
        "float shape": {"shape": [float(length) for length in entry["shape"]]},
        "shape": {"shape": draw.choice(([*entry["shape"], 2], [-1], [2**63], "x", None, [[1]], [True]))},
        "dtype": {"dtype": draw.choice(("F99", "", 5, None, "I32x", [], "f32"))},
        "backwards": {"data_offsets": [end, start]},
        "negative": {"data_offsets": [start - 2**40, end]},
        "huge": {"data_offsets": [start, 2**62]},
        "boolean": {"data_offsets": [False, end]},
        "text": {"data_offsets": "0,4"},
    }
    if kind in changes:
        entry |= changes[kind]
    elif kind == "missing":
        del entry[draw.choice(sorted(entry))]
    elif kind == "metadata":
        header["__metadata__"] = {"format": "pt"}
    elif kind == "gap":
        for other in header.values():
            other["data_offsets"] = [offset + 4 * (offset >= end) for offset in other["data_offsets"]]
        entry["data_offsets"] = [start, end]
        data = data[:end] + bytes(4) + data[end:]
    elif kind == "longer":
        data += bytes(draw.choice((1, 4, 400)))
    elif kind == "shorter":
        data = data[: -draw.choice((1, 4))]
    elif kind == "nan":
        place = header["hidden1.weight"]["data_offsets"][0] + 4 * draw.randrange(256)
        data = data[:place] + struct.pack("<f", draw.choice((float("nan"), float("inf")))) + data[place + 4 :]
    text = json.dumps(header).encode()
    if kind == "twice":
        text = text[:-1] + b", " + text[1:]  # each name is there two times
    elif kind == "padded":
        text += b" " * (-len(text) % 8)
    length = len(text) + (draw.choice((1, -1, 2**40)) if kind == "length" else 0)
    return struct.pack("<Q", length) + text + data


FORWARDS = (
    "return self.b(self.a(x).relu()) * torch.rand(1)",
    "self.count += 1; return self.b(self.a(x).relu())",
    "self.count += 1; return self.b(self.a(x).relu()) * self.count",
    "sys.exit(0)",
    "sys.exit('done')",
    "os._exit(0)",
    "raise Stop('x')",
    "raise KeyboardInterrupt",
    "torch.set_grad_enabled(False); return self.b(self.a(x).relu())",
    "torch.manual_seed(0); return self.b(self.a(x).relu())",
    "return torch.zeros(len(x), 10)",
    "return self.b(self.a(x).relu()).detach()",
    "return self.b(self.a(x).relu()) * float('nan')",
    "return self.b(self.a(x).relu())[:, 0]",
    "return None",
    "return [self.b(self.a(x))]",
    "raise ValueError('[/red] two\\nlines')",
    "return self.b(self.a(x).relu())",
    "print('hello'); return self.b(self.a(x).relu())",
    "return self.forward(x)",
)
MAKES = (
    "self.a, self.b = nn.Linear(64, hidden), nn.Linear(hidden, 10)",
    "self.a, self.b, self.c = nn.Linear(64, hidden), nn.Linear(hidden, 10), nn.Linear(3, 3, device='meta')",
    "self.a, self.b = nn.Linear(64, hidden), nn.Linear(hidden, 10, device='meta')",
    "self.a, self.b = nn.Linear(64, 8), nn.Linear(8, 10)",
    "self.a, self.b = nn.Linear(64, hidden), nn.Linear(hidden, 10); torch.set_grad_enabled(False)",
    "self.a, self.b = nn.Linear(64, hidden).requires_grad_(False), nn.Linear(hidden, 10)",
    "self.a, self.b = nn.LazyLinear(hidden), nn.Linear(hidden, 10)",
    "self.a, self.b = nn.Linear(64, hidden).half(), nn.Linear(hidden, 10)",
    "raise Stop",
    "sys.exit(0)",
    "pass",
)


def model(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """A network of a user's that does something that no network should."""
    make, forward = MAKES[0], FORWARDS[-3]
    if draw.random() < 0.6:
        forward = draw.choice(FORWARDS)
    else:
        make = draw.choice(MAKES)
    (folder / "net.py").write_text(
        f"""import os, sys
import torch
from torch import nn
class Stop(BaseException): pass
class Net(nn.Module):
    def __init__(self, shape, outputs, hidden=8):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        {make}
    def forward(self, x):
        x = x.flatten(1)
        {forward}
"""
    )
    hidden = one_of(
        draw, ([], [], ["--set", f"model.hidden={draw.choice(('0', '-1', '[]', '8', '1', '10**9', '1.5'))}"])
    )
    json_option = one_of(draw, ([], ["--json"]))
    words = ["model", "net.py:Net", "--ranks", draw.choice(("2", "2,4", "1", "99")), *hidden, *json_option]
    if draw.random() < 0.4:
        words = ["train", "digits", "--model", "net.py:Net", "--rounds", "1", "--local-steps", "1", "--batch", "4"]
        words += ["--out", "run", "--threads", "1", *one_of(draw, ([], ["--dry-run"]))]
    codes = (0, 1, 2, 3, 74, 130) if "exit(" in forward + make or "Interrupt" in forward else (0, 2, 3, 74)
    return Case(words, "exit(" in forward + make, codes)


def counts(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """Every option of every command that takes a number, with one that is far too large, or none.

    Not the settings of commands that would begin such a run, or tell of its failure as a result.
    """
    from istmpi.cli.main import istmpi
    from istmpi.cli.run_options import OPTIONS

    network, run = str(assets.digits / "network.h5"), str(assets.digits)
    arguments = {
        "train": ["digits", "--hidden", "4", "--dry-run"],
        "compare": ["digits", *TINY, "--threads", "1", "--methods", "ist,local-sgd"],
        "simulate": ["digits", *TINY],
        "prepare": ["arrays", str(assets.arrays.parent / "arrays"), "out.h5"],
        "predict": [network, "digits", "--out", "out.csv"],
        "evaluate": [network],
        "report": [run],
        "model": ["mlp", "--shape", "8", "--outputs", "2"],
        "costmodel": ["digits", "--ranks", "2"],
        "doctor": [],
        "demo": [],
    }
    choices = []
    for name in sorted(arguments):
        command = istmpi.get_command(click.Context(istmpi), name)
        for option in command.params if command else ():
            if isinstance(option, click.Option) and not option.is_flag and _takes_numbers(option):
                if name not in ("compare", "simulate") or not set(option.opts) & set(OPTIONS):
                    choices.append((name, max(option.opts, key=len)))
    name, option = draw.choice(choices)
    value = draw.choice(("9" * 23, "9" * 400, str(2**63), str(2**31), "1e30", "-1", "0", "nan", "1_0", "\u0663", " 3"))
    return Case([name, *arguments[name], option, value], codes=(0, 1, 2, 3, 74) if name == "doctor" else (0, 2, 3, 74))


def _takes_numbers(option: click.Option) -> bool:
    return not isinstance(option.type, click.Choice | click.Path) and option.opts[0] not in (
        "--out", "--model", "--data", "--json", "--set", "--init", "--resume", "--finish", "--cluster",
    )  # fmt: skip


def special(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """A pipe, a socket, a device or a folder where a run, or data, have a file."""
    run = folder / "run"
    shutil.copytree(assets.digits, run)
    names = ("lock.json", "metrics.jsonl", "summary.json", "network.h5", "run.toml", "failure.json", "checkpoints")
    names += ("stop", "best.h5", "progress.png", "config.toml", "environment.json")
    at = run / draw.choice(names)
    commands = [
        ["train", "digits", *TINY[:-1], "run", *one_of(draw, ([], ["--resume", "auto"]))],
        ["report", "run"],
        ["report", "."],
        ["runs", "."],
        ["job", "table", "."],
        ["checkpoint", "ls", "run"],
        ["evaluate", "run/network.h5"],
        ["predict", "run/network.h5", "digits", "--out", "out.csv"],
    ]
    if draw.random() < 0.3:
        kind = draw.choice(("images", "speech", "csv", "arrays", "xc", "graph", "text", "idx"))
        at = folder / draw.choice(("data", "data.csv", "data.npz", "data.txt", "data.h5", "data.wav", "data.tar"))
        commands = [
            ["prepare", kind, at.name, "out.h5"],
            ["train", "--data", at.name, "--dry-run"],
            ["predict", str(assets.digits / "network.h5"), at.name],
            ["train", "digits", *TINY, "--init", at.name, "--dry-run"],
        ]
    elif at.is_dir():
        shutil.rmtree(at)
    else:
        at.unlink(missing_ok=True)
    kind = draw.choice(("pipe", "pipe", "socket", "device", "folder", "link"))
    if kind == "pipe":
        os.mkfifo(at)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(at.parent)  # a socket's path is short
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(at.name)
        finally:
            os.chdir(here)
    elif kind == "device":
        os.symlink(draw.choice(("/dev/zero", "/dev/full", "/dev/null", "/dev/random")), at)
    elif kind == "folder":
        (at / "x").mkdir(parents=True)
    else:
        os.symlink(draw.choice((at.name, "/proc/self/mem", "/nowhere")), at)
    return Case(draw.choice(commands))
