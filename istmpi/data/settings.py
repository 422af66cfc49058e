"""The section data of a run."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from istmpi.data.batches import PLACEMENTS
from istmpi.data.graph.split import FANOUT
from istmpi.data.text.split import WINDOW
from istmpi.errors import ConfigError
from istmpi.settings import Between, Count, Fraction, Meta, Natural, Positive, also

if TYPE_CHECKING:  # checkers know no Literal whose names are computed
    Placement = str
else:
    Placement = Literal[PLACEMENTS]

_READ_BY = {"alpha": "by-label", "label_shards": "label-shards"}
"""The only placement that reads a setting."""


@dataclass(frozen=True)
class Data:
    source: Annotated[
        str,
        "A prepared .h5, an .npz, digits, or your FILE.py:function; {rank} in it becomes the "
        "rank's number.",
    ] = "digits"
    scoring: Annotated[
        str, "Data from a function: FILE.py:Class with loss and score; by default the network's."
    ] = ""
    ahead: Annotated[
        Natural, "Data from a function: batches that a thread reads ahead; 0: none."
    ] = 2
    placement: Annotated[Placement, "Placement of examples on ranks."] = "shared"
    columns: Annotated[
        Literal["even", "own"] | None,
        "Tables with method joint: ranks have different columns of the same rows. They take equal "
        "parts of one file (even), or have a file each, with {rank} in data.source (own).",
    ] = None
    labels_on: Annotated[
        Natural | None,
        "data.columns with method.local_steps = 1: the only rank that has labels; by default all.",
    ] = None
    alpha: Annotated[
        Positive, "by-label: Dirichlet concentration; smaller values give a rank fewer classes."
    ] = 0.5
    label_shards: Annotated[
        Count, "label-shards: shards of each rank; each has one class, or a few."
    ] = 2
    validation: Annotated[
        Fraction,
        "Fraction of the training examples to hold out, drawn by train.seed. Evaluations during "
        "training score it; the test split is scored at the end. Text: the last tokens. Graphs: "
        "training nodes.",
    ] = 0.0
    test: Annotated[
        Between | None,
        "Your own data without a test split: fraction of the examples to hold out, drawn by "
        "train.seed. Arrays: a fifth by default.",
    ] = None
    standardise: Annotated[
        bool,
        "Regression: standardise targets by their training mean and deviation. Scores and "
        "predictions keep the data's units, losses do not.",
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
        "Images: transforms of torchvision.transforms.v2 in training, as "
        '["RandomRotation(15)", "ColorJitter(0.2)"], '
        "before crop, flip and cutout.",
    ] = ()
    length: Annotated[Count, "Text: tokens of an example (a window)."] = WINDOW
    graph: Annotated[
        Literal["full", "clusters", "neighbours"],
        "Graphs: an example is the full graph, a cluster (edges between clusters of a batch are "
        "kept), or a training node with sampled neighbours.",
    ] = "full"
    fanout: Annotated[
        tuple[Count, ...],
        Meta(min_length=1),
        also(must="have a number of at least 1 for each layer"),
        "graph = neighbours: numbers of neighbours to sample for a node, one for each layer, "
        "beginning at the training nodes.",
    ] = FANOUT

    @property
    def differs(self) -> bool:
        """True if ranks have different examples, or different columns of the same examples."""
        return self.placement == "local" or self.columns is not None

    def require_effective(self) -> None:
        """Raise ConfigError for a setting that the placement does not read."""
        for name, placement in _READ_BY.items():
            value = getattr(self, name)
            # The class has the default, so another value was set on purpose.
            if self.placement != placement and value != getattr(type(self), name):
                raise ConfigError(
                    f"data.{name} = {value} has no effect with data.placement = "
                    f"{self.placement!r}. Leave it out, or take {placement}."
                )
