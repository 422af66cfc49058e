"""The sections of a run: every setting with its type, range, default and a sentence of help."""

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, Literal

from istmpi.comm.codec import CODECS
from istmpi.data.graph.split import FANOUT
from istmpi.data.text.split import WINDOW
from istmpi.methods import METHODS, schedules
from istmpi.methods.optimizers import OPTIMIZERS
from istmpi.names import ACTIVATIONS, NETWORKS, NORMS
from istmpi.settings import MOST, Between, Count, Fraction, Meta, Natural, NotNegative, Positive, also
from istmpi.tasks import TASKS


@dataclass(frozen=True)
class Data:
    """The data to learn from."""

    source: Annotated[
        str, "A prepared .h5, an .npz, digits, or FILE.py:function of your own; {rank} in it is the rank's number."
    ] = "digits"
    scoring: Annotated[
        str, "Data of your own: FILE.py:Class whose loss and score count, where it has them; by default the network's."
    ] = ""
    ahead: Annotated[Natural, "Data of your own: batches that a thread reads while a step computes; 0: none."] = 2
    placement: Annotated[Literal["shared", "sharded", "by-label", "local"], "Which examples a rank draws."] = "shared"
    alpha: Annotated[Positive, "Dirichlet concentration of by-label: the smaller, the fewer classes a rank sees."] = 0.5
    validation: Annotated[
        Fraction,
        "Fraction of the training examples that is held out by train.seed. It is scored instead of the test split "
        "while training goes on; the test split is scored at the end. Text: the last tokens. Graphs: training nodes.",
    ] = 0.0
    test: Annotated[
        Fraction,
        "Arrays and data of your own without a test split: fraction of the examples that train.seed holds out; by "
        "default arrays give one in five.",
    ] = 0.0
    standardise: Annotated[
        bool,
        "Regression: learn targets less their mean over the training examples, divided by their deviation; scores and "
        "predictions have the units of the data, losses have not.",
    ] = True
    crop: Annotated[
        Natural, "Images: pixels of padding around each; training takes a part of the image's size at random."
    ] = 0
    flip: Annotated[bool, "Images: training mirrors every other one, at random, left to right."] = False
    cutout: Annotated[
        Natural, "Images: side in pixels of a square that training blanks, at a random place of each image."
    ] = 0
    transforms: Annotated[
        tuple[str, ...],
        'Images: transforms of torchvision.transforms.v2 in training, as ["RandomRotation(15)", "ColorJitter(0.2)"], '
        "before crop, flip and cutout.",
    ] = ()
    length: Annotated[Count, "Text: tokens of a window, which is an example."] = WINDOW
    graph: Annotated[
        Literal["full", "clusters", "neighbours"],
        "Graphs: an example is the full graph, a cluster, whose edges to other clusters of its batch are kept, or a "
        "training node with sampled neighbours.",
    ] = "full"
    fanout: Annotated[
        tuple[Count, ...],
        Meta(min_length=1),
        also(must="have a number for each layer, each at least 1"),
        "Graphs: neighbours that are sampled of each node of an example; a number for each layer, that around "
        "training nodes first.",
    ] = FANOUT


Network = Annotated[
    str,
    also(known=("mlp", *NETWORKS), **{"or": "FILE.py:Class"}),
    "The network: one that ships with istmpi, or a class of your own.",
]
DType = Annotated[Literal["float32", "float64"], "Type of the weights, and of all that is computed."]


Scale = Annotated[
    Literal["share", "fitted", "none"],
    "The full network's factor of a sum over dealt units, where no batch normalisation is behind it: the share of "
    "them that a subnet had, a factor fitted on training examples (results/decoder.md), or none.",
]


Init = Annotated[
    Literal["fan-in", "constructor"],
    "Initial values: uniform, by the number of inputs that a product with the parameter adds up; or what the "
    "constructor of the full network makes, on every rank.",
]


@dataclass(frozen=True)
class Model:
    """The network."""

    name: Network = "mlp"
    hidden: Annotated[
        tuple[Count, ...],
        Meta(min_length=1),
        also(must="name at least one hidden layer, each at least one unit wide"),
        "Widths of the hidden layers.",
    ] = (512,)
    norm: Annotated[str, also(known=NORMS), "Normalisation of hidden layers."] = "batch"
    activation: Annotated[str, also(known=tuple(ACTIVATIONS)), "Activation of hidden units."] = "relu"
    dropout: Annotated[Fraction, "Share of the units that a step leaves out."] = 0.0
    bias: Annotated[bool, "Products have a bias."] = False
    output_norm: Annotated[
        bool | None, "Normalise the logits; by default with batch normalisation of a classifier, as the paper does."
    ] = None
    dtype: DType = "float32"
    scale: Scale = "share"
    init: Init = "fan-in"

    def arguments_for(self, task: str) -> dict[str, Any]:
        arguments = {name: getattr(self, name) for name in ("hidden", "norm", "activation", "dropout", "bias")}
        normalised = self.norm == "batch" and TASKS[task].one_class
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
    init: Init = "fan-in"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def arguments_for(self, task: str) -> Mapping[str, Any]:
        return self.arguments

    batch_statistics = ""
    """Empty, for no setting tells whether it normalises over the batch: the network does, once it is made."""


OWN_SETTINGS = ("name", "dtype", "scale", "init")
"""Settings of a plain module that are no arguments of its constructor."""


@dataclass(frozen=True)
class _CommonMethod:
    name: Annotated[str, also(known=tuple(METHODS)), "How a round is run."] = "ist"
    local_steps: Annotated[Count, "Local steps in a round."] = 20
    optimizer_state: Annotated[
        Literal["reset", "carry"], "Momentum between rounds: reset, or carry (it travels with its weight)."
    ] = "reset"
    outer_lr: Annotated[
        Positive | None, "Factor of a round's change of the weights; by default the method's own, mostly 1."
    ] = None
    outer_momentum: Annotated[
        Fraction | None, "Nesterov's momentum of whole rounds, as in DiLoCo; by default the method's own, mostly 0."
    ] = None
    wire: Annotated[
        Literal[("float32", *CODECS)],
        "Form in which weights and gradients travel: as they are, or rounded at random to 2 bytes or 1 a value; "
        "momentum that travels, and tensors of one axis, have 2 at least.",
    ] = "float32"
    delay: Annotated[
        Natural | None,
        "Local steps that ranks take while what they send is on its way; at most local_steps - 1. ist (by default 0): "
        "weights leave so long before a round's end. streaming-diloco (1): from when a fragment leaves to when its "
        "mean is taken.",
    ] = None
    finish: Annotated[str, "Another method for the last rounds, and their share: local-sgd:10%."] = ""


Method = make_dataclass(
    "Method",
    [setting for spec in METHODS.values() for setting in spec.settings],
    bases=(_CommonMethod,),
    frozen=True,
    namespace={
        "__module__": __name__,
        "__doc__": "The method of a round; a method's own settings stand in its MethodSpec.",
    },
)


@dataclass(frozen=True)
class Optimizer:
    """The local optimizer."""

    name: Annotated[
        str,
        also(known=tuple(OPTIMIZERS), **{"or": "package.module:Class"}),
        "The optimizer of local steps: one of these, or any class of optimizers, such as torch.optim:RMSprop.",
    ] = "sgd"
    lr: Annotated[Positive, "Learning rate."] = 0.01
    momentum: Annotated[Fraction, "Momentum of sgd's local steps."] = 0.0
    weight_decay: Annotated[NotNegative, "Weight decay: decoupled with adamw, else added to the gradient."] = 0.0
    warm_up: Annotated[Natural, "Local steps of a rank in which the learning rate rises linearly from 0 to lr."] = 0
    clip: Annotated[
        NotNegative | None,
        "Largest norm of the gradient of all that a rank trains; a larger one is cut to it. 0: none. By default 1 for "
        "a regression whose targets are standardised, else none.",
    ] = None
    schedule: Annotated[
        Literal[tuple(schedules.SCHEDULES)],
        "Course of the learning rate behind the warm-up, over the local steps of the whole run.",
    ] = "constant"
    least_lr: Annotated[
        NotNegative, "Learning rate at which a schedule ends, but for constant; one-cycle: 0 is lr / 250,000."
    ] = 0.0
    milestones: Annotated[
        tuple[Between, ...],
        Meta(min_length=1),
        also(must="be fractions of the run, each between 0 and 1 and above the one before it", rising=True),
        "step: fractions of the run behind which the learning rate falls.",
    ] = (0.5, 0.75)
    decay: Annotated[Between, "step: factor of the learning rate at each milestone."] = 0.1
    betas: Annotated[
        tuple[Fraction, Fraction] | None,
        also(must="be two numbers from 0 to below 1, as [0.9, 0.95]"),
        "adam, adamw: decay of the means of gradients and of their squares; by default 0.9 and 0.999.",
    ] = None
    eps: Annotated[Positive | None, "adam, adamw: added to the root of the latter mean; by default 1e-8."] = None
    arguments: Annotated[
        dict | None, "package.module:Class: arguments of its constructor, beside lr, momentum and weight_decay."
    ] = None
    state: Annotated[
        tuple[str, ...] | None, "The state for each weight that the optimizer of a program has; the program sets it."
    ] = None

    def lr_at(self, step: int, steps: int) -> float:
        """The learning rate of one of a run's local steps, which are numbered from 0 through all rounds."""
        return schedules.rate_at(self, step, steps)

    def require_usable(self, steps: int) -> None:
        schedules.require_usable(self, steps)


@dataclass(frozen=True)
class Train:
    """The length, the batches and the device of training."""

    rounds: Annotated[Count, "Rounds to train."] = 30
    epochs: Annotated[
        Positive | None, "In place of rounds: passes over the examples of the rank that has most, rounded up to rounds."
    ] = None
    max_minutes: Annotated[
        NotNegative,
        "Minutes of training, evaluations left out, after which the round under way is the last; 0 sets no limit.",
    ] = 0.0
    init: Annotated[
        str,
        "Weights to begin with where names and shapes fit: a network.h5 of istmpi, .safetensors or a folder of them, "
        "a state dict of torch, or FILE.py:function, which yields names and tensors on rank 0; ignored when resuming.",
    ] = ""
    init_names: Annotated[
        dict | None, 'Beginnings of names in train.init, and what stands in their place here: {"bert." = "encoder."}.'
    ] = None
    patience: Annotated[
        Natural,
        "Evaluations in a row without a better score on the validation split that end training; 0 trains all rounds.",
    ] = 0
    batch: Annotated[Count, "Examples in a local step of one rank."] = 128
    resolution: Annotated[
        tuple[tuple[Annotated[float, Meta(gt=0, le=1)], Count], ...],
        also(must="be pairs of a fraction of the rounds and a side in pixels, as [[0.4, 8], [0.6, 16]]"),
        "Images: fractions of the rounds, each with the side in pixels to which images are downscaled in them, the "
        "data's own side last: [[0.4, 8], [0.6, 16]] (results/growing.md).",
    ] = ()
    exit_weights: Annotated[
        tuple[NotNegative, ...],
        also(must="be numbers that are not negative"),
        "Weights of the losses at a network's exits, the last exit included; by default 1 each.",
    ] = ()
    logit_adjustment: Annotated[
        NotNegative,
        "Classes, where ranks have different ones: factor of the log of each class's share of a rank's examples, "
        "which is added to its logits in training; 1 allows for all of it.",
    ] = 0.0
    label_smoothing: Annotated[
        Fraction, "Classes: share of each label that training spreads evenly over all classes; test losses are plain."
    ] = 0.0
    class_weights: Annotated[
        tuple[NotNegative, ...] | str | None,
        also(**{"or": "balanced"}),
        "Classes: weight of each in training, as in nn.CrossEntropyLoss; balanced: inverse to its examples on a rank.",
    ] = None
    multi_label_loss: Annotated[
        Literal["softmax", "binary"],
        "Sparse rows with several labels: softmax is the mean cross-entropy of a row's labels among all labels, "
        "binary the sum of each label's own.",
    ] = "softmax"
    seed: Annotated[Natural, also(at_most=MOST - 1), "Seed of everything random."] = 0
    autocast: Annotated[bool, "Matrix products in bfloat16."] = False
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        "Where to train; with cuda, rank r of a host takes device r modulo the host's devices.",
    ] = "auto"
    # Not this host's cores at most, for a run is repeated elsewhere; with very many torch crashes.
    threads: Annotated[
        int, Meta(ge=0, le=1024), "Threads per rank; 0 (auto) takes OMP_NUM_THREADS, or a share of this host's cores."
    ] = 0


@dataclass(frozen=True)
class Evaluate:
    """Evaluations of the full network."""

    every: Annotated[
        Natural,
        "Rounds between evaluations, on the validation split if one is in use, else on the test split; 0 evaluates "
        "ten times in a run. The last round is always evaluated.",
    ] = 0
    batch: Annotated[Count, "Examples whose activations are gathered at a time."] = 1024
    examples: Annotated[
        Count | None, "Test examples that are scored, spread evenly; by default all, of text 512 windows."
    ] = None
    propensity: Annotated[
        tuple[NotNegative, NotNegative],
        also(must="be two numbers that are not negative, as [0.55, 1.5]"),
        "Sparse rows with several labels: A and B of the odds that a true label is noted, for PSP@k "
        "(Jain et al. 2016).",
    ] = (0.55, 1.5)
    calibration_examples: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        "Training examples that calibrate the full network's batch normalisation; by default 1024, or fewer where "
        "evaluations would take more than a tenth of the run, by FLOPs.",
    ] = None

    form: Annotated[
        Literal["merged", "blocks", "best"] | None,
        "The network that is scored and kept: merged (the full one), blocks (the ranks' subnets, whose outputs are "
        "averaged), or best (whichever scores better on the validation split, or on a sample of the training data); by "
        "default best where method.redeal = 0, otherwise merged.",
    ] = None

    def rounds_between(self, rounds: int) -> int:
        return self.every or max(rounds // 10, 1)


@dataclass(frozen=True)
class Checkpoint:
    """Saved states of training; the trained network is saved in any case."""

    every: Annotated[Natural, "Rounds between checkpoints; 0 takes none."] = 0
    keep: Annotated[Count, "Checkpoints to keep, the newest."] = 2
    best: Annotated[bool, "Keep the network that scored best on the validation split, as best.h5."] = False
    writer: Annotated[
        Literal["auto", "mpio", "direct"],
        "Writer: mpio (parallel HDF5), direct (every rank its rows by itself), or auto: mpio where h5py has MPI.",
    ] = "auto"
    wait: Annotated[bool, "Let training wait until a checkpoint is on the disk, instead of writing it behind."] = False
    max_failures: Annotated[Count, "Checkpoints in a row that cannot be written and so end the run."] = 3


@dataclass(frozen=True)
class Comm:
    """The exchange of weights, and the watch over ranks that wait for others; it changes nothing that is learnt."""

    exchange: Annotated[
        Literal["alltoallv", "pieces"],
        "How all ranks exchange weights with all: by one call of MPI_Alltoallv, or in pieces, 256 KiB to each rank in "
        "turn, for slow lines between hosts (docs/running.md).",
    ] = "alltoallv"
    patience: Annotated[
        NotNegative,
        "Seconds, at least, after which ranks that others wait for are named; after as many more the job ends with "
        "exit code 76 where one is stuck. Three times the slowest round where that is more; 0 waits for ever.",
    ] = 30.0


@dataclass(frozen=True)
class Output:
    """The place of the results."""

    folder: Annotated[
        str, "New folder for the results; by default NAME in $ISTMPI_RUNS (runs), with a number when it is taken."
    ] = ""
