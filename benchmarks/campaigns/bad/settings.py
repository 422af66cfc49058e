"""Run files, and options on the command line."""

import random
from collections.abc import Mapping
from pathlib import Path

from benchmarks.campaigns.bad.cases import TINY, Assets, Case, one_of
from benchmarks.campaigns.bad.hostile import DEEP, NAMES, NUMBERS, VALUES, damaged_bytes


def toml(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """A run file with values of other types, out of range, or that is no TOML."""
    import tomli_w

    from istmpi.config import Run

    tree = (
        Run.load("digits")
        .override({"model.hidden": [4], "train.rounds": 1, "train.batch": 4, "method.local_steps": 1})
        .tree()
    )
    refused = False
    for _ in range(draw.choice((1, 1, 2))):
        section = draw.choice([name for name in tree if isinstance(tree[name], dict)])
        holder = draw.choice((tree[section], tree[section], tree[section], tree))
        key = draw.choice(sorted(holder)) if holder else "x"
        value = draw.choice([value for value in VALUES if "None" not in repr(value) and value != 10**400])
        if draw.random() < 0.15:
            key = draw.choice(NAMES)
        if not (key in ("rounds", "local_steps", "epochs", "threads") and isinstance(value, int) and value > 4):
            holder[key] = value
    odd = draw.random()
    if odd < 0.25:
        tree["name"] = draw.choice(
            ("../../x", "a/b", "/tmp/x", "..", ".", "", "a\x00b", "x" * 5000, "a\x1bb", "two\nlines", "$x$", "[red]")
        )
        refused = tree["name"] not in ("$x$", "[red]")
    text = tomli_w.dumps(tree).encode("utf-8", "surrogatepass")
    more = {
        0.30: b"\ndeep = " + b"[" * DEEP + b"]" * DEEP,
        0.34: b"\n[" + b"a." * 5000 + b"b]\nc = 1",
        0.38: b"\n[more]\ndigits = " + b"9" * 6000,
        0.40: b"\n[more]\nfloat = 1e99999",
        0.42: b"\xff\xfe",
        0.44: b"\0",
        0.46: b"\n[train]\nrounds = 2",
        0.48: b"\n[more]\nday = 2020-13-45",
        0.50: b"\n[more]\ninline = " + b"{a=" * 20_000,
    }
    for bound, tail in more.items():
        if 0.25 <= odd < bound:
            text, refused = text + tail, True
            break
    if 0.50 <= odd < 0.58:
        text = damaged_bytes(draw, text)
    (folder / "run.toml").write_bytes(text)
    commands = (
        ["train", "run.toml", "--dry-run"],
        ["train", "run.toml", "--dry-run"],
        ["costmodel", "run.toml", "--ranks", "1,2"],
        ["job", "folder", "--", "run.toml"],
        ["job", "slurm", "run.toml", "--nodes", "2"],
        ["job", "ec2", "run.toml", "--instances", "2"],
        [
            "train",
            "run.toml",
            "--rounds",
            "1",
            "--threads",
            "1",
            "--hidden",
            "4",
            "--local-steps",
            "1",
            "--max-minutes",
            "0.05",
        ],
    )
    return Case(draw.choice(commands), refused)


def options(draw: random.Random, folder: Path, assets: Assets) -> Case:
    """Options of all commands with values that make no sense."""
    from istmpi.cli.run_options import OPTIONS

    hostile = (
        *NUMBERS,
        *(name.replace("\0", "") for name in NAMES),
        "1]\n[train]\nrounds = 7",
        "4\nrounds = 7",
        "[" * 5000,
        "[1,2",
        "'a",
        '"',
        "\udcff",
        "{}",
        "1979-05-27",
        "[[1]]",
        "1,,2",
        "$HOME",
        "`id`",
        "-",
        "/dev/null",
        "/nowhere/x",
        ".",
        "9" * 400,
    )
    value = draw.choice(hostile)
    kind = draw.choice(
        (
            "train",
            "train",
            "set",
            "set",
            "costmodel",
            "report",
            "job",
            "prepare",
            "predict",
            "run",
            "export",
            "checkpoint",
            "runs",
            "doctor",
            "evaluate",
        )
    )
    if kind in ("train", "set"):
        option = draw.choice(sorted(OPTIONS))
        settings = [option, value]
        if kind == "set":
            setting = draw.choice(
                [
                    *(name for name, _ in OPTIONS.values()),
                    "model.norm",
                    "model.dropout",
                    "checkpoint.wait",
                    "data.alpha",
                    "x.y",
                    "",
                    ".",
                ]
            )
            settings = [
                "--set",
                draw.choice((f"{setting}={value}", setting, f"{value}={value}", f"{setting} = {value}")),
            ]
        refused = "\n" in value and any(word in settings[1] for word in ("rounds = 7",)) and setting_is_typed(settings)
        if draw.random() < 0.15 and not set(settings) & {"--rounds", "--local-steps", "--threads", "--out"}:
            return Case(["train", "digits", *TINY, "--threads", "1", "--max-minutes", "0.05", *settings], refused)
        return Case(
            ["train", "digits", "--hidden", "4", *settings, "--dry-run", *one_of(draw, ([], [], ["--ranks", value]))],
            refused,
        )
    words: Mapping[str, list[list[str]]] = {
        "costmodel": [
            [option, value]
            for option in (
                "--layers",
                "--examples",
                "--ranks",
                "--compare",
                "--cluster",
                "--bandwidth",
                "--latency",
                "--flops",
                "--memory",
                "--most-ranks",
                "--hidden",
                "--batch",
                "--plot",
            )
        ],
        "report": [[str(assets.digits), option, value] for option in ("--targets", "--html")] + [[value]],
        "job": [
            ["slurm", "digits", f"--{option}", value]
            for option in ("nodes", "time", "partition", "modules", "restarts", "interface", "stage")
        ]
        + [
            ["ec2", "digits", "--instances", "1", f"--{option}", value]
            for option in ("type", "region", "key", "ssh-from", "package")
        ]
        + [["folder", "--ranks", value, "--", "digits"], ["folder", "--", value], ["table", value]],
        "prepare": [
            [value, "x", "out.h5"],
            ["csv", value, "out.h5"],
            ["arrays", str(folder), value or "x"],
            ["images", ".", "out.h5", "--max-bad", value],
            ["csv", ".", "out.h5", "--label", value],
        ],
        "predict": [
            [str(assets.digits / "network.h5"), value],
            [value, "digits"],
            [str(assets.digits / "network.h5"), "digits", "--out", value],
            [str(assets.digits / "network.h5"), "digits", "--split", value],
        ],
        "run": [[]],
        "export": [
            [value, "--to", "npz"],
            [str(assets.digits / "network.h5"), "--to", value],
            [str(assets.digits / "network.h5"), "--to", "npz", "--out", value],
        ],
        "checkpoint": [
            ["ls", value],
            ["show", value],
            ["verify", value],
            ["diff", value, value],
            ["show", str(assets.digits / "network.h5"), "--ranks", value],
            ["show", str(assets.digits / "network.h5"), "--ranks", "2", "--round", value],
        ],
        "runs": [[value]],
        "doctor": [["--patience", value, "--folder", "/nowhere/x"]],
        "evaluate": [
            [value],
            [str(assets.digits / "network.h5"), "--data", value],
            [str(assets.digits / "network.h5"), "--split", value],
        ],
    }
    if kind == "run":
        return Case(
            [draw.choice(("train", "costmodel")), value, *one_of(draw, (["--dry-run"], []))]
            if value
            else ["train", "--dry-run"],
            codes=(0, 2, 3, 74),
        )
    refused = "nan" in value and kind in ("costmodel", "report", "doctor") and value == "nan"
    chosen = draw.choice(words[kind])
    codes = (0, 1, 2, 3, 74) if kind in ("doctor",) or chosen[:1] == ["diff"] else (0, 2, 3, 74)
    return Case([kind, *chosen], refused and "--plot" not in chosen and "--html" not in chosen, codes)


def setting_is_typed(settings: list[str]) -> bool:
    """Whether the option takes numbers, which a second line does not belong to."""
    return settings[0] in ("--hidden", "--batch", "--lr", "--rounds", "--seed", "--shares", "--redeal", "--local-steps")
