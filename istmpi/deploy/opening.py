"""Opens a checkpoint for a command: its network, or one rank's subnet of it.

The functions that use the checkpoint need not know which of them it is.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from istmpi.checkpoint.parts import Copy
from istmpi.checkpoint.reader import Checkpoint, open_checkpoint
from istmpi.deploy.fitting import require_source
from istmpi.deploy.subnet import write_subnet


@dataclass(frozen=True)
class NetworkFile:
    """A checkpoint, and the rank whose subnet of it is meant; None: the whole network."""

    path: Path
    subnet: int | None = None

    @staticmethod
    def from_argument(path: NetworkPath) -> NetworkFile:
        if isinstance(path, NetworkFile):
            return path
        return NetworkFile(Path(path))

    def __str__(self) -> str:
        return str(self.path)

    @property
    def stem(self) -> str:
        """The name of files that are made of the network, without a suffix."""
        if self.subnet is None:
            return self.path.stem
        return f"{self.path.stem}-subnet-{self.subnet}"

    @contextmanager
    def open(self, model: str | None = None) -> Iterator[Checkpoint]:
        """Open the checkpoint; that of a subnet is a temporary file.

        ``model``: the class of a user's own network. Raises DataError for an unusable checkpoint,
        ConfigError if there is no such subnet.
        """
        if self.subnet is None:
            with open_checkpoint(self.path) as checkpoint:
                yield checkpoint
            return
        with tempfile.TemporaryDirectory(prefix="istmpi-subnet-") as folder:
            file = Path(folder, "subnet.h5")
            with open_checkpoint(self.path) as checkpoint:
                checkpoint.require_valid()
                write_subnet(checkpoint, self.subnet, file, model)
            with open_checkpoint(Copy(self.path, file)) as cut:
                yield cut

    def choose_calibration(self, checkpoint: Checkpoint, calibrate_on: str | None) -> str | None:
        """Return the data for new moments; None for the file's.

        The file's are those of the whole network. A subnet without its own takes the run's data.
        """
        if self.subnet is None or calibrate_on is not None or checkpoint.calibrated:
            return calibrate_on
        return require_source(checkpoint)


NetworkPath = str | os.PathLike[str] | NetworkFile
"""A checkpoint's path, or a `NetworkFile`."""
