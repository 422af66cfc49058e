"""The legs of methods that exchange whole networks in their own way, not by `Route.out_of`.

A function yields the legs of a round of a run. ``spec``: the description of the run's method.
``parameters``: the tensors that move in each round. The classes of the methods send these legs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from istmpi.engine.fragments import departures
from istmpi.engine.layout import Replicated
from istmpi.engine.output_sums import NAME, split_steps
from istmpi.engine.route import FRAGMENT, GATHER, MEAN, PULL, PUSH, SPREAD, Leg, Parameters, Route

if TYPE_CHECKING:
    from istmpi.config.method_settings import MethodSettings
    from istmpi.config.received import RunSettings
    from istmpi.config.spec import MethodSpec


def through_owners(
    spec: MethodSpec, run: RunSettings, route: Route, parameters: Parameters, round: int
) -> Iterator[Leg]:
    """Yield the legs of whole networks from every rank to the owners, and back to every rank."""
    networks = route.deal(round)
    yield Leg(PUSH, parameters, source=networks, target=route.owners)
    yield Leg(PULL, parameters, source=route.owners, target=networks)


def fragments(
    spec: MethodSpec, run: RunSettings, route: Route, parameters: Parameters, round: int
) -> Iterator[Leg]:
    """Yield the mean of each fragment, which is under way while ranks take local steps."""
    settings = run.method
    leaving = departures(parameters, settings.fragments, settings.local_steps, spec.delay(run))
    for fragment in leaving:
        sent = {name: parameters[name] for name in fragment.names}
        yield Leg(FRAGMENT, sent, during=range(fragment.leaves, fragment.arrives))


def count_batches(settings: MethodSettings) -> int:
    """Return the number of batches whose outputs are added up in a round."""
    return settings.local_steps // settings.passes


def outputs(
    spec: MethodSpec, run: RunSettings, route: Route, parameters: Parameters, round: int
) -> Iterator[Leg]:
    """Yield the sums of the outputs of a round's batches, each during the local steps before its
    own, and then the gradient that only the rank with the labels knows."""
    if route.outputs is None:
        raise AssertionError("the route has no outputs")
    # A step of a later pass takes the sum of the first one.
    for steps in split_steps(count_batches(run.method)):
        yield Leg(
            MEAN,
            route.outputs.of_steps(steps),
            wire=route.choose_wire(round, NAME),
            during=range(steps.start),
        )
    labels_on = run.data.labels_on
    if labels_on is not None:
        lengths = route.owners.lengths
        ranks = route.owners.ranks
        yield Leg(
            SPREAD,
            route.outputs.of_steps(range(1)),
            source=Replicated(lengths, ranks, members=(labels_on,)),
            target=Replicated(lengths, ranks),
        )


def gather(
    spec: MethodSpec, run: RunSettings, route: Route, parameters: Parameters, round: int
) -> Iterator[Leg]:
    """Yield the leg that gives every rank the networks of all other ranks."""
    yield Leg(GATHER, parameters)
