"""A run: everything that decides what is computed, from defaults < run file (TOML) < command line.

Unknown keys are refused with the nearest known one; the resolved run is saved beside its results and reads back to
the same run.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import tomli_w

from istmpi.errors import ConfigError, DataError, did_you_mean, kind_of
from istmpi.foreign import exists, is_file, read_toml
from istmpi.names import class_of, is_own
from istmpi.ranges import check
from istmpi.renamed import SETTINGS, current, tell

SHIPPED = Path(__file__).parent / "runs"
"""The folder of the runs that come with the package."""

_OUTER = {"diloco": (0.7, 0.9)}
"""Learning rate and momentum that DiLoCo's authors recommend for the outer step."""


@dataclass(frozen=True)
class Data:
    """What is learnt from."""

    source: str = "digits"
    """A prepared .h5, an .npz, or ``digits``; a path with ``{rank}`` in it is a file of each rank's own."""
    placement: str = "shared"
    """Which examples a rank draws: shared | sharded | by-label | local."""
    alpha: float = 0.5
    """Dirichlet concentration of by-label: the smaller, the fewer classes a rank sees."""
    crop: int = 0
    """Images: pixels of padding around each image, of which training takes a part of the image's size at random."""
    flip: bool = False
    """Images: training sees every other image, at random, mirrored left to right."""
    cutout: int = 0
    """Images: side in pixels of a square that training blanks, at a random place of each image."""


@dataclass(frozen=True)
class Model:
    """The network."""

    name: str = "mlp"
    hidden: tuple[int, ...] = (512,)
    norm: str = "batch"
    activation: str = "relu"
    dropout: float = 0.0
    bias: bool = False
    output_norm: bool | None = None
    """Normalise the logits; by default with batch normalisation of a classifier, as the paper does."""
    dtype: str = "float32"

    @property
    def batch_statistics(self) -> str:
        """The setting by which the network normalises over the batch; empty where it does not."""
        if self.norm == "batch":
            return "model.norm = 'batch'"
        return "model.output_norm = true" if self.output_norm else ""


@dataclass(frozen=True)
class OwnModel:
    """A network of the user's own: all settings but these two are arguments of its constructor, as they were given."""

    name: str
    """FILE.py:Class or package.module:Class."""
    dtype: str = "float32"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    batch_statistics = ""
    """No setting tells whether it normalises over the batch: the network does, once it is made."""


@dataclass(frozen=True)
class Method:
    """How a round is run."""

    name: str = "ist"
    partition: tuple[str, ...] | None = None
    """The unit groups that are dealt out; by default all that the model has, but for residual streams."""
    local_steps: int = 20
    redeal: float = 1.0
    """The fraction of each group's units that changes places every round."""
    shares: tuple[float, ...] | None = None
    """Relative sizes of the ranks' subnets; by default equal."""
    optimizer_state: str = "reset"
    """What becomes of momentum between rounds: reset | carry (it travels with its weight)."""
    outer_lr: float | None = None
    """How far to follow a round's change of the weights; by default 0.7 for diloco, else 1."""
    outer_momentum: float | None = None
    """Nesterov's momentum of these changes; by default 0.9 for diloco, else 0."""
    finish: str = ""
    """Another method for the last rounds, and their share of all: local-sgd:10%."""
    fraction: float = 1.0
    """fedavg: the share of the ranks that trains in a round."""
    epochs: int = 1
    """fedavg: passes of such a rank over its own examples; takes the place of local_steps."""
    threshold: float = 0.001
    """dynamic-averaging: squared distance from the last mean at which a rank wants a new one, relative to its norm."""
    burn_in: int = 5
    """codistillation: rounds before the ranks begin to learn from each other."""

    @property
    def outer(self) -> tuple[float, float]:
        """Learning rate and momentum of the outer step, as the run says or else the method's own."""
        lr, momentum = _OUTER.get(self.name, (1.0, 0.0))
        return (
            lr if self.outer_lr is None else self.outer_lr,
            momentum if self.outer_momentum is None else self.outer_momentum,
        )

    def dealt(self, groups: tuple[str, ...], default: tuple[str, ...]) -> tuple[str, ...]:
        """The unit groups to deal out, of those that the model has; ConfigError for another."""
        for name in self.partition or ():
            if name not in groups:
                raise ConfigError(
                    f"method.partition: {name} is no unit group of this model{did_you_mean(name, groups)}"
                )
        return default if self.partition is None else self.partition


@dataclass(frozen=True)
class Optimizer:
    """The local optimizer."""

    name: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    warm_up: int = 0
    """Local steps of a rank in which the learning rate rises linearly from 0 to lr."""

    def lr_at(self, step: int) -> float:
        """The learning rate of a local step: they are numbered from 0 through all rounds."""
        return self.lr * min((step + 1) / self.warm_up, 1.0) if self.warm_up else self.lr


@dataclass(frozen=True)
class Train:
    """How long, how large, on what."""

    rounds: int = 30
    max_minutes: float = 0.0
    """Minutes of training, evaluations left out, after which the round under way is the last; 0 sets no limit."""
    batch: int = 128
    """Examples in a local step of one rank."""
    seed: int = 0
    autocast: bool = False
    """Matrix products in bfloat16."""
    device: str = "auto"
    """auto | cpu | cuda: with cuda, rank r of a host takes device r modulo the host's devices."""
    threads: int = 0
    """Threads per rank; 0 shares this host's cores among its ranks."""


@dataclass(frozen=True)
class Evaluate:
    """When and how the full network is evaluated."""

    every: int = 0
    """Rounds between evaluations; 0 evaluates ten times in a run. The last round is always evaluated."""
    batch: int = 1024
    """Examples whose activations are gathered at a time."""
    calibration_examples: int = 1024
    """Training examples from which the full network's normalisation is calibrated."""


@dataclass(frozen=True)
class Checkpoint:
    """When and how the state of training is saved; the trained network is saved in any case."""

    every: int = 0
    """Rounds between checkpoints; 0 takes none."""
    keep: int = 2
    """The newest that are kept."""
    writer: str = "auto"
    """mpio (parallel HDF5) | direct (every rank writes its rows by itself) | auto: mpio where h5py has MPI."""
    wait: bool = False
    """Let training wait until a checkpoint is on the disk, instead of writing it in the background."""
    max_failures: int = 3
    """So many checkpoints in a row that cannot be written end the run."""


@dataclass(frozen=True)
class Output:
    """Where the results go."""

    folder: str = ""
    """By default runs/NAME, with a number when that is taken."""


@dataclass(frozen=True)
class Run:
    """A whole run: `Run.load`, then `Run.override`; both check."""

    data: Data = field(default_factory=Data)
    model: Model | OwnModel = field(default_factory=Model)
    method: Method = field(default_factory=Method)
    optimizer: Optimizer = field(default_factory=Optimizer)
    train: Train = field(default_factory=Train)
    evaluate: Evaluate = field(default_factory=Evaluate)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    output: Output = field(default_factory=Output)
    name: str = "digits"

    @staticmethod
    def load(name_or_path: str) -> "Run":
        """The run of a TOML file, or of a name that ships with the package; ConfigError when it cannot be used."""
        path = Path(name_or_path)
        if exists(path) and not path.is_file() and not path.is_dir():
            raise ConfigError(f"run {path} is {kind_of(path)}; it must be a TOML file.")
        if not is_file(path):
            path = SHIPPED / f"{name_or_path}.toml"
        if not is_file(path):
            known = shipped()
            raise ConfigError(
                f"run {name_or_path}: neither a file nor a run of istmpi's{did_you_mean(name_or_path, known)}"
            )
        try:
            tree = read_toml(path, "Correct it: istmpi runs lists some that can be read.")
        except DataError as error:
            raise ConfigError(str(error)) from None
        tree.setdefault("name", path.stem)
        return _build(Run, current(tree, path.name), "", path.name)

    @staticmethod
    def from_tree(tree: Mapping[str, Any], source: str) -> "Run":
        """The run of nested dicts as `tree` gives them; ConfigError names ``source``."""
        return _build(Run, current(tree, source, aloud=False), "", source)

    def override(self, settings: Mapping[str, Any], source: str = "command line") -> "Run":
        """The run with some settings replaced: ``{"method.local_steps": 20}``."""
        tree = self.tree()
        name = settings.get("model.name", self.model.name)
        if class_of(name) != class_of(self.model.name):
            tree["model"] = {"dtype": self.model.dtype}  # the other settings are those of another network
        for dotted, value in settings.items():
            if dotted in SETTINGS:
                tell(dotted, SETTINGS[dotted], source)
            *sections, key = SETTINGS.get(dotted, dotted).split(".")
            branch = tree
            for section in sections:
                branch = branch.setdefault(section, {})
                if not isinstance(branch, dict):
                    raise ConfigError(f"{source}: {section} of {dotted} is a setting, not a section.")
            branch[key] = value
        return _build(Run, tree, "", source)

    def with_implied(self) -> "Run":
        """The run with what some settings imply for others; ConfigError where they contradict each other."""
        own_files = "{rank}" in self.data.source
        if own_files and self.data.placement not in ("shared", "local"):
            raise ConfigError(
                f"data.placement = {self.data.placement!r} with a file for each rank ({self.data.source}): every rank "
                f"draws from its own file. Leave placement out or use local."
            )
        if self.data.placement == "local" and not own_files:
            raise ConfigError(
                f"data.placement = 'local' needs a file for each rank: put {{rank}} into data.source "
                f"({self.data.source})."
            )
        if self.model.batch_statistics and self.train.batch < 2:
            raise ConfigError(
                f"train.batch = 1 with {self.model.batch_statistics}: batch statistics need at least 2 examples."
            )
        return self.override({"data.placement": "local"}) if own_files else self

    def phases(self) -> list[tuple[str, int]]:
        """The methods to use one after the other, each with its number of rounds; ConfigError for a bad finish.

        A finish is there even where it gets no round, for its name to be looked up.
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
                f"method.finish = {finish!r} must be a method and its share of the rounds, as in 'local-sgd:10%'."
            )
        if "fedavg" in (first, name):
            raise ConfigError(
                f"method.finish = {finish!r} does not go with fedavg, whose rounds are passes over the data instead of "
                f"local steps. Leave it out, or use local-sgd."
            )
        last = min(math.ceil(rounds * percent / 100), rounds - 1)
        return [(first, rounds - last), (name, last)]

    def tree(self) -> dict[str, Any]:
        """The run as nested dicts of plain values; settings that are None are left out."""

        def plain(value: Any) -> Any:
            if isinstance(value, OwnModel):
                return {"name": value.name, "dtype": value.dtype, **plain(dict(value.arguments))}
            if isinstance(value, dict):
                return {name: plain(item) for name, item in value.items()}
            if dataclasses.is_dataclass(value):
                items = ((item.name, getattr(value, item.name)) for item in dataclasses.fields(value))
                return {name: plain(item) for name, item in items if item is not None}
            return [plain(item) for item in value] if isinstance(value, list | tuple) else value

        return plain(self)

    def flat(self) -> dict[str, Any]:
        """The settings by their dotted names: ``{"method.local_steps": 20}``; those that are None are left out."""
        return _flat(self.tree())

    def toml(self) -> str:
        """The run as a TOML file that `Run.load` reads back to the same run."""
        return tomli_w.dumps(self.tree())

    def differences(self, other: "Run") -> dict[str, tuple[Any, Any]]:
        """The settings in which two runs differ: ``{"model.hidden": ([512], [256])}``; one that is not set is None."""
        mine, theirs = self.flat(), other.flat()
        return {
            key: (mine.get(key), theirs.get(key))
            for key in sorted({*mine, *theirs})
            if mine.get(key) != theirs.get(key)
        }


def shipped() -> list[str]:
    """The names of the runs that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _with_arguments(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The model section of a network of one's own, the arguments of its constructor in a section of their own."""
    settings = {key: value for key, value in tree.items() if key in ("name", "dtype")}
    return {**settings, "arguments": {key: value for key, value in tree.items() if key not in settings}}


def _build(kind: type, tree: Mapping[str, Any], prefix: str, source: str) -> Any:
    """A dataclass from a tree of plain values; every key known, every value of its type and in its range."""
    hints = get_type_hints(kind)
    values = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if key not in hints:
            raise ConfigError(f"{source}: unknown key {name}{did_you_mean(key, hints, prefix)}")
        section = hints[key]
        if key == "model":
            section = OwnModel if isinstance(value, Mapping) and is_own(value.get("name")) else Model
        if dataclasses.is_dataclass(section):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{source}: {name} = {_shown(value)} must be a section with keys.")
            if section is OwnModel:
                value = _with_arguments(value)
            values[key] = _build(section, value, f"{name}.", source)
        else:
            values[key] = _converted(value, hints[key], name, source)
            check(name, values[key], source)
    return kind(**values)


def _converted(value: Any, hint: Any, name: str, source: str) -> Any:
    """A value as the type that its setting has; whole numbers serve as floats, lists as tuples."""
    if get_origin(hint) is Mapping:
        return value
    if get_origin(hint) in (Union, types.UnionType):
        return None if value is None else _converted(value, get_args(hint)[0], name, source)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{source}: {name} = {_shown(value)} must be a list.")
        return tuple(_converted(item, get_args(hint)[0], name, source) for item in value)
    if isinstance(value, int) and abs(value) > MOST:
        raise ConfigError(f"{source}: {name} = {_shown(value)} must lie between -2^64 and 2^64.")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise ConfigError(f"{source}: {name} = {_shown(value)} must be {_ENGLISH[hint]}.")
    if isinstance(value, str) and not value.isprintable():
        raise ConfigError(f"{source}: {name} = {_shown(value)} must be a text of signs that can be printed.")
    return value


def _shown(value: Any) -> str:
    """A value as a message shows it: an integer of thousands of digits has no decimals that Python would write."""
    return hex(value) if isinstance(value, int) and abs(value) > MOST else repr(value)


MOST = 2**64
"""No whole number is larger."""
_ENGLISH = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
