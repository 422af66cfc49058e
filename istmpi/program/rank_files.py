"""Files of a run's folder that have a rank's own values after a round."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import torch

from istmpi.errors import DataError
from istmpi.files import appearing


def name_file(round: int, rank: int) -> str:
    return f"{round}-{rank}.pt"


def save_rank_file(folder: Path, round: int, rank: int, values: Any, kept: int) -> None:
    """Write the ``values`` of a rank after a round; keep the rank's newest ``kept + 1`` files."""
    folder.mkdir(parents=True, exist_ok=True)
    with appearing(folder / name_file(round, rank), follow=False) as file:
        torch.save(values, file)
    files = sorted(folder.glob(f"*-{rank}.pt"), key=lambda path: int(path.stem.split("-")[0]))
    for path in files[: -kept - 1]:
        path.unlink(missing_ok=True)


def read_rank_file(path: Path, what: str) -> Any:
    """Return the values of a file. Raises DataError, which names ``what`` they are, if they are
    unreadable."""
    try:
        return torch.load(path, weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise DataError(
            f"{path}: {what} cannot be read ({type(error).__name__}): only tensors, numbers, text, "
            "lists and dicts are allowed. Remove the file to start without them."
        ) from None


def fetch_files(folder: Path, names: list[str], resumed: str) -> None:
    """Copy files that ``folder`` lacks from the folder of the same name of the run ``resumed``."""
    # A run's folder, or a checkpoint in its folder or in a folder below.
    for earlier in (Path(resumed), *Path(resumed).resolve().parents[:2]):
        for name in names:
            file = earlier / folder.name / name
            if file.is_file() and not (folder / name).exists():
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, folder / name)
