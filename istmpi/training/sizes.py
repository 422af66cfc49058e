"""A run's network and data, for each size of images: training may begin with small images.

Parameters whose shapes do not depend on the size keep their values and optimizer state at the next
size. Other parameters are initialised again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.data.batches import Batches, place
from istmpi.data.dataset import Dataset
from istmpi.data.images.split import require_images, resize_images
from istmpi.engine.axes import Parameter, Pattern
from istmpi.engine.slots import Slot
from istmpi.errors import ConfigError
from istmpi.network.architecture import Architecture
from istmpi.optim.course import Course
from istmpi.training.epochs import list_rows
from istmpi.training.network import plan_network
from istmpi.training.same_network import Networks, build_networks

if TYPE_CHECKING:
    from istmpi.engine.store import ParameterStore


@dataclass(frozen=True)
class Size:
    """A run's network and data at one size of images, on one rank."""

    side: int
    """The side of the images; 0 for images that are not downscaled."""
    architecture: Architecture
    dataset: Dataset
    batches: Batches


def find_sides(run: Run, data: Dataset, course: Course) -> list[tuple[int, int]]:
    """Return `Run.sides` for ``data``, with 0 for the full side. Raises ConfigError if the sides do
    not fit the images."""
    sides = run.sides(course)
    if run.grows:
        require_sides(data, [side for _, side in sides])
    # Images of full size are not downscaled: 0 says so, also to a checkpoint.
    end, _ = sides[-1]
    return [*sides[:-1], (end, 0)]


def require_sides(data: Dataset, sides: Sequence[int]) -> None:
    """Raise ConfigError unless the data are square images of the last of some increasing
    ``sides``."""
    require_images(data, "train.resolution")
    shown = " x ".join(map(str, data.shape))
    # One side stands for both in the setting.
    if data.shape[1] != data.shape[2]:
        raise ConfigError(
            f"train.resolution needs square images; those of {data.source} are {shown}."
        )
    if sides[-1] != data.shape[2]:
        raise ConfigError(
            f"train.resolution ends with side {sides[-1]}, but the images of {data.source} have "
            f"{data.shape[2]} ({shown}). End with that side."
        )


def make_sizes(
    run: Run,
    data: Dataset,
    course: Course,
    communicator: Communicator,
    use: Callable[[dict[int, Size]], None],
) -> None:
    """Make a run's networks and data by image side, and let this rank ``use`` them. Collective.

    Raises on every rank ConfigError if a side fails, or what ``use`` raises, which may be called
    twice.
    """
    images_of_size = {}

    def resize() -> Mapping[int, Dataset]:
        for _, side in find_sides(run, data, course):
            images_of_size[side] = resize_images(data, side)
        return images_of_size

    def use_networks(networks: Networks) -> None:
        rows = _place_rows(run, data, communicator)
        sizes = {}
        for side, network in networks.items():
            require_resizable(run, network)
            images = images_of_size[side].reshape(network.example_shape)
            sizes[side] = _make_size(run, side, network, images, rows, communicator.rank)
        use(sizes)

    build_networks(run, resize, communicator, use_networks)


def _place_rows(run: Run, data: Dataset, communicator: Communicator) -> np.ndarray:
    """Return the training examples of this rank."""
    settings = run.data
    return place(
        settings.placement,
        list_rows(settings.placement, data),
        communicator.rank,
        communicator.size,
        run.train.seed,
        settings.alpha,
        settings.label_shards,
    )


def _make_size(
    run: Run, side: int, network: Architecture, images: Dataset, rows: np.ndarray, rank: int
) -> Size:
    stream = rank
    if find_method_spec(run.method.name).sums_outputs:
        # Ranks add up outputs for the same examples.
        stream = 0
    batches = Batches(images.train, rows, run.train.batch, run.train.seed, stream)
    return Size(side, network, images, batches)


def plan_smaller_networks(
    run: Run, data: Dataset, network: Architecture
) -> dict[int, Architecture]:
    """Return the networks for downscaled images by their side; empty if images have one size.
    ``network`` is that of full size.

    Raises ConfigError as `make_sizes` does.
    """
    smaller = {}
    course = Course.from_rounds(run.train.rounds)
    for _, side in find_sides(run, data, course):
        if side:
            smaller[side] = plan_network(run, resize_images(data, side))
    require_resizable(run, network)
    return smaller


def describe_sizes(run: Run, course: Course, sizes: Mapping[int, Size]) -> str:
    """Return the sizes of images, with their rounds, in words; empty if all images have one
    size."""
    if not run.grows:
        return ""
    words = []
    begin = 0
    before: Architecture | None = None
    for (end, side), size in zip(run.sides(course), sizes.values(), strict=True):
        network = size.architecture
        text = f"{side} x {side} for {end - begin} rounds"
        # What the next size initialises again, as `carry_store` does.
        if before:
            names = sorted(find_new_parameters(before.parameters, before.lengths, network))
            if names:
                text += f", {', '.join(names)} anew"
        words.append(text)
        begin = end
        before = network
    return "; ".join(words)


def require_resizable(run: Run, network: Architecture) -> None:
    if run.grows and len(network.example_shape) != 3:
        error = ConfigError(
            "train.resolution needs a network that takes images [channels, height, width]; "
            f"{run.model.name} takes flat images, so its first layer depends on the size. Give its "
            "constructor the argument shape."
        )
        error.everywhere = True
        raise error


def carry_store(store: ParameterStore, network: Architecture, seed: int) -> ParameterStore:
    """Return the store of a network for another size; tensors whose shapes fit are shared with
    ``store``.

    Other parameters get their initial values. Slots of shared parameters are kept; other slots are
    zero.
    """
    # Plans read this module, too, and need no torch.
    from istmpi.engine.store import ParameterStore

    owners = store.owners
    new = find_new_parameters(store.parameters, owners.lengths, network)
    initial = ParameterStore(
        {name: network.parameters[name] for name in new},
        network.lengths,
        owners.ranks,
        store.rank,
    )
    _initialise(initial, network, seed)
    next_store = ParameterStore({}, network.lengths, owners.ranks, store.rank)
    for name, parameter in network.parameters.items():
        source = store
        if name in new:
            source = initial
        next_store.parameters[name] = parameter
        next_store.tensors[name] = source.tensors[name]
    slots = [name for name in store.parameters if isinstance(name, Slot)]
    for slot in slots:
        if slot.parameter in next_store.parameters and slot.parameter not in new:
            next_store.parameters[slot] = store.parameters[slot]
            next_store.tensors[slot] = store.tensors[slot]
    # Zero for new parameters, as at the start of a run.
    next_store.add_slots(slots)
    next_store.scale = store.scale
    next_store.fitted = store.fitted
    return next_store


def _initialise(store: ParameterStore, network: Architecture, seed: int) -> None:
    """Give the new parameters, which have a store of their own, their values at the start of a
    run."""
    from istmpi.checkpoint.initial import begin_as_constructed

    store.initialise(seed)
    computed = [name for name in network.table.computed if name in store.parameters]
    begin_as_constructed(network, store, seed, computed)


def find_new_parameters(
    parameters: Mapping[str, Parameter], lengths: Mapping[str, int], network: Architecture
) -> frozenset[str]:
    """Return the names of the network's parameters that ``parameters`` lack or have with other axes
    or shapes."""
    new = set()
    for name, parameter in network.parameters.items():
        before = parameters.get(name)
        if before is None or _describe_axes(before, lengths) != _describe_axes(
            parameter, network.lengths
        ):
            new.add(name)
    return frozenset(new)


def _describe_axes(
    parameter: Parameter, lengths: Mapping[str, int]
) -> tuple[Pattern, tuple[int, ...]]:
    return parameter.pattern, parameter.pattern.shape(lengths)
