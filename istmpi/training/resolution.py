"""Trains on small images first: makes network and data for each image size.

Parameters whose shapes do not depend on the size keep their values and optimizer state at the next
size. Other parameters are initialised again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from istmpi.checkpoint.initial import begin_as_constructed
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.batches import Batches, place
from istmpi.data.dataset import Dataset
from istmpi.data.images.split import require_sides, resized
from istmpi.engine.axes import Parameter
from istmpi.engine.slots import Slot
from istmpi.engine.store import ParameterStore
from istmpi.errors import ConfigError
from istmpi.network.architecture import Architecture
from istmpi.optim.course import Course
from istmpi.training.network import network_of


@dataclass(frozen=True)
class Size:
    """A run's network and data at one size of images, on one rank."""

    side: int
    """The side of the images; 0 for images that are not downscaled."""
    architecture: Architecture
    dataset: Dataset
    batches: Batches


def sides_of(run: Run, data: Dataset, course: Course | None = None) -> list[tuple[int, int]]:
    sides = run.sides(course)
    if run.train.resolution:
        require_sides(data, [side for _, side in sides])
    return [*sides[:-1], (sides[-1][0], 0)]


def sizes_of(run: Run, data: Dataset, communicator: Communicator) -> dict[int, Size]:
    """Return a run's networks and data by image side. Collective. Raises ConfigError on every rank
    if a side fails."""
    with communicator.agreed():
        sides = [side for _, side in sides_of(run, data)]
        rank, ranks, settings = communicator.rank, communicator.size, run.data
        # Labels of a user's data set are slow to read, because all examples must be read.
        labels = data.train.labels() if settings.placement == "by-label" else data.train
        rows = place(settings.placement, labels, rank, ranks, run.train.seed, settings.alpha)
    sizes = {}
    for side in sides:
        images = resized(data, side)
        network = network_of(run, images, communicator)
        with communicator.agreed():
            require_resizable(run, network)
        images = images.reshaped(network.example_shape)
        batches = Batches(images.train, rows, run.train.batch, run.train.seed, rank)
        sizes[side] = Size(side, network, images, batches)
    return sizes


def plan_in_words(
    shown: Sequence[tuple[int, int]], sides: Sequence[tuple[int, int]], sizes: Mapping[int, Size]
) -> str:
    words, first, before = [], 0, None
    for (end, side), (_, key) in zip(shown, sides):
        network = sizes[key].architecture
        anew = starting_anew(before.parameters, before.lengths, network) if before else frozenset()
        suffix = f", {', '.join(sorted(anew))} anew" if anew else ""
        words.append(f"{side} x {side} for {end - first} rounds{suffix}")
        first, before = end, network
    return "; ".join(words)


def require_resizable(run: Run, network: Architecture) -> None:
    if run.train.resolution and len(network.example_shape) != 3:
        raise ConfigError(
            f"train.resolution needs a network that takes images [channels, height, width]; {run.model.name} "
            "takes flat images, so its first layer depends on the size. Give its constructor the argument "
            "shape."
        )


def carried(store: ParameterStore, network: Architecture, seed: int) -> ParameterStore:
    """Return the store of a network for another size; tensors whose shapes fit are shared with
    ``store``.

    Other parameters get their initial values. Slots of shared parameters are kept; other slots are
    zero.
    """
    owners, rank = store.owners, store.rank
    anew = starting_anew(store.parameters, owners.lengths, network)
    fresh = ParameterStore(
        {name: network.parameters[name] for name in anew}, network.lengths, owners.ranks, rank
    )
    fresh.initialise(seed)
    begin_as_constructed(
        network, fresh, seed, [name for name in network.table.computed if name in anew]
    )
    made = ParameterStore({}, network.lengths, owners.ranks, rank)
    for name, parameter in network.parameters.items():
        made.parameters[name] = parameter
        made.tensors[name] = (fresh if name in anew else store).tensors[name]
    for name, parameter in store.parameters.items():
        if (
            isinstance(name, Slot)
            and name.parameter in made.parameters
            and name.parameter not in anew
        ):
            made.parameters[name], made.tensors[name] = parameter, store.tensors[name]
    made.add_slots([name for name in store.parameters if isinstance(name, Slot)])
    made.scale, made.fitted = store.scale, store.fitted
    return made


def starting_anew(
    parameters: Mapping[str, Parameter], lengths: Mapping[str, int], network: Architecture
) -> frozenset[str]:
    """Return the names of the network's parameters that ``parameters`` lack or have with other axes
    or shapes."""

    def form(each: Parameter | None, lengths: Mapping[str, int]) -> tuple | None:
        return each and (each.pattern, each.pattern.shape(lengths))

    here = network.parameters.items()
    return frozenset(
        name
        for name, each in here
        if form(parameters.get(name), lengths) != form(each, network.lengths)
    )
