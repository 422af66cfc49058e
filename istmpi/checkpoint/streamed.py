"""Distributes initial weights that a function yields on rank 0, one tensor at a time."""

from collections.abc import Callable, Iterable, Iterator

import torch

from istmpi.checkpoint.initial import shapes_of
from istmpi.code import short
from istmpi.comm import Communicator
from istmpi.data.callable.source import load
from istmpi.engine.layout import Replicated, part_shape
from istmpi.engine.store import ParameterStore
from istmpi.engine.transfer import Transfer
from istmpi.errors import ConfigError, DataError, IstmpiError
from istmpi.network.architecture import Architecture
from istmpi.network.joined import as_tensor, changes

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
    on_root, taken = Replicated(network.lengths, communicator.size, (0,)), set()
    pairs = _pairs(source, function, network) if communicator.rank == 0 else iter(())
    while True:
        with communicator.agreed():
            name, values = next(pairs, ("", None))
        if not (name := communicator.broadcast_from_root(name)):
            return [
                f"initial weights from {source}: {len(taken)} of {len(shapes_of(network))} parameters."
            ]
        taken.add(name)
        if name in network.frozen:
            frozen = network.frozen[name]
            network.give(name, frozen if values is None else values)
            communicator.broadcast(frozen.view(torch.uint8).numpy(), 0)
            continue
        parameter, target = store.parameters[name], store.tensors[name]
        if values is None:
            values = target.new_empty(part_shape(on_root, parameter, store.rank))
        factor = network.weight_factor(name, store.full_scale)
        if changes(factor):
            values = values.to("cpu").double()
            values = values / as_tensor(factor) if len(values) else values
        values = values.to("cpu", target.dtype).contiguous()
        transfer = Transfer({name: parameter}, on_root, store.owners, store.rank)
        transfer.run({name: values}, store.tensors, communicator)


def _pairs(
    source: str, function: Yields | None, network: Architecture
) -> Iterator[tuple[str, torch.Tensor]]:
    shapes = shapes_of(network)
    try:
        for name, values in (function or load("--init", source, "function")[1])():
            if values.is_floating_point():
                if shapes.get(name) != values.shape or not values.isfinite().all():
                    raise ConfigError(
                        f"train.init = {source!r}: it yields {name} {tuple(values.shape)}; the network takes "
                        f"{shapes.get(name, 'nothing of this name')}, finite."
                    )
                yield name, values.detach()
    except IstmpiError:
        raise
    except Exception as error:
        raise DataError(
            f"train.init = {source!r}: {short(error)}. It must yield (name, tensor) pairs."
        ) from error
