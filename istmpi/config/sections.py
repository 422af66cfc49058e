"""The sections data, train, evaluate, checkpoint, comm and output of a run.

Each setting has its type, range, default and help.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from istmpi.data.batches import PLACEMENTS
from istmpi.data.graph.split import FANOUT
from istmpi.data.text.split import WINDOW
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
    Placement = str
else:
    Placement = Literal[PLACEMENTS]


@dataclass(frozen=True)
class Data:
    source: Annotated[
        str,
        "A prepared .h5, an .npz, digits, or your FILE.py:function; {rank} in it becomes the rank's number.",
    ] = "digits"
    scoring: Annotated[
        str, "Data from a function: FILE.py:Class with loss and score; by default the network's."
    ] = ""
    ahead: Annotated[
        Natural, "Data from a function: batches that a thread reads ahead; 0: none."
    ] = 2
    placement: Annotated[Placement, "Placement of examples on ranks."] = "shared"
    alpha: Annotated[
        Positive, "by-label: Dirichlet concentration; smaller values give a rank fewer classes."
    ] = 0.5
    validation: Annotated[
        Fraction,
        "Fraction of the training examples to hold out, drawn by train.seed. Evaluations during training "
        "score it; the test split is scored at the end. Text: the last tokens. Graphs: training nodes.",
    ] = 0.0
    test: Annotated[
        Between | None,
        "Your own data without a test split: fraction of the examples to hold out, drawn by train.seed. "
        "Arrays: a fifth by default.",
    ] = None
    standardise: Annotated[
        bool,
        "Regression: standardise targets by their training mean and deviation. Scores and predictions keep "
        "the data's units, losses do not.",
    ] = True
    crop: Annotated[
        Natural, "Images: padding in pixels; training crops to the image's size at random."
    ] = 0
    flip: Annotated[bool, "Images: training mirrors images left to right with probability 1/2."] = (
        False
    )
    cutout: Annotated[
        Natural, "Images: side in pixels of a square that training blanks at a random place."
    ] = 0
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
        "graph = neighbours: numbers of neighbours to sample for a node, one for each layer, beginning at the "
        "training nodes.",
    ] = FANOUT


@dataclass(frozen=True)
class Train:
    """The length, the batches and the device of training."""

    rounds: Annotated[Count, "Rounds to train."] = 30
    epochs: Annotated[
        Positive | None,
        "Epochs on the rank with most examples, instead of rounds; rounded up to whole rounds.",
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
        dict | None,
        'Prefixes of names in train.init and their replacements: {"bert." = "encoder."}.',
    ] = None
    patience: Annotated[
        Natural,
        "Early stopping: evaluations in a row without a better validation score that end training. 0: off.",
    ] = 0
    batch: Annotated[Count, "Examples in a local step of one rank."] = 128
    resolution: Annotated[
        tuple[tuple[Annotated[float, Meta(gt=0, le=1)], Count], ...],
        also(
            must="be pairs of a fraction of the rounds and a side in pixels, such as [[0.4, 8], [0.6, 16]]"
        ),
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
        Fraction,
        "Classes: share of each label that training spreads evenly over all classes; test losses are plain.",
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
        int,
        Meta(ge=0, le=1024),
        "Threads per rank; 0 (auto) takes OMP_NUM_THREADS, or a share of this host's cores.",
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
        "Sparse rows with several labels: propensity parameters A and B of PSP@k (Jain et al. 2016; results/xc.md).",
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
    best: Annotated[
        bool, "Keep the network that scored best on the validation split, as best.h5."
    ] = False
    writer: Annotated[
        Literal["auto", "mpio", "direct"],
        "Writer: mpio (parallel HDF5), direct (each rank writes its rows), or auto: mpio if h5py has MPI.",
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
    folder: Annotated[
        str,
        "New folder for the results; by default NAME in $ISTMPI_RUNS (runs), numbered if it exists.",
    ] = ""
