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
        str, "A prepared .h5, an .npz, digits, or your FILE.py:function; {rank} in it stands for the rank's number."
    ] = "digits"
    scoring: Annotated[str, "Data from a function: FILE.py:Class with loss and score; by default the network's."] = ""
    ahead: Annotated[Natural, "Data from a function: batches that a thread reads ahead; 0: none."] = 2
    placement: Annotated[Literal["shared", "sharded", "by-label", "local"], "Placement of examples on ranks."] = (
        "shared"
    )
    alpha: Annotated[Positive, "by-label: Dirichlet concentration; smaller values give a rank fewer classes."] = 0.5
    validation: Annotated[
        Fraction,
        "Fraction of the training examples to hold out, drawn by train.seed. Evaluations during training "
        "score it; the test split is scored at the end. Text: the last tokens. Graphs: training nodes.",
    ] = 0.0
    test: Annotated[
        Fraction,
        "Your own data without a test split: fraction of the examples to hold out, drawn by train.seed. "
        "Arrays: a fifth by default.",
    ] = 0.0
    standardise: Annotated[
        bool,
        "Regression: standardise targets by their training mean and deviation. Scores and predictions keep "
        "the data's units, losses do not.",
    ] = True
    crop: Annotated[Natural, "Images: padding in pixels; training crops to the image's size at random."] = 0
    flip: Annotated[bool, "Images: training mirrors images left to right with probability 1/2."] = False
    cutout: Annotated[Natural, "Images: side in pixels of a square that training blanks at a random place."] = 0
    transforms: Annotated[
        tuple[str, ...],
        'Images: transforms of torchvision.transforms.v2 in training, as ["RandomRotation(15)", "ColorJitter(0.2)"], '
        "before crop, flip and cutout.",
    ] = ()
    length: Annotated[Count, "Text: tokens of an example (a window)."] = WINDOW
    graph: Annotated[
        Literal["full", "clusters", "neighbours"],
        "Graphs: an example is the full graph, a cluster (edges between clusters of a batch are kept), or a "
        "training node with sampled neighbours.",
    ] = "full"
    fanout: Annotated[
        tuple[Count, ...],
        Meta(min_length=1),
        also(must="have a number of at least 1 for each layer"),
        "graph = neighbours: neighbours to sample for each node, a number for each layer, nearest to the "
        "training nodes first.",
    ] = FANOUT


Network = Annotated[
    str,
    also(known=("mlp", *NETWORKS), **{"or": "FILE.py:Class"}),
    "The network: a built-in name or your class.",
]
DType = Annotated[Literal["float32", "float64"], "Type of weights and computation."]


Scale = Annotated[
    Literal["share", "fitted", "none"],
    "Full network: factor of sums over dealt units that no batch normalisation follows: a subnet's share of these "
    "units, fitted on training examples (results/decoder.md), or none.",
]


Init = Annotated[
    Literal["fan-in", "constructor"],
    "Initial values: uniform by fan-in, or those of the full network's constructor, which then runs on every rank.",
]


@dataclass(frozen=True)
class Model:
    """The network."""

    name: Network = "mlp"
    hidden: Annotated[
        tuple[Count, ...],
        Meta(min_length=1),
        also(must="name at least one hidden layer of at least one unit"),
        "Widths of the hidden layers.",
    ] = (512,)
    norm: Annotated[str, also(known=NORMS), "Normalisation of hidden layers."] = "batch"
    activation: Annotated[str, also(known=tuple(ACTIVATIONS)), "Activation of hidden units."] = "relu"
    dropout: Annotated[Fraction, "Fraction of the units that a step drops."] = 0.0
    bias: Annotated[bool, "Add a bias to products."] = False
    output_norm: Annotated[
        bool | None, "Normalise the logits; by default in classifiers with batch normalisation, as in the paper."
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
    name: Annotated[str, also(known=tuple(METHODS)), "The training method."] = "ist"
    local_steps: Annotated[Count, "Local steps in a round."] = 20
    optimizer_state: Annotated[
        Literal["reset", "carry"], "Optimizer state after a round: reset, or carry (it moves with its weights)."
    ] = "reset"
    outer_lr: Annotated[
        Positive | None, "Learning rate of the outer step, once a round; the default depends on the method, usually 1."
    ] = None
    outer_momentum: Annotated[
        Fraction | None,
        "Nesterov momentum of the outer step, as in DiLoCo; the default depends on the method, usually 0.",
    ] = None
    wire: Annotated[
        Literal[("float32", *CODECS)],
        "Encoding of weights and gradients in messages: exact, or rounded at random to 2 or 1 bytes a value. "
        "Momentum and tensors with one axis get at least 2 bytes.",
    ] = "float32"
    delay: Annotated[
        Natural | None,
        "Local steps during which a transfer runs in the background, at most local_steps - 1. Weights leave "
        "this many steps before the end of a round in ist (default 0); streaming-diloco (default 1) uses a "
        "fragment's mean this many steps later.",
    ] = None
    finish: Annotated[str, "Method for the last rounds, and their share: local-sgd:10%."] = ""


Method = make_dataclass(
    "Method",
    [setting for spec in METHODS.values() for setting in spec.settings],
    bases=(_CommonMethod,),
    frozen=True,
    namespace={
        "__module__": __name__,
        "__doc__": "The training method; settings of one method are in its MethodSpec.",
    },
)


@dataclass(frozen=True)
class Optimizer:
    """The local optimizer."""

    name: Annotated[
        str,
        also(known=tuple(OPTIMIZERS), **{"or": "package.module:Class"}),
        "The optimizer of local steps: one of these, or an optimizer class such as torch.optim:RMSprop.",
    ] = "sgd"
    lr: Annotated[Positive, "Learning rate."] = 0.01
    momentum: Annotated[Fraction, "Momentum of sgd."] = 0.0
    weight_decay: Annotated[NotNegative, "Weight decay: decoupled in adamw, otherwise added to the gradient."] = 0.0
    warm_up: Annotated[Natural, "Local steps over which the learning rate rises linearly from 0 to lr."] = 0
    clip: Annotated[
        NotNegative | None,
        "Gradient clipping: largest norm of a rank's whole gradient. 0: none. The default is 1 for "
        "regression with standardised targets, otherwise none.",
    ] = None
    schedule: Annotated[
        Literal[tuple(schedules.SCHEDULES)],
        "Learning rate schedule after the warm-up, over all local steps of the run.",
    ] = "constant"
    least_lr: Annotated[
        NotNegative, "Learning rate at which a schedule ends, except constant; one-cycle: 0 is lr / 250,000."
    ] = 0.0
    milestones: Annotated[
        tuple[Between, ...],
        Meta(min_length=1),
        also(must="be increasing fractions of the run between 0 and 1", rising=True),
        "step: fractions of the run after which the learning rate falls.",
    ] = (0.5, 0.75)
    decay: Annotated[Between, "step: factor of the learning rate at each milestone."] = 0.1
    betas: Annotated[
        tuple[Fraction, Fraction] | None,
        also(must="be two numbers from 0 to below 1, as [0.9, 0.95]"),
        "adam, adamw: decay of the means of gradients and of their squares; by default 0.9 and 0.999.",
    ] = None
    eps: Annotated[Positive | None, "adam, adamw: added to the root of the latter mean; by default 1e-8."] = None
    arguments: Annotated[
        dict | None, "package.module:Class: constructor arguments besides lr, momentum and weight_decay."
    ] = None
    state: Annotated[tuple[str, ...] | None, "Optimizer state of a program, by weight; set by the program itself."] = (
        None
    )

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
        Positive | None,
        "Epochs over the examples of the rank with most, instead of rounds; rounded up to whole rounds.",
    ] = None
    max_minutes: Annotated[
        NotNegative,
        "Time limit in minutes, without evaluations; the round in progress is finished. 0: no limit.",
    ] = 0.0
    init: Annotated[
        str,
        "Initial weights where names and shapes fit: network.h5, .safetensors or a folder of them, a torch "
        "state dict, or FILE.py:function that yields (name, tensor) pairs on rank 0. Ignored when resuming.",
    ] = ""
    init_names: Annotated[
        dict | None, 'Prefixes of names in train.init and their replacements: {"bert." = "encoder."}.'
    ] = None
    patience: Annotated[
        Natural,
        "Early stopping: evaluations in a row without a better validation score that end training. 0: off.",
    ] = 0
    batch: Annotated[Count, "Examples in a local step of one rank."] = 128
    resolution: Annotated[
        tuple[tuple[Annotated[float, Meta(gt=0, le=1)], Count], ...],
        also(must="be pairs of a fraction of the rounds and a side in pixels, such as [[0.4, 8], [0.6, 16]]"),
        "Images: pairs [fraction of the rounds, side in pixels], smaller sides first, the full side last: "
        "[[0.4, 8], [0.6, 16]] (results/growing.md).",
    ] = ()
    exit_weights: Annotated[
        tuple[NotNegative, ...],
        also(must="be numbers of at least 0"),
        "Loss weights of the network's exits, including the last; by default 1 each.",
    ] = ()
    logit_adjustment: Annotated[
        NotNegative,
        "Ranks with different classes: add this factor times the log of each class's share of the rank's "
        "examples to the logits in training; 1 corrects fully.",
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
        "Sparse rows with several labels: softmax is the mean cross-entropy over a row's labels, binary the "
        "sum of binary cross-entropies over all labels.",
    ] = "softmax"
    seed: Annotated[Natural, also(at_most=MOST - 1), "Seed of all random numbers."] = 0
    autocast: Annotated[bool, "Compute matrix products in bfloat16."] = False
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        "Device to train on; with cuda, rank r of a host uses device r modulo the host's devices.",
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
        "Rounds between evaluations, on the validation split or otherwise the test split; 0: ten evaluations "
        "in a run. The last round is always evaluated.",
    ] = 0
    batch: Annotated[Count, "Examples in a batch of an evaluation."] = 1024
    examples: Annotated[
        Count | None, "Test examples to score, spread evenly; by default all, for text 512 windows."
    ] = None
    propensity: Annotated[
        tuple[NotNegative, NotNegative],
        also(must="be two numbers of at least 0, such as [0.55, 1.5]"),
        "Sparse rows with several labels: propensity parameters A and B of PSP@k (Jain et al. 2016).",
    ] = (0.55, 1.5)
    calibration_examples: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        "Training examples to calibrate the full network's batch normalisation; by default 1024, or fewer to "
        "keep evaluation below a tenth of the run's FLOPs.",
    ] = None

    form: Annotated[
        Literal["merged", "blocks", "best"] | None,
        "The network to score and save: merged (the full network), blocks (averaged outputs of the subnets), "
        "or best (the better on validation or sampled training data). The default is best with method.redeal "
        "= 0, otherwise merged.",
    ] = None

    def rounds_between(self, rounds: int) -> int:
        return self.every or max(rounds // 10, 1)


@dataclass(frozen=True)
class Checkpoint:
    """Saved states of training; the trained network is saved in any case."""

    every: Annotated[Natural, "Rounds between checkpoints; 0: none."] = 0
    keep: Annotated[Count, "Newest checkpoints to keep."] = 2
    best: Annotated[bool, "Keep the network that scored best on the validation split, as best.h5."] = False
    writer: Annotated[
        Literal["auto", "mpio", "direct"],
        "Writer: mpio (parallel HDF5), direct (each rank writes its rows), or auto: mpio if h5py has MPI.",
    ] = "auto"
    wait: Annotated[bool, "Wait until a checkpoint is on disk instead of writing it in the background."] = False
    max_failures: Annotated[Count, "Failed checkpoints in a row that end the run."] = 3


@dataclass(frozen=True)
class Comm:
    """The exchange of weights, and the watch over ranks that wait for others; it changes nothing that is learnt."""

    exchange: Annotated[
        Literal["alltoallv", "pieces"],
        "Exchange of weights: one MPI_Alltoallv, or pieces of 256 KiB to each rank in turn, for slow links "
        "between hosts (docs/running.md).",
    ] = "alltoallv"
    patience: Annotated[
        NotNegative,
        "Seconds until ranks that do not respond are reported; after twice that, a stuck job ends with exit "
        "code 76. It is at least 3 times the slowest round. 0: no limit.",
    ] = 30.0


@dataclass(frozen=True)
class Output:
    """The place of the results."""

    folder: Annotated[
        str, "New folder for the results; by default NAME in $ISTMPI_RUNS (runs), numbered if it exists."
    ] = ""
