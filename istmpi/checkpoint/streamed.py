"""Takes initial weights from a function that yields them on rank 0: no rank holds more than it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from istmpi.checkpoint.initial import Fit, renamed_to, shapes_of
from istmpi.code import short
from istmpi.comm import Communicator
from istmpi.data.callable.source import loaded
from istmpi.engine.layout import Replicated, part_shape
from istmpi.engine.store import ParameterStore
from istmpi.engine.transfer import Transfer
from istmpi.errors import ConfigError, DataError, IstmpiError
from istmpi.models.architecture import Architecture

Yields = Callable[[], Iterable[tuple[str, torch.Tensor]]]


def begin_with_function(
    source: str,
    function: Yields | None,
    network: Architecture,
    store: ParameterStore,
    communicator: Communicator,
    renamed: Mapping[str, str] | None = None,
) -> Fit:
    """Bring a store to the pairs of a name and a tensor that a function yields on rank 0 alone. Collective.

    Each rank gets the rows that it owns, and frozen parameters whole. ``function``: that of the name ``source``, where
    it is loaded. Raises, on all ranks, DataError where it fails, ConfigError where nothing fits.
    """
    shapes, fitted, misshapen, unused = shapes_of(network), {}, {}, []
    on_root = Replicated(network.lengths, communicator.size, (0,))
    pairs = _pairs(source, function) if communicator.rank == 0 else iter(())
    while True:
        with communicator.agreed():
            there, values = next(pairs, ("", None))
        there, shape = communicator.broadcast_from_root((there, None if values is None else tuple(values.shape)))
        if shape is None:
            break
        (name,) = renamed_to([there], renamed or {})
        if name not in shapes:
            unused.append(there)
        elif shapes[name] != shape:
            misshapen[name] = shape
        elif name in network.frozen:
            fitted[name] = there
            frozen = network.frozen[name]
            network.give(name, frozen if values is None else values)
            communicator.broadcast(frozen.view(torch.uint8).numpy(), 0)
        else:
            fitted[name] = there
            parameter, target = store.parameters[name], store.tensors[name]
            if values is None:
                values = target.new_empty(part_shape(on_root, parameter, store.rank))
            factor = network.weight_factor(name, network.lengths, store.full_scale)
            values = (values if factor == 1 else values.double() / factor).to("cpu", target.dtype).contiguous()
            transfer = Transfer({name: parameter}, on_root, store.owners, store.rank)
            transfer.run({name: values}, store.tensors, communicator)
    with communicator.agreed():
        fit = Fit.of(source, network, fitted, misshapen, unused)
        fit.require_finite(store)
    return fit


def _pairs(source: str, function: Yields | None) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        for pair in (function or loaded("--init", source, "function")[1])():
            name, values = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
            if not isinstance(name, str) or not isinstance(values, torch.Tensor):
                raise ConfigError(
                    f"train.init = {source!r}: it yields {str(pair)[:80]}; it must yield pairs of a name and a tensor."
                )
            if values.is_floating_point():
                yield name, values.detach()
    except IstmpiError:
        raise
    except Exception as error:
        raise DataError(f"train.init = {source!r}: it fails: {short(error)}.") from error
