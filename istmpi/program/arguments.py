"""The arguments of `istmpi.Distributed`, and the settings of the run that arguments stand for."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from torch import nn

from istmpi.code import shown
from istmpi.config import Run
from istmpi.config.methods import spec_of
from istmpi.data.callable.source import is_function
from istmpi.errors import ConfigError, IstmpiError, did_you_mean
from istmpi.methods.limits import require_read
from istmpi.network.source import class_name
from istmpi.optim.optimizers import PROGRAM
from istmpi.optim.own_optimizer import OwnOptimizer
from istmpi.settings import types_of
from istmpi.trees import Named, tensors_of

SECTIONS = ("method", "optimizer", "train", "checkpoint", "comm", "model")
PARTS = {
    "train": ("seed", "max_minutes", "device", "threads", "init", "init_names"),
    "model": ("dtype", "scale", "init"),
}
"""The settings of two sections that can be arguments; in other `SECTIONS`, all except ``name`` and
``state`` can."""


IN_PYTHON = {
    r"--out (\S+?):": r"folder = \1:",
    r"--resume auto": "resume='auto'",
    r"--resume (\S+?):": r"resume = \1:",
    r"--method (\S+?)([ ;.,)]|$)": r'method="\1"\2',
    r"--set (?:model|method|optimizer|train)\.(\w+)=": r"\1=",
    r"a new --out": "a new folder",
}
"""Patterns of command-line options in messages, and the program's arguments that replace them."""


@contextmanager
def in_python() -> Iterator[None]:
    """Rewrite errors raised in this context: name a program's arguments instead of command-line
    options."""
    try:
        yield
    except IstmpiError as error:
        text = str(error)
        for option, argument in IN_PYTHON.items():
            text = re.sub(option, argument, text)
        error.args = (text,)
        raise


def dotted(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of the settings that arguments stand for.

    Raises ConfigError for unknown arguments, and for a name that two sections of a run have.
    """
    places = keywords()
    for name, value in given.items():
        sections = _sections_with(name)
        if len(sections) > 1 and name not in ("method", "optimizer"):
            usable = [f"{section}_{name}" for section in sections if f"{section}_{name}" in places]
            raise ConfigError(
                f"Distributed: {name} is a setting of {' and '.join(sections)}. Give "
                f"{' or '.join(usable)} instead."
            )
        if name not in places:
            raise ConfigError(f"Distributed: unknown argument {name}{did_you_mean(name, places)}")
        yield places[name], value


def keywords() -> dict[str, str]:
    """Return the setting that each keyword argument stands for."""
    return dict(_settings())


def _sections_with(name: str) -> list[str]:
    """Return the sections of a run that have a setting ``name``, in the order of `Run`."""
    hints = types_of(Run).items()
    sections = {
        section: types_of(hint)
        for section, hint in hints
        if isinstance(hint, type) and is_dataclass(hint)
    }
    return [section for section, settings in sections.items() if name in settings]


def _settings() -> Iterator[tuple[str, str]]:
    """Yield (argument, setting)."""
    for section in reversed(SECTIONS):
        for name in PARTS.get(section) or types_of(types_of(Run)[section]):
            if name in ("name", "state"):
                continue
            if len(_sections_with(name)) < 2:
                yield name, f"{section}.{name}"
            yield f"{section}_{name}", f"{section}.{name}"
    yield from (("method", "method.name"), ("optimizer", "optimizer.name"))


def inputs_of(example: Any) -> tuple[Any, ...]:
    """Return a sample batch's inputs as a tuple. Raises ConfigError if it has no tensor."""
    if isinstance(example, Mapping):
        inputs: tuple[Any, ...] = (Named(example),)
    else:
        inputs = example if type(example) is tuple else (example,)
    if any(tensor.is_meta for tensor in tensors_of(inputs)):
        raise ConfigError(
            "example has a tensor on the device meta, without values. Give tensors with values."
        )
    if next(tensors_of(inputs), None) is None:
        raise ConfigError(
            f"example = {type(example).__name__}: give the inputs of a batch, tensors or trees of "
            "them."
        )
    return inputs


def run_of(
    network: type[nn.Module],
    arguments: Mapping[str, Any],
    method: str,
    optimizer: str | OwnOptimizer,
    batch: int,
    settings: Mapping[str, Any],
) -> Run:
    """Return the run for a network class with constructor ``arguments``. Raises ConfigError if they
    are unusable."""
    if not isinstance(network, type):
        raise ConfigError(
            f"the network is an instance of {type(network).__name__}. Give the class, and a dict "
            "of the constructor's "
            f"arguments."
        )
    made, settings = isinstance(optimizer, OwnOptimizer), dict(settings)
    if callable(init := settings.get("init") or ""):
        settings["init"] = f"{init.__module__}:{init.__qualname__}"
    elif init and not (Path(init).exists() or is_function(init)):
        raise ConfigError(f"init = {init!r} does not exist.")
    chosen = dict(
        dotted({"method": method, "optimizer": PROGRAM if made else optimizer, **settings})
    )
    if made:
        optimizer.require_no_others(chosen)
        chosen["optimizer.state"] = [*optimizer.spec.slots, *["step"] * optimizer.spec.counts_steps]
        chosen |= {f"optimizer.{name}": value for name, value in optimizer.rates.items()}
    # Initial values come from the constructor, unless the network is too large for a single rank.
    chosen.setdefault("model.init", "fan-in" if getattr(network, "LARGE", False) else "constructor")
    name = class_name(network)
    for argument in ("name", "dtype", "scale", "init"):
        if argument in arguments:
            raise ConfigError(
                f"{name}: its argument {argument} has the name of istmpi's setting "
                f"model.{argument}. Rename it."
            )
    model = {f"model.{key}": value for key, value in arguments.items()}
    base = {"data.source": "{rank}", "name": network.__name__, "train.batch": batch}
    run = Run().override({"model.name": name, **model, **base, **chosen}, "Distributed")
    of_method = [key.partition(".")[2] for key in chosen if key.startswith("method.")]
    require_read(run, of_method)
    if made and spec_of(run.method.name, "method.name =").keeps_optimizer(run):
        optimizer.spec.keep_slots()
    if run.model.scale == "fitted":
        raise ConfigError(
            "scale = 'fitted' needs a run's loss, which a program does not have. Leave it out."
        )
    return run


def require_kind(argument: str, value: Any, kind: type) -> None:
    """Raise ConfigError if an argument of `Distributed.evaluate` is of another kind."""
    if not isinstance(value, kind):
        raise ConfigError(f"evaluate: {argument} = {shown(value)} must be a {kind.__name__}.")


def require_count(examples: Any) -> None:
    """Raise ConfigError if ``examples``, an argument of `Distributed`, is not a number of examples."""
    if not isinstance(examples, int) or examples < 1:
        raise ConfigError(f"examples = {shown(examples)} must be a whole number of at least 1.")
