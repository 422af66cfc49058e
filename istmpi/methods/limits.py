"""Refuses settings of a method for which a run has no room, and does not lower them in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from istmpi.engine.fragments import departures
from istmpi.errors import ConfigError

if TYPE_CHECKING:
    from istmpi.config import Run
    from istmpi.methods.spec import MethodSpec
    from istmpi.models.architecture import Architecture


def require_room(spec: MethodSpec, run: Run, architecture: Architecture, ranks: int) -> None:
    """Refuse, with a ConfigError, method.delay, fragments, share_every or min_blocks that do not fit the run."""
    settings = run.method
    steps, delay, fragments = settings.local_steps, settings.delay, settings.fragments
    if delay is not None and delay >= steps and (spec.stays or spec.delay_by_default):
        raise ConfigError(
            f"method.delay = {delay} of {spec.name} must be below method.local_steps = {steps}. "
            f"Give at most {steps - 1}, or more local steps."
        )
    if fragments is not None and "fragments" in spec.sends:
        room = min(fragments, len(architecture.parameters))
        while len(departures(architecture.parameters, room, steps, spec.delay(run))) < room:
            room -= 1
        if room < fragments:
            raise ConfigError(
                f"method.fragments = {fragments} is more than this network, method.local_steps = {steps} and "
                f"method.delay = {spec.delay(run)} allow. Give at most {room}."
            )
    if settings.share_every > 1 and "share" in spec.sends and ranks > 1 and spec.outer(run) != (1, 0):
        raise ConfigError(
            f"method.share_every = {settings.share_every} does not go with an outer step (outer_lr, "
            "outer_momentum), which needs all weights in every round. Leave one out."
        )
    for name in spec.least(run, architecture):
        blocks = architecture.lengths[name]
        if settings.min_blocks > blocks:
            raise ConfigError(
                f"method.min_blocks = {settings.min_blocks}, but {name} has only {blocks} that can be dealt "
                f"out. Give at most {blocks}."
            )
