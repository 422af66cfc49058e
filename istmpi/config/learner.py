"""The sections ``model``, ``method`` and ``optimizer`` of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from istmpi.comm.codec import CODECS
from istmpi.config.methods import METHODS, MethodSettings
from istmpi.names import ACTIVATIONS, NETWORKS, NORMS
from istmpi.optim import schedules
from istmpi.optim.optimizers import OPTIMIZERS
from istmpi.settings import Between, Count, Fraction, Meta, Natural, NotNegative, Positive, also
from istmpi.tasks import TASKS

_WIRES = ("float32", *CODECS)
if TYPE_CHECKING:  # checkers know no Literal whose names are computed
    Wire = str
    Schedule = str
else:
    Wire = Literal[_WIRES]
    Schedule = Literal[tuple(schedules.SCHEDULES)]

Network = Annotated[
    str,
    also(known=("mlp", *NETWORKS), **{"or": "FILE.py:Class"}),
    "The network: a built-in name or your class.",
]
DType = Annotated[Literal["float32", "float64"], "Type of weights and computation."]


Scale = Annotated[
    Literal["share", "fitted", "none"],
    "Factor of the full network's sums over dealt units without a batch normalisation after them: a subnet's share "
    "of these units, fitted on training examples (results/decoder.md), or none.",
]


Init = Annotated[
    Literal["fan-in", "constructor"],
    "Initial values: uniform by fan-in, or those of the full network's constructor, which then runs on every rank.",
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
class _CommonMethod:
    name: Annotated[str, also(known=tuple(METHODS)), "The training method."] = "ist"
    local_steps: Annotated[Count, "Local steps in a round."] = 20
    optimizer_state: Annotated[
        Literal["reset", "keep", "carry"] | None,
        "Optimizer state after a round: reset, keep (each rank keeps its own; only local-sgd and diloco), or carry (it "
        "moves with its weights). The default is keep in diloco, otherwise reset.",
    ] = None
    outer_lr: Annotated[
        Positive | None,
        "Learning rate of the outer step, once a round; the default depends on the method, usually 1.",
    ] = None
    outer_momentum: Annotated[
        Fraction | None,
        "Nesterov momentum of the outer step, as in DiLoCo; the default depends on the method, usually 0.",
    ] = None
    wire: Annotated[
        Wire,
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


@dataclass(frozen=True)
class Method(MethodSettings, _CommonMethod):
    """The training method. `MethodSettings` has the settings that only some methods read."""


@dataclass(frozen=True)
class Optimizer:
    name: Annotated[
        str,
        also(known=tuple(OPTIMIZERS), **{"or": "package.module:Class"}),
        "The optimizer of local steps: one of these, or an optimizer class such as torch.optim:RMSprop.",
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
        "adam, adamw: decay of the means of gradients and of their squares; by default 0.9 and 0.999.",
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
