"""Distributes initial weights that a function yields on rank 0, one tensor at a time."""

from collections.abc import Callable, Iterable, Iterator

import torch

from istmpi.checkpoint.fit import describe_unheld
from istmpi.checkpoint.initial import settable_shapes
from istmpi.code import short
from istmpi.comm import Communicator
from istmpi.data.callable.source import load
from istmpi.engine.layout import Replicated, part_shape
from istmpi.engine.store import ParameterStore
from istmpi.engine.transfer import Transfer
from istmpi.errors import ConfigError, DataError, IstmpiError
from istmpi.network.architecture import Architecture
from istmpi.network.joined import as_tensor, changes
from istmpi.network.unheld import find_unheld_factor

Yields = Callable[[], Iterable[tuple[str, torch.Tensor]]]


def begin_with_function(
    source: str,
    function: Yields | None,
    network: Architecture,
    store: ParameterStore,
    communicator: Communicator,
) -> list[str]:
    """Set a store to the (name, tensor) pairs that a function yields on rank 0; return lines to
    print. Collective.

    Each rank gets the rows that it owns, and frozen parameters whole. If ``function`` is None, rank
    0 loads it by its name ``source``. Raises DataError on all ranks if the function fails,
    ConfigError if a tensor does not fit or is not finite. Only floating-point tensors are used.
    """
    pairs: Iterator[tuple[str, torch.Tensor]] = iter(())
    if communicator.rank == 0:
        pairs = _read_pairs(source, function, network)
    taken: set[str] = set()
    while True:
        # Other ranks have no pairs: they take part with the name that rank 0 sends.
        with communicator.agreed():
            name, values = next(pairs, ("", None))
        name = communicator.broadcast_from_root(name)
        if not name:
            count = len(settable_shapes(network))
            lines = [f"initial weights from {source}: {len(taken)} of {count} parameters."]
            unheld = find_unheld_factor(network, store.full_scale)
            if unheld:
                lines.append(describe_unheld(unheld))
            return lines
        taken.add(name)
        if name in network.frozen:
            _give_frozen(network, name, values, communicator)
        else:
            _give_parameter(network, name, values, store, communicator)


def _give_frozen(
    network: Architecture, name: str, values: torch.Tensor | None, communicator: Communicator
) -> None:
    """Set a frozen parameter on every rank to rank 0's ``values``. Collective."""
    frozen = network.frozen[name]
    # A rank without values gives the old ones, so that checkpoints have the parameter.
    network.give(name, frozen if values is None else values)
    communicator.broadcast(frozen.view(torch.uint8).numpy(), 0)


def _give_parameter(
    network: Architecture,
    name: str,
    values: torch.Tensor | None,
    store: ParameterStore,
    communicator: Communicator,
) -> None:
    """Send rows of rank 0's ``values`` to their owners. Collective."""
    parameter = store.parameters[name]
    target = store.tensors[name]
    on_root = Replicated(network.lengths, communicator.size, (0,))
    if values is None:
        values = target.new_empty(part_shape(on_root, parameter, store.rank))
    else:
        # The full network multiplies the weight by this factor.
        factor = network.weight_factor(name, store.full_scale)
        if changes(factor):
            values = values.to("cpu").double() / as_tensor(factor)
        values = values.to("cpu", target.dtype).contiguous()
    transfer = Transfer({name: parameter}, on_root, store.owners, store.rank)
    transfer.run({name: values}, store.tensors, communicator)


def _read_pairs(
    source: str, function: Yields | None, network: Architecture
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the floating-point tensors of a user's function, if they fit the network."""
    shapes = settable_shapes(network)
    try:
        if function is None:
            _, function = load("--init", source, "function")
        for name, values in function():
            if not values.is_floating_point():
                continue
            if shapes.get(name) != values.shape or not values.isfinite().all():
                expected = shapes.get(name, "nothing of this name")
                raise ConfigError(
                    f"train.init = {source!r}: it yields {name} {tuple(values.shape)}; "
                    f"the network takes {expected}, finite."
                )
            yield name, values.detach()
    except IstmpiError:
        raise
    except Exception as error:
        raise DataError(
            f"train.init = {source!r}: {short(error)}. It must yield (name, tensor) pairs."
        ) from error
