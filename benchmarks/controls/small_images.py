"""What the benchmarks on small images share: their data, and a run of ``istmpi train`` and what it found."""

import json
import os
import shlex
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def prepare(raw: Path, path: Path, size: int, train: slice, test: slice, test_from: str = "test") -> None:
    """Prepare some of the images of a tar file, size x size pixels; which, `take_images` says."""
    with tempfile.TemporaryDirectory() as folder:
        some = Path(folder) / "some.tar"
        with tarfile.open(raw) as source, tarfile.open(some, "w") as target:
            take_images(source, target, train, test, test_from)
        subprocess.run(["istmpi", "prepare", "images", some, path, "--size", str(size), "--force"], check=True)


def take_images(
    source: tarfile.TarFile, target: tarfile.TarFile, train: slice, test: slice, test_from: str = "test"
) -> None:
    """Copy some of what is in ``train/`` and, for testing, of ``test_from``, each in the order of the names.

    With "train" the test images are training images, too: a validation split, as long as the slices do not meet.
    """
    images = sorted((member for member in source.getmembers() if member.isfile()), key=lambda one: one.name)
    of = {part: [one for one in images if part in Path(one.name).parts] for part in ("train", "test")}
    for member in of["train"][train]:
        target.addfile(member, source.extractfile(member))
    for member in of[test_from][test]:
        content = source.extractfile(member)
        member.name = "/".join("test" if part == test_from else part for part in Path(member.name).parts)
        target.addfile(member, content)


def train(folder: Path, ranks: int, settings: Mapping[str, str]) -> dict[str, Any]:
    """Train with these settings; the run's summary, and the best score of its evaluations.

    MPIRUN names another launcher than ``mpirun``.
    """
    launcher = shlex.split(os.environ.get("MPIRUN", "mpirun"))
    assignments = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [*launcher, "-n", str(ranks), "istmpi", "train", "--out", str(folder), *assignments]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    summary = json.loads((folder / "summary.json").read_text())
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    summary["best"] = max(line["score"] for line in lines if "score" in line)
    return summary
