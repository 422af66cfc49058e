"""The settings of the section method.

This module knows no method, so that `MethodSpec`, of which each method has one, can read them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from istmpi.comm.codec import CODECS
from istmpi.settings import Count, Fraction, Meta, Natural, Positive, also

_WIRES = ("float32", *CODECS)
if TYPE_CHECKING:  # checkers know no Literal whose names are computed
    Wire = str
else:
    Wire = Literal[_WIRES]

EVEN_DEAL: dict[str, int | None] = {"method.shares": None, "method.holders": 1}
"""The settings of a deal that any number of ranks allows: equal shares, one holder of a unit."""


@dataclass(frozen=True)
class CommonSettings:
    """The settings in [method] of all methods."""

    name: str = "ist"
    local_steps: Annotated[Count, "Local steps in a round."] = 20
    optimizer_state: Annotated[
        Literal["reset", "keep", "carry"] | None,
        "Optimizer state after a round: reset, keep (each rank keeps its own; only local-sgd and "
        "diloco), or carry (it moves with its weights). The default is keep in diloco, otherwise "
        "reset.",
    ] = None
    outer_lr: Annotated[
        Positive | None,
        "Learning rate of the outer step, once a round; the default depends on the method, "
        "usually 1.",
    ] = None
    outer_momentum: Annotated[
        Fraction | None,
        "Nesterov momentum of the outer step, as in DiLoCo; the default depends on the method, "
        "usually 0.",
    ] = None
    wire: Annotated[
        Wire,
        "Encoding of weights and gradients in messages: exact, or rounded at random to 2 or 1 "
        "bytes a value. Momentum and tensors with one axis get at least 2 bytes.",
    ] = "float32"
    delay: Annotated[
        Natural | None,
        "Local steps during which a transfer runs in the background, at most local_steps - 1. "
        "Weights leave this many steps before the end of a round in ist (default 0); "
        "streaming-diloco (default 1) uses a fragment's mean this many steps later.",
    ] = None
    finish: Annotated[str, "Method for the last rounds, and their share: local-sgd:10%."] = ""


@dataclass(frozen=True)
class SpecificSettings:
    """The settings in [method] that only some methods read: `MethodSpec.settings` of a method has
    their names."""

    # ist
    partition: Annotated[
        tuple[str, ...] | None,
        "Unit groups to deal out; by default all except residual streams and inner widths of an "
        "axis.",
    ] = None
    redeal: Annotated[
        float,
        Meta(ge=0, le=1),
        "Fraction of each unit group to redeal each round.",
    ] = 1.0
    holders: Annotated[
        Count,
        "Ranks that hold each unit, train it on different examples and average it, such as blocks "
        "of a network with fewer blocks than ranks. It divides the ranks "
        "(docs/methods.md).",
    ] = 1
    share_every: Annotated[
        int,
        Meta(ge=1),
        "Rounds between averages of the weights that are not dealt out (docs/methods.md).",
    ] = 1
    shared_wire: Annotated[
        Literal["top-k"] | None,
        "Encoding of averages of weights that are not dealt out: all values (method.wire), or "
        "top-k as in sparse-loco (method.top, feedback; docs/methods.md).",
    ] = None
    shares: Annotated[
        tuple[float, ...] | str | None,
        also(**{"or": "auto, or a metrics.jsonl"}),
        "Relative sizes of the ranks' subnets; by default equal. auto: by measured times. A "
        "metrics.jsonl: the sizes of that auto run, round by round (docs/methods.md).",
    ] = None
    # streaming-diloco
    fragments: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        "Parts of the network to send in turn, at most one for each layer; by default 4, or as "
        "many as a round has room for.",
    ] = None
    mix: Annotated[
        float,
        Meta(ge=0, le=1),
        "Weight of a rank's own values when a mean arrives.",
    ] = 0.5
    # sparse-loco
    top: Annotated[
        int,
        Meta(ge=1, le=4096),
        "Values to send of every 4,096 of a tensor.",
    ] = 64
    feedback: Annotated[
        float,
        Meta(ge=0, le=1),
        "Decay of the error feedback, the changes not sent in earlier rounds.",
    ] = 0.95
    # fedavg
    fraction: Annotated[
        float,
        Meta(gt=0, le=1),
        "Fraction of the ranks that train in a round, at least one rank.",
    ] = 1.0
    epochs: Annotated[
        int,
        Meta(ge=1),
        "Epochs over a rank's own examples in a round, instead of local_steps.",
    ] = 1
    # dynamic-averaging
    threshold: Annotated[
        float,
        Meta(ge=0),
        "Squared distance from the last mean, relative to its norm, at which a rank asks for a "
        "new mean.",
    ] = 0.001
    # codistillation
    burn_in: Annotated[
        int,
        Meta(ge=0),
        "Rounds before ranks learn from each other.",
    ] = 5
    # downpour
    staleness: Annotated[
        Count,
        "Rounds after which a rank's changes reach the others: the bound of stale-synchronous "
        "training, always used up.",
    ] = 1
    # joint
    sigma: Annotated[
        Positive | None,
        "Number of subnets that a rank assumes to change as its own does during a round; by "
        "default all. 1: no other subnet changes.",
    ] = None
    passes: Annotated[
        Count,
        "Passes of a round over its batches, which are local_steps / passes. Several passes take "
        "as many local steps and send fewer outputs.",
    ] = 1
    # admm
    penalty: Annotated[
        float,
        Meta(gt=0),
        "Strength of the pull towards the consensus (ADMM's rho).",
    ] = 0.01
    # easgd
    moving_rate: Annotated[
        float,
        Meta(gt=0, le=1),
        "Step of the center towards the ranks' mean in a round.",
    ] = 0.9
    order: Annotated[
        Literal["together", "round-robin"],
        "Center for a rank: that of the round's start, or the one that the previous rank changed.",
    ] = "together"


@dataclass(frozen=True)
class MethodSettings(SpecificSettings, CommonSettings):
    """The settings in [method], those of all methods first."""
