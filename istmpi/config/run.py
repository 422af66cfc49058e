"""A run: all settings.

The command line overrides the run file (TOML), and the run file overrides the defaults. Unknown
keys are refused, with the most similar known key as a hint. The complete run is saved with its
results, in a file that gives the same run again.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any

import tomli_w

from istmpi.config.learner import Method, Model, OwnModel
from istmpi.config.legs import count_batches
from istmpi.config.methods import runs_in_passes
from istmpi.config.run_file import find_cure, find_run_file
from istmpi.config.sections import Checkpoint, Comm, Evaluate, Optimizer, Output, Train
from istmpi.config.trees import flatten, plain, separate_arguments
from istmpi.data.callable.source import is_function, takes_rank
from istmpi.data.settings import Data
from istmpi.errors import ConfigError, DataError, did_you_mean
from istmpi.foreign import is_file, read_toml
from istmpi.gone import drop_gone, is_gone
from istmpi.names import find_class_name, is_module, is_own
from istmpi.network.arguments import usable
from istmpi.optim.course import Course
from istmpi.record import METRICS
from istmpi.record import SETTINGS as SAVED_AS
from istmpi.settings import MOST, Meta, also, check_value, find_types, numbers_in, shown


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
        """Return the run of a TOML file, of a run's folder, or of a name that istmpi ships.

        From a folder, the run comes without output.folder, for a new training. Raises ConfigError
        if unusable.
        """
        path = find_run_file(name_or_path)
        # The folder of a run: its settings without its place, for a new run beside it.
        if path.parent == Path(name_or_path):
            return Run.load(str(path)).override({"output.folder": ""})
        try:
            tree = read_toml(path, find_cure(path))
            train = tree.get("train")
            if isinstance(train, dict):
                _require_one_length([f"train.{key}" for key in train], path.name)
        except DataError as error:
            raise ConfigError(str(error)) from None
        output = tree.get("output", {})
        folder = str(path.parent)
        of_a_run = path.name == SAVED_AS and is_file(path.parent / METRICS)
        if of_a_run and isinstance(output, dict) and folder.isprintable():  # as a setting must be
            tree["output"] = {**output, "folder": folder}  # also of a copied folder
        return _build(Run, drop_gone({"name": path.stem, **tree}, path.name), "", path.name)

    @staticmethod
    def from_tree(tree: Mapping[str, Any], source: str) -> "Run":
        return _build(Run, drop_gone(tree, source), "", source)

    def override(self, settings: Mapping[str, Any], source: str = "command line") -> "Run":
        """Return the run with ``settings``, e.g. ``{"method.local_steps": 20}``.

        Another network class drops this run's model settings except dtype; ``train.rounds`` drops
        ``train.epochs``. Raises ConfigError if a setting is wrong.
        """
        tree = self.tree()
        name = settings.get("model.name", self.model.name)
        if find_class_name(name) != find_class_name(self.model.name):
            # The other settings are those of another network.
            tree["model"] = {"dtype": self.model.dtype}
        _require_one_length(settings, source)
        # The last of the two that is given says how long to train.
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
        """Return the run with the settings that others imply.

        Raises ConfigError if settings contradict each other.
        """
        implied = {}
        # Files of columns have the same rows, which are no rank's own.
        own_files = "{rank}" in self.data.source and self.data.columns != "own"
        if is_function(self.data.source):
            own_files = takes_rank(self.data.source)
            if not self.data.scoring and is_own(self.model.name):
                implied["data.scoring"] = self.model.name
        self._require_consistent(own_files)
        if own_files:
            implied["data.placement"] = "local"
        if not implied:
            return self
        return self.override(implied)

    def _require_consistent(self, own_files: bool) -> None:
        """Raise ConfigError if settings contradict each other; ``own_files``: each rank has its own
        data."""
        self.data.require_effective()
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
                f"train.batch = 1 with {self.model.batch_statistics}: batch statistics need at "
                "least 2 examples."
            )
        if self.train.widen and not self.train.init:
            raise ConfigError("train.widen needs train.init, a narrower network.h5.")
        self.sides()
        if self.grows and not isinstance(self.model, OwnModel):
            raise ConfigError(
                f"train.resolution with model.name = {self.model.name!r}: its first layer depends "
                "on the image size. Use resnet, vgg or a network of yours, or leave it out."
            )
        if self.checkpoint.best and self.grows:
            raise ConfigError(
                "checkpoint.best = true does not go with train.resolution, because networks for "
                "different image sizes cannot be compared. Leave one out."
            )
        if own_files and self.evaluate.form not in (None, "merged", "likelihood"):
            raise ConfigError(
                f"evaluate.form = {self.evaluate.form!r} needs a data.placement other than "
                "'local', because it scores all subnets on the same examples. Leave form out."
            )

    def course(self, most_examples: Mapping[int, int]) -> Course:
        """Return the run's course.

        ``most_examples``: the training examples of the rank that has most, by the number of rounds
        done when it became so; needed if `train.epochs` is set.
        """
        epochs = self.train.epochs
        if epochs is None:
            return Course.from_rounds(self.train.rounds)
        passes = Fraction(str(epochs))
        method = self.method
        if runs_in_passes(method.name):
            return Course.from_rounds(math.ceil(passes / method.epochs))
        return Course.from_epochs(passes, self._examples_in_a_round, most_examples)

    @property
    def _examples_in_a_round(self) -> int:
        # A batch counts once, however often a round passes over it.
        return count_batches(self.method) * self.train.batch

    def count_epochs(self, most_examples: Mapping[int, int], rounds: int) -> Fraction:
        """Return the passes over the data of the rank that has most, after so many rounds."""
        if runs_in_passes(self.method.name):
            return Fraction(rounds * self.method.epochs)
        epochs = Fraction(0)
        changes = sorted(begin for begin in most_examples if begin < rounds)
        for begin, end in pairwise([*changes, rounds]):
            epochs += Fraction((end - begin) * self._examples_in_a_round, most_examples[begin])
        return epochs

    def sides(self, course: Course | None = None) -> list[tuple[int, int]]:
        """Return (rounds done when an image size ends, side of the images) for each size.

        Sizes are in the order of training. The side is 0 without `train.resolution`. ``course``:
        by default that of `train.rounds`. Raises ConfigError if `train.resolution` is unusable.
        """
        plan = self.train.resolution
        # Without a course, the rounds of epochs are unknown, or those of other ranks.
        rounds_are_planned = course is not None or self.train.epochs is None
        course = course or Course.from_rounds(self.train.rounds)
        rounds = course.planned
        if not plan:
            return [(course.rounds, 0)]
        setting = f"train.resolution = {[list(pair) for pair in plan]}"
        fractions, sides = zip(*plan)
        if abs(sum(fractions) - 1) > 1e-9:  # 0.1 + 0.2 + 0.7 is not 1 in binary
            raise ConfigError(
                f"{setting}: its fractions sum to {sum(fractions):.6g}; they must sum to 1."
            )
        if any(side >= after for side, after in zip(sides, sides[1:])):
            raise ConfigError(f"{setting}: its sides must increase.")
        ends = [round(rounds * part) for part in accumulate(fractions)]
        for side, first, end in zip(sides, [0, *ends], ends):
            if first == end and rounds_are_planned:
                raise ConfigError(
                    f"{setting} leaves no round of {rounds} for side {side}. Train more rounds, or "
                    "leave the side out."
                )
        return [(course.find_round(end), side) for end, side in zip(ends, sides)]

    @property
    def grows(self) -> bool:
        """True if images grow during training."""
        return bool(self.train.resolution)

    def phases(self, course: Course | None = None) -> list[tuple[str, int]]:
        """Return the methods to use one after the other, each with its number of rounds.

        The method of `method.finish` is included even without a round, so that its name is checked.
        ``course``: by default that of `train.rounds`. Raises ConfigError if `method.finish` is
        unusable.
        """
        first = self.method.name
        course = course or Course.from_rounds(self.train.rounds)
        rounds = course.planned
        finish = self.method.finish
        if not finish:
            return [(first, course.rounds)]
        name, _, share = finish.partition(":")
        try:
            percent = float(share.removesuffix("%"))
        except ValueError:
            percent = 0
        if not (share.endswith("%") and 0 < percent < 100):
            raise ConfigError(
                f"method.finish = {finish!r} must be a method and its share of the rounds, such as "
                "'local-sgd:10%'."
            )
        for other in (first, name):
            if runs_in_passes(other):
                raise ConfigError(
                    f"method.finish = {finish!r} does not go with {other}, whose rounds are "
                    "epochs. Leave it out, or use local-sgd."
                )
        # At least one round of each method, as far as there are two rounds.
        last = min(math.ceil(rounds * percent / 100), rounds - 1)
        rounds_of_first = course.find_round(rounds - last)
        return [(first, rounds_of_first), (name, course.rounds - rounds_of_first)]

    def stretches(self) -> list[tuple[str, int, int]]:
        """Return (method, side of the images, number of rounds) for each part of the run.

        A part has one method and one side.
        """
        (first, rounds), *finish = self.phases()
        sides = self.sides()
        ends = {rounds, *(end for end, _ in sides)}
        stretches = []
        begin = 0
        for end in sorted(ends - {0}):
            side = next(side for last, side in sides if end <= last)
            method = first
            if end > rounds:
                [(method, _)] = finish
            stretches.append((method, side, end - begin))
            begin = end
        return stretches

    def last_rounds(self, course: Course | None = None) -> set[int]:
        """Return the rounds after which the method or image size changes, or the run ends."""
        (_, rounds_of_first), *_ = self.phases(course)
        return {rounds_of_first, *(end for end, _ in self.sides(course))}

    @property
    def watches_validation(self) -> bool:
        return bool(self.data.validation or self.train.patience or self.checkpoint.best)

    def tree(self) -> dict[str, Any]:
        return plain(self)

    def flat(self) -> dict[str, Any]:
        """Return the settings by their dotted names, without those that are None, and without the
        rounds of a run that is measured in epochs."""
        return dict(flatten(self._given_tree()))

    def toml(self) -> str:
        """Return a file that gives the same run again, on any number of ranks."""
        return tomli_w.dumps(self._given_tree())

    def _given_tree(self) -> dict[str, Any]:
        tree = self.tree()
        if self.train.epochs is not None:
            del tree["train"]["rounds"]
        return tree

    def differences(self, other: "Run") -> dict[str, tuple[Any, Any]]:
        """Return (value here, value in ``other``) of each setting that differs, by dotted name.

        A value is None if it is not set.
        """
        values = self.flat()
        other_values = other.flat()
        differences = {}
        for key in sorted({*values, *other_values}):
            pair = values.get(key), other_values.get(key)
            if pair[0] != pair[1]:
                differences[key] = pair
        return differences


def type_of(setting: str, model: str = "mlp") -> Any:
    """Return the type of a setting, a dotted name, for the network ``model``; None if unknown."""
    section, _, key = setting.rpartition(".")
    sections = {"": Run, **find_types(Run), "model": _model_type(model)}
    kind = sections.get(section)
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return None
    return find_types(kind).get(key)


def _build(kind: type, tree: Mapping[str, Any], prefix: str, source: str) -> Any:
    types = find_types(kind)
    values = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if key not in types:
            nearest = did_you_mean(key, types, prefix)
            full_name = _find_in_sections(name)
            if full_name:
                nearest = f"; did you mean {full_name}?"
            raise ConfigError(f"{source}: unknown key {name}{nearest}")
        section = types[key]
        if key == "model":
            section = _model_type(value.get("name") if isinstance(value, Mapping) else None)
        if isinstance(section, type) and dataclasses.is_dataclass(section):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{source}: {name} = {shown(value)} must be a section with keys.")
            if section is OwnModel:
                value = separate_arguments(value)
            values[key] = _build(section, value, f"{name}.", source)
        elif name == "model.arguments":  # the last key of its section, so the name is known
            values[key] = _usable_arguments(value, source, values["name"])
        else:
            values[key] = check_value(value, section, name, source)
    return kind(**values)


def _require_one_length(settings: Collection[str], source: str) -> None:
    if {"train.rounds", "train.epochs"} <= {*settings}:
        raise ConfigError(
            f"{source}: train.rounds and train.epochs both say how long to train. Leave one out."
        )


def _model_type(network: Any) -> type[Model] | type[OwnModel]:
    if is_module(network):
        return OwnModel
    return Model


def _find_in_sections(name: str) -> str:
    """Return the full name of a setting that is given without its section; empty if unknown."""
    for section in [*find_types(Run), "model"]:
        if type_of(f"{section}.{name}") is not None:
            return f"{section}.{name}"
    return ""


def _usable_arguments(arguments: Mapping[str, Any], source: str, network: str) -> Mapping[str, Any]:
    for argument, value in arguments.items():
        if not all(abs(number) <= MOST for number in numbers_in(value)):
            raise ConfigError(f"{source}: model.{argument} must have finite numbers below 2^64.")
    return usable(network, arguments, source)
