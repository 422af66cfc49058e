"""Refuses runs whose subnets cannot learn from the sum of their outputs, with a ConfigError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from istmpi.errors import ConfigError

if TYPE_CHECKING:
    from istmpi.config import Run
    from istmpi.config.spec import MethodSpec
    from istmpi.data.dataset import Dataset
    from istmpi.data.settings import Data as DataSettings
    from istmpi.network.architecture import Architecture


def require_sum(
    spec: MethodSpec, run: Run, data: Dataset, network: Architecture, ranks: int
) -> None:
    """Raise ConfigError if subnets cannot learn from the sum of their outputs, or if another method
    shall be scored as such a sum."""
    form = run.evaluate.form
    columns = run.data.columns
    if not spec.sums_outputs:
        if columns:
            raise ConfigError(
                f"data.columns = {columns!r} does not go with {spec.name}: only ranks that add up "
                "outputs may have different columns. Use method joint, or leave it out."
            )
        if form == "sum":
            raise ConfigError(
                f"evaluate.form = 'sum' does not go with {spec.name}, whose subnets do not learn "
                "from the sum of their outputs. Use method joint, or another form."
            )
        return
    _require_settings(spec.name, run, data)
    _require_passes(run.method.local_steps, run.method.passes)
    _require_labels(run.data, run.method.local_steps, ranks)
    outputs = len(network.table.output_names)
    if outputs > 1:
        raise ConfigError(
            f"{run.model.name}: it has {outputs} outputs, but {spec.name} adds up one. Use another "
            "method, or a network with one output."
        )
    groups = spec.groups(run, network)
    require_undivided(groups, network, spec.name, "Use another method")


def _require_settings(name: str, run: Run, data: Dataset) -> None:
    """Raise ConfigError if a setting does not go with the sum of subnets, method ``name``."""
    form = run.evaluate.form
    if form not in (None, "sum"):
        raise ConfigError(
            f"evaluate.form = {form!r} does not go with {name}, whose network is the sum of its "
            "subnets. Leave it out."
        )
    if run.method.finish:
        raise ConfigError(
            f"method.finish = {run.method.finish!r} does not go with {name}: only {name} trains "
            "subnets that are added up. Leave finish out."
        )
    # The batches of a user's program are compared when it has given the first ones.
    of_program = data.network is not None
    if run.data.placement != "shared" and not of_program:
        raise ConfigError(
            f"data.placement = {run.data.placement!r} does not go with {name}, which adds up the "
            "outputs of all ranks for the same examples. Use shared."
        )
    if run.data.columns == "own" and "{rank}" not in run.data.source:
        raise ConfigError(
            "data.columns = 'own' needs a file for each rank: put {rank} into data.source "
            f"({run.data.source})."
        )
    if run.method.shares == "auto":
        raise ConfigError(
            f"method.shares = 'auto' does not go with {name}, whose subnets keep their units. Give "
            "numbers, or leave it out."
        )
    if run.model.scale == "fitted":
        raise ConfigError(
            f"model.scale = 'fitted' does not go with {name}, whose network has no factors of "
            "sums. Leave it out."
        )


def _require_passes(steps: int, passes: int) -> None:
    """Raise ConfigError unless the passes of a round are whole."""
    if steps % passes:
        raise ConfigError(
            f"method.passes = {passes} does not divide method.local_steps = {steps}. Give a "
            "multiple of it as local steps."
        )


def _require_labels(data: DataSettings, local_steps: int, ranks: int) -> None:
    """Raise ConfigError if labels on one rank alone do not go with the run."""
    setting = f"data.labels_on = {data.labels_on}"
    if data.labels_on is None:
        return
    if not data.columns:
        raise ConfigError(f"{setting} is for data.columns. Leave it out, or divide the columns.")
    if data.labels_on >= ranks:
        raise ConfigError(f"{setting} must be a rank, 0 to {ranks - 1}.")
    if local_steps > 1:
        raise ConfigError(
            f"{setting} needs method.local_steps = 1, not {local_steps}: a rank without "
            "labels cannot take steps alone."
        )
    if data.validation or data.test:
        raise ConfigError(
            f"{setting} does not go with data.validation and data.test, which draw examples by "
            "their labels. Prepare these splits."
        )


def require_undivided(
    groups: Sequence[str], architecture: Architecture, refusing: str, cure: str
) -> None:
    """Raise ConfigError if all ranks have elements of a parameter that is dealt out, which the
    setting or method ``refusing`` cannot send or keep."""
    for name, parameter in architecture.parameters.items():
        pieces = parameter.pieces(dict.fromkeys(groups))
        if len(pieces) > 1 and not pieces[-1].pattern.dealt(groups):
            raise ConfigError(
                f"{refusing} does not go with {name} ({parameter.pattern}), which is dealt out in "
                f"part. {cure}."
            )
