"""Takes initial weights from a function that yields them on rank 0: no rank holds more than it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from math import prod

import numpy as np
import torch

from istmpi.checkpoint.initial import Fit, fitting, renamed_to, require_finite, shapes_of
from istmpi.code import short
from istmpi.comm import Communicator
from istmpi.comm.communicator import STAGING_BYTES
from istmpi.data.callable.source import loaded
from istmpi.engine.store import ParameterStore
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

    Each rank gets the rows that it owns, and frozen parameters whole; rank 0 holds a tensor only as long as the
    function does. ``function``: that of the name ``source``, where it is loaded. Raises, on all ranks, DataError where
    it fails, ConfigError where nothing fits.
    """
    shapes, misshapen, unused = shapes_of(network), {}, []
    fitted: dict[str, None] = {}
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
        else:
            fitted[name] = None
            if name in network.frozen:
                network.give(name, network.frozen[name] if values is None else values)
                communicator.broadcast(_bytes(network.frozen[name]), 0)
            else:
                ratio = 1 / network.weight_factor(name, network.lengths, store.full_scale)
                _scatter(values, ratio, name, store, communicator)
    with communicator.agreed():
        require_finite(source, store)
        left = {name: shape for name, shape in shapes.items() if name not in network.frozen or name in fitted}
        return fitting(source, left, fitted, misshapen, unused)


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


def _scatter(
    values: torch.Tensor | None, ratio: float, name: str, store: ParameterStore, communicator: Communicator
) -> None:
    """Send each rank its rows of a tensor of rank 0's, times a ratio, some rows at a time."""
    target, owners, ranks = store.tensors[name], store.owners, communicator.size
    rows, *rest = store.parameters[name].pattern.shape(owners.lengths)
    nbytes = max(prod(rest) * target.element_size(), 1)
    owned, received, none = [owners.rows(rows, rank) for rank in range(ranks)], _bytes(target), [0] * ranks
    for first in range(0, rows, step := max(STAGING_BYTES // nbytes, 1)):
        counts = [nbytes * len(range(max(part.start, first), min(part.stop, first + step))) for part in owned]
        here, received = received[: counts[store.rank]], received[counts[store.rank] :]
        sent, send = np.empty(0, np.uint8), none
        if values is not None:
            part = values[first : first + step]
            sent = _bytes((part if ratio == 1 else part.double() * ratio).to("cpu", target.dtype).contiguous())
            send = counts
        starts = [*accumulate(send, initial=0)][:-1]
        communicator.alltoallv((sent, send, starts), (here, [len(here), *none[1:]], none))


def _bytes(values: torch.Tensor) -> np.ndarray:
    return values.reshape(-1).view(torch.uint8).numpy()
