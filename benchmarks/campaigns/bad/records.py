"""What istmpi itself and other programs leave: records of runs, curves, clusters, networks, prepared files."""

import copy
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaigns.bad import array_files
from benchmarks.campaigns.bad.cases import TINY, Assets, Case, one_of
from benchmarks.campaigns.bad.hostile import NAMES, damaged_bytes, damaged_tree, json_text


def cluster(draw: random.Random, folder: Path, assets: Assets) -> Case:
    link = {"latency": 1e-4, "seconds_per_byte": 1e-9}
    tree: dict[str, Any] = {
        "format": "istmpi cluster", "version": 1, "name": "here", "source": "measured", "flops": [1e9, 1e9],
        "links": {"alltoallv": link, "allreduce": dict(link)}, "product_seconds": 0.0, "step_seconds": 1e-6,
        "touch_seconds_per_byte": 1e-10, "handle_seconds_per_byte": 1e-10, "average_seconds_per_byte": 0.0,
        "transfer_seconds": 0.0, "deal_seconds": 0.0, "memory": 1e9, "measured": {},
    }  # fmt: skip
    (folder / "cluster.json").write_bytes(json_text(draw, damaged_tree(draw, tree)))
    more = one_of(
        draw,
        (
            [],
            ["--advise", "--most-ranks", "2"],
            ["--json"],
            ["--bandwidth", "1Gbit"],
            ["--plot", "out.png"],
        ),
    )
    return Case(["costmodel", "digits", "--layers", "8-4-2", "--cluster", "cluster.json", "--ranks", "2", *more])


def records(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """metrics.jsonl, summary.json, failure.json and run.toml of a run's folder."""
    run = folder / draw.choice(("run", "run", "run", "a$b", "[bold]", "two\nlines"))
    shutil.copytree(assets.digits, run)
    victim = draw.choice(("metrics.jsonl", "metrics.jsonl", "summary.json", "summary.json", "failure.json", "run.toml"))
    if victim == "metrics.jsonl":
        lines = [json.loads(line) for line in (run / victim).read_text().splitlines()]
        place = draw.randrange(len(lines))
        made = [
            json_text(draw, damaged_tree(draw, line)) if n == place else json.dumps(line).encode()
            for n, line in enumerate(lines)
        ]
        (run / victim).write_bytes(b"\n".join(made) + b"\n")
    elif victim == "failure.json":
        (run / victim).write_bytes(
            json_text(draw, damaged_tree(draw, {"error": "it\x1b[31m failed", "exit_code": 3, "ranks": 2}))
        )
    elif victim == "run.toml":
        (run / victim).write_bytes(damaged_bytes(draw, (run / victim).read_bytes()))
    else:
        (run / victim).write_bytes(json_text(draw, damaged_tree(draw, json.loads((run / victim).read_text()))))
    name = str(run.relative_to(folder))
    words = draw.choice(
        (
            [
                "report",
                name,
                *one_of(draw, ([], ["--json"], ["--html", "out.html"])),
            ],
            ["report", "."],
            ["train", "digits", *TINY[:-1], name, "--resume", "auto"],
        )
    )
    return Case(words)


def curve(draw: random.Random, folder: Path, assets: Assets) -> Case:
    points = [
        {"round": n, "seconds": n / 2, "bytes": n * 100, "examples": n * 10, "score": n / 10} for n in range(1, 5)
    ]
    tree = {
        "format": "istmpi curve", "version": 1, "method": draw.choice(("torch-ddp", "$x_", *NAMES[:8])), "seed": 0,
        "ranks": 8, "score_name": "accuracy", "name": "data", "points": points, "phases": {"compute": 1.0},
        "settings": {"model.hidden": [4]}, "problem": "", "source": "",
    }  # fmt: skip
    (folder / "other.json").write_text(json.dumps({**tree, "method": "plain"}))
    made = damaged_tree(draw, tree) if draw.random() < 0.85 else copy.deepcopy(tree)
    (folder / "curve.json").write_bytes(json_text(draw, made))
    more = one_of(
        draw,
        (
            [],
            ["--json"],
            ["--html", "out.html"],
            ["--targets", "0.2,0.3"],
        ),
    )
    return Case(["report", "curve.json", "other.json", *more])


def checkpoint(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """A network's file with damaged bytes, or another file under its name."""
    content = (assets.digits / "network.h5").read_bytes()
    odd = draw.random()
    if odd < 0.7:
        content = damaged_bytes(draw, content)
    elif odd < 0.9:
        content = draw.choice(
            (
                b"",
                b"\x89HDF\r\n\x1a\n",
                array_files.npy(np.zeros(3)),
                draw.randbytes(3000),
                b"\x89HDF\r\n\x1a\n" + draw.randbytes(4000),
            )
        )
    (folder / "network.h5").write_bytes(content)
    words = draw.choice(
        (
            ["checkpoint", "show", "network.h5"],
            ["checkpoint", "ls", "."],
            ["checkpoint", "verify", "network.h5"],
            ["checkpoint", "diff", "network.h5", str(assets.digits / "network.h5")],
            ["predict", "network.h5", "digits", "--out", "out.csv"],
            ["export", "network.h5", "--to", "npz", "--out", "out.npz"],
        )
    )
    return Case(words, codes=(0, 1, 2, 74) if words[1] == "diff" else (0, 2, 74))


def prepared(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """A prepared file with damaged bytes."""
    content = damaged_bytes(draw, (assets.speech.parent / "speech.h5").read_bytes())
    (folder / "data.h5").write_bytes(content)
    words = draw.choice(
        (
            ["train", "--data", "data.h5", "--dry-run"],
            ["costmodel", "digits", "--data", "data.h5", "--ranks", "1"],
            ["predict", str(assets.speech / "network.h5"), "data.h5", "--out", "out.csv"],
        )
    )
    return Case(words)


def compare(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """The folder of a comparison that was stopped, with a record that makes no sense."""
    run = folder / "run"
    run.mkdir()
    (run / "comparison.json").write_bytes(json_text(draw, damaged_tree(draw, {"ranks": 1})))
    shutil.copytree(assets.digits, run / "ist-0")
    victim = draw.choice(("metrics.jsonl", "summary.json", "run.toml"))
    (run / "ist-0" / victim).write_bytes(damaged_bytes(draw, (run / "ist-0" / victim).read_bytes()))
    return Case(
        ["compare", "digits", *TINY, "--threads", "1", "--methods", draw.choice(("ist", "ist", "nan", "ist,,", "\x1b"))]
    )
