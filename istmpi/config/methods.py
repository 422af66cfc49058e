"""The descriptions of all training methods. A new method needs a description here, and a class in
`istmpi.methods`."""

from fractions import Fraction

from istmpi.config import legs
from istmpi.config.received import count_gathered, count_reduced
from istmpi.config.spec import CARRY, KEEP, RESET, MethodSpec
from istmpi.engine.partition import count_drawn
from istmpi.errors import ConfigError, did_you_mean

__all__ = ["METHODS", "MethodSpec", "find_method_spec", "runs_in_passes"]


def _joint_copies(run, ranks, slots):
    # All of a round's start, unless a round has one step whose loss all ranks see.
    if run.method.local_steps == 1 and run.data.labels_on is None:
        return 0
    return 1 + slots


def _outer_copies(run, ranks, slots):
    lr, momentum = METHODS[run.method.name].outer(run)
    return (lr != 1 or momentum != 0) + (momentum != 0)


def _count_members(run, ranks):
    return count_drawn(ranks, run.method.fraction)


_ALL = (
    MethodSpec(
        "ist",
        "each rank trains a subnet of the units dealt to it",
        "ist.IST",
        settings=("partition", "redeal", "holders", "share_every", "shared_wire", "shares"),
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
        changes_gradients=True,
        replicated=True,
        received=count_reduced,
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
        received=count_reduced,
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
        received=lambda run, held: Fraction(run.method.top, 4096) * count_gathered(run, held),
        outer_step=(1.0, 0.0),
        always_carries=True,
        # Start, error, mean; the optimizer's start; the outer step's.
        copies=lambda run, ranks, slots: 3 + slots + METHODS["sparse-loco"].takes_outer_step(run),
    ),
    MethodSpec(
        "fedavg",
        "some ranks train for epochs on their own examples; then weights are averaged by examples",
        "fedavg.FedAvg",
        settings=("fraction", "epochs"),
        members=_count_members,
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
        own_networks=True,
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
        own_networks=True,
        received=count_gathered,
        always_carries=True,
        copies=lambda run, ranks, slots: ranks + slots,  # the others'; all of a round's start
    ),
    # decision 79. The first deal is that of all rounds.
    MethodSpec(
        "joint",
        "each rank trains its own subnet on the sum of all subnets' outputs",
        "joint.Joint",
        legs=legs.outputs,
        settings=("partition", "shares", "sigma", "passes"),
        deals=True,
        sums_outputs=True,
        replicated=True,
        own_networks=True,
        always_carries=True,
        encodes=True,
        copies=_joint_copies,
    ),
    # Boyd et al. 2011, section 7. What is sent is the sum of weights and dual.
    MethodSpec(
        "admm",
        "ranks train towards a consensus, each with a dual variable",
        "admm.ADMM",
        settings=("penalty",),
        replicated=True,
        changes_gradients=True,
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
        own_networks=True,
        own_state=True,
        always_carries=True,
        # A round's start; all ranks' values of the owned rows.
        copies=lambda run, ranks, slots: 2 + slots,
    ),
    # Dean et al. 2012.
    MethodSpec(
        "downpour",
        "changes of a round reach the other ranks during the next round",
        "downpour.Downpour",
        settings=("staleness",),
        replicated=True,
        own_state=True,
        always_carries=True,
        # Server, changes, what arrives; a round's start.
        copies=lambda run, ranks, slots: 3 + 2 * run.method.staleness + slots,
    ),
)

METHODS: dict[str, MethodSpec] = {spec.name: spec for spec in _ALL}
"""The methods by their names in a run file."""


def runs_in_passes(name: str) -> bool:
    """Return True if a round of a method is passes over the data; False for an unknown name."""
    # A file of a newer version, or a user, may name a method that this version does not know.
    return name in METHODS and METHODS[name].in_passes


def find_method_spec(name: str, where: str = "method.name =") -> MethodSpec:
    """Return the description of a method. Raises ConfigError for an unknown name; ``where`` begins
    the message."""
    if name not in METHODS:
        raise ConfigError(f"{where} {name!r} is not known{did_you_mean(name, METHODS)}")
    return METHODS[name]
