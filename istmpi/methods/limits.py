"""Refuses runs that a method cannot train, with a ConfigError. Settings are never changed silently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from istmpi.engine.fragments import departures
from istmpi.errors import ConfigError
from istmpi.methods.spec import asked
from istmpi.settings import shown
from istmpi.tasks import TASKS

if TYPE_CHECKING:
    from istmpi.config import Run
    from istmpi.data.batches import Batches
    from istmpi.methods.spec import MethodSpec
    from istmpi.models.architecture import Architecture


def require_wire(spec: MethodSpec, run: Run) -> None:
    if "share" in spec.sends and spec.sends_largest(run) and spec.outer(run) != (1, 0):
        raise ConfigError(
            "method.shared_wire = 'top-k' does not go with an outer step (outer_lr, outer_momentum), "
            "which needs all values. Leave one out."
        )
    wire = run.method.wire
    if wire != "float32" and not spec.encodes:
        raise ConfigError(
            f"method.wire = {wire!r} does not go with {spec.name}, which sends exact values. Leave it "
            "out, or use another method."
        )
    if wire != "float32" and run.model.dtype != "float32":
        raise ConfigError(
            f"method.wire = {wire!r} needs float32 values, but model.dtype = {run.model.dtype!r}. Leave one out."
        )


def require_trainable(spec: MethodSpec, run: Run, task: str, batches: Batches, architecture: Architecture) -> None:
    """Raise ConfigError if a method cannot train this network or these data.

    ``batches`` are this rank's, so the error may be raised on some ranks alone.
    """
    require_dealable(spec, run, architecture)
    last = batches.examples - (batches.in_a_pass - 1) * batches.batch
    if spec.in_passes and architecture.batch_norms and last == 1:
        normalisation = run.model.batch_statistics or "batch normalisation"
        raise ConfigError(
            f"train.batch = {batches.batch} leaves {spec.name} a last batch of one example (of "
            f"{batches.examples}), too few for {normalisation}. Use another train.batch or normalisation."
        )
    if spec.learns_from_others and not TASKS[task].distils:
        raise ConfigError(
            f"method.name = {spec.name!r} needs predictions of classes, but this is {task}. Use another method."
        )


def require_dealable(spec: MethodSpec, run: Run, architecture: Architecture) -> None:
    """Raise ConfigError if the network cannot be trained with a run's groups dealt out."""
    if spec.deals and run.method.partition != ():
        architecture.require_dealable(asked(run, architecture), run.model.scale != "none")


def require_room(spec: MethodSpec, run: Run, architecture: Architecture, ranks: int) -> None:
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
    if spec.stays and spec.delay(run) and ranks > 1 and not spec.stays_with_holders(run, architecture, ranks):
        why = "a network without dealt units (method.partition)"
        if spec.outer(run) != (1, 0):
            why = "an outer step (outer_lr, outer_momentum), which needs all weights after the round"
        raise ConfigError(f"method.delay = {delay} of {spec.name} does not go with {why}. Leave one out.")


def require_shares(spec: MethodSpec, run: Run, architecture: Architecture) -> None:
    """Raise ConfigError if the run deals out no units, and shares would have no effect."""
    if not spec.groups(run, architecture):
        raise ConfigError(
            f"method.shares = {shown(run.method.shares)} with {spec.name}, which deals out no units here. Leave shares "
            "out, or use ist."
        )
