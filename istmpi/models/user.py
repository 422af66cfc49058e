"""A user's network: a class of a file or a package, with the arguments of its constructor.

    FILE.py:Class        package.module:Class

Arguments with a name among `DATA_ARGUMENTS` are filled in from the data. All others are settings, with the names, types
and defaults of the constructor.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any

from istmpi.code import gradients_kept, short
from istmpi.errors import ConfigError, did_you_mean
from istmpi.exits import joined, outputs_of
from istmpi.models.arguments import ALSO_FILLED_IN, DATA_ARGUMENTS, arguments_of
from istmpi.models.source import Source, load, load_class, source_of
from istmpi.models.tables import has_table
from istmpi.names import SHIPPED, place_of
from istmpi.tasks import CLASSIFICATION, OWN, TASKS
from istmpi.trees import call, inputs_to, mapped, tensors_of

if TYPE_CHECKING:
    import torch
    from torch import nn

IN_A_ROW = 3
ACCEPTED_INPUTS = {"xc": "sparse rows", "gcn": "a graph", "sage": "a graph"}
"""The inputs of networks that accept no others."""
_MISSING = inspect.Parameter.empty


@dataclass(frozen=True)
class Width:
    name: str
    """The argument's name, with a number from 1 behind it for an element of a sequence."""
    argument: str
    place: int | None
    length: int


@dataclass(frozen=True)
class UserNetwork:
    name: str
    load: Callable[[], tuple[type[nn.Module], Source]] = field(compare=False)
    """A function that gives the class and its source where they are needed."""
    facts: Mapping[str, Any]
    settings: Mapping[str, Any]
    inputs: tuple[int, ...]
    """The shape of an example as ``forward`` gets it."""
    outputs: int
    tokens: bool = False
    """Examples are tokens below ``outputs``, which are what may follow each."""
    sparse: bool = False
    """Examples are sparse rows: features, where each row begins, values."""
    graph: bool = False
    """Examples are nodes: features, where each list of neighbours begins and the last ends, and these."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    example: tuple[Any, ...] | None = field(default=None, compare=False)
    """The inputs of a batch of the user's own; its outputs may be any tree."""
    frozen: dict[str, torch.Tensor] = field(default_factory=dict, init=False, compare=False)
    """The values of the full network's frozen parameters, once it was built; all networks built here share them."""
    given: set[str] = field(default_factory=set, init=False, compare=False)
    """The names of frozen parameters whose values are not the constructor's."""

    @property
    def kind(self) -> type[nn.Module]:
        return self.load()[0]

    @property
    def source(self) -> Source:
        return self.load()[1]

    @property
    def widths(self) -> dict[str, Width]:
        """The integers among the settings: each may be a width."""
        widths = []
        for argument, value in self.settings.items():
            if _is_number(value):
                widths.append(Width(argument, argument, None, value))
            elif isinstance(value, list | tuple) and value and all(map(_is_number, value)):
                widths += [Width(f"{argument}{n + 1}", argument, n, length) for n, length in enumerate(value)]
        return {width.name: width for width in widths if width.length > 0}

    @property
    def preferred(self) -> tuple[str, ...]:
        """The widths that the class prefers to deal out (``DEALT``)."""
        names = getattr(self.kind, "DEALT", ())
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{self.name}: DEALT = {names!r} must be names of arguments, such as ('hidden',).")
        return tuple(width.name for width in self.widths.values() if {width.name, width.argument} & {*names})

    @property
    def numbers(self) -> int:
        """The numbers that an exit makes for an example."""
        return self.outputs * (prod(self.inputs) if self.tokens else 1)

    def settings_at(self, lengths: Mapping[str, int]) -> dict[str, Any]:
        settings = dict(self.settings)
        for name, length in lengths.items():
            width = self.widths[name]
            if width.place is None:
                settings[width.argument] = length
            else:
                values = list(settings[width.argument])
                values[width.place] = length
                settings[width.argument] = type(self.settings[width.argument])(values)
        return settings

    def build(self, lengths: Mapping[str, int] | None = None) -> nn.Module:
        """The network with other lengths of some widths; ConfigError if its constructor refuses."""
        from torch import nn
        from torch.nn.parameter import is_lazy

        arguments = {**self.facts, **self.settings_at(lengths or {})}
        try:
            with gradients_kept(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Initializing zero-element tensors")  # they are refused in one line
                warnings.filterwarnings("ignore", ".*copying from a non-meta parameter")  # weights that it reads
                built = self.kind(**arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            shown = _listed({name: arguments[name] for name in self.settings})
            changed = {name: value for name, value in self.defaults.items() if arguments[name] is not value}
            cure = f"Its defaults: {_listed(changed)}" if changed else "Correct it, or give other arguments"
            raise ConfigError(
                f"{self.name}: its constructor fails{' with ' * bool(shown)}{shown}: {short(error)}. {cure}."
            ) from error
        if not isinstance(built, nn.Module):
            raise ConfigError(f"{self.name}: its class makes {type(built).__name__}, not a torch.nn.Module.")
        for name, parameter in built.named_parameters():
            if is_lazy(parameter):
                raise ConfigError(
                    f"{self.name}: its parameter {name} has no shape before the first forward pass. Give its layer the "
                    f"number of its inputs."
                )
            if parameter.ndim == 0:
                parameter.data = parameter.data.reshape(1)  # rows are what ranks own
        if frozen := _freeze(built):
            self._keep_frozen(frozen)
        return built

    def _keep_frozen(self, frozen: Mapping[str, torch.Tensor]) -> None:
        """Give frozen parameters of the same shape the full network's values: what is drawn may depend on widths."""
        import torch

        from istmpi.models.trials import seeded

        if not self.frozen and not all(values.is_meta for values in frozen.values()):
            with seeded(), torch.device("cpu"):
                full = self.kind(**self.facts, **self.settings)
            self.frozen.update(_freeze(full))
        for name, values in frozen.items():
            kept = self.frozen.get(name)
            if kept is not None and kept.shape == values.shape and not values.is_meta:
                values.data = kept

    def examples(self, count: int, dtype: torch.dtype) -> tuple[Any, ...]:
        """Examples as inputs of ``forward``, the same in every call: random ones, or rows of the user's own."""
        import torch

        if self.example is not None:
            (rows, *others) = {len(x) if x.ndim else 0 for x in tensors_of(self.example)}
            first = torch.arange(count) % rows if rows and not others else ...
            return inputs_to(mapped(lambda x: x.detach()[first].clone(), self.example), "cpu", dtype)
        generator = torch.Generator().manual_seed(count)
        if self.tokens:
            return (torch.randint(self.outputs, (count, *self.inputs), generator=generator),)
        if self.sparse:
            columns = torch.randint(self.inputs[0], (count * IN_A_ROW,), generator=generator)
            values = torch.randn(count * IN_A_ROW, generator=generator, dtype=torch.float64).to(dtype)
            return columns, torch.arange(0, len(columns), IN_A_ROW), values
        values = torch.randn(count, *self.inputs, generator=generator, dtype=torch.float64).to(dtype)
        if self.graph:  # a path: each node but the first hears from the one before
            return values, (torch.arange(count + 1) - 1).clamp(min=0), torch.arange(count - 1)
        return (values,)

    def forward(self, network: nn.Module, *inputs: torch.Tensor, gradients: bool = False) -> torch.Tensor:
        """The outputs ``[b, exits * numbers]`` for a batch's inputs, those of all exits side by side; ConfigError where
        it fails.
        """
        import torch

        try:
            with torch.set_grad_enabled(gradients):
                returned = call(network, inputs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if self.example is not None:
                shapes = ", ".join(str(tuple(x.shape)) for x in tensors_of(inputs))
                raise ConfigError(f"{self.name}: its forward fails on tensors of {shapes}: {short(error)}.") from error
            shape = " x ".join(map(str, inputs[0].shape))
            given = f"on examples of shape {shape}"
            cure = "A network that asks only for features gets flat examples, others the shape of the data"
            if self.sparse:
                given = "on sparse rows"
                cure = "Sparse rows come as columns, offsets and values, as for nn.EmbeddingBag (docs/networks.md)"
            if self.graph:
                given = f"on a graph of {len(inputs[0])} nodes"
                cure = (
                    "A graph comes as features, offsets and columns: node i has neighbours "
                    "columns[offsets[i]:offsets[i + 1]]"
                )
            raise ConfigError(f"{self.name}: its forward fails {given}: {short(error)}. {cure}.") from error
        if self.example is not None:
            numbers = [x.reshape(1, -1) for x in tensors_of(returned) if x.is_floating_point()]
            if numbers:
                return torch.cat(numbers, dim=1)
            kind = type(returned).__name__
            raise ConfigError(f"{self.name}: its forward returns {kind}, without floating-point tensors.")
        self._require_outputs(returned, inputs)
        return joined([outputs.flatten(1) for outputs in outputs_of(returned)])

    def exits_of(self, outputs: torch.Tensor) -> int:
        return 1 if self.example is not None else outputs.shape[1] // self.numbers

    def _require_outputs(self, returned: Any, inputs: Sequence[torch.Tensor]) -> None:
        import torch

        count = len(inputs[1 if self.sparse else 0])
        expected = (count, *(inputs[0].shape[1:] if self.tokens else ()), self.outputs)
        for number, outputs in enumerate(outputs_of(returned) or (returned,), 1):
            place = f" as output {number}" if isinstance(returned, list | tuple) and returned else ""
            shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
            if shape != expected:
                loss = ". Pass its loss to istmpi.with_loss instead of returning it"
                cure = loss if shape == () else ". Let its outputs follow from the argument outputs or num_classes"
                raise ConfigError(
                    f"{self.name}: its forward returns {shape}{place} for {count} examples; the data need "
                    f"{expected}{cure}."
                )
            if not outputs.is_floating_point():
                raise ConfigError(
                    f"{self.name}: its forward returns numbers of {outputs.dtype}{place}; the data need "
                    "floating-point numbers. Return scores, for classes logits."
                )


def _freeze(network: nn.Module) -> dict[str, torch.Tensor]:
    """Turn frozen parameters into buffers, which every rank has from the constructor; return them."""
    from torch import nn

    frozen = {}
    for path, module in list(network.named_modules()):
        fixed = {key: it for key, it in module._parameters.items() if it is not None and not it.requires_grad}
        for key, parameter in fixed.items():
            del module._parameters[key]
            values = frozen[f"{path}.{key}".lstrip(".")] = parameter.data.contiguous()
            module.register_buffer(key, values)
        if fixed and isinstance(module, nn.RNNBase):
            module._init_flat_weights()  # it has its weights in a list as well
    return frozen


def user_network(
    name: str,
    shape: tuple[int, ...],
    outputs: int,
    settings: Mapping[str, Any],
    task: str = CLASSIFICATION,
    example: tuple[Any, ...] | None = None,
    network: type[nn.Module] | None = None,
) -> UserNetwork:
    """The network of this name with these settings; ConfigError for whatever is wrong with it.

    ``outputs``: 0 where the data do not tell. With an ``example`` settings may say what data tell otherwise.
    ``network``: the class; else the code of a name is run.
    """
    if name == "mlp" and (advice := TASKS[task].network):
        raise ConfigError(f"model.name = 'mlp' {advice}")
    if (inputs := ACCEPTED_INPUTS.get(name, TASKS[task].inputs)) != TASKS[task].inputs:
        raise ConfigError(f"model.name = {name!r} takes {inputs}, but these data are for {task}. Use another network.")
    facts = {"shape": tuple(shape), "features": prod(shape), "outputs": outputs}
    if task == OWN:
        facts |= {} if shape else {"features": 0}
        facts = {fact: value for fact, value in facts.items() if value and fact not in settings}
        facts |= {fact: value for fact, value in settings.items() if fact in DATA_ARGUMENTS}
        settings = {setting: value for setting, value in settings.items() if setting not in DATA_ARGUMENTS}
    if has_table(name):  # its class may stay unloaded: a plan needs no torch
        facts.pop("shape", None)
        arguments = dict.fromkeys(facts, _MISSING) | {argument: default for argument, _, default in arguments_of(name)}
        loader = partial(_shipped, name)
    else:
        loaded = (network, source_of(network)) if network else _shipped(name) if name in SHIPPED else load(name)
        arguments, loader = _signature(name, loaded[0]), lambda: loaded
        of_data = {"outputs": outputs, "channels": shape[0] if len(shape) > 1 else 0}
        also = {argument: of_data[fact] for argument, fact in ALSO_FILLED_IN.items() if argument not in settings}
        facts |= {argument: value for argument, value in also.items() if value}
    filled_in = {*DATA_ARGUMENTS, *facts}
    defaults = {argument: default for argument, default in arguments.items() if argument not in filled_in}
    for taken in ("scale", "init"):
        if taken in defaults:
            raise ConfigError(
                f"{name}: its argument {taken} has the name of istmpi's setting model.{taken}. Rename it."
            )
    for setting in settings:
        if setting in DATA_ARGUMENTS:
            fact = DATA_ARGUMENTS[setting]
            raise ConfigError(f"{name}: model.{setting} is {fact}, which comes from the data. Leave it out.")
        if setting not in defaults:
            raise ConfigError(f"{name}: unknown setting model.{setting}{did_you_mean(setting, defaults, 'model.')}")
    values = {argument: settings.get(argument, default) for argument, default in defaults.items()}
    for argument, value in values.items():
        if value is _MISSING:
            raise ConfigError(
                f"{name}: its argument {argument} has no default, and the data do not define it "
                f"({', '.join([*DATA_ARGUMENTS, *ALSO_FILLED_IN])}). Give --set model.{argument}=..., or a "
                "default."
            )
    for fact in (fact for fact in DATA_ARGUMENTS if fact in arguments and fact not in facts):
        if arguments[fact] is not _MISSING:
            continue
        raise ConfigError(
            f"{name}: its argument {fact} is {DATA_ARGUMENTS[fact]}, which these data do not define. Set it: "
            f"--set model.{fact}=10."
        )
    flat = "features" in arguments and "shape" not in arguments and example is None
    return UserNetwork(
        name,
        loader,
        {fact: value for fact, value in facts.items() if fact in arguments},
        values,
        inputs=(facts["features"],) if flat else tuple(shape),
        outputs=outputs,
        tokens=TASKS[task].of_tokens,
        sparse=TASKS[task].ranks_labels,
        graph=TASKS[task].of_nodes,
        defaults={argument: default for argument, default in defaults.items() if default is not _MISSING},
        example=example,
    )


@cache
def _shipped(name: str) -> tuple[type[nn.Module], Source]:
    # Reading all that its files import takes a tenth of a second, and nobody asks for the source behind a table.
    place = place_of(name)
    return (load_class(place)[0], Source()) if has_table(name) else load(place)


def require_known(name: str) -> None:
    if name not in SHIPPED and ":" not in name:
        more = ". Give your network as FILE.py:Class or package.module:Class."
        raise ConfigError(f"model.name = {name!r} is not known{more if '.' in name else did_you_mean(name, SHIPPED)}")


def _signature(name: str, kind: type[nn.Module]) -> dict[str, Any]:
    """The arguments of a constructor that have a name, with their defaults."""
    try:
        parameters = inspect.signature(kind).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: its constructor's arguments cannot be read ({error}).") from None
    return {
        name: given.default
        for name, given in parameters.items()
        if given.kind in (given.KEYWORD_ONLY, given.POSITIONAL_OR_KEYWORD) or name in DATA_ARGUMENTS
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in values.items())
