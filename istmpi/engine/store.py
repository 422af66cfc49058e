"""The rows of every parameter that a rank owns, in host memory.

A rank stores only its own rows. Initial values depend only on the seed, the parameter's name and
the element's global position, so the network is the same for any number of ranks.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

import numpy as np
import torch

from istmpi import rng
from istmpi.comm import Communicator
from istmpi.engine.axes import Parameter, with_slots
from istmpi.engine.buckets import divide_into_buckets
from istmpi.engine.layout import Layout, Owners, part_shape
from istmpi.engine.slots import Slot, select_weights

Tensors = Mapping[str, torch.Tensor]

_CHUNK = 2**20
"""The number of elements that are drawn or digested at a time, to bound memory."""


class ParameterStore:
    """The owned rows of named tensors, in host memory.

    ``tensors[name]`` has the shape of this rank's part in ``owners``; the names of optimizer state
    are `Slot` objects. ``scale`` maps unit groups to the factors of their contributions in the full
    network (`istmpi.network.architecture.Architecture.factor`); ``fitted`` replaces factors.
    """

    def __init__(
        self, parameters: Mapping[str, Parameter], lengths: Mapping[str, int], ranks: int, rank: int
    ):
        self.parameters = dict(parameters)
        self.owners = Owners(dict(lengths), ranks)
        self.rank = rank
        self.scale: Mapping[str, float] = {}
        self.fitted: Mapping[str, float] = {}
        self.tensors = {name: self._zeros(parameter) for name, parameter in parameters.items()}
        self._lent: Tensors = {}
        self._order: Sequence[str] = ()
        """The names of all tensors while some of them are released; otherwise empty."""
        self.seed: int | None = None
        """The seed of the initial values; None if the rows have other values, such as those of a
        checkpoint."""

    @property
    def full_scale(self) -> dict[str, float]:
        return {**self.scale, **self.fitted}

    @contextmanager
    def borrowing(self, tensors: Tensors) -> Iterator[None]:
        """Within the context, `whole` copies these whole tensors instead of gathering rows.

        All ranks must lend tensors of the same names, with the values of the owners' rows.
        """
        self._lent = tensors
        try:
            yield
        finally:
            self._lent = {}

    def release(self, names: Collection[str]) -> None:
        """Free the memory of these tensors' rows, of which others have newer values, until
        `reclaim`. To read or fill them meanwhile is a KeyError."""
        self._order = list(self.tensors)
        for name in names:
            del self.tensors[name]

    def reclaim(self) -> None:
        """Make the rows that `release` has freed anew; the caller fills them."""
        kept = dict(self.tensors)
        self.tensors.clear()
        for name in self._order:
            if name in kept:
                self.tensors[name] = kept[name]
            else:
                self.tensors[name] = self._zeros(self.parameters[name])
        self._order = ()

    def whole(self, name: str, communicator: Communicator) -> torch.Tensor:
        """Return a whole tensor on every rank. Collective."""
        return dict(self.gather([name], communicator))[name]

    def gather(
        self, names: Iterable[str], communicator: Communicator, on_one: bool = False
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield whole tensors by name, on every rank, or with ``on_one`` on rank 0 alone.
        Collective until the iterator's end.

        Small tensors travel together: on a link with a long delay a message costs more than its
        bytes.
        """
        here = [name for name in names if name in self._lent]
        for name in here:
            if on_one and self.rank > 0:
                break
            # A copy, because the caller may change it.
            yield name, self._lent[name].detach().clone()
        sizes: dict[str, tuple[torch.dtype, int]] = {}
        for name in names:
            if name not in self._lent:
                dtype = self.tensors[name].dtype
                sizes[name] = (dtype, prod(self._whole_shape(name)) * dtype.itemsize)
        for bucket in divide_into_buckets(sizes):
            yield from self._gather_bucket(bucket, communicator, on_one)

    def _gather_bucket(
        self, names: Sequence[str], communicator: Communicator, on_one: bool
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the whole tensors of one message; on a rank that receives none, nothing."""
        parts: list[torch.Tensor] = []
        sizes: list[list[int]] = []
        """The elements of each name, by rank."""
        for name in names:
            length, *rest = self._whole_shape(name)
            parts.append(self.tensors[name].reshape(-1))
            by_rank = []
            for rank in range(self.owners.ranks):
                by_rank.append(len(self.owners.rows(length, rank)) * prod(rest))
            sizes.append(by_rank)
        flat = parts[0]
        if len(parts) > 1:
            flat = torch.cat(parts)
        counts = [sum(column) for column in zip(*sizes, strict=True)]
        if on_one:
            received = communicator.gatherv_to_root(flat.numpy(), counts)
            if received is None:
                return
        else:
            received = communicator.allgatherv(flat.numpy(), counts)
        gathered = torch.from_numpy(received)
        if len(names) == 1:
            yield names[0], gathered.view(self._whole_shape(names[0]))
            return
        # In the message a rank's rows of all names come before those of the next rank.
        of_ranks = []
        for rank, values in enumerate(gathered.split(counts)):
            of_ranks.append(values.split([by_rank[rank] for by_rank in sizes]))
        for name, rows in zip(names, zip(*of_ranks, strict=True), strict=True):
            yield name, torch.cat(rows).view(self._whole_shape(name))

    def _whole_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.parameters[name].pattern.shape(self.owners.lengths))

    def initialise(self, seed: int) -> None:
        """Fill the owned rows with initial values: uniform in ``centre ± bound`` of each
        parameter."""
        self.seed = seed
        for name, parameter in self.parameters.items():
            flat = self.tensors[name].view(-1)
            first = self.first_element(parameter)
            for start in range(0, len(flat), _CHUNK):
                stop = min(start + _CHUNK, len(flat))
                self._draw(name, flat[start:stop], np.arange(first + start, first + stop))

    def fill_initial(self, name: str, layout: Layout, values: torch.Tensor) -> None:
        """Fill ``values``, this rank's part of a parameter in a layout, with the initial values of
        which `initialise` fills the owned rows.

        Every rank computes the same bits. A rank without a part keeps ``values`` as they are.
        """
        axes = enumerate(self.parameters[name].pattern.axes)
        rows, *inner = (
            np.asarray(layout.positions(axis, place, self.rank)) for place, axis in axes
        )
        # The places of a row's elements in the row, and the elements of a whole row.
        in_row = np.zeros(1, dtype=np.int64)
        row_size = 1
        for positions, length in zip(inner, self._whole_shape(name)[1:], strict=True):
            in_row = (in_row[:, None] * length + positions).ravel()
            row_size *= length
        together = max(_CHUNK // max(len(in_row), 1), 1)
        for first in range(0, len(rows), together):
            some = rows[first : first + together, None] * row_size + in_row
            self._draw(name, values[first : first + together].view(-1), some.ravel())

    def _draw(self, name: str, flat: torch.Tensor, elements: np.ndarray) -> None:
        """Fill ``flat`` with a parameter's initial values at the places ``elements``."""
        if self.seed is None:
            raise AssertionError("initial values follow from the seed of `initialise`")
        parameter = self.parameters[name]
        if parameter.bound == 0:
            flat.fill_(parameter.centre)
            return
        # Random numbers by global position: the same for any number of ranks.
        values = rng.uniform_at(rng.key(self.seed, "initial", name), elements)
        values = (2 * values - 1) * parameter.bound + parameter.centre
        flat.copy_(torch.from_numpy(values))

    def digest(self) -> int:
        """Return a 64-bit digest of this rank's rows. All ranks' sum modulo 2**64 does not depend
        on their number."""
        total = 0
        for name, parameter in self.parameters.items():
            flat = self.tensors[name].view(-1)
            first = self.first_element(parameter)
            for start in range(0, len(flat), _CHUNK):
                values = flat[start : start + _CHUNK].view(torch.uint8).numpy()
                values = values.reshape(-1, parameter.itemsize).astype(np.uint64)
                shifts = np.uint64(8) * np.arange(parameter.itemsize, dtype=np.uint64)
                words = (values << shifts).sum(axis=1)
                weights = rng.bits(rng.key("digest", name), first + start, len(words))
                # Odd weights have inverses, so that every changed bit of a word changes the sum.
                products = (words + np.uint64(1)) * (weights | np.uint64(1))
                total += int(products.sum(dtype=np.uint64))
        return total % 2**64

    def not_finite(self) -> str:
        """Return this rank's first weight that is not finite, as ``name[row, column] is nan``; ""
        if there is none."""
        for name in select_weights(self.parameters):
            values = self.tensors[name]
            # The sum is quicker to check; of finite values it may be infinite.
            if torch.isfinite(values.sum()) or torch.isfinite(values).all():
                continue
            row, *rest = (~torch.isfinite(values)).nonzero()[0].tolist()
            length = self.parameters[name].pattern.axes[0].length(self.owners.lengths)
            row += self.owners.rows(length, self.rank).start
            place = ", ".join(map(str, (row, *rest)))
            return f"{name}[{place}] is {values[~torch.isfinite(values)][0].item()}"
        return ""

    def keep(self, tensors: Tensors) -> None:
        """Copy this rank's rows from ``tensors``, which are whole parameters."""
        for name in self.parameters.keys() & tensors.keys():
            parameter = self.parameters[name]
            length = parameter.pattern.axes[0].length(self.owners.lengths)
            rows = self.owners.rows(length, self.rank)
            self.tensors[name].copy_(tensors[name].detach()[rows.start : rows.stop])

    def add_slots(self, slots: Collection[str]) -> None:
        """Add slots (such as momentum), filled with zeros.

        An entry of ``slots`` is a `Slot`, or a kind for all parameters. Existing slots stay
        unchanged.
        """
        if self._order:
            raise AssertionError("rows that are released would become zeros")
        weights = {name: self.parameters[name] for name in select_weights(self.parameters)}
        kinds = dict.fromkeys(slot.kind if isinstance(slot, Slot) else slot for slot in slots)
        requested = {*slots}
        parameters = {}
        for name, parameter in with_slots(weights, tuple(kinds)).items():
            if not isinstance(name, Slot) or not requested.isdisjoint((name, name.kind)):
                parameters[name] = parameter
        self.parameters = {**parameters, **self.parameters}
        for name, parameter in self.parameters.items():
            if name not in self.tensors:
                self.tensors[name] = self._zeros(parameter)

    def drop_slots(self, except_for: Collection[str]) -> None:
        """Remove all slots except for the single `Slot` names, and the kinds, in ``except_for``."""
        kept = {*except_for}
        for name in list(self.parameters):
            if isinstance(name, Slot) and kept.isdisjoint((name, name.kind)):
                del self.parameters[name], self.tensors[name]

    def _zeros(self, parameter: Parameter) -> torch.Tensor:
        return torch.zeros(
            part_shape(self.owners, parameter, self.rank), dtype=getattr(torch, parameter.dtype)
        )

    def first_element(self, parameter: Parameter) -> int:
        """Return the place of this rank's first element in the whole flattened tensor."""
        shape = parameter.pattern.shape(self.owners.lengths)
        return self.owners.rows(shape[0], self.rank).start * prod(shape[1:])
