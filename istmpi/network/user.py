"""A user's network: a class of a file or a package, with the arguments of its constructor."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from istmpi.code import calling, gradients_kept, short
from istmpi.errors import ConfigError
from istmpi.network.source import Source
from istmpi.outputs import join_outputs, list_outputs
from istmpi.trees import call, inputs_to, list_tensors, map_tensors

if TYPE_CHECKING:
    import torch
    from torch import nn

BATCH = 2
"""The number of examples in a batch that is made up to count values."""
IN_A_ROW = 3
"""The number of features in each sparse row that is made up."""


@dataclass(frozen=True)
class Width:
    name: str
    """The argument's name. For an element of a sequence, its number from 1 follows."""
    argument: str
    place: int | None
    """The element's place in the argument, from 0; None if the argument is a number."""
    length: int


@dataclass(frozen=True)
class UserNetwork:
    name: str
    load: Callable[[], tuple[type[nn.Module], Source]] = field(compare=False)
    """A function that returns the class and its source. It is called only when needed."""
    facts: Mapping[str, Any]
    settings: Mapping[str, Any]
    inputs: tuple[int, ...]
    """The shape of an example as ``forward`` gets it."""
    outputs: int
    tokens: bool = False
    """True if examples are tokens, integers below ``outputs``."""
    sparse: bool = False
    """True if examples are sparse rows: feature numbers, the start of each row, values."""
    graph: bool = False
    """True if examples are nodes: features, offsets of the lists of neighbours, neighbours."""
    is_inspected: bool = True
    """False if the network's table is written by hand: the network may be too large to be tried,
    and plans need not load its class."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    example: tuple[Any, ...] | None = field(default=None, compare=False)
    """The inputs of a batch of the user's own task, or None. Such a network's outputs may be any
    tree."""
    frozen: dict[str, torch.Tensor] = field(default_factory=dict, init=False, compare=False)
    """The full network's values of frozen parameters; empty before the first build. `build` uses
    them for parameters of equal shape."""
    given: set[str] = field(default_factory=set, init=False, compare=False)
    """The names of frozen parameters whose values were replaced after the constructor."""

    def refused(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.name}: {problem}")

    @property
    def kind(self) -> type[nn.Module]:
        return self.load()[0]

    @property
    def source(self) -> Source:
        return self.load()[1]

    @property
    def widths(self) -> dict[str, Width]:
        """The positive integers among the settings: each may be a width."""
        widths = []
        for argument, value in self.settings.items():
            if _is_number(value):
                widths.append(Width(argument, argument, None, value))
            elif isinstance(value, list | tuple) and value and all(map(_is_number, value)):
                widths += [
                    Width(f"{argument}{n + 1}", argument, n, length)
                    for n, length in enumerate(value)
                ]
        return {width.name: width for width in widths if width.length > 0}

    @property
    def preferred(self) -> tuple[str, ...]:
        """The widths that the class prefers to deal out. Raises ConfigError unless ``DEALT`` has
        names."""
        names = getattr(self.kind, "DEALT", ())
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise self.refused(
                f"DEALT = {names!r} must be names of arguments, such as ('hidden',)."
            )
        return tuple(
            width.name for width in self.widths.values() if {width.name, width.argument} & {*names}
        )

    @property
    def numbers(self) -> int:
        """The number of values that one of its outputs has for an example."""
        return self.outputs * (prod(self.inputs) if self.tokens else 1)

    def settings_at(self, lengths: Mapping[str, int]) -> dict[str, Any]:
        """Return the settings with other lengths of some widths."""
        settings = dict(self.settings)
        for name, length in lengths.items():
            width = self.widths[name]
            if width.place is None:
                settings[width.argument] = length
            else:
                # A copy: the settings are shared by all widths.
                values = list(settings[width.argument])
                values[width.place] = length
                settings[width.argument] = type(self.settings[width.argument])(values)
        return settings

    def build(self, lengths: Mapping[str, int] | None = None) -> nn.Module:
        """Build the network, with other lengths of some widths.

        Raises ConfigError if the constructor fails or makes no torch.nn.Module, or if a parameter
        has no shape.
        """
        from torch import nn
        from torch.nn.parameter import is_lazy

        arguments = {**self.facts, **self.settings_at(lengths or {})}
        try:
            built = self._construct(arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._constructor_failed(arguments, error) from error
        if not isinstance(built, nn.Module):
            raise self.refused(f"its class makes {type(built).__name__}, not a torch.nn.Module.")
        with calling(f"{self.name}: train"):
            built.train()
        for name, parameter in built.named_parameters():
            if is_lazy(parameter):
                raise self.refused(
                    f"its parameter {name} has no shape before the first forward pass. Give its "
                    "layer the number of its inputs."
                )
            # Ranks own rows, so each parameter has an axis.
            if parameter.ndim == 0:
                parameter.data = parameter.data.reshape(1)
        frozen = _freeze(built)
        if frozen:
            self._keep_frozen(frozen)
        return built

    def _construct(self, arguments: Mapping[str, Any]) -> nn.Module:
        with gradients_kept(), warnings.catch_warnings():
            # Parameters without elements are refused in one line.
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")
            # Pretrained weights are copied onto the meta device.
            warnings.filterwarnings("ignore", ".*copying from a non-meta parameter")
            return self.kind(**arguments)

    def _constructor_failed(
        self, arguments: Mapping[str, Any], error: BaseException
    ) -> ConfigError:
        settings = _list_values({name: arguments[name] for name in self.settings})
        shown = f" with {settings}" if settings else ""
        changed = {
            name: value for name, value in self.defaults.items() if arguments[name] is not value
        }
        cure = "Correct it, or give other arguments"
        if changed:
            plural = "s" if len(changed) > 1 else ""
            cure = f"Its default{plural}: {_list_values(changed)}"
        return self.refused(f"its constructor fails{shown}: {short(error)}. {cure}.")

    def _keep_frozen(self, frozen: Mapping[str, torch.Tensor]) -> None:
        """Give ``frozen`` the full network's values where shapes are equal: random values may
        depend on widths."""
        import torch

        from istmpi.network.trials import seeded

        if not self.frozen and not all(values.is_meta for values in frozen.values()):
            with seeded(), torch.device("cpu"):
                full = self._construct({**self.facts, **self.settings})
            self.frozen.update(_freeze(full))
        for name, values in frozen.items():
            kept = self.frozen.get(name)
            if kept is not None and kept.shape == values.shape and not values.is_meta:
                values.data = kept

    @property
    def frozen_digest(self) -> float:
        """A checksum of the frozen parameters, equal on all machines except for rounding; 0 if
        there are none."""
        total = 0.0
        for number, name in enumerate(sorted(self.frozen), 1):
            flat = self.frozen[name].reshape(-1)
            # At most 4096 values, so that large tensors cost no more.
            sample = flat[:: len(flat) // 4096 + 1].double().abs().nan_to_num(posinf=1.0)
            # The number tells apart equal tensors under other names.
            total += number * float(sample.sum())
        return total

    def examples(self, count: int, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return ``count`` examples as inputs of ``forward``: rows of ``example``, if any, or fixed
        random ones.

        If the tensors of ``example`` have different lengths, all rows are returned.
        """
        import torch

        if self.example is not None:
            rows, *others = {len(x) if x.ndim else 0 for x in list_tensors(self.example)}
            chosen: Any = ...
            if rows and not others:
                # A batch with fewer rows is repeated.
                chosen = torch.arange(count) % rows
            examples = map_tensors(lambda x: x.detach()[chosen].clone(), self.example)
            return inputs_to(examples, "cpu", dtype)
        generator = torch.Generator().manual_seed(count)

        def draw(*shape: int) -> torch.Tensor:
            # Numbers are drawn in float64, so that other types get the same ones, rounded.
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        if self.tokens:
            return (torch.randint(self.outputs, (count, *self.inputs), generator=generator),)
        if self.sparse:
            columns = torch.randint(self.inputs[0], (count * IN_A_ROW,), generator=generator)
            return columns, torch.arange(0, len(columns), IN_A_ROW), draw(count * IN_A_ROW)
        values = draw(count, *self.inputs)
        if self.graph:
            # A path: each node has the node before it as its only neighbour.
            offsets = (torch.arange(count + 1) - 1).clamp(min=0)
            return values, offsets, torch.arange(count - 1)
        return (values,)

    def forward(
        self, network: nn.Module, *inputs: torch.Tensor, gradients: bool = False
    ) -> torch.Tensor:
        """Return the outputs ``[b, all outputs]``. Raises ConfigError if the pass fails or the
        outputs do not fit.

        With an ``example``, all floating-point outputs form a single row.
        """
        returned = self._pass(network, inputs, gradients)
        if self.example is not None:
            return self._flat(returned)
        self._require_outputs(returned, inputs)
        return join_outputs([outputs.flatten(1) for outputs in list_outputs(returned)])

    def _pass(self, network: nn.Module, inputs: tuple[Any, ...], gradients: bool) -> Any:
        """Return what ``forward`` returns for ``inputs``. Raises ConfigError if it fails."""
        import torch

        try:
            with torch.set_grad_enabled(gradients):
                return call(network, inputs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._forward_failed(inputs, error) from error

    def count_values_an_example(self, network: nn.Module, dtype: torch.dtype) -> int:
        """Return the number of values that an output of an own task has for an example, rounded up:
        0 unless ``network`` returns one tensor with rows.

        If every input has `BATCH` rows, the outputs are for `BATCH` examples, whatever their first
        axis is; otherwise the first axis of the outputs counts examples.
        """
        import torch

        inputs = self.examples(BATCH, dtype)
        returned = self._pass(network, inputs, gradients=False)
        if not isinstance(returned, torch.Tensor) or not returned.ndim:
            return 0
        examples = len(returned)
        if {tuple(values.shape[:1]) for values in list_tensors(inputs)} == {(BATCH,)}:
            # A row of outputs may be a part of an example, such as a token.
            examples = BATCH
        return -(-returned.numel() // max(examples, 1))

    def _forward_failed(self, inputs: Sequence[torch.Tensor], error: BaseException) -> ConfigError:
        if self.example is not None:
            shapes = ", ".join(str(tuple(x.shape)) for x in list_tensors(inputs))
            return self.refused(f"its forward fails on tensors of {shapes}: {short(error)}.")
        subject = f"on examples of shape {' x '.join(map(str, inputs[0].shape))}"
        cure = (
            "A network that asks only for features gets flat examples, others the shape of the "
            "data. istmpi model --example FILE.py:NAME takes inputs of another form"
        )
        if self.sparse:
            subject = "on sparse rows"
            cure = (
                "Sparse rows come as columns, offsets and values, as for nn.EmbeddingBag "
                "(docs/networks.md)"
            )
        if self.graph:
            subject = f"on a graph of {len(inputs[0])} nodes"
            cure = (
                "A graph comes as features, offsets and columns: node i has neighbours "
                "columns[offsets[i]:offsets[i + 1]]"
            )
        return self.refused(f"its forward fails {subject}: {short(error)}. {cure}.")

    def _flat(self, returned: Any) -> torch.Tensor:
        """Return all floating-point outputs of an own task as a single row. Raises ConfigError if
        there are none."""
        import torch

        with calling(f"{self.name}: forward's result"):
            tensors = [x for x in list_tensors(returned) if x.is_floating_point()]
            if any(x.is_meta or x.layout != torch.strided for x in tensors):
                raise self.refused(
                    "its forward returns a tensor without values. Return plain tensors."
                )
            if tensors:
                return torch.cat([x.reshape(1, -1) for x in tensors], dim=1)
        kind = type(returned).__name__
        raise self.refused(f"its forward returns {kind}, without floating-point tensors.")

    def count_outputs(self, outputs: torch.Tensor) -> int:
        return 1 if self.example is not None else outputs.shape[1] // self.numbers

    def _require_outputs(self, returned: Any, inputs: Sequence[torch.Tensor]) -> None:
        """Raise ConfigError unless a forward pass returned numbers of the shape of the data."""
        import torch

        # Sparse rows begin with the numbers of features, of which a row has several.
        of_examples = inputs[1] if self.sparse else inputs[0]
        count = len(of_examples)
        expected = (count, self.outputs)
        if self.tokens:
            expected = (count, *inputs[0].shape[1:], self.outputs)
        for number, outputs in enumerate(list_outputs(returned) or (returned,), 1):
            place = ""
            if isinstance(returned, list | tuple) and returned:
                place = f" as output {number}"
            shape: Any = type(outputs).__name__
            if isinstance(outputs, torch.Tensor):
                shape = tuple(outputs.shape)
            if shape != expected:
                cure = ". Pass its loss to istmpi.with_loss instead of returning it"
                if shape != ():
                    by_value = {str(value): name for name, value in self.settings.items()}
                    cure = ". Name the argument that sets them outputs or num_classes, or give "
                    cure += f"--set model.{by_value.get(str(shape[-1]), 'NAME')}={self.outputs}"
                raise self.refused(
                    f"its forward returns {shape}{place} for {count} examples; the data need "
                    f"{expected}{cure}."
                )
            if not outputs.is_floating_point():
                raise self.refused(
                    f"its forward returns numbers of {outputs.dtype}{place}; the data need "
                    "floating-point numbers. Return scores, for classes logits."
                )


def _freeze(network: nn.Module) -> dict[str, torch.Tensor]:
    """Turn frozen parameters into buffers, and return the values, which come from each rank's
    constructor."""
    from torch import nn

    frozen = {}
    for path, module in list(network.named_modules()):
        fixed = {}
        for key, parameter in module._parameters.items():
            if parameter is not None and not parameter.requires_grad:
                fixed[key] = parameter
        for key, parameter in fixed.items():
            del module._parameters[key]
            values = frozen[f"{path}.{key}".lstrip(".")] = parameter.data.contiguous()
            module.register_buffer(key, values)
        if fixed and isinstance(module, nn.RNNBase):
            module._init_flat_weights()  # it also has its weights in a list
    return frozen


def _is_number(value: Any) -> bool:
    # True and False are integers in Python.
    return isinstance(value, int) and not isinstance(value, bool)


def _list_values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in values.items())
