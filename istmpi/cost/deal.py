"""The deal of which only the sizes are known, for a route whose legs are expectations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from istmpi.config import Run
from istmpi.config.methods import MethodSpec
from istmpi.cost.holdings import Holdings
from istmpi.engine.axes import Parameter, with_slots
from istmpi.engine.layout import TrainingLayout
from istmpi.engine.lengths import Number
from istmpi.engine.partition import Cut
from istmpi.engine.route import Route
from istmpi.network.architecture import Architecture


@dataclass(frozen=True)
class ExpectedDeal:
    """A deal without drawn units. A `Route` takes it as the layout of every round."""

    tensors: Mapping[str, Parameter]
    """The tensors of the network that move, with their slots."""
    lengths: Mapping[str, int]
    groups: Sequence[str]
    cut: Cut
    members: int | None = None
    """The number of ranks that take part in a round; None for all."""
    redeal: float = 1.0
    """The fraction of units that change ranks in a round."""
    _counted: dict[tuple[frozenset[str], bool, str], Holdings] = field(default_factory=dict)
    """The results of `holdings`: legs move the same parameters."""

    @property
    def units(self) -> dict[str, tuple[()]]:
        # A route asks only which groups are dealt, never for their units.
        return dict.fromkeys(self.groups, ())

    def holdings(
        self, parameters: Mapping[str, Parameter], after_a_deal: bool = False, wire: str = "float32"
    ) -> Holdings:
        """Return the sizes of dealt ``parameters``. Raises ConfigError if the deal is impossible.

        ``after_a_deal``: True if ranks have what they held in the deal before, which owners do not
        send.
        """
        key = (frozenset(parameters), after_a_deal, wire)
        if key not in self._counted:
            self._counted[key] = Holdings(
                parameters,
                self.lengths,
                self.groups,
                self.cut,
                members=self.members,
                redeal=self.redeal if after_a_deal else None,
                wire=wire,
            )
        return self._counted[key]

    @cached_property
    def largest_subnet(self) -> Number:
        """The bytes of the largest subnet, with the slots that move."""
        return self.holdings(self.tensors).largest_bytes


def expect_deal(spec: MethodSpec, run: Run, architecture: Architecture, ranks: int) -> ExpectedDeal:
    """Return the expected deal of a run's rounds. Raises ConfigError if a group is missing."""
    return ExpectedDeal(
        tensors=with_slots(architecture.parameters, spec.moved_slots(run)),
        lengths=architecture.lengths,
        groups=spec.groups(run, architecture),
        cut=spec.cut(run, ranks),
        members=spec.members(run, ranks),
        redeal=spec.redeal(run),
    )


def expect_route(
    spec: MethodSpec, run: Run, architecture: Architecture, deal: ExpectedDeal
) -> Route:
    """Return the route of a run whose rounds all have the expected deal."""
    return spec.route(run, architecture, deal.cut.ranks, lambda round: cast(TrainingLayout, deal))
