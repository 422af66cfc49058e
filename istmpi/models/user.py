"""A network of the user's own: a class of a file or a package, and what its constructor says of it.

    FILE.py:Class        package.module:Class

Arguments with a name among `DATA_ARGUMENTS` are filled in from the data. All others are settings, with the names, types
and defaults of the constructor.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from istmpi.errors import ConfigError, did_you_mean
from istmpi.exits import joined, outputs_of
from istmpi.models.arguments import DATA_ARGUMENTS, arguments_of
from istmpi.models.source import Source, source_of
from istmpi.models.tables import has_table
from istmpi.names import SHIPPED, place_of
from istmpi.tasks import CLASSIFICATION, GRAPH_TASKS, MULTI_LABEL, NEXT_TOKEN

if TYPE_CHECKING:
    import torch
    from torch import nn

_MISSING = inspect.Parameter.empty
IN_A_ROW = 3
"""Features of the sparse rows that a network is tried on."""


ACCEPTED_TASKS = {
    "xc": ("sparse rows", (MULTI_LABEL,)),
    "gcn": ("a graph", GRAPH_TASKS),
    "sage": ("a graph", GRAPH_TASKS),
}
"""The tasks of networks that accept no other data."""
_NOT_FOR_MLP = {
    NEXT_TOKEN: "numbers, and these data are text. Use --model transformer.",
    MULTI_LABEL: "all numbers of a row; these are sparse rows. Use --model xc.",
    **dict.fromkeys(GRAPH_TASKS, "examples by themselves; this is a graph. Use --model gcn or sage."),
}


@dataclass(frozen=True)
class Width:
    """One integer of a constructor's arguments: a number, or an element of a sequence of numbers."""

    name: str
    """As a unit group: the argument's name, with a number from 1 behind it for an element of a sequence."""
    argument: str
    place: int | None
    """In the sequence."""
    length: int


@dataclass(frozen=True)
class UserNetwork:
    """A network's class with all arguments of its constructor; `user_network` makes it."""

    name: str
    load: Callable[[], tuple[type[nn.Module], Source]] = field(compare=False)
    """Gives the class and the source that it is made from; called first where the class is needed."""
    facts: Mapping[str, Any]
    settings: Mapping[str, Any]
    inputs: tuple[int, ...]
    """The shape of an example as ``forward`` gets it."""
    outputs: int
    tokens: bool = False
    """Examples are numbers of tokens below ``outputs``, and of each the outputs are what may follow it."""
    sparse: bool = False
    """Examples are sparse rows: numbers of features, where each row begins, and values."""
    graph: bool = False
    """Examples are nodes: features, where each node's list of neighbours begins and the last one ends, and these."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Of those settings that have one."""

    @property
    def kind(self) -> type[nn.Module]:
        """The class."""
        return self.load()[0]

    @property
    def source(self) -> Source:
        """The files that the class is made from."""
        return self.load()[1]

    @property
    def widths(self) -> dict[str, Width]:
        """The integers among the settings, by name: what may be a width of the network, and perhaps dealt out."""
        widths = []
        for argument, value in self.settings.items():
            if _is_number(value):
                widths.append(Width(argument, argument, None, value))
            elif isinstance(value, list | tuple) and value and all(map(_is_number, value)):
                widths += [Width(f"{argument}{n + 1}", argument, n, length) for n, length in enumerate(value)]
        return {width.name: width for width in widths if width.length > 0}

    @property
    def preferred(self) -> tuple[str, ...]:
        """The widths that the class says to deal out by default: its attribute ``DEALT``, of arguments or widths."""
        names = getattr(self.kind, "DEALT", ())
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{self.name}: DEALT = {names!r} must be names of arguments, as ('hidden',).")
        return tuple(width.name for width in self.widths.values() if {width.name, width.argument} & {*names})

    def settings_at(self, lengths: Mapping[str, int]) -> dict[str, Any]:
        """The settings with other lengths in place of some widths."""
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
        """The network with other lengths in place of some widths; ConfigError where its constructor refuses them."""
        from torch import nn
        from torch.nn.parameter import is_lazy

        arguments = {**self.facts, **self.settings_at(lengths or {})}
        try:
            with _gradients_kept(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Initializing zero-element tensors")  # they are refused in one line
                built = self.kind(**arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            shown = _listed({name: arguments[name] for name in self.settings})
            changed = {name: value for name, value in self.defaults.items() if arguments[name] is not value}
            cure = f"Its defaults: {_listed(changed)}" if changed else "Correct it, or give other arguments"
            raise ConfigError(
                f"{self.name}: its constructor fails{' with ' * bool(shown)}{shown}: {_said(error)}. {cure}."
            ) from error
        if not isinstance(built, nn.Module):
            raise ConfigError(f"{self.name}: its class makes {type(built).__name__}, which is no torch.nn.Module.")
        for name, parameter in built.named_parameters():
            if is_lazy(parameter):
                raise ConfigError(
                    f"{self.name}: its parameter {name} has no shape before the first forward pass. Give its layer the "
                    f"number of its inputs."
                )
        return built

    def examples(self, count: int, dtype: torch.dtype, device: str = "cpu") -> tuple[torch.Tensor, ...]:
        """Random examples as inputs of ``forward``, the same in every call."""
        import torch

        generator = torch.Generator().manual_seed(count)
        if self.tokens:
            return (torch.randint(self.outputs, (count, *self.inputs), generator=generator).to(device),)
        if self.sparse:
            columns = torch.randint(self.inputs[0], (count * IN_A_ROW,), generator=generator)
            values = torch.randn(count * IN_A_ROW, generator=generator, dtype=torch.float64).to(dtype)
            return columns.to(device), torch.arange(0, len(columns), IN_A_ROW, device=device), values.to(device)
        values = torch.randn(count, *self.inputs, generator=generator, dtype=torch.float64).to(dtype).to(device)
        if self.graph:  # a path: each node but the first hears from the one before
            offsets = (torch.arange(count + 1) - 1).clamp(min=0)
            return values, offsets.to(device), torch.arange(count - 1).to(device)
        return (values,)

    def count_of(self, inputs: Sequence[torch.Tensor]) -> int:
        """How many examples a batch's inputs are."""
        return len(inputs[1 if self.sparse else 0])

    def forward(self, network: nn.Module, *inputs: torch.Tensor, gradients: bool = False) -> torch.Tensor:
        """The outputs ``[b, exits * numbers]`` for a batch's inputs, those of all exits side by side.

        ConfigError where it fails or returns something else. ``gradients``: recorded for a backward pass, as in
        training.
        """
        import torch

        try:
            with torch.set_grad_enabled(gradients):
                returned = network(*inputs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            shape = " x ".join(map(str, inputs[0].shape))
            given = f"on examples of shape {shape}"
            cure = "Examples come flat to a network that asks for features alone, else in the shape of the data"
            if self.sparse:
                given = "on sparse rows"
                cure = "They come as columns, offsets and values, as nn.EmbeddingBag takes them (docs/library.md)"
            if self.graph:
                given = f"on a graph of {len(inputs[0])} nodes"
                cure = "It comes as features, offsets and columns: node i hears from columns[offsets[i]:offsets[i + 1]]"
            raise ConfigError(f"{self.name}: its forward fails {given}: {_said(error)}. {cure}.") from error
        count = self.count_of(inputs)
        for number, outputs in enumerate(outputs_of(returned) or (returned,), 1):
            of = f" as output {number}" if isinstance(returned, list | tuple) and returned else ""
            shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
            wanted = (count, *(inputs[0].shape[1:] if self.tokens else ()), self.outputs)
            if shape != wanted:
                raise ConfigError(
                    f"{self.name}: its forward returns {shape}{of} for {count} examples; the data need "
                    f"{wanted}. Its argument outputs is filled in with that {self.outputs}."
                )
            if not outputs.is_floating_point():
                raise ConfigError(
                    f"{self.name}: its forward returns numbers of {outputs.dtype}{of}; the data need floating-point "
                    f"numbers. Return the scores themselves, for classes their logits."
                )
        return joined([one.flatten(1) for one in outputs_of(returned)])

    @property
    def numbers(self) -> int:
        """That an exit makes of an example."""
        return self.outputs * (prod(self.inputs) if self.tokens else 1)


def user_network(
    name: str, shape: tuple[int, ...], outputs: int, settings: Mapping[str, Any], task: str = CLASSIFICATION
) -> UserNetwork:
    """The network FILE.py:Class or package.module:Class with these settings; ConfigError for whatever is wrong with it.

    ``shape``: of an example. Runs the code that is named.
    """
    _require_accepted(name, task)
    facts = {"shape": tuple(shape), "features": prod(shape), "outputs": outputs}
    if has_table(name):  # its class may stay unloaded: a plan needs no torch
        facts.pop("shape")
        arguments = dict.fromkeys(facts, _MISSING) | {argument: of for argument, _, of in arguments_of(name)}
        load = cache(partial(_load, place_of(name)))
    else:
        loaded = _load(place_of(name))
        arguments, load = _signature(name, loaded[0]), lambda: loaded
    known = [argument for argument in arguments if argument not in DATA_ARGUMENTS]
    if "scale" in known:
        raise ConfigError(f"{name}: its argument scale has the name of a setting of istmpi's, model.scale. Rename it.")
    for setting in settings:
        if setting in DATA_ARGUMENTS:
            raise ConfigError(
                f"{name}: model.{setting} is {DATA_ARGUMENTS[setting]}, which the data tell. Leave it out."
            )
        if setting not in known:
            raise ConfigError(f"{name}: unknown setting model.{setting}{did_you_mean(setting, known, 'model.')}")
    defaults = {name: default for name, default in arguments.items() if name in known and default is not _MISSING}
    values = {argument: settings.get(argument, defaults.get(argument, _MISSING)) for argument in known}
    for argument, value in values.items():
        if value is _MISSING:
            raise ConfigError(
                f"{name}: its argument {argument} has no default and is no fact of the data "
                f"({', '.join(DATA_ARGUMENTS)}). Give --set model.{argument}=..., or a default."
            )
    flat = "features" in arguments and "shape" not in arguments
    given = {fact: value for fact, value in facts.items() if fact in arguments}
    inputs = (facts["features"],) if flat else tuple(shape)
    kinds = task == NEXT_TOKEN, task == MULTI_LABEL, task in GRAPH_TASKS
    return UserNetwork(name, load, given, values, inputs, outputs, *kinds, defaults)


def require_known(name: str) -> None:
    """Refuse, with a ConfigError, a setting model.name that names no network."""
    if name not in SHIPPED and ":" not in name:
        more = ". A network of your own is FILE.py:Class or package.module:Class."
        raise ConfigError(f"model.name = {name!r} is not known{more if '.' in name else did_you_mean(name, SHIPPED)}")


def _require_accepted(name: str, task: str) -> None:
    if name == "mlp" and task in _NOT_FOR_MLP:
        raise ConfigError(f"model.name = 'mlp' takes {_NOT_FOR_MLP[task]}")
    what, tasks = ACCEPTED_TASKS.get(name, ("", (task,)))
    if task not in tasks:
        raise ConfigError(f"model.name = {name!r} takes {what}, and these data are for {task}. Use another network.")


def _signature(name: str, kind: type[nn.Module]) -> dict[str, Any]:
    """The arguments of a constructor that can be given by name, with their defaults."""
    try:
        parameters = inspect.signature(kind).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: its constructor's arguments are not known ({error}).") from None
    return {
        argument: of.default
        for argument, of in parameters.items()
        if of.kind in (of.KEYWORD_ONLY, of.POSITIONAL_OR_KEYWORD) or argument in DATA_ARGUMENTS
    }


def _load(name: str) -> tuple[type[nn.Module], Source]:
    """The class, and what it is made from."""
    from torch import nn

    path, _, wanted = name.rpartition(":")
    if not path or not wanted.isidentifier():
        raise ConfigError(f"--model {name}: give FILE.py:Class or package.module:Class.")
    try:
        with _gradients_kept():
            module = _module_of_file(Path(path), name) if path.endswith(".py") else importlib.import_module(path)
    except (ConfigError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ConfigError(
            f"--model {name}: {path} cannot be imported: {_said(error)}. Python itself must be able to import it."
        ) from error
    kind = getattr(module, wanted, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        networks = [
            key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, nn.Module)
        ]
        problem = "has no class" if kind is None else "has something else than a torch.nn.Module as"
        others = did_you_mean(wanted, networks) if networks else ", nor has it any torch.nn.Module."
        raise ConfigError(f"--model {name}: {path} {problem} {wanted}{others}")
    try:
        return kind, source_of(kind, module)
    except OSError as error:
        raise ConfigError(f"--model {name}: its source cannot be read: {_said(error)}.") from error


@contextmanager
def _gradients_kept() -> Iterator[None]:
    """A context for code that may not turn gradients off for all that comes behind it; RuntimeError where it does."""
    import torch

    before = torch.is_grad_enabled()
    yield
    if torch.is_grad_enabled() != before:
        torch.set_grad_enabled(before)
        raise RuntimeError("it turns gradients off for the whole program; use torch.no_grad() as a context")


def _module_of_file(path: Path, name: str) -> Any:
    """A file as a module; what it imports from its own folder is found."""
    if not path.is_file():
        raise ConfigError(f"--model {name}: there is no file {path}.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in values.items())


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
