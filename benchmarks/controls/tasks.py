"""Tasks of `controls.rivals` and `time_to_accuracy.seconds`: data, network, how long it is trained, what is tried."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.controls.validation_data import make_validation_data

BY_LABEL, SHARDED, ALIKE = "by-label", "sharded", "shared"
PLACEMENTS = {BY_LABEL: "by label", SHARDED: "a part each", ALIKE: "alike"}
"""Placements of data, the most telling first, with their names in tables."""
TENTH = "ist-tenth"
"""IST that redeals a tenth of the units in each round."""
NEVER = "ist-never"
"""IST that deals once: nothing is exchanged after the first pull."""
NARROW = {"narrow-local-sgd": "local-sgd", "narrow-diloco": "diloco"}
"""Methods on a network that is as wide as a rank's subnet, so that a local step has as many FLOPs as one of IST."""


def hidden_of(method: str, hidden: Sequence[int], ranks: int) -> list[int]:
    """Hidden widths of the network that a method trains, where IST's are ``hidden``."""
    return [width // ranks if method.startswith("narrow-") else width for width in hidden]


@dataclass(frozen=True)
class Task:
    """A network and its data."""

    name: str
    title: str
    raw: str
    hidden: tuple[int, ...]
    batch: int
    steps: Mapping[str, int]
    """Local steps by the kind of a cell."""
    rates: tuple[float, ...]
    """Learning rates that are tried."""
    settings: Mapping[str, object] = field(default_factory=dict)
    placements: tuple[str, ...] = tuple(PLACEMENTS)
    size: int = 0
    """Pixels of a side to which images are resized; 0: as they are."""
    evaluations: int = 10
    """In a run on the test split, about so many."""
    adjustment: bool = False
    """Whether methods are tried with train.logit_adjustment = 1, too, where data are placed by label."""

    @property
    def kind(self) -> str:
        """Of data, as ``istmpi prepare`` names it."""
        return {"spoken-digits.tar.gz": "speech", "cifar10.tar": "images", "reuters-xc.tar.gz": "xc"}[self.raw]

    def prepare(self, raw: Path, folder: Path) -> None:
        """Make the files of `data` that are not there."""
        folder.mkdir(exist_ok=True)
        files, options = self.data(folder), ["--size", str(self.size)] if self.size else []
        make_validation_data(self.kind, raw / self.raw, files["rate"], options)
        if not files["control"].exists():
            subprocess.run(["istmpi", "prepare", self.kind, raw / self.raw, files["control"], *options], check=True)

    def data(self, folder: Path) -> dict[str, Path]:
        """The prepared files by the kind of a cell: for ``rate`` training data alone, some of them for scoring."""
        if self.kind == "xc":
            return {"rate": folder / "validation.h5", "control": folder / "rows.h5"}
        name = f"{self.kind}-{self.size}" if self.size else self.kind
        return {"rate": folder / f"{name}-validation.h5", "control": folder / f"{name}.h5"}


TASKS = {
    task.name: task
    for task in (
        Task(
            "speech",
            "Spoken digits, 4096-512-512-10, accuracy of a speaker who was not trained on",
            "spoken-digits.tar.gz",
            (512, 512),
            16,
            {"rate": 120, "control": 240},
            (0.003, 0.01, 0.03),
            adjustment=True,
        ),
        Task(
            "cifar",
            "CIFAR-10 at 16 x 16 pixels, 768-512-512-10, accuracy on test images",
            "cifar10.tar",
            (512, 512),
            32,
            {"rate": 120, "control": 240},
            (0.01, 0.03, 0.1),
            size=16,
            evaluations=3,
        ),
        Task(
            "speech-wide",
            "Spoken digits, 4096-2048-10, accuracy of a speaker who was not trained on",
            "spoken-digits.tar.gz",
            (2048,),
            16,
            {"rate": 120, "control": 240},
            (0.003, 0.01, 0.03),
            placements=(SHARDED,),
        ),
        Task(
            "cifar-wide",
            "CIFAR-10, 3072-1024-1024-10, accuracy on test images",
            "cifar10.tar",
            (1024, 1024),
            32,
            {"rate": 120, "control": 240},
            (0.01, 0.03, 0.1),
            placements=(SHARDED,),
        ),
        Task(
            "reuters",
            "Reuters, sparse rows, 256 hidden units, Adam whose state is carried, P@1 on test rows",
            "reuters-xc.tar.gz",
            (256,),
            64,
            {"rate": 120, "control": 240},
            (0.003, 0.01, 0.03),
            {"model.name": "xc", "optimizer.name": "adam", "method.optimizer_state": "carry"},
            (SHARDED, ALIKE),
            evaluations=3,
        ),
    )
}
