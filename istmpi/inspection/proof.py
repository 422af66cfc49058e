"""Tests readings of a width (orders of its units on the axes) on a small network with random
weights.

If a reading is right, permuting the width's units in all parameters at once does not change the
outputs. A narrower network then also computes the same as the full network with other units zero,
unless something spans the units: a normalisation, or a scale by their number.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from istmpi.errors import ConfigError
from istmpi.inspection.orders import (
    Growth,
    Joins,
    Order,
    Structure,
    grow_structures,
    positions_along,
)
from istmpi.network.joined import along
from istmpi.network.running import run_examples
from istmpi.network.scaling import identify_storage, tensors_in
from istmpi.network.trials import FEW, Watching, alike, hooked, random_values, seeded, set_values
from istmpi.network.user import UserNetwork, Width

UNITS = (5, 7, 11)
"""The primes that are tried first as a width's number of units. A prime is skipped if it divides
another factor of an axis: a wrong reading could then permute another width's units and change
nothing."""
DIVISORS = 64
"""The largest divisor of a width that is tried as its number of units."""
EXAMPLES = 3
PERMUTATIONS = 2
"""The number of permutations under which a right reading keeps the outputs."""
DRAWS = 64
"""Runs of a network that draws random numbers in evaluation. A rare draw (dropout of 1%) may change
no single run."""
Place = tuple[str, int]
"""A parameter's name and the number of one of its axes."""
Reading = Mapping[Place, Order]
"""The order of a width's units on each axis."""
Moving = Mapping[str, Mapping[Place, Growth]]
"""The axes that grow with each width, and how their lengths follow from it."""


class Trial:
    """A small network with random values, for tests of a width's readings. Raises ConfigError if
    none works."""

    def __init__(self, network: UserNetwork, width: Width, moving: Moving, seed: int = 0):
        self._network = network
        self._width = width
        self._others: dict[str, int] = {}
        """The lengths of other widths, if they are not full."""
        self._x, self.units, self._built = self._build_small(moving)
        generator = torch.Generator().manual_seed(seed)
        drawn = random_values(self._built, generator)
        self._values = {
            name: values.to(self._built.get_parameter(name).dtype) for name, values in drawn.items()
        }
        self._permutations = [self._permutation(generator) for _ in range(PERMUTATIONS)]
        self._module_outputs: dict[str, torch.Tensor] = {}
        self._reads = _Reads(self._values)
        self._reads_before: dict[str, int] = {}
        """The number of parameters that are read before each module's first call ends."""
        self._joins = Joins()
        with self._reads, self._joins:
            self._expected = self._run(self._values, self._module_outputs)
        self._effects: dict[tuple[Place, Order], bool] = {}
        if not torch.isfinite(self._expected).all():
            raise ConfigError("the outputs of a small network with random weights are not finite")
        self._require_repeatable()

    def _require_repeatable(self) -> None:
        """Raise ConfigError if the network computes other outputs when it runs again."""
        changes = "its forward gives other outputs for the same examples each time"
        with seeded():  # the answer must not depend on the random numbers of this call
            state = torch.get_rng_state()
            outputs = self._run(self._values)
            # Without draws one run is enough.
            if torch.equal(state, torch.get_rng_state()):
                if not alike(outputs, self._expected):
                    raise ConfigError(f"{changes}: it keeps state, or draws random numbers")
                return
            if not all(alike(self._run(self._values), outputs) for _ in range(DRAWS)):
                raise ConfigError(
                    f"{changes}: it draws random numbers in evaluation, as functional.dropout does "
                    "without training=self.training"
                )

    def _build_small(self, moving: Moving) -> tuple[tuple[Any, ...], int, nn.Module]:
        """Build the network with few units of the width: the first number that works. Return
        examples, this number and the network. Raises ConfigError if none works.

        Another width stays full if it shares an axis with this width, or with a third width that
        does.
        """
        width = self._width
        apart = _never_on_an_axis_with(width.name, moving)
        ratios = {growth.ratio for axes in moving.values() for growth in axes.values()}
        numbers = []
        for units in UNITS:
            if units < width.length and all(ratio % units for ratio in ratios):
                numbers.append(units)
        # Some constructors take only divisors of the full width, as of a number of heads.
        halves = range(min(DIVISORS, width.length // 2), FEW, -1)
        numbers += [units for units in halves if width.length % units == 0]
        numbers.append(width.length)
        few = {name: min(UNITS[0], self._network.widths[name].length) for name in apart}
        problem = "a network with fewer of its units has parameters of other shapes"
        for others, units in itertools.product((few, {}), numbers):
            try:
                built = self._network.build({**others, width.name: units})
                x, _ = run_examples(
                    self._network, built, EXAMPLES, partial(self._network.forward, built)
                )
            except ConfigError as error:
                problem = str(error)
                continue
            if _fits(built, moving[width.name], units):
                self._others = others
                return x, units, built
        raise ConfigError(problem)

    def _permutation(self, generator: torch.Generator) -> torch.Tensor:
        order = torch.randperm(self.units, generator=generator)
        # The order from 0 on would permute nothing.
        return order.roll(1) if torch.equal(order, torch.arange(self.units)) else order

    def _run(
        self, values: Mapping[str, torch.Tensor], made: dict[str, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Return the network's outputs. ``made`` collects each module's first output, in the order
        of calls."""
        handles = []
        if made is not None:
            for name, module in self._built.named_modules():
                if name:
                    note = partial(self._note_output, made, name)
                    handles.append(module.register_forward_hook(note))
        with hooked(handles):
            set_values(self._built, values)
            return self._network.forward(self._built, *self._x)

    def _note_output(
        self, made: dict[str, torch.Tensor], name: str, _: nn.Module, __: object, output: object
    ) -> None:
        self._reads_before.setdefault(name, len(self._reads.names))
        if isinstance(output, tuple) and output:
            output = output[0]
        if isinstance(output, torch.Tensor) and name not in made:
            # The next layer may write into it.
            made[name] = output.detach().clone()

    def broken_by(self, reading: Reading) -> str:
        """Return the first module whose output shows that units are permuted; "" if the outputs
        stay the same."""
        for order in self._permutations:
            made: dict[str, torch.Tensor] = {}
            values = permute_units(self._values, reading, order)
            if alike(self._run(values, made), self._expected):
                continue
            for name, output in made.items():
                # A network that branches on values may have called other layers.
                expected = self._module_outputs.get(name)
                if expected is None or not _same_set(output, expected):
                    return name
            return "its last operation"
        return ""

    def read_before(self, module: str) -> Sequence[str]:
        """Return the parameters that are read before a module's first call ends, in the order of
        their first use.

        A name of no module gives all parameters. Parameters that are never read come last.
        """
        names = [*self._reads.names, *self._reads.unread.values()]
        return names[: self._reads_before.get(module)]

    def find_indifferent(self, reading: Reading, sure: bool) -> str:
        """Return a parameter whose permutation alone does not change the outputs, a text if none
        has an effect, or "".

        ``sure``: no other random weights will be tried. A single parameter without effect then does
        not count.
        """
        for place, order in reading.items():
            # An axis of exactly the units has a single order, which needs no proof.
            if self._length(place) > self.units and not self._matters(place, order):
                if not sure or self._depends_on([place]):
                    return place[0]
        if any(self._matters(place, order) for place, order in reading.items()):
            return ""
        if self._depends_on(reading):
            return ""
        return "any parameter: they do not depend on it"

    def _length(self, place: Place) -> int:
        name, axis = place
        return self._values[name].shape[axis]

    def _matters(self, place: Place, order: Order) -> bool:
        """Return True if a permutation of one axis alone changes the outputs."""
        key = (place, order)
        if key not in self._effects:
            permuted = permute_units(self._values, {place: order}, self._permutations[0])
            self._effects[key] = not alike(self._run(permuted), self._expected)
        return self._effects[key]

    def _depends_on(self, reading: Iterable[Place]) -> bool:
        """Return True if other factors along these axes change the outputs."""
        values = dict(self._values)
        for name, place in reading:
            factors = torch.linspace(1, 2, values[name].shape[place]).double()
            values[name] = values[name] * along(factors, place, values[name].ndim)
        return not alike(self._run(values), self._expected)

    def is_spanned(self, reading: Reading) -> bool:
        """Return True if a narrower network gives other outputs than this one with other units
        zero, or if none can be built."""
        narrow, units = self._build_narrower()
        if narrow is None:
            return True
        values = dict(self._values)
        silent = dict(self._values)
        for (name, place), order in reading.items():
            positions = positions_along(order, self.units, torch.arange(units))
            kept = torch.zeros(self._length((name, place)), dtype=torch.bool)
            kept[positions] = True
            values[name] = values[name].index_select(place, positions)
            silent[name] = silent[name] * along(kept, place, silent[name].ndim)
        for name, parameter in narrow.named_parameters():
            if parameter.shape != values[name].shape:
                return True
        # The narrow network gets the first units, and the other network zeros in place of the
        # rest.
        set_values(narrow, values)
        return not alike(self._network.forward(narrow, *self._x), self._run(silent))

    def structures(self) -> list[Structure]:
        """Return the structures of the concatenations in a forward pass."""
        narrow, units = self._build_narrower()
        if narrow is None or not self._joins.lengths:
            return []
        fewer = Joins()
        with fewer:
            self._network.forward(narrow, *self._x)
        return grow_structures(self._joins.lengths, self.units, fewer.lengths, units)

    def _build_narrower(self) -> tuple[nn.Module | None, int]:
        """Return a network with fewer units, as many as work, and their number; None and 0 if none
        works."""
        for units in range(self.units - 1, 0, -1):
            with suppress(ConfigError):
                built = self._network.build({**self._others, self._width.name: units})
                self._network.forward(built.to(self._expected.dtype).eval(), *self._x)
                return built, units
        return None, 0

    def describe(self, module: str) -> str:
        """Return a module's name with its class, for a message."""
        modules = dict(self._built.named_modules())
        if not module or module not in modules:
            return module
        return f"{module} ({type(modules[module]).__name__})"

    def number(self, module: str) -> int:
        """Return the number of a module in the order of calls: -1 for "", the largest for one that
        was not called."""
        if not module:
            return -1
        names = list(self._module_outputs)
        return names.index(module) if module in names else len(names)


class _Reads(Watching):
    """Records in ``names`` the order in which tensors of ``values`` are first read, while the mode
    is active."""

    def __init__(self, values: Mapping[str, torch.Tensor]):
        super().__init__()
        self.names: list[str] = []
        self.unread = {identify_storage(tensor): name for name, tensor in values.items()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for tensor in tensors_in([*args, *(kwargs or {}).values()]):
            name = self.unread.pop(identify_storage(tensor), "")
            if name:
                self.names.append(name)
        return func(*args, **(kwargs or {}))


def permute_units(
    values: Mapping[str, torch.Tensor], reading: Reading, units: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the values with a width's units in the order ``units`` on all axes of a reading."""
    permuted = dict(values)
    for (name, place), order in reading.items():
        permuted[name] = permuted[name].index_select(
            place, positions_along(order, len(units), units)
        )
    return permuted


def _never_on_an_axis_with(width: str, moving: Moving) -> list[str]:
    """Return the widths that share no axis with a width, nor with a third width that shares one."""
    beside = [name for name, axes in moving.items() if axes.keys() & moving[width].keys()]
    shared_axes: set[Place] = set()
    for name in beside:
        shared_axes |= moving[name].keys()
    return [name for name, axes in moving.items() if shared_axes.isdisjoint(axes)]


def _fits(built: nn.Module, growths: Mapping[Place, Growth], units: int) -> bool:
    """Return True if a network's axes have the lengths that follow from this number of units."""
    shapes = {name: parameter.shape for name, parameter in built.named_parameters()}
    for (name, place), growth in growths.items():
        if name not in shapes or shapes[name][place] != growth.length(units):
            return False
    return True


def _same_set(values: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return True if each example has the same values, perhaps in another order."""
    if values.shape != expected.shape:
        return False
    if values.ndim < 2:
        return alike(values, expected)
    # Sums of powers do not depend on the order, and need no sort.
    rows = values.flatten(1)
    expected_rows = expected.flatten(1)
    return all(alike((rows**power).sum(1), (expected_rows**power).sum(1)) for power in (2, 3))
