"""A run: all settings. The command line overrides the run file (TOML), and the run file overrides
the defaults.

Unknown keys are refused, with the most similar known key as a hint. The complete run is saved with
its results, in a file that gives the same run again.
"""

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import tomli_w

from istmpi.config.learner import OWN_SETTINGS, Method, Model, Optimizer, OwnModel
from istmpi.config.sections import Checkpoint, Comm, Data, Evaluate, Output, Train
from istmpi.data.callable.source import is_function, takes_rank
from istmpi.errors import ConfigError, DataError, did_you_mean, kind_of
from istmpi.foreign import exists, is_file, read_toml
from istmpi.gone import is_gone, without_gone
from istmpi.methods import METHODS
from istmpi.models.arguments import usable
from istmpi.models.tables import has_table
from istmpi.names import class_of, is_module, is_own
from istmpi.record import METRICS
from istmpi.record import SETTINGS as SAVED_AS
from istmpi.settings import MOST, Meta, also, checked, numbers_in, shown, types_of

SHIPPED = Path(__file__).parents[1] / "runs"


@dataclass(frozen=True)
class Run:
    """The settings of a run. `Run.load` and `Run.override` make and check a run."""

    data: Data = field(default_factory=Data)
    model: Model | OwnModel = field(default_factory=Model)
    method: Method = field(default_factory=Method)
    optimizer: Optimizer = field(default_factory=Optimizer)
    train: Train = field(default_factory=Train)
    evaluate: Evaluate = field(default_factory=Evaluate)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    comm: Comm = field(default_factory=Comm)
    output: Output = field(default_factory=Output)
    name: Annotated[
        str,
        Meta(min_length=1, pattern=r"^(?!\.{1,2}$)[^/]+$"),
        also(
            at_most_bytes=200, must="be a short name without /: it names the run's folder in runs/"
        ),
        "Name of the run; by default that of its file.",
    ] = "digits"

    @staticmethod
    def load(name_or_path: str) -> "Run":
        """Return the run of a TOML file, of a run's folder, or of a name that ships with the
        package.

        From a folder, the run comes without output.folder, for a new training. Raises ConfigError
        if unusable.
        """
        path = Path(name_or_path)
        if is_file(path / SAVED_AS):
            return Run.load(str(path / SAVED_AS)).override({"output.folder": ""})
        if exists(path) and not path.is_file() and not path.is_dir():
            raise ConfigError(f"run {path} is {kind_of(path)}; it must be a TOML file.")
        if not is_file(path):
            path = SHIPPED / f"{name_or_path}.toml"
        if not is_file(path):
            given = Path(name_or_path)
            files = (
                [file.name for file in given.parent.glob("*.toml")]
                if given.suffix == ".toml"
                else []
            )
            near = did_you_mean(given.name if files else name_or_path, files or shipped())
            raise ConfigError(f"run {name_or_path} is neither a file nor a built-in run{near}")
        try:
            tree = read_toml(path, "Correct it; istmpi runs lists readable runs.")
            train = tree.get("train")
            _require_one_length(
                [f"train.{key}" for key in train] if isinstance(train, dict) else [], path.name
            )
        except DataError as error:
            raise ConfigError(str(error)) from None
        output = tree.get("output", {})
        if path.name == SAVED_AS and is_file(path.parent / METRICS) and isinstance(output, dict):
            tree["output"] = {**output, "folder": str(path.parent)}  # also of a copied folder
        return _build(Run, without_gone({"name": path.stem, **tree}, path.name), "", path.name)

    @staticmethod
    def from_tree(tree: Mapping[str, Any], source: str) -> "Run":
        return _build(Run, without_gone(tree, source), "", source)

    def override(self, settings: Mapping[str, Any], source: str = "command line") -> "Run":
        """Return the run with ``settings``, e.g. ``{"method.local_steps": 20}``. Raises ConfigError
        if one is wrong.

        Another network class drops this run's model settings except dtype; ``train.rounds`` drops
        ``train.epochs``.
        """
        tree = self.tree()
        name = settings.get("model.name", self.model.name)
        if class_of(name) != class_of(self.model.name):
            tree["model"] = {
                "dtype": self.model.dtype
            }  # the other settings are those of another network
        _require_one_length(settings, source)
        if "train.rounds" in settings:
            tree["train"].pop("epochs", None)
        for dotted, value in settings.items():
            if is_gone(dotted, value, source):
                continue
            *sections, key = dotted.split(".")
            branch = tree
            for section in sections:
                branch = branch.setdefault(section, {})
                if not isinstance(branch, dict):
                    raise ConfigError(
                        f"{source}: {section} of {dotted} is a setting, not a section."
                    )
            branch[key] = value
        return _build(Run, tree, "", source)

    def with_implied(self) -> "Run":
        """Return the run with the settings that others imply. Raises ConfigError if settings
        contradict each other."""
        own_files, implied = "{rank}" in self.data.source, {}
        if is_function(self.data.source):
            own_files = takes_rank(self.data.source)
            implied = (
                {}
                if self.data.scoring or not is_own(self.model.name)
                else {"data.scoring": self.model.name}
            )
        if own_files and self.data.placement not in ("shared", "local"):
            raise ConfigError(
                f"data.placement = {self.data.placement!r} does not go with a file for each rank "
                f"({self.data.source}). Leave placement out, or use local."
            )
        if self.data.placement == "local" and not own_files:
            raise ConfigError(
                "data.placement = 'local' needs a file for each rank: put {rank} into data.source "
                f"({self.data.source}), or give a function that takes rank."
            )
        if self.model.batch_statistics and self.train.batch < 2:
            raise ConfigError(
                f"train.batch = 1 with {self.model.batch_statistics}: batch statistics need at least 2 examples."
            )
        self.sides()
        if self.train.resolution and not isinstance(self.model, OwnModel):
            raise ConfigError(
                f"train.resolution with model.name = {self.model.name!r}: its first layer depends on the "
                "image size. Use resnet, vgg or a network of yours, or leave it out."
            )
        implied |= {"data.placement": "local"} if own_files else {}
        if own_files and self.evaluate.form not in (None, "merged"):
            raise ConfigError(
                f"evaluate.form = {self.evaluate.form!r} needs a data.placement other than 'local', because it scores "
                "all subnets on the same examples. Leave form out."
            )
        return self.override(implied) if implied else self

    def sides(self) -> list[tuple[int, int]]:
        """Return (rounds done when an image size ends, side of the images) for each size, in the
        order of training.

        The side is 0 without `train.resolution`. Raises ConfigError if `train.resolution` is
        unusable.
        """
        plan, rounds = self.train.resolution, self.train.rounds
        if not plan:
            return [(rounds, 0)]
        setting = f"train.resolution = {[list(pair) for pair in plan]}"
        fractions, sides = zip(*plan)
        if abs(sum(fractions) - 1) > 1e-9:
            raise ConfigError(
                f"{setting}: its fractions sum to {sum(fractions):.6g}; they must sum to 1."
            )
        if any(side >= after for side, after in zip(sides, sides[1:])):
            raise ConfigError(f"{setting}: its sides must increase.")
        ends = [round(rounds * part) for part in accumulate(fractions)]
        for side, first, end in zip(sides, [0, *ends], ends):
            if first == end:
                raise ConfigError(
                    f"{setting} leaves no round of {rounds} for side {side}. Train more rounds, or leave the side out."
                )
        return list(zip(ends, sides))

    def phases(self) -> list[tuple[str, int]]:
        """Return the methods to use one after the other, each with its number of rounds.

        The method of `method.finish` is included even without a round, so that its name is checked.
        Raises ConfigError if `method.finish` is unusable.
        """
        first, rounds, finish = self.method.name, self.train.rounds, self.method.finish
        if not finish:
            return [(first, rounds)]
        name, _, share = finish.partition(":")
        try:
            percent = float(share.removesuffix("%"))
        except ValueError:
            percent = 0
        if not (share.endswith("%") and 0 < percent < 100):
            raise ConfigError(
                f"method.finish = {finish!r} must be a method and its share of the rounds, such as 'local-sgd:10%'."
            )
        for other in (first, name):
            if other in METHODS and METHODS[other].in_passes:
                raise ConfigError(
                    f"method.finish = {finish!r} does not go with {other}, whose rounds are epochs. Leave it "
                    "out, or use local-sgd."
                )
        last = min(math.ceil(rounds * percent / 100), rounds - 1)
        return [(first, rounds - last), (name, last)]

    def stretches(self) -> list[tuple[str, int, int]]:
        """Return (method, side of the images, number of rounds) for each part of the run with one
        method and side."""
        (first, rounds), *finish = self.phases()
        stretches, begin = [], 0
        for end in sorted({rounds, *(end for end, _ in self.sides())} - {0}):
            side = next(side for last, side in self.sides() if end <= last)
            stretches.append((first if end <= rounds else finish[0][0], side, end - begin))
            begin = end
        return stretches

    def last_rounds(self) -> set[int]:
        """Return the numbers of rounds after which the method or the image size changes, or the run
        ends."""
        return {end for end, _ in self.sides()} | {self.phases()[0][1]}

    @property
    def watches_validation(self) -> bool:
        return bool(self.data.validation or self.train.patience or self.checkpoint.best)

    def tree(self) -> dict[str, Any]:
        return _plain(self)

    def flat(self) -> dict[str, Any]:
        """Return the settings by their dotted names, without those that are None."""
        return dict(_flat(self.tree()))

    def toml(self) -> str:
        return tomli_w.dumps(self.tree())

    def differences(self, other: "Run") -> dict[str, tuple[Any, Any]]:
        """Return (value here, value in ``other``) of each setting that differs, by dotted name;
        None if not set."""
        first, second = self.flat(), other.flat()
        pairs = {key: (first.get(key), second.get(key)) for key in sorted({*first, *second})}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def shipped() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def type_of(setting: str, model: str = "mlp") -> Any:
    """Return the type of a setting, given by its dotted name, for the network ``model``; None if
    unknown."""
    section, _, key = setting.rpartition(".")
    kind = {"": Run, **types_of(Run), "model": OwnModel if is_module(model) else Model}.get(section)
    return types_of(kind).get(key) if dataclasses.is_dataclass(kind) else None


def _plain(value: Any) -> Any:
    if isinstance(value, OwnModel):
        return {
            **{name: getattr(value, name) for name in OWN_SETTINGS},
            **_plain(dict(value.arguments)),
        }
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value):
        items = ((item.name, getattr(value, item.name)) for item in dataclasses.fields(value))
        return {name: _plain(item) for name, item in items if item is not None}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _build(kind: type, tree: Mapping[str, Any], prefix: str, source: str) -> Any:
    types, values = types_of(kind), {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if key not in types:
            nearest = (
                f"; did you mean {inner}?"
                if (inner := _in_a_section(name))
                else did_you_mean(key, types, prefix)
            )
            raise ConfigError(f"{source}: unknown key {name}{nearest}")
        section = types[key]
        if key == "model":
            section = (
                OwnModel if isinstance(value, Mapping) and is_module(value.get("name")) else Model
            )
        if dataclasses.is_dataclass(section):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{source}: {name} = {shown(value)} must be a section with keys.")
            if section is OwnModel:
                settings = {key: given for key, given in value.items() if key in OWN_SETTINGS}
                value = {
                    **settings,
                    "arguments": {key: value[key] for key in value if key not in settings},
                }
            values[key] = _build(section, value, f"{name}.", source)
        elif name == "model.arguments":
            values[key] = _usable_arguments(value, source, values["name"])
        else:
            values[key] = checked(value, section, name, source)
    return kind(**values)


def _require_one_length(settings: Collection[str], source: str) -> None:
    if {"train.rounds", "train.epochs"} <= {*settings}:
        raise ConfigError(
            f"{source}: train.rounds and train.epochs both say how long to train. Leave one out."
        )


def _in_a_section(name: str) -> str:
    sections = {**types_of(Run), "model": Model}
    return next((f"{key}.{name}" for key in sections if type_of(f"{key}.{name}") is not None), "")


def _usable_arguments(arguments: Mapping[str, Any], source: str, network: str) -> Mapping[str, Any]:
    for argument, given in arguments.items():
        if not all(abs(number) <= MOST for number in numbers_in(given)):
            raise ConfigError(f"{source}: model.{argument} must have finite numbers below 2^64.")
    return usable(network, arguments, source) if has_table(network) else arguments
