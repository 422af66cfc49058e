"""Rivals: methods that istmpi does not run. Their costs are for comparison only."""

from collections.abc import Callable
from dataclasses import dataclass

from istmpi.config.methods import METHODS
from istmpi.config.spec import MethodSpec, RunSettings
from istmpi.cost.loads import SERVER
from istmpi.engine.axes import with_slots
from istmpi.engine.layout import TrainingLayout
from istmpi.engine.route import Leg, Parameters, Route
from istmpi.errors import ConfigError, did_you_mean
from istmpi.network.architecture import Architecture
from istmpi.optim.course import Course


class RouteThroughRank0(Route):
    """A route without owners: in each step, everything goes to rank 0 and back."""

    def legs(self, parameters: Parameters, round: int, fresh: bool) -> list[Leg]:
        return [Leg(SERVER, with_slots(parameters, self.slots), times=self.means)]


@dataclass(frozen=True)
class ThroughRank0(MethodSpec):
    """A method whose route is a `RouteThroughRank0`."""

    def route(
        self,
        run: RunSettings,
        architecture: Architecture,
        ranks: int,
        deal: Callable[[int], TrainingLayout],
        course: Course | None = None,
    ) -> Route:
        return RouteThroughRank0(**vars(super().route(run, architecture, ranks, deal, course)))


_ALL = (
    ThroughRank0(
        name="data-parallel-broadcast",
        summary=(
            "rank 0 collects all gradients and sends all weights, as the paper counts data parallel"
        ),
        sends_every_step=True,
        changes_gradients=True,
        owned_tensors=0,
    ),
    MethodSpec(
        name="ist-push-pull",
        summary="all weights are flushed to their owners in every round",
        deals=True,
    ),
)

RIVALS: dict[str, MethodSpec] = {spec.name: spec for spec in _ALL}


def find_method(name: str) -> MethodSpec:
    """Return the description of a method or a rival. Raises ConfigError if there is none."""
    methods = METHODS | RIVALS
    if name not in methods:
        raise ConfigError(f"method.name = {name!r} is not known{did_you_mean(name, methods)}")
    return methods[name]
