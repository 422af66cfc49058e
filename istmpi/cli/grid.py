"""The values of --tune and of a list of learning rates, from which a comparison chooses."""

from collections.abc import Collection, Sequence
from typing import Any

from istmpi.cli.run_options import read_assignments
from istmpi.errors import ConfigError
from istmpi.foreign import toml_value

TUNABLE = ("train.batch", "train.label_smoothing", "train.logit_adjustment")
"""Settings that can be chosen, beside those of method, model and optimizer."""
NAMES = ("method.name", "model.name", "model.dtype")


def take_grid(
    assignments: Sequence[str], parameters: dict[str, str | None]
) -> dict[str, tuple[Any, ...]]:
    """Return the values of each setting in ``assignments``, texts such as optimizer.lr=0.1,0.3.

    Several rates of --lr are taken out of ``parameters``, because they are no rate of the run.
    Raises ConfigError for a setting that cannot be chosen, or has a single value.
    """
    rates = parameters["lr"]
    texts = list(read_assignments(assignments, "--tune"))
    if rates is not None and "," in rates:
        texts.append(("optimizer.lr", rates))
        parameters["lr"] = None
    grid: dict[str, tuple[Any, ...]] = {}
    for setting, text in texts:
        _require_tunable(setting, grid)
        grid[setting] = _read_values(setting, text)
    return grid


def _require_tunable(setting: str, grid: Collection[str]) -> None:
    section, _, _ = setting.partition(".")
    is_section = section in ("method", "model", "optimizer") and setting not in NAMES
    if not is_section and setting not in TUNABLE:
        raise ConfigError(
            f"--tune {setting}: held-out examples cannot choose it. Give a setting of method, "
            f"model or optimizer, or {', '.join(TUNABLE)}."
        )
    if setting in grid:
        raise ConfigError(f"--tune {setting} is given twice. Give all its values once.")


def _read_values(setting: str, text: str) -> tuple[Any, ...]:
    try:
        values = toml_value(f"[{text}]")
    except ValueError:
        # Words are given without quotes.
        values = [word.strip() for word in text.split(",")]
    different = []
    for value in values:
        if isinstance(value, list):
            value = tuple(value)
        if value not in different:
            different.append(value)
    if len(different) < 2:
        raise ConfigError(
            f"--tune {setting}={text} has a single value. Give several, such as "
            "optimizer.lr=0.01,0.03,0.1, or use --set."
        )
    return tuple(different)
