"""The descriptions of all training methods. A new method needs a description here, and a class in
this package."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

from istmpi.config import legs
from istmpi.config.spec import CARRY, KEEP, RESET, MethodSpec, gathered, reduced
from istmpi.errors import ConfigError, did_you_mean
from istmpi.settings import Meta, also

__all__ = ["METHODS", "MethodSettings", "MethodSpec", "spec_of"]


def _outer_copies(run, ranks, slots):
    lr, momentum = METHODS[run.method.name].outer(run)
    return (lr != 1 or momentum != 0) + (momentum != 0)


def _drawn(run, ranks):
    from istmpi.engine.partition import drawn_count  # help must not wait for NumPy

    return drawn_count(ranks, run.method.fraction)


@dataclass(frozen=True)
class MethodSettings:
    """The settings in [method] that only some methods read: `MethodSpec.settings` of a method has
    their names."""

    # ist
    partition: Annotated[
        tuple[str, ...] | None,
        "Unit groups to deal out; by default all except residual streams and inner widths of an axis.",
    ] = None
    redeal: Annotated[
        float,
        Meta(ge=0, le=1),
        "Fraction of each group's units to redeal each round.",
    ] = 1.0
    share_every: Annotated[
        int,
        Meta(ge=1),
        "Rounds between averages of the weights that are not dealt out (results/decoder.md).",
    ] = 1
    shared_wire: Annotated[
        Literal["top-k"] | None,
        "Encoding of averages of weights that are not dealt out: all values (method.wire), or top-k as in "
        "sparse-loco (method.top, feedback; results/decoder.md).",
    ] = None
    shares: Annotated[
        tuple[float, ...] | str | None,
        also(**{"or": "auto, or a metrics.jsonl"}),
        "Relative sizes of the ranks' subnets; by default equal. auto: by measured times. A "
        "metrics.jsonl: the sizes of that auto run, round by round (results/slow-rank.md).",
    ] = None
    # streaming-diloco
    fragments: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        "Parts of the network to send in turn, at most one for each layer; by default 4, or as many as a "
        "round has room for.",
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
        "Squared distance from the last mean, relative to its norm, at which a rank asks for a new mean.",
    ] = 0.001
    # codistillation
    burn_in: Annotated[
        int,
        Meta(ge=0),
        "Rounds before ranks learn from each other.",
    ] = 5
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


_ALL = (
    MethodSpec(
        "ist",
        "each rank trains a subnet of the units dealt to it",
        "ist.IST",
        settings=("partition", "redeal", "share_every", "shared_wire", "shares"),
        deals=True,
        stays=True,
        outer_step=(1.0, 0.0),
        encodes=True,
    ),
    MethodSpec(
        "local-sgd",
        "each rank trains the full network on its own batches; then weights are averaged",
        "ist.IST",
        replicated=True,
        outer_step=(1.0, 0.0),
        states=(RESET, KEEP, CARRY),
        copies=_outer_copies,
        encodes=True,
    ),
    MethodSpec(
        "data-parallel",
        "gradients are averaged in each step",
        "data_parallel.DataParallel",
        sends_every_step=True,
        replicated=True,
        received=reduced,
        always_carries=True,
        encodes=True,
    ),
    # arXiv 2311.08105. Rounds are long, some 100 local steps, and each worker keeps the state of
    # its AdamW.
    MethodSpec(
        "diloco",
        "local SGD with an outer step of Nesterov momentum towards the mean",
        "ist.IST",
        replicated=True,
        outer_step=(0.7, 0.9),
        states=(KEEP, RESET, CARRY),
        copies=_outer_copies,
        encodes=True,
    ),
    # arXiv 2501.18512. There: rounds of 100 local steps, fragments of 3 blocks of a transformer,
    # delays up to 10.
    MethodSpec(
        "streaming-diloco",
        "DiLoCo that sends the network in fragments of 4-bit values while ranks train",
        "streaming_diloco.StreamingDiLoCo",
        legs=legs.fragments,
        settings=("fragments", "mix"),
        replicated=True,
        received=reduced,
        outer_step=(0.7, 0.9),
        always_carries=True,
        delay_by_default=1,
        # The common values, their velocity, the whole start of a round, and at most a whole network
        # on its way.
        copies=lambda run, ranks, slots: (
            4 + slots + (METHODS["streaming-diloco"].outer(run)[1] != 0)
        ),
    ),
    # arXiv 2508.15706. Rounds of 30 local steps there.
    MethodSpec(
        "sparse-loco",
        "local SGD that sends only the largest changes of weights, in 2 bits",
        "ist.IST",
        settings=("top", "feedback"),
        largest=True,
        replicated=True,
        received=lambda run, held: Fraction(run.method.top, 4096) * gathered(run, held),
        outer_step=(1.0, 0.0),
        always_carries=True,
        # Start, error, mean; the optimizer's start; the outer step's.
        copies=lambda run, ranks, slots: 3 + slots + (METHODS["sparse-loco"].outer(run) != (1, 0)),
    ),
    MethodSpec(
        "fedavg",
        "some ranks train for epochs on their own examples; then weights are averaged by examples",
        "fedavg.FedAvg",
        settings=("fraction", "epochs"),
        members=_drawn,
        in_passes=True,
        outer_step=(1.0, 0.0),
        encodes=True,
    ),
    # Costs are an upper bound, as if all ranks averaged in every round.
    MethodSpec(
        "dynamic-averaging",
        "local SGD that averages weights once a rank is far enough from the last mean",
        "dynamic_averaging.DynamicAveraging",
        legs=legs.through_owners,
        settings=("threshold",),
        replicated=True,
        makes_communicators=True,
        copies=lambda run, ranks, slots: 2 + slots,  # the reference; all of a round's start
    ),
    MethodSpec(
        "codistillation",
        "each rank trains its own network and learns from the others' predictions",
        "codistillation.Codistillation",
        legs=legs.gather,
        learns_from_others=True,
        settings=("burn_in",),
        sends_since=lambda run: run.method.burn_in,
        replicated=True,
        received=gathered,
        always_carries=True,
        copies=lambda run, ranks, slots: ranks + slots,  # the others'; all of a round's start
    ),
    # Boyd et al. 2011, section 7. What is sent is the sum of weights and dual.
    MethodSpec(
        "admm",
        "ranks train towards a consensus, each with a dual variable",
        "admm.ADMM",
        settings=("penalty",),
        replicated=True,
        own_state=True,
        always_carries=True,
        copies=lambda run, ranks, slots: 4 + slots,  # consensus, dual; both of a round's start
    ),
    # arXiv 1412.6651.
    MethodSpec(
        "easgd",
        "ranks train their own networks, drawn to a common center by an elastic force",
        "easgd.EASGD",
        legs=legs.through_owners,
        settings=("moving_rate", "order"),
        replicated=True,
        own_state=True,
        always_carries=True,
        copies=lambda run, ranks, slots: (
            2 + slots
        ),  # a round's start; all ranks' values of the owned rows
    ),
    # Dean et al. 2012.
    MethodSpec(
        "downpour",
        "changes of a round reach the other ranks during the next round",
        "downpour.Downpour",
        replicated=True,
        own_state=True,
        always_carries=True,
        copies=lambda run, ranks, slots: 5 + slots,  # server, change, what arrives; a round's start
    ),
)

METHODS: dict[str, MethodSpec] = {spec.name: spec for spec in _ALL}
"""The methods by their names in a run file."""


def spec_of(name: str, where: str = "method.name =") -> MethodSpec:
    """Return the description of a method. Raises ConfigError for an unknown name; ``where`` begins
    the message."""
    if name not in METHODS:
        raise ConfigError(f"{where} {name!r} is not known{did_you_mean(name, METHODS)}")
    return METHODS[name]
