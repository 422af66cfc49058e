"""A user's map-style data set as a split: examples are read one by one, and collated.

The random numbers of an example depend only on a key. During the read, the key sets the global
random states of Python, NumPy and torch, which are restored afterwards. In a thread that reads
ahead, torch draws from a separate generator, because the training step uses the global one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from istmpi import rng
from istmpi.code import calling, ends_the_program, raised_in, short
from istmpi.data.batch import Batch
from istmpi.data.callable.form import Form, require_tensors
from istmpi.data.dataset import Split, add_to_checksum
from istmpi.errors import DataError
from istmpi.trees import Named, list_tensors
from istmpi.units import list_first

SAMPLED = 16
"""The number of examples from which a split's checksums are computed."""


@dataclass(eq=False)
class OwnSplit(Split):
    """Examples that are ``(inputs, target)`` or dicts; random numbers depend on batch key and
    example number."""

    dataset: Any
    name: str
    collate: Callable[[list[Any]], Any]
    takes: Collection[str] | None = None
    """The entries of a dict that go to ``forward``; None for all."""
    form: Form | None = None
    """The form of batches whose targets are classes or numbers. None: targets are the whole
    collated batch."""
    shape: tuple[int, ...] = ()
    """The shape of an example as a network gets it; unused without ``form``."""
    count: int = -1
    """The number of examples of ``dataset``; by default, the data set is asked once."""

    def __post_init__(self) -> None:
        if self.count < 0:
            with calling(f"{self.name}: __len__", DataError):
                self.count = len(self.dataset)

    def batch(self, indices: np.ndarray, key: int | None = None) -> Batch:
        batch = self.read_collated(indices, key)
        with calling(f"{self.name}: the collated batch", DataError):
            return self._as_batch(batch, len(indices))

    def _as_batch(self, batch: Any, rows: int) -> Batch:
        """Return a collated batch of ``rows`` examples as a `Batch`. Raises DataError if it has
        another form."""
        if isinstance(batch, Mapping):
            inputs: Any = self._choose_entries(batch)
        else:
            inputs = self._take_inputs(batch)
        arguments = (inputs,)
        if isinstance(inputs, list | tuple):
            arguments = tuple(inputs)
        require_tensors(arguments, batch, self.name)
        # Without a form the targets stay as they are: the user's loss reads the whole batch.
        if self.form is None:
            return Batch(arguments, batch, rows)
        if isinstance(batch, Mapping):
            raise DataError(
                f"{self.name} has examples that are dicts, and the first training examples are "
                "tensors."
            )
        targets = batch[1]
        self.form.require(inputs, targets, rows, self.name)
        targets = targets.long() if self.form.classes else targets.reshape(rows, -1)
        return Batch((inputs.reshape(rows, *self.shape),), targets, rows)

    def _choose_entries(self, batch: Mapping[Any, Any]) -> Named:
        """Return the entries of a dict that the network takes. Raises DataError if it has none."""
        named = {
            key: value for key, value in batch.items() if self.takes is None or key in self.takes
        }
        if not named:
            entries = ", ".join(map(str, batch)) or "(none)"
            arguments = ", ".join(self.takes or ()) or "names"
            raise DataError(
                f"{self.name} has examples with entries {entries}, but the network's forward "
                f"takes {arguments}. Give entries these names."
            )
        return Named(named)

    def _take_inputs(self, batch: Any) -> Any:
        """Return the inputs of a batch ``(inputs, target)``. Raises DataError for anything else."""
        is_sequence = isinstance(batch, list | tuple)
        if is_sequence and len(batch) == 2:
            if isinstance(batch[0], Mapping):
                return Named(batch[0])
            return batch[0]
        parts = type(batch).__name__
        if is_sequence:
            parts = f"{len(batch)} parts"
        raise DataError(
            f"{self.name} has examples that are not (inputs, target) or dicts but {parts}."
        )

    def read_collated(self, indices: np.ndarray, key: int | None = None) -> Any:
        rows = np.asarray(self.find_rows(indices)).tolist()
        key = key or 0
        items = []
        with control_random_numbers() as seed:
            for row in rows:
                # By row: an example has the same random numbers whatever batch it is in.
                seed(rng.key(key, row))
                try:
                    items.append(self.dataset[row])
                except BaseException as error:
                    if ends_the_program(error):
                        raise
                    raise DataError(
                        f"{self.name} example {row} cannot be read: "
                        f"{short(error)}.{raised_in(error)}"
                    ) from error
            # Padding and mixing may be random, too.
            seed(rng.key(key, "collate"))
            try:
                return self.collate(items)
            except BaseException as error:
                if ends_the_program(error):
                    raise
                raise self._describe_failure(error, rows, items) from error

    def _describe_failure(
        self, error: BaseException, rows: list[int], items: list[Any]
    ) -> DataError:
        """Return an error that names the examples that the collate function refused."""
        place = raised_in(error)
        if place:
            return DataError(
                f"{self.name}: its collate function fails for examples {list_first(rows)}: "
                f"{short(error)}.{place}"
            )
        row = self._find_misfit(rows, items)
        if row == rows[0]:
            return DataError(
                f"{self.name} example {row} cannot be put into a batch: {short(error)}. Give "
                "tensors, arrays and numbers, or write a collate function."
            )
        return DataError(
            f"{self.name} example {row} cannot be batched with example {rows[0]}: "
            f"{short(error)}. Give all the same shape, or write a collate function."
        )

    def _find_misfit(self, rows: list[int], items: list[Any]) -> int:
        """Return the row of the first item that cannot be collated with the first one; the first
        row if all can."""
        # torch's own function names no example.
        for row, item in zip(rows, items):
            try:
                self.collate([items[0], item])
            except Exception:
                return row
        return rows[0]

    def __len__(self) -> int:
        return self.count if self.chosen is None else len(self.chosen)

    def labels(self) -> np.ndarray:
        """Read and return the classes of all examples; zeros for data without classes."""
        if self.form and self.form.classes:
            return self._classes
        return super().labels()

    @cached_property
    def _classes(self) -> np.ndarray:
        parts = np.array_split(np.arange(len(self)), -(-len(self) // 1024))
        return np.concatenate([self.batch(part).targets.numpy() for part in parts])

    def reshape(self, shape: tuple[int, ...]) -> OwnSplit:
        return replace(self, shape=shape)

    @cached_property
    def _sample(self) -> list[Batch]:
        # A user's data set may take a second for an example, so a few of them stand for all.
        rows = np.unique(np.linspace(0, len(self) - 1, SAMPLED).astype(np.int64))
        return [self.batch(rows[number : number + 1]) for number in range(len(rows))]

    @property
    def features_checksum(self) -> int:
        return checksum_tensors([batch.inputs for batch in self._sample])

    @property
    def labels_checksum(self) -> int:
        return checksum_tensors([batch.targets for batch in self._sample])


def checksum_tensors(tree: Any) -> int:
    checksum = 0
    for tensor in list_tensors(tree):
        if not tensor.is_meta:
            values = tensor.detach().cpu().contiguous().reshape(-1)
            # NumPy lacks some types of torch, such as bfloat16; all have bytes.
            checksum = add_to_checksum(checksum, values.view(torch.uint8).numpy())
    return checksum


_ONE_AT_A_TIME = threading.RLock()
_DRAWS = {
    "rand",
    "randn",
    "randint",
    "randperm",
    "normal",
    "bernoulli",
    "multinomial",
    "poisson",
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "uniform_",
}
_LIKE = {"rand_like": torch.rand, "randn_like": torch.randn}


class _FromGenerator(TorchFunctionMode):
    def __init__(self, generator: torch.Generator):
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self, function: Callable, types: Any, inputs: Any = (), named: Any = None
    ) -> Any:
        name = function.__name__
        named = dict(named or {})
        # torch before 2.10 gives these no generator.
        if name in _LIKE:
            function = _LIKE[name]
            named = {"dtype": inputs[0].dtype, **named}
            inputs = (inputs[0].shape,)
        if name in _DRAWS or name in _LIKE:
            named.setdefault("generator", self._generator)
        return function(*inputs, **named)


@contextmanager
def control_random_numbers() -> Iterator[Callable[[int], None]]:
    """Yield a function that seeds this context's random numbers by a key. One thread at a time
    enters the context."""
    # The global states belong to the whole process, and the training thread may enter as well.
    with _ONE_AT_A_TIME:
        before = random.getstate()
        numpys_before = np.random.get_state()
        try:
            with _draw_from_generator() as generator:

                def seed(key: int) -> None:
                    random.seed(key)
                    # NumPy takes 32 bits, and torch one less than 64.
                    np.random.seed(key & 0xFFFFFFFF)
                    generator.manual_seed(key >> 1)

                yield seed
        finally:
            random.setstate(before)
            np.random.set_state(numpys_before)


@contextmanager
def _draw_from_generator() -> Iterator[torch.Generator]:
    """Yield the generator from which torch draws in this context."""
    if threading.current_thread() is not threading.main_thread():
        generator = torch.Generator()
        with _FromGenerator(generator):
            yield generator
        return
    # Training waits for this thread, so the global generator is free. The mode of the other threads
    # takes 4 microseconds in each call of torch, which is more than many examples compute.
    before = torch.default_generator.get_state()
    try:
        yield torch.default_generator
    finally:
        torch.default_generator.set_state(before)
