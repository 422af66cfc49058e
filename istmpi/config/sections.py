"""The sections train, evaluate, checkpoint, comm, output and optimizer of a run.

Each setting has its type, range, default and help. `Data` lies in `istmpi.data.settings`, whose
readers are below this room.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from istmpi.optim import schedules
from istmpi.optim.optimizers import OPTIMIZERS
from istmpi.settings import (
    MOST,
    Between,
    Count,
    Fraction,
    Meta,
    Natural,
    NotNegative,
    Positive,
    also,
)

if TYPE_CHECKING:  # checkers know no Literal whose names are computed
    Schedule = str
else:
    Schedule = Literal[tuple(schedules.SCHEDULES)]


@dataclass(frozen=True)
class Train:
    """The length, the batches and the device of training."""

    rounds: Annotated[Count, "Rounds to train."] = 30
    epochs: Annotated[
        Positive | None,
        "Epochs on the rank with most examples, instead of rounds; rounded up to whole rounds, "
        "also after a resume on other ranks.",
    ] = None
    max_minutes: Annotated[
        NotNegative,
        "Time limit in minutes, without evaluations; the round in progress is finished. 0: no "
        "limit.",
    ] = 0.0
    init: Annotated[
        str,
        "Initial weights where names and shapes fit: network.h5, .safetensors or a folder of them, "
        "a torch state dict, or FILE.py:function that yields (name, tensor) pairs on rank 0. "
        "Ignored when resuming.",
    ] = ""
    init_names: Annotated[
        dict | None,
        'Prefixes of names in train.init and their replacements: {"bert." = "encoder."}.',
    ] = None
    widen: Annotated[
        bool,
        "train.init may be the network.h5 of a narrower network: its units become the first units, "
        "and weights from new units to them begin at 0 (docs/running.md).",
    ] = False
    patience: Annotated[
        Natural,
        "Early stopping: evaluations in a row without a better validation score that end training. "
        "0: off.",
    ] = 0
    batch: Annotated[Count, "Examples in a local step of one rank."] = 128
    watts: Annotated[
        Positive | None,
        "Watts of a rank, to estimate the energy of a job where no counter (RAPL) can be read and "
        "Slurm counts none.",
    ] = None
    resolution: Annotated[
        tuple[tuple[Annotated[float, Meta(gt=0, le=1)], Count], ...],
        also(
            must="be pairs of a fraction of the rounds and a side in pixels, such as [[0.4, 8], [0.6, 16]]"
        ),
        "Images: pairs [fraction of the rounds, side in pixels], smaller sides first, the full "
        "side last: [[0.4, 8], [0.6, 16]] (docs/data.md).",
    ] = ()
    exit_weights: Annotated[
        tuple[NotNegative, ...],
        also(must="be numbers of at least 0"),
        "Loss weights of the network's outputs, including the last; by default 1 each.",
    ] = ()
    logit_adjustment: Annotated[
        NotNegative,
        "Ranks with different classes: add this factor times the log of each class's share of the "
        "rank's examples to the logits in training; 1 corrects fully.",
    ] = 0.0
    label_smoothing: Annotated[
        Fraction,
        "Classes: share of each label that training spreads evenly over all classes; test losses "
        "are plain.",
    ] = 0.0
    class_weights: Annotated[
        tuple[NotNegative, ...] | str | None,
        also(**{"or": "balanced"}),
        "Classes: weight of each in training, as in nn.CrossEntropyLoss; balanced: inverse to its "
        "examples on a rank.",
    ] = None
    multi_label_loss: Annotated[
        Literal["softmax", "binary"],
        "Sparse rows with several labels: softmax is the mean cross-entropy over a row's labels, "
        "binary the sum of binary cross-entropies over all labels.",
    ] = "softmax"
    seed: Annotated[Natural, also(at_most=MOST - 1), "Seed of all random numbers."] = 0
    autocast: Annotated[bool, "Compute matrix products in bfloat16."] = False
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        "Device to train on; with cuda, rank r of a host uses device r modulo the host's devices.",
    ] = "auto"
    # Not this host's cores at most, for a run is repeated elsewhere; with very many torch crashes.
    threads: Annotated[
        int,
        Meta(ge=0, le=1024),
        "Threads per rank; 0 (auto) takes OMP_NUM_THREADS, or a share of this host's cores.",
    ] = 0
    group_size: Annotated[
        Natural,
        "Processes of a host that train one subnet together as one rank, a replica group: they "
        "divide each batch and average gradients in every step (docs/jobs.md). 0 (host): all "
        "processes of a host.",
    ] = 1
    sync_batch_norm: Annotated[
        bool,
        "Batch normalisation takes mean and variance over the batch of the whole replica group, "
        "not over a member's part, as nn.SyncBatchNorm does.",
    ] = False


@dataclass(frozen=True)
class Evaluate:
    """Evaluations of the full network."""

    every: Annotated[
        Natural,
        "Rounds between evaluations, on the validation split or otherwise the test split. The "
        "default gives at most ten, and at most 15% of a run's bytes and FLOPs. The last round is "
        "always evaluated.",
    ] = 0
    batch: Annotated[Count, "Examples in a batch of an evaluation."] = 1024
    examples: Annotated[
        Count | None, "Test examples to score, spread evenly; by default all, for text 512 windows."
    ] = None
    top_k: Annotated[
        tuple[Count, ...] | None,
        "Classes: numbers k below the number of classes, which each give a further score, the "
        "accuracy among the k most probable classes. The default is 5 with more than 20 classes, "
        "otherwise none.",
    ] = None
    propensity: Annotated[
        tuple[NotNegative, NotNegative],
        also(must="be two numbers of at least 0, such as [0.55, 1.5]"),
        "Sparse rows with several labels: propensity parameters A and B of PSP@k (Jain et al. "
        "2016; docs/formats.md).",
    ] = (0.55, 1.5)
    calibration_examples: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        "Training examples to calibrate the full network's batch normalisation; by default 1024, "
        "or fewer to keep evaluation below a tenth of the run's FLOPs.",
    ] = None

    form: Annotated[
        Literal["merged", "blocks", "best", "sum", "likelihood"] | None,
        "The network to score and save: merged (the full network), blocks (mean outputs of the "
        "subnets), best (the better on validation or sampled training data), or likelihood. The "
        "default is best with method.redeal = 0, otherwise merged. The form likelihood is for text "
        "with method.redeal = 0: subnets are weighted by how likely they find the text so far. "
        "Method joint alone has the form sum (added outputs).",
    ] = None

    def rounds_between(self, rounds: int) -> int:
        return self.every or max(rounds // 10, 1)


@dataclass(frozen=True)
class Checkpoint:
    """Saved states of training; the trained network is saved in any case."""

    every: Annotated[Natural, "Rounds between checkpoints; 0: none."] = 0
    keep: Annotated[Count, "Newest checkpoints to keep."] = 2
    best: Annotated[
        bool, "Keep the network that scored best on the validation split, as best.h5."
    ] = False
    writer: Annotated[
        Literal["auto", "mpio", "direct", "root", "parts"],
        "Writer: mpio (parallel HDF5), direct (each rank writes its rows), root (rank 0 writes "
        "what the others send), parts (each rank has a file), or auto. The default is parts if "
        "ranks see no common folder. Otherwise it is mpio if h5py has MPI.",
    ] = "auto"
    wait: Annotated[
        bool, "Wait until a checkpoint is on disk instead of writing it in the background."
    ] = False
    max_failures: Annotated[Count, "Failed checkpoints in a row that end the run."] = 3


@dataclass(frozen=True)
class Comm:
    """The exchange of weights, and the watch over ranks that wait for others.

    Neither changes what is learnt.
    """

    exchange: Annotated[
        Literal["auto", "alltoallv", "pieces"],
        "Exchange of weights: one MPI_Alltoallv, pieces of 256 KiB to each rank in turn, or auto. "
        "The default takes pieces between hosts if messages have 1 MB or more (docs/running.md).",
    ] = "auto"
    patience: Annotated[
        NotNegative,
        "Seconds until ranks that do not respond are reported; after twice that, a stuck job ends "
        "with exit code 76. It is at least 3 times the slowest round. 0: no limit.",
    ] = 30.0


@dataclass(frozen=True)
class Output:
    folder: Annotated[
        str,
        "New folder for the results; by default NAME in $ISTMPI_RUNS (runs), numbered if it exists.",
    ] = ""


@dataclass(frozen=True)
class Optimizer:
    name: Annotated[
        str,
        also(known=tuple(OPTIMIZERS), **{"or": "package.module:Class"}),
        "The optimizer of local steps: one of these, or an optimizer class such as "
        "torch.optim:RMSprop.",
    ] = "sgd"
    lr: Annotated[Positive, "Learning rate."] = 0.01
    momentum: Annotated[Fraction, "Momentum of sgd."] = 0.0
    weight_decay: Annotated[
        NotNegative, "Weight decay: decoupled in adamw, otherwise added to the gradient."
    ] = 0.0
    warm_up: Annotated[
        Natural, "Local steps over which the learning rate rises linearly from 0 to lr."
    ] = 0
    clip: Annotated[
        NotNegative | None,
        "Gradient clipping: largest norm of a rank's whole gradient. 0: none. The default is 1 for "
        "regression with standardised targets, otherwise none.",
    ] = None
    schedule: Annotated[
        Schedule,
        "Learning rate schedule after the warm-up, over all local steps of the run.",
    ] = "constant"
    least_lr: Annotated[
        NotNegative,
        "Learning rate at which a schedule ends, except constant; one-cycle: 0 is lr / 250,000.",
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
        "adam, adamw: decay of the means of gradients and of their squares; by default 0.9 and "
        "0.999.",
    ] = None
    eps: Annotated[
        Positive | None, "adam, adamw: added to the root of the mean of squares; by default 1e-8."
    ] = None
    arguments: Annotated[
        dict | None,
        "package.module:Class: constructor arguments besides lr, momentum and weight_decay.",
    ] = None
    state: Annotated[
        tuple[str, ...] | None,
        "Optimizer state of a program, by weight; set by the program itself.",
    ] = None
