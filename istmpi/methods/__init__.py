"""The methods of training, each described once; a new one needs an entry here and its class beside it."""

from fractions import Fraction
from typing import Annotated, Literal

from istmpi.errors import ConfigError, did_you_mean
from istmpi.methods.spec import MethodSpec, gathered, reduced
from istmpi.settings import Meta, own

__all__ = ["METHODS", "MethodSpec", "spec_of"]


def _outer_copies(run, ranks, slots):
    lr, momentum = METHODS[run.method.name].outer(run)
    return (lr != 1 or momentum != 0) + (momentum != 0)


def _drawn(run, ranks):
    from istmpi.engine.partition import drawn_count  # help must not wait for NumPy

    return drawn_count(ranks, run.method.fraction)


_ALL = (
    MethodSpec(
        "ist",
        "every rank trains the narrow network of the units that it was dealt",
        ("pull", "hop", "push", "share"),
        "ist.IST",
        settings=(
            own(
                "partition",
                tuple[str, ...] | None,
                None,
                "The unit groups that are dealt out; by default all that the network has, but for residual streams "
                "and inner widths of an axis.",
            ),
            own("redeal", float, 1.0, "Fraction of each group's units that are redealt every round.", ge=0, le=1),
            own(
                "min_blocks",
                int,
                0,
                "Where whole blocks are dealt out: so many on each rank, some on several (results/convolutions.md).",
                ge=0,
            ),
            own(
                "share_every",
                int,
                1,
                "Rounds between two means of what is not dealt out, which ranks train by themselves meanwhile "
                "(results/decoder.md).",
                ge=1,
            ),
            own(
                "shared_wire",
                Literal["top-k"] | None,
                None,
                "How means of what is not dealt out travel: as all values (method.wire), or top-k, as in sparse-loco "
                "(method.top, feedback, top_values; results/decoder.md).",
            ),
            own(
                "shares",
                tuple[float, ...] | str | None,
                None,
                "Relative sizes of the ranks' subnets; by default equal. auto: they follow the measured times. The "
                "metrics.jsonl of such a run: as they were there, round by round (results/slow-rank.md).",
                extra={"or": "auto, or a metrics.jsonl"},
            ),
        ),
        deals=True,
        stays=True,
        outer_step=(1.0, 0.0),
        encodes=True,
    ),
    MethodSpec(
        "local-sgd",
        "every rank trains the whole network on its own batches; then the mean",
        ("all-reduce",),
        "ist.IST",
        sends_at_start=("pull",),
        outer_step=(1.0, 0.0),
        copies=_outer_copies,
        encodes=True,
    ),
    MethodSpec(
        "data-parallel",
        "gradients are averaged in every step",
        ("all-reduce",),
        "data_parallel.DataParallel",
        sends_every_step=True,
        sends_at_start=("pull",),
        overlaps=True,
        received=reduced,
        synchronous=True,
        always_carries=True,
        encodes=True,
    ),
    # arXiv 2311.08105. Rounds are long, some 100 local steps, and the local optimizer is usually AdamW.
    MethodSpec(
        "diloco",
        "local SGD whose mean is not taken over but followed, with Nesterov's momentum",
        ("all-reduce",),
        "ist.IST",
        sends_at_start=("pull",),
        outer_step=(0.7, 0.9),
        copies=_outer_copies,
        encodes=True,
    ),
    # arXiv 2501.18512. There: rounds of 100 local steps, fragments of 3 blocks of a transformer, delays up to 10.
    MethodSpec(
        "streaming-diloco",
        "DiLoCo whose network is sent in fragments, in turn and in 4 bits, while ranks train on",
        ("fragments",),
        "streaming_diloco.StreamingDiLoCo",
        settings=(
            own(
                "fragments",
                Annotated[int, Meta(ge=1)] | None,
                None,
                "Parts of the network that are sent in turn, at most as many as layers; by default 4, or as many as a "
                "round has room for.",
            ),
            own("mix", float, 0.5, "The part of its own values that a rank keeps where a mean arrives.", ge=0, le=1),
            own(
                "differences",
                Literal["float4", "full"],
                "float4",
                "What travels: differences as floats of 4 bits, or values as they are (results/survey.md).",
            ),
        ),
        sends_at_start=("pull",),
        received=reduced,
        outer_step=(0.7, 0.9),
        always_carries=True,
        delay_by_default=1,
        # The common values, their velocity, the whole start of a round, and at most a whole network on its way.
        copies=lambda run, ranks, slots: 4 + slots + (METHODS["streaming-diloco"].outer(run)[1] != 0),
    ),
    # arXiv 2508.15706. Rounds of 30 local steps there.
    MethodSpec(
        "sparse-loco",
        "local SGD whose ranks send but the largest values of what they have changed, in 2 bits",
        ("largest",),
        "sparse_loco.SparseLoCo",
        settings=(
            own("top", int, 64, "Of every 4,096 values of a tensor, so many are sent.", ge=1, le=4096),
            own("feedback", float, 0.95, "The part that is kept of what was not sent in earlier rounds.", ge=0, le=1),
            own(
                "top_values",
                Literal["2bit", "full"],
                "2bit",
                "How they are sent: as 2 bits and two levels for 4,096, or as they are (results/survey.md).",
            ),
        ),
        sends_at_start=("pull",),
        received=gathered,
        sent_part=lambda run: Fraction(run.method.top, 4096),
        outer_step=(1.0, 0.0),
        always_carries=True,
        copies=lambda run, ranks, slots: 4 + slots,  # start, error, mean, a flat copy; the optimizer's start
    ),
    MethodSpec(
        "fedavg",
        "some ranks take passes over their own examples; then their mean, weighted by examples",
        ("pull", "push"),
        "fedavg.FedAvg",
        settings=(
            own("fraction", float, 1.0, "The share of the ranks that trains in a round, one at least.", gt=0, le=1),
            own("epochs", int, 1, "Passes of such a rank over its own examples, in place of local_steps.", ge=1),
        ),
        members=_drawn,
        in_passes=True,
        outer_step=(1.0, 0.0),
        encodes=True,
    ),
    # The most that is sent: all ranks average in every round.
    MethodSpec(
        "dynamic-averaging",
        "ranks take the mean when one has gone far enough from the last one",
        ("push", "pull"),
        "dynamic_averaging.DynamicAveraging",
        settings=(
            own(
                "threshold",
                float,
                0.001,
                "Squared distance from the last mean at which a rank wants a new one, relative to its norm.",
                ge=0,
            ),
        ),
        sends_at_start=("pull",),
        makes_communicators=True,
        copies=lambda run, ranks, slots: 2 + slots,  # the reference; all of a round's start
    ),
    MethodSpec(
        "codistillation",
        "every rank trains its own network, and learns from the others' predictions",
        ("all-gather",),
        "codistillation.Codistillation",
        settings=(own("burn_in", int, 5, "Rounds before the ranks begin to learn from each other.", ge=0),),
        sends_since=lambda run: run.method.burn_in,
        sends_at_start=("pull",),
        received=gathered,
        learns_from_others=True,
        always_carries=True,
        copies=lambda run, ranks, slots: ranks + slots,  # the others'; all of a round's start
    ),
    # Boyd et al. 2011, section 7. What is sent is the sum of weights and dual.
    MethodSpec(
        "admm",
        "ranks train towards a consensus, with a dual each that remembers how far they were from it",
        ("all-reduce",),
        "admm.ADMM",
        settings=(
            own("penalty", float, 0.01, "How strongly local steps are drawn to the consensus (ADMM's rho).", gt=0),
        ),
        sends_at_start=("pull",),
        always_carries=True,
        copies=lambda run, ranks, slots: 4 + slots,  # consensus, dual; both of a round's start
    ),
    # arXiv 1412.6651.
    MethodSpec(
        "easgd",
        "ranks train their own networks, which an elastic force draws to a common center",
        ("push", "pull"),
        "easgd.EASGD",
        settings=(
            own("moving_rate", float, 0.9, "How far the center moves to the ranks' mean in a round.", gt=0, le=1),
            own(
                "order",
                Literal["together", "round-robin"],
                "together",
                "Ranks meet the center of the round's start, or each the one that the rank before it left.",
            ),
        ),
        sends_at_start=("pull",),
        always_carries=True,
        copies=lambda run, ranks, slots: 2 + slots,  # a round's start; all ranks' values of the owned rows
    ),
    # Dean et al. 2012.
    MethodSpec(
        "downpour",
        "what ranks changed in a round reaches the others in the background of the next one",
        ("all-reduce",),
        "downpour.Downpour",
        sends_at_start=("pull",),
        always_carries=True,
        copies=lambda run, ranks, slots: 5 + slots,  # server, change, what arrives; a round's start
    ),
)

METHODS: dict[str, MethodSpec] = {spec.name: spec for spec in _ALL}
"""Methods by the names that a run file gives them."""


def spec_of(name: str, where: str = "method.name =") -> MethodSpec:
    """Return the method of a name; ConfigError with ``where`` it stands and the nearest name when there is none."""
    if name not in METHODS:
        raise ConfigError(f"{where} {name!r} is not known{did_you_mean(name, METHODS)}")
    return METHODS[name]
