"""The sections ``model`` and ``method`` of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from istmpi.config.method_settings import MethodSettings
from istmpi.config.methods import METHODS
from istmpi.names import ACTIVATIONS, NETWORKS, NORMS
from istmpi.settings import Count, Fraction, Meta, also
from istmpi.tasks import TASKS

Network = Annotated[
    str,
    also(known=("mlp", *NETWORKS), **{"or": "FILE.py:Class"}),
    "The network: a built-in name or your class.",
]
DType = Annotated[Literal["float32", "float64"], "Type of weights and computation."]


Scale = Annotated[
    Literal["share", "fitted", "none"],
    "Factor of the full network's sums over dealt units without a batch normalisation after them: "
    "a subnet's share of these units, fitted on training examples, or none (docs/methods.md).",
]


Init = Annotated[
    Literal["fan-in", "constructor"],
    "Initial values: uniform by fan-in, or those of the full network's constructor, which then "
    "runs on every rank.",
]


@dataclass(frozen=True)
class Model:
    """The network mlp."""

    name: Network = "mlp"
    hidden: Annotated[
        tuple[Count, ...],
        Meta(min_length=1),
        also(must="name at least one hidden layer of at least one unit"),
        "Widths of the hidden layers.",
    ] = (512,)
    norm: Annotated[str, also(known=NORMS), "Normalisation of hidden layers."] = "batch"
    activation: Annotated[str, also(known=tuple(ACTIVATIONS)), "Activation of hidden units."] = (
        "relu"
    )
    dropout: Annotated[Fraction, "Fraction of the units that a step drops."] = 0.0
    bias: Annotated[bool, "Add a bias to products."] = False
    output_norm: Annotated[
        bool | None,
        "Normalise the logits; by default in classifiers with batch normalisation, as in the paper.",
    ] = None
    dtype: DType = "float32"
    scale: Scale = "share"
    init: Init = "fan-in"

    def arguments_for(self, task: str) -> dict[str, Any]:
        output_norm = self.output_norm
        if output_norm is None:
            output_norm = self.norm == "batch" and TASKS[task].one_class
        return {
            "hidden": self.hidden,
            "norm": self.norm,
            "activation": self.activation,
            "dropout": self.dropout,
            "bias": self.bias,
            "output_norm": output_norm,
        }

    @property
    def batch_statistics(self) -> str:
        """The setting that makes the network normalise over the batch, as text; else empty."""
        if self.norm == "batch":
            return "model.norm = 'batch'"
        if self.output_norm:
            return "model.output_norm = true"
        return ""


@dataclass(frozen=True)
class OwnModel:
    """A network that is a plain torch.nn.Module.

    ``arguments``: the constructor's arguments that the run sets.
    """

    name: Network
    dtype: DType = "float32"
    scale: Scale = "share"
    init: Init = "fan-in"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def arguments_for(self, task: str) -> Mapping[str, Any]:
        return self.arguments

    batch_statistics = ""
    """Always empty: settings do not show if the network normalises over the batch."""


OWN_SETTINGS = ("name", "dtype", "scale", "init")
"""The settings of a plain module that are not arguments of its constructor."""


@dataclass(frozen=True)
class Method(MethodSettings):
    """The training method, whose name is that of a known method."""

    name: Annotated[str, also(known=tuple(METHODS)), "The training method."] = "ist"
