"""The arguments of `istmpi.Distributed`, and the settings of the run that arguments stand for."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from istmpi.code import calling, shown
from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.data.batch import Batch
from istmpi.data.callable.example import read_inputs
from istmpi.data.callable.source import is_function
from istmpi.data.dataset import Dataset
from istmpi.errors import ConfigError, IstmpiError, did_you_mean
from istmpi.methods.base import Method
from istmpi.methods.limits import require_read
from istmpi.network.source import class_name
from istmpi.optim.optimizers import PROGRAM
from istmpi.optim.own_optimizer import Make, OwnOptimizer
from istmpi.optim.own_schedule import OwnSchedule
from istmpi.program.loaders import count_examples
from istmpi.program.streams import Rows
from istmpi.settings import find_types
from istmpi.tasks import OWN
from istmpi.trees import list_tensors
from istmpi.units import counted

SECTIONS = ("method", "optimizer", "train", "checkpoint", "comm", "model")
PARTS = {
    "train": (
        "seed",
        "group_size",
        "sync_batch_norm",
        "max_minutes",
        "device",
        "threads",
        "autocast",
        "init",
        "init_names",
        "widen",
    ),
    "model": ("dtype", "scale", "init"),
}
"""The settings of two sections that can be arguments; in other `SECTIONS`, all except ``name`` and
``state`` can."""

MANY = 10**9
"""A number of rounds that no run reaches."""

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
        # The error keeps its class and traceback; only its words change.
        error.args = (text,)
        raise


def find_settings(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of the settings that arguments stand for.

    Raises ConfigError for unknown arguments, and for a name that two sections of a run have.
    """
    places = list_keywords()
    for name, value in arguments.items():
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


def list_keywords() -> dict[str, str]:
    """Return the setting that each keyword argument stands for."""
    return dict(_pair_keywords())


def _sections_with(name: str) -> list[str]:
    """Return the sections of a run that have a setting ``name``, in the order of `Run`."""
    return [
        section
        for section, hint in find_types(Run).items()
        if isinstance(hint, type) and is_dataclass(hint) and name in find_types(hint)
    ]


def _pair_keywords() -> Iterator[tuple[str, str]]:
    """Yield (argument, setting)."""
    for section in reversed(SECTIONS):
        for name in PARTS.get(section) or find_types(find_types(Run)[section]):
            if name in ("name", "state"):
                continue
            # A name of two sections is clear only with its section before it.
            if len(_sections_with(name)) < 2:
                yield name, f"{section}.{name}"
            yield f"{section}_{name}", f"{section}.{name}"
    yield from (("method", "method.name"), ("optimizer", "optimizer.name"))


def find_inputs(batch: Any) -> Any:
    """Return the inputs of a network in a batch: the first element of a pair, or a tensor. Raises
    ConfigError for another batch."""
    if isinstance(batch, torch.Tensor):
        return batch
    if isinstance(batch, list | tuple) and batch:
        return batch[0]
    raise ConfigError(
        f"the loader's batch is {type(batch).__name__}, in which istmpi finds no inputs. Write "
        'round.take(loader, inputs=lambda batch: batch["x"]).'
    )


def require_one_network(method: Method, name: str) -> None:
    """Raise ConfigError if the network ``name`` is the sum of several subnets."""
    if method.spec.sums_outputs:
        error = ConfigError(
            f"{name}: its network is the sum of {method.job.communicator.size} subnets, which a "
            "state dict of its class cannot hold. Use job.save, and istmpi export --to onnx."
        )
        error.everywhere = True
        raise error


def read_batch(inputs: Callable[[Any], Any], batch: Any) -> Batch:
    """Return a batch without targets, with what the user's function ``inputs`` returns for it."""
    with calling("inputs", ConfigError):
        returned = inputs(batch)
    return Batch(read_inputs(returned), torch.zeros(0), count_examples(batch))


def build_run(
    network: type[nn.Module],
    arguments: Mapping[str, Any],
    method: str,
    optimizer: str | OwnOptimizer,
    batch: int,
    settings: Mapping[str, Any],
) -> Run:
    """Return the run for a network class with constructor ``arguments``. Raises ConfigError if they
    are unusable."""
    _require_class(network, arguments)
    chosen = _choose(method, optimizer, settings)
    # Initial values come from the constructor, unless the network is too large for a single rank.
    large = getattr(network, "LARGE", False)
    chosen.setdefault("model.init", "fan-in" if large else "constructor")
    model = {f"model.{name}": value for name, value in arguments.items()}
    base = {
        "model.name": class_name(network),
        **model,
        # Not a path: it marks a program's run, whose data are in the program.
        "data.source": "{rank}",
        "name": network.__name__,
        "train.batch": batch,
    }
    run = Run().override(base | chosen, "Distributed")
    # A setting that the method does not read would change nothing, without a word.
    require_read(run, [key.partition(".")[2] for key in chosen if key.startswith("method.")])
    if isinstance(optimizer, OwnOptimizer):
        if find_method_spec(run.method.name, "method.name =").keeps_optimizer(run):
            # Raises ConfigError if the state cannot be kept from round to round.
            optimizer.spec.keep_slots()
    if run.model.scale == "fitted":
        raise ConfigError(
            "scale = 'fitted' needs a run's loss, which a program does not have. Leave it out."
        )
    return run


def _require_class(network: object, arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError if the network is no class, or an argument has the name of a setting."""
    if not isinstance(network, type):
        raise ConfigError(
            f"the network is an instance of {type(network).__name__}. Give the class, and a dict "
            "of the constructor's arguments."
        )
    # In a run, arguments and these settings are in one section.
    for argument in ("name", "dtype", "scale", "init"):
        if argument in arguments:
            raise ConfigError(
                f"{class_name(network)}: its argument {argument} has the name of istmpi's setting "
                f"model.{argument}. Rename it."
            )


def _choose(
    method: str, optimizer: str | OwnOptimizer, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of the run that the program chooses, by their dotted names."""
    settings = dict(settings)
    init = settings.get("init") or ""
    if callable(init):
        # The record of the run has the function's name.
        settings["init"] = f"{init.__module__}:{init.__qualname__}"
    elif init and not (Path(init).exists() or is_function(init)):
        raise ConfigError(f"init = {init!r} does not exist.")
    if isinstance(optimizer, str):
        return dict(find_settings({"method": method, "optimizer": optimizer, **settings}))
    chosen = dict(find_settings({"method": method, "optimizer": PROGRAM, **settings}))
    optimizer.require_no_others(chosen)
    state = [*optimizer.spec.slots]
    if optimizer.spec.counts_steps:
        state.append("step")
    chosen["optimizer.state"] = state
    # Only for the record and the cost model: the run's optimizer has its own options.
    for name, value in optimizer.rates.items():
        chosen[f"optimizer.{name}"] = value
    return chosen


def read_optimizer(
    optimizer: str | Make,
    groups: Mapping[str, Mapping[str, Any]] | None,
    schedule: OwnSchedule | None,
) -> str | OwnOptimizer:
    """Return an optimizer's name, or the user's own optimizer. Raises ConfigError if it is
    unusable."""
    if isinstance(optimizer, list | tuple | dict):
        raise ConfigError(
            f"optimizer is {counted(len(optimizer), 'optimizer')}; a job has one for its network. "
            "Give a function of all parameters with groups=, or one job for each network."
        )
    if not isinstance(optimizer, str):
        return OwnOptimizer(optimizer, groups or {}, schedule)
    if groups or callable(schedule):
        raise ConfigError(
            "groups and schedule go with an optimizer that is a function of parameters; only a "
            "schedule by name goes with a name."
        )
    return optimizer


def name_schedule(schedule: OwnSchedule | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with a ``schedule`` by name, `optimizer.schedule`, among them."""
    named = dict(settings)
    if isinstance(schedule, str):
        named["optimizer_schedule"] = schedule
    return named


def assume_many_rounds(run: Run) -> Run:
    """Return a run that is long enough for its warm-up: only `Distributed.rounds` tells its
    length."""
    if not run.optimizer.warm_up:
        return run
    return run.override({"train.rounds": MANY}, "Distributed")


def read_init(settings: Mapping[str, Any]) -> Callable[[], Any] | None:
    """Return the function that yields initial values, if ``init`` is one."""
    init = settings.get("init")
    return init if callable(init) else None


def require_resumable(resume: str | Path | None) -> None:
    """Raise ConfigError if ``resume``, an argument of `Distributed.rounds`, is no existing path."""
    if resume and resume != "auto" and not Path(resume).exists():
        raise ConfigError(
            f"resume = {resume!r}: give 'auto', a checkpoint, a run's folder, or nothing."
        )


def require_kind(argument: str, value: Any, kind: type) -> None:
    """Raise ConfigError if an argument of `Distributed.evaluate` is of another kind."""
    if not isinstance(value, kind):
        raise ConfigError(f"evaluate: {argument} = {shown(value)} must be a {kind.__name__}.")


def require_count(examples: Any) -> None:
    """Raise ConfigError if ``examples``, an argument of `Distributed`, is no number of examples."""
    if not isinstance(examples, int) or examples < 1:
        raise ConfigError(f"examples = {shown(examples)} must be a whole number of at least 1.")


def require_same(calls: Sequence[object]) -> None:
    """Raise ConfigError if ranks are in different calls of the job. ``calls``: each rank's."""
    # A rank may be in another collective call of istmpi, with a value of its own.
    names = [call if type(call) is str else "another" for call in calls]
    for rank, name in enumerate(names):
        if name != names[0]:
            raise ConfigError(
                f"rank 0 called {names[0]} while rank {rank} called {name}. Every rank must "
                "make the same job calls in the same order: move them out of `if rank == 0`."
            )


def describe_data(
    inputs: tuple[Any, ...], examples: int, network: type[nn.Module], name: str
) -> Dataset:
    """Return a data set of which istmpi knows no values, only a batch's inputs and the number of
    ``examples``."""
    rows = Rows(examples, inputs)
    return Dataset(
        splits={"train": rows, "test": rows},
        task=OWN,
        shape=tuple(next(list_tensors(inputs)).shape[1:]),
        # Only the program knows its outputs and classes.
        outputs=0,
        classes=None,
        source=name,
        kind="program",
        example=inputs,
        network=network,
    )
