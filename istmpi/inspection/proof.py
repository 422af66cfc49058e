"""Tests readings of a width (orders of its units on the axes) on a small network with random
weights.

If a reading is right, permuting the width's units in all parameters at once does not change the
outputs. A narrower network then also computes the same as the full network with other units zero,
unless something spans the units: a normalisation, or a scale by their number.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from istmpi.errors import ConfigError
from istmpi.inspection.orders import Growth, Joins, Order, Structure, grown, positions_along
from istmpi.network.norms import built
from istmpi.network.running import run_examples, run_short
from istmpi.network.scaling import storage_of, tensors_in
from istmpi.network.trials import FEW, Watching, alike, hooked, random_values, seeded, set_values
from istmpi.network.user import UserNetwork, Width

UNITS = (5, 7, 11)
"""The primes that are tried first as a width's number of units. A prime is skipped if it divides
another factor of an axis: a wrong reading could then permute another width's units and change
nothing."""
DIVISORS = 64
EXAMPLES = 3
AT_OWN_SIZE = 2
PERMUTATIONS = 2
DRAWS = 64
"""Runs of a network that draws random numbers in evaluation. A rare draw (dropout of 1%) may change
no single run."""
RANDOM = frozenset(
    (
        "bernoulli",
        "bernoulli_",
        "uniform_",
        "normal_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "cauchy_",
    )
    + ("rand", "rand_like", "randn", "randn_like", "normal", "normal_functional", "uniform")
)

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
        self._network, self._width = network, width
        self._x, self.units, self._others, self._built = self._small(moving)
        generator = torch.Generator().manual_seed(seed)
        drawn = random_values(self._built, generator)
        self._values = {
            name: values.to(self._built.get_parameter(name).dtype) for name, values in drawn.items()
        }
        self._permutations = [self._permutation(generator) for _ in range(PERMUTATIONS)]
        self._outputs_of: dict[str, torch.Tensor] = {}
        self._reads, self._before = _Reads(self._values), {}
        self._joins = Joins()
        with self._reads, self._joins:
            self._expected = self._run(self._values, self._outputs_of)
        self._matters = cache(self._matters)
        if not torch.isfinite(self._expected).all():
            raise ConfigError("the outputs of a small network with random weights are not finite")
        self._require_repeatable()

    def _require_repeatable(self) -> None:
        """Raise ConfigError if the network computes other outputs when it runs again."""
        changes = "its forward gives other outputs for the same examples each time"
        with seeded():  # the answer must not depend on the random numbers of this call
            state = torch.get_rng_state()
            outputs = self._run(self._values)
            if torch.equal(state, torch.get_rng_state()):
                if not alike(outputs, self._expected):
                    raise ConfigError(f"{changes}: it keeps state, or draws random numbers")
                return
            if not all(alike(self._run(self._values), outputs) for _ in range(DRAWS)):
                raise ConfigError(
                    f"{changes}: it draws random numbers in evaluation, as functional.dropout does without "
                    "training=self.training"
                )

    def _small(self, moving: Moving) -> tuple[torch.Tensor, int, dict[str, int], nn.Module]:
        """Build the network with few units of the width: the first number that works. Raises
        ConfigError if none does.

        Another width stays full if it shares an axis with this width, or with a third width that
        does.
        """
        width = self._width
        apart = _never_on_an_axis_with(width.name, moving)
        ratios = {growth.ratio for axes in moving.values() for growth in axes.values()}
        numbers = [
            units
            for units in UNITS
            if units < width.length and all(ratio % units for ratio in ratios)
        ]
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
                return x, units, others, built
        raise ConfigError(problem)

    def _permutation(self, generator: torch.Generator) -> torch.Tensor:
        order = torch.randperm(self.units, generator=generator)
        return order.roll(1) if torch.equal(order, torch.arange(self.units)) else order

    def _run(
        self, values: Mapping[str, torch.Tensor], made: dict[str, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """The network's outputs. ``made`` collects each module's first output, in the order of
        calls."""

        def note(name: str, _: nn.Module, __: object, output: object) -> None:
            self._before.setdefault(name, len(self._reads.names))
            output = output[0] if isinstance(output, tuple) and output else output
            if isinstance(output, torch.Tensor) and name not in made:
                made[name] = output.detach().clone()  # the next layer may write into it

        noted = [
            (name, module)
            for name, module in self._built.named_modules()
            if name and made is not None
        ]
        with hooked(module.register_forward_hook(partial(note, name)) for name, module in noted):
            set_values(self._built, values)
            return self._network.forward(self._built, *self._x)

    def broken_by(self, reading: Reading) -> str:
        """Return the first module whose output shows that units are permuted; "" if the outputs
        stay the same."""
        for order in self._permutations:
            made: dict[str, torch.Tensor] = {}
            if not alike(self._run(_permuted(self._values, reading, order), made), self._expected):
                before = (
                    self._outputs_of
                )  # a network that branches on values may have called other layers
                differing = (
                    name
                    for name in made
                    if name not in before or not _same_set(made[name], before[name])
                )
                return next(differing, "its last operation")
        return ""

    def read_before(self, module: str) -> Sequence[str]:
        """The parameters that are read before a module's first call ends, in the order of their
        first use.

        A name of no module gives all parameters. Parameters that are never read come last.
        """
        return [*self._reads.names, *self._reads.unread.values()][: self._before.get(module)]

    def indifferent_to(self, reading: Reading, sure: bool) -> str:
        """Return a parameter whose permutation alone does not change the outputs, a text if none
        has an effect, or "".

        ``sure``: no other random weights will be tried. A single parameter without effect then does
        not count.
        """
        for place, order in reading.items():
            if self._axis(place) > self.units and not self._matters(place, order):
                if not sure or self._depends_on([place]):
                    return place[0]
        if any(self._matters(place, order) for place, order in reading.items()) or self._depends_on(
            reading
        ):
            return ""
        return "any parameter: they do not depend on it"

    def _axis(self, place: Place) -> int:
        name, axis = place
        return self._values[name].shape[axis]

    def _matters(self, place: Place, order: Order) -> bool:
        permuted = _permuted(self._values, {place: order}, self._permutations[0])
        return not alike(self._run(permuted), self._expected)

    def _depends_on(self, reading: Iterable[Place]) -> bool:
        values = dict(self._values)
        for name, place in reading:
            values[name] = _times(
                values[name], torch.linspace(1, 2, values[name].shape[place]).double(), place
            )
        return not alike(self._run(values), self._expected)

    def spanned(self, reading: Reading) -> bool:
        narrow, units = self._narrow()
        if narrow is None:
            return True
        values, silent = dict(self._values), dict(self._values)
        for (name, place), order in reading.items():
            positions = positions_along(order, self.units, torch.arange(units))
            kept = torch.zeros(self._axis((name, place)), dtype=torch.bool)
            kept[positions] = True
            values[name] = values[name].index_select(place, positions)
            silent[name] = _times(silent[name], kept, place)
        if any(
            parameter.shape != values[name].shape for name, parameter in narrow.named_parameters()
        ):
            return True
        set_values(narrow, values)
        return not alike(self._network.forward(narrow, *self._x), self._run(silent))

    def structures(self) -> list[Structure]:
        """Return the structures of the concatenations in a forward pass."""
        narrow, units = self._narrow()
        if narrow is None or not self._joins.lengths:
            return []
        fewer = Joins()
        with fewer:
            self._network.forward(narrow, *self._x)
        return grown(self._joins.lengths, self.units, fewer.lengths, units)

    def _narrow(self) -> tuple[nn.Module | None, int]:
        for units in range(self.units - 1, 0, -1):
            with suppress(ConfigError):
                built = self._network.build({**self._others, self._width.name: units})
                self._network.forward(built.to(self._expected.dtype).eval(), *self._x)
                return built, units
        return None, 0

    def shown(self, module: str) -> str:
        kinds = {name: type(layer).__name__ for name, layer in self._built.named_modules() if name}
        return f"{module} ({kinds[module]})" if module in kinds else module

    def order(self, module: str) -> int:
        names = list(self._outputs_of)
        return names.index(module) if module in names else len(names) if module else -1


def misread(network: UserNetwork, readings: Mapping[str, Reading]) -> dict[str, str]:
    """Return the problems of widths whose units cannot be permuted in the full network, in
    evaluation or training."""
    if not readings:
        return {}
    module = built(network).float()
    generator = torch.Generator().manual_seed(0)
    values = random_values(module, generator)
    orders = {
        name: torch.randperm(network.widths[name].length, generator=generator) for name in readings
    }

    def run(
        x: Sequence[torch.Tensor], permuted: Mapping[str, Reading], training: bool
    ) -> torch.Tensor:
        given: Mapping[str, torch.Tensor] = values
        for width, reading in permuted.items():
            given = _permuted(given, reading, orders[width])
        set_values(module, given)
        with seeded(), Steady():
            return network.forward(module.train(training), *x)

    with suppress(
        ConfigError
    ):  # float32 is enough if its outputs agree as closely as those in float64 must
        examples = network.examples(AT_OWN_SIZE, torch.float32)
        x, expected = run_short(network, examples, lambda *x: run(x, {}, False))
        pairs = ((run(x, readings, on), run(x, {}, on) if on else expected) for on in (False, True))
        if all(alike(outputs.double(), others.double()) for outputs, others in pairs):
            return {}
    x, expected = run_examples(network, module, AT_OWN_SIZE, lambda *x: run(x, {}, False))
    problems, widths = {}, ", ".join(f"{name} = {network.widths[name].length}" for name in readings)
    for training, where in ((False, f"with {widths}"), (True, "in training")):
        left = {name: reading for name, reading in readings.items() if name not in problems}
        expected = run(x, {}, True) if training else expected
        if alike(run(x, left, training), expected):
            continue
        for name, reading in left.items():
            if not alike(run(x, {name: reading}, training), expected):
                problem = f"exchanging its units changes the outputs {where}, although not those of a small network"
                problems[name] = problem
    return problems


class _Reads(Watching):
    """Records in ``names`` the order in which tensors of ``values`` are first read, while the mode
    is active."""

    def __init__(self, values: Mapping[str, torch.Tensor]):
        super().__init__()
        self.names: list[str] = []
        self.unread = {storage_of(tensor): name for name, tensor in values.items()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for tensor in tensors_in([*args, *(kwargs or {}).values()]):
            if name := self.unread.pop(storage_of(tensor), ""):
                self.names.append(name)
        return func(*args, **(kwargs or {}))


class Steady(Watching):
    """Replaces random numbers by constants while the mode is active."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        outputs = func(*args, **(kwargs or {}))
        if name in RANDOM:
            outputs.fill_(
                args[1]
                if name == "bernoulli_" and len(args) > 1 and isinstance(args[1], float)
                else 0.5
            )
        return outputs


def _permuted(
    values: Mapping[str, torch.Tensor], reading: Reading, units: torch.Tensor
) -> dict[str, torch.Tensor]:
    permuted = dict(values)
    for (name, place), order in reading.items():
        permuted[name] = permuted[name].index_select(
            place, positions_along(order, len(units), units)
        )
    return permuted


def _times(values: torch.Tensor, factors: torch.Tensor, axis: int) -> torch.Tensor:
    return values * factors.view([-1 if place == axis else 1 for place in range(values.ndim)])


def _never_on_an_axis_with(width: str, moving: Moving) -> list[str]:
    beside = {name for name, axes in moving.items() if axes.keys() & moving[width].keys()}
    return [
        name
        for name, axes in moving.items()
        if not any(axes.keys() & moving[other].keys() for other in beside)
    ]


def _fits(built: nn.Module, growths: Mapping[Place, Growth], units: int) -> bool:
    shapes = {name: parameter.shape for name, parameter in built.named_parameters()}
    for (name, place), growth in growths.items():
        if name not in shapes or shapes[name][place] != growth.length(units):
            return False
    return True


def _same_set(values: torch.Tensor, expected: torch.Tensor) -> bool:
    if values.shape != expected.shape or values.ndim < 2:
        return values.shape == expected.shape and alike(values, expected)
    rows, others = values.flatten(1), expected.flatten(1)
    return all(alike((rows**power).sum(1), (others**power).sum(1)) for power in (2, 3))
