"""The sections of a run: every setting with its type, range, default and a sentence of help."""

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from math import cos, pi
from typing import Annotated, Any, Literal

from istmpi.data.graph import FANOUT
from istmpi.data.text import WINDOW
from istmpi.errors import ConfigError
from istmpi.methods import METHODS
from istmpi.methods.optimizers import OPTIMIZERS
from istmpi.names import ACTIVATIONS, NETWORKS, NORMS
from istmpi.settings import MOST, Meta
from istmpi.tasks import CLASSIFICATION


@dataclass(frozen=True)
class Data:
    """What is learnt from."""

    source: Annotated[
        str, Meta(description="A prepared .h5, an .npz, or digits; {rank} in it is the rank's number.")
    ] = "digits"
    placement: Annotated[
        Literal["shared", "sharded", "by-label", "local"], Meta(description="Which examples a rank draws.")
    ] = "shared"
    alpha: Annotated[
        float,
        Meta(gt=0, description="Dirichlet concentration of by-label: the smaller, the fewer classes a rank sees."),
    ] = 0.5
    validation: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="Fraction of the training examples that is held out by train.seed; while training goes on it "
            "is scored in place of the test split, which is scored at the end. Of text the last tokens, of a graph "
            "training nodes.",
        ),
    ] = 0.0
    standardise: Annotated[
        bool,
        Meta(
            description="Regression: targets are learnt less their mean over the training examples, divided by their "
            "deviation; scores and predictions have the units of the data, losses have not."
        ),
    ] = True
    crop: Annotated[
        int,
        Meta(
            ge=0,
            description="Images: pixels of padding around each, of which training takes a part of its size at random.",
        ),
    ] = 0
    flip: Annotated[
        bool, Meta(description="Images: training sees every other one, at random, mirrored left to right.")
    ] = False
    cutout: Annotated[
        int,
        Meta(ge=0, description="Images: side in pixels of a square that training blanks, at a random place of each."),
    ] = 0
    length: Annotated[int, Meta(ge=1, description="Text: tokens of a window, which is an example.")] = WINDOW
    graph: Annotated[
        Literal["full", "clusters", "neighbours"],
        Meta(
            description="Graphs: what an example is: the full graph, a cluster, whose edges to others of its batch are "
            "kept, or a training node with neighbours that are sampled."
        ),
    ] = "full"
    fanout: Annotated[
        tuple[Annotated[int, Meta(ge=1)], ...],
        Meta(
            min_length=1,
            description="Graphs: neighbours that are sampled of each node of an example, those around training nodes "
            "first: a number for each layer.",
            extra={"must": "have a number for each layer, each at least 1"},
        ),
    ] = FANOUT


Network = Annotated[
    str,
    Meta(
        description="The network: one that ships with istmpi, or a class of your own.",
        extra={"known": ("mlp", *NETWORKS), "or": "FILE.py:Class"},
    ),
]
DType = Annotated[Literal["float32", "float64"], Meta(description="Type of the weights, and of all that is computed.")]


Scale = Annotated[
    Literal["share", "fitted", "none"],
    Meta(
        description="By what the full network multiplies the sum over dealt units, where no batch normalisation is "
        "behind it: the share of them that a subnet had, a factor fitted on training examples, or nothing."
    ),
]


@dataclass(frozen=True)
class Model:
    """The network."""

    name: Network = "mlp"
    hidden: Annotated[
        tuple[Annotated[int, Meta(ge=1)], ...],
        Meta(
            min_length=1,
            description="Widths of the hidden layers.",
            extra={"must": "name at least one hidden layer, each at least one unit wide"},
        ),
    ] = (512,)
    norm: Annotated[str, Meta(description="Normalisation of hidden layers.", extra={"known": NORMS})] = "batch"
    activation: Annotated[
        str, Meta(description="What hidden units do with their sum.", extra={"known": tuple(ACTIVATIONS)})
    ] = "relu"
    dropout: Annotated[float, Meta(ge=0, lt=1, description="Share of the units that a step leaves out.")] = 0.0
    bias: Annotated[bool, Meta(description="Whether products have a bias.")] = False
    output_norm: Annotated[
        bool | None,
        Meta(
            description="Normalise the logits; by default with batch normalisation of a classifier, as the paper does."
        ),
    ] = None
    dtype: DType = "float32"
    scale: Scale = "share"

    def arguments_for(self, task: str) -> dict[str, Any]:
        """The arguments of the network's constructor, for data of this task."""
        arguments = {name: getattr(self, name) for name in ("hidden", "norm", "activation", "dropout", "bias")}
        normalised = self.norm == "batch" and task == CLASSIFICATION
        return arguments | {"output_norm": normalised if self.output_norm is None else self.output_norm}

    @property
    def batch_statistics(self) -> str:
        """The setting by which the network normalises over the batch; empty where it does not."""
        if self.norm == "batch":
            return "model.norm = 'batch'"
        return "model.output_norm = true" if self.output_norm else ""


@dataclass(frozen=True)
class OwnModel:
    """A plain module: all settings but these are arguments of its constructor, as they were given."""

    name: Network
    dtype: DType = "float32"
    scale: Scale = "share"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def arguments_for(self, task: str) -> Mapping[str, Any]:
        """The arguments of the network's constructor that were given, for any task."""
        return self.arguments

    batch_statistics = ""
    """No setting tells whether it normalises over the batch: the network does, once it is made."""


OWN_SETTINGS = ("name", "dtype", "scale")
"""Of a plain module, the settings that are no arguments of its constructor."""


@dataclass(frozen=True)
class _CommonMethod:
    name: Annotated[str, Meta(description="How a round is run.", extra={"known": tuple(METHODS)})] = "ist"
    local_steps: Annotated[int, Meta(ge=1, description="Local steps in a round.")] = 20
    optimizer_state: Annotated[
        Literal["reset", "carry"],
        Meta(description="Momentum between rounds: reset, or carry (it travels with its weight)."),
    ] = "reset"
    outer_lr: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="How far to follow a round's change of the weights; by default the method's own, mostly 1."),
    ] = None
    outer_momentum: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | None,
        Meta(description="Nesterov's momentum of whole rounds, as in DiLoCo; by default the method's own, mostly 0."),
    ] = None
    wire: Annotated[
        Literal["float32", "bfloat16", "int8"],
        Meta(
            description="How weights and gradients travel: as they are, or rounded at random to 2 bytes or 1 a value; "
            "momentum that travels, and tensors of one axis, have 2 at least."
        ),
    ] = "float32"
    delay: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="Local steps that ranks take while what they send is on its way; at most local_steps - 1. Of "
            "ist (by default 0) weights leave so long before a round's end; of streaming-diloco (1) it is from when a "
            "fragment leaves to when its mean is taken."
        ),
    ] = None
    finish: Annotated[str, Meta(description="Another method for the last rounds, and their share: local-sgd:10%.")] = ""


Method = make_dataclass(
    "Method",
    [setting for spec in METHODS.values() for setting in spec.settings],
    bases=(_CommonMethod,),
    frozen=True,
    namespace={
        "__module__": __name__,
        "__doc__": "How a round is run; a method's own settings stand in its MethodSpec.",
    },
)


@dataclass(frozen=True)
class Optimizer:
    """The local optimizer."""

    name: Annotated[str, Meta(description="The optimizer of local steps.", extra={"known": tuple(OPTIMIZERS)})] = "sgd"
    lr: Annotated[float, Meta(gt=0, description="Learning rate.")] = 0.01
    momentum: Annotated[float, Meta(ge=0, lt=1, description="Momentum of sgd's local steps.")] = 0.0
    weight_decay: Annotated[
        float, Meta(ge=0, description="Weight decay: of adamw decoupled, else added to the gradient.")
    ] = 0.0
    warm_up: Annotated[
        int, Meta(ge=0, description="Local steps of a rank in which the learning rate rises linearly from 0 to lr.")
    ] = 0
    clip: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(
            description="Norm of the gradient of all that a rank trains, to which a larger one is cut; 0: none. By "
            "default 1 for a regression whose targets are standardised, else none."
        ),
    ] = None
    schedule: Annotated[
        Literal["constant", "cosine", "step"],
        Meta(description="How the learning rate goes on behind the warm-up, over the local steps of the whole run."),
    ] = "constant"
    milestones: Annotated[
        tuple[Annotated[float, Meta(gt=0, lt=1)], ...],
        Meta(
            min_length=1,
            description="Of step: the fractions of the run behind which the learning rate falls.",
            extra={"must": "be fractions of the run, each between 0 and 1 and above the one before it", "rising": True},
        ),
    ] = (0.5, 0.75)
    decay: Annotated[
        float, Meta(gt=0, lt=1, description="Of step: by what the learning rate is multiplied at each milestone.")
    ] = 0.1

    def lr_at(self, step: int, steps: int) -> float:
        """The learning rate of one of a run's local steps, which are numbered from 0 through all rounds.

        As PyTorch's LinearLR, and behind it CosineAnnealingLR down to 0, or MultiStepLR.
        """
        if step < self.warm_up:
            return self.lr * ((step + 1) / self.warm_up)
        if self.schedule == "cosine":
            return self.lr * (1 + cos(pi * (step - self.warm_up) / max(steps - self.warm_up, 1))) / 2
        if self.schedule == "step":
            return self.lr * self.decay ** sum(step >= at for at in self.falls(steps))
        return self.lr

    def falls(self, steps: int) -> list[int]:
        """The local steps, of so many, with which a step schedule's learning rate falls."""
        return [round(at * steps) for at in self.milestones] if self.schedule == "step" else []

    def require_usable(self, steps: int) -> None:
        """ConfigError where a run of so many local steps would not get to what is said of the learning rate."""
        if self.warm_up > steps:
            raise ConfigError(
                f"optimizer.warm_up = {self.warm_up} is more than the {steps:,} local steps of the run, which would "
                f"never reach optimizer.lr = {self.lr}. Train more rounds, or warm up over fewer."
            )
        for at, fall in zip(self.milestones, self.falls(steps)):
            if fall < self.warm_up:
                raise ConfigError(
                    f"optimizer.milestones: {at} is local step {fall:,} of {steps:,}, within the warm-up "
                    f"(optimizer.warm_up = {self.warm_up}). Warm up over fewer, or let the learning rate fall later."
                )


@dataclass(frozen=True)
class Train:
    """How long, how large, on what."""

    rounds: Annotated[int, Meta(ge=1, description="Rounds to train.")] = 30
    max_minutes: Annotated[
        float,
        Meta(
            ge=0,
            description="Minutes of training, evaluations left out, after which the round under way is the last; "
            "0 sets no limit.",
        ),
    ] = 0.0
    init: Annotated[
        str,
        Meta(
            description="A file of weights to begin with where names and shapes fit: a network.h5 of istmpi, "
            ".safetensors, or a state dict of torch; a run that goes on does not read it."
        ),
    ] = ""
    patience: Annotated[
        int,
        Meta(
            ge=0,
            description="Evaluations in a row without a better score on the validation split after which training "
            "ends; 0 trains all rounds.",
        ),
    ] = 0
    batch: Annotated[int, Meta(ge=1, description="Examples in a local step of one rank.")] = 128
    resolution: Annotated[
        tuple[tuple[Annotated[float, Meta(gt=0, le=1)], Annotated[int, Meta(ge=1)]], ...],
        Meta(
            description="Images: fractions of the rounds, each with the side in pixels to which images are downscaled "
            "in them, the data's own side last: [[0.4, 8], [0.6, 16]].",
            extra={"must": "be pairs of a fraction of the rounds and a side in pixels, as [[0.4, 8], [0.6, 16]]"},
        ),
    ] = ()
    exit_weights: Annotated[
        tuple[Annotated[float, Meta(ge=0)], ...],
        Meta(
            description="How much the loss at each exit of a network with several counts, the last one's included; "
            "by default 1 each.",
            extra={"must": "be numbers that are not negative"},
        ),
    ] = ()
    logit_adjustment: Annotated[
        float,
        Meta(
            ge=0,
            description="Classes, where ranks have different ones: so many times the log of each class's share of a "
            "rank's examples is added to its logits while it trains; 1 allows for all of it.",
        ),
    ] = 0.0
    multi_label_loss: Annotated[
        Literal["softmax", "binary"],
        Meta(
            description="Sparse rows with several labels: the cross-entropy of a row's labels among all of them, their "
            "mean, or that of each label for itself, the sum over all."
        ),
    ] = "softmax"
    seed: Annotated[int, Meta(ge=0, extra={"at_most": MOST - 1}, description="Seed of everything random.")] = 0
    autocast: Annotated[bool, Meta(description="Matrix products in bfloat16.")] = False
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Meta(description="Where to train; with cuda, rank r of a host takes device r modulo the host's devices."),
    ] = "auto"
    # Not this host's cores at most, for a run is repeated elsewhere; with very many torch crashes.
    threads: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="Threads per rank; 0 (auto) takes OMP_NUM_THREADS, or a share of this host's cores.",
        ),
    ] = 0


@dataclass(frozen=True)
class Evaluate:
    """When and how the full network is evaluated."""

    every: Annotated[
        int,
        Meta(
            ge=0,
            description="Rounds between evaluations, on the validation split where there is one in use, else on the "
            "test split; 0 evaluates ten times in a run. The last round always is.",
        ),
    ] = 0
    batch: Annotated[int, Meta(ge=1, description="Examples whose activations are gathered at a time.")] = 1024
    examples: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Test examples that are scored, spread evenly; by default all, of text 512 windows."),
    ] = None
    propensity: Annotated[
        tuple[Annotated[float, Meta(ge=0)], Annotated[float, Meta(ge=0)]],
        Meta(
            description="Rows with several labels: A and B of the odds that a label is noted where it is true, for "
            "PSP@k.",
            extra={"must": "be two numbers that are not negative, as [0.55, 1.5]"},
        ),
    ] = (0.55, 1.5)
    calibration_examples: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        Meta(
            description="Training examples from which the full network's batch normalisation is calibrated; by default "
            "1024, or fewer where evaluations would take more than a tenth of the run, by FLOPs."
        ),
    ] = None

    def rounds_between(self, rounds: int) -> int:
        """The number of rounds from one evaluation to the next, in a run of ``rounds`` rounds."""
        return self.every or max(rounds // 10, 1)


@dataclass(frozen=True)
class Checkpoint:
    """When and how the state of training is saved; the trained network is saved in any case."""

    every: Annotated[int, Meta(ge=0, description="Rounds between checkpoints; 0 takes none.")] = 0
    keep: Annotated[int, Meta(ge=1, description="Checkpoints to keep, the newest.")] = 2
    best: Annotated[
        bool, Meta(description="Keep the network that scored best on the validation split, as best.h5.")
    ] = False
    writer: Annotated[
        Literal["auto", "mpio", "direct"],
        Meta(
            description="Who writes: mpio (parallel HDF5), direct (every rank its rows by itself), or auto: mpio where "
            "h5py has MPI."
        ),
    ] = "auto"
    wait: Annotated[
        bool, Meta(description="Let training wait until a checkpoint is on the disk, instead of writing it behind.")
    ] = False
    max_failures: Annotated[
        int, Meta(ge=1, description="So many checkpoints in a row that cannot be written end the run.")
    ] = 3


@dataclass(frozen=True)
class Comm:
    """What becomes of ranks that wait for each other; nothing of it changes what is learnt."""

    patience: Annotated[
        float,
        Meta(
            ge=0,
            description="Seconds, at least, after which ranks that others wait for are named, and after as many more "
            "the job ends with exit code 76 where one is stuck; three times the slowest round where that is more. "
            "0 waits for ever.",
        ),
    ] = 30.0


@dataclass(frozen=True)
class Output:
    """Where the results go."""

    folder: Annotated[
        str,
        Meta(description="Where the results go, a new folder; by default runs/NAME, with a number when it is taken."),
    ] = ""
