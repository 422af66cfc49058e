"""Refuses runs that a method cannot train, with a ConfigError. Settings are never changed
silently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from istmpi.config.methods import METHODS, find_method_spec
from istmpi.config.spec import KEEP, choose_groups
from istmpi.engine.axes import narrow
from istmpi.engine.fragments import departures
from istmpi.errors import ConfigError
from istmpi.methods.sum_limits import require_sum, require_undivided
from istmpi.optim import schedules
from istmpi.outputs import require_weights
from istmpi.settings import shown
from istmpi.tasks import TASKS, NextToken

if TYPE_CHECKING:
    from istmpi.config import Run
    from istmpi.config.learner import Method
    from istmpi.config.sections import Train
    from istmpi.config.spec import MethodSpec
    from istmpi.data.dataset import Dataset
    from istmpi.engine.partition import Partition
    from istmpi.network.architecture import Architecture


BALANCED = "balanced"


def require_usable(
    run: Run,
    phase: Run,
    data: Dataset,
    network: Architecture,
    ranks: int,
    members: list[int],
    examples: Iterable[int],
    shares: Sequence[float] | None = None,
    rounds: int | None = None,
) -> None:
    """Raise ConfigError if a plan, a job script or a training has settings that cannot be trained.

    ``phase``: the run with one phase's method. ``members``: ranks whose first subnets are tried,
    with ``shares``. ``examples``: the numbers of examples that ranks have. ``rounds``: those of the
    learning rate's schedule; by default the run's.
    """
    name = phase.method.name
    is_first = name == run.method.name
    spec = find_method_spec(name, "method.name =" if is_first else "method.finish =")
    require_weights(run.train, len(network.table.output_names), run.model.name)
    require_wire(spec, phase)
    require_state(spec, phase.method.optimizer_state)
    require_dealable(spec, phase, network)
    require_classes(run.train, data.task, data.outputs, name)
    _require_outputs(spec, run, data, network, ranks)
    for count in examples:
        if spec.in_passes and network.batch_norms:
            _require_last_batch(name, run.train.batch, count, run.model.batch_statistics)
        steps = (rounds or run.train.rounds) * spec.steps(phase, 1, count)
        schedules.require_usable(run.optimizer, steps)
    require_room(spec, phase, network, ranks)
    if run.method.shares is not None and is_first and not spec.groups(phase, network):
        raise ConfigError(
            f"method.shares = {shown(run.method.shares)} with {name}, which deals out no units "
            "here. Leave shares out, or use ist."
        )
    require_subnets(network, spec.deal(phase, network, ranks, 0, shares), members)


def _require_predictions(spec: MethodSpec, task: str) -> None:
    """Raise ConfigError if ranks learn from each other's predictions, and the task has none."""
    if spec.learns_from_others and TASKS[task].probabilities is None:
        raise ConfigError(
            f"method.name = {spec.name!r} needs predictions of classes, but this is {task}. "
            "Use another method."
        )


def _require_outputs(
    spec: MethodSpec, run: Run, data: Dataset, network: Architecture, ranks: int
) -> None:
    """Raise ConfigError if ranks shall use each other's outputs, but cannot."""
    _require_predictions(spec, data.task)
    require_sum(spec, run, data, network, ranks)
    _require_likelihood(spec, run, data, network)


def _require_likelihood(spec: MethodSpec, run: Run, data: Dataset, network: Architecture) -> None:
    """Raise ConfigError if subnets shall be weighted by likelihood, but have none of a text or do
    not stay on their ranks."""
    if run.evaluate.form != "likelihood":
        return
    outputs = len(network.table.output_names)
    problem = ""
    if data.scoring is not NextToken:
        problem = f"needs text, but this is {data.task}"
    elif not spec.deals or run.method.partition == ():
        problem = f"needs subnets, but {spec.name} deals out no units"
    elif run.method.redeal:
        problem = (
            f"needs method.redeal = 0, but it is {run.method.redeal:g}: subnets that are redealt "
            "do not become experts"
        )
    elif outputs > 1:
        problem = f"needs one output, but {run.model.name} has {outputs}"
    elif network.batch_norms:
        problem = f"does not go with the batch normalisation of {run.model.name}"
    if problem:
        raise ConfigError(f"evaluate.form = 'likelihood' {problem}. Use another form.")


def _require_last_batch(method: str, batch: int, examples: int, normalisation: str) -> None:
    """Raise ConfigError if a pass over a rank's examples ends with a batch of one, of which batch
    normalisation has no variance. ``normalisation``: its setting; empty if it has none."""
    if (examples - 1) % batch == 0:
        subject = normalisation or "batch normalisation"
        raise ConfigError(
            f"train.batch = {batch} leaves {method} a last batch of one example (of {examples}), "
            f"too few for {subject}. Use another train.batch or normalisation."
        )


def with_method(run: Run, name: str) -> Run:
    """Return the run with another method, without settings that only its present method reads."""
    tree = run.tree()
    if name != run.method.name and name in METHODS:
        settings = tree["method"].items()
        tree["method"] = {key: value for key, value in settings if key in METHODS[name].reads}
    tree["method"]["name"] = name
    return run.from_tree(tree, "command line")


def require_read(run: Run, names: Iterable[str], methods: Sequence[str] = ()) -> None:
    """Raise ConfigError for a setting of [method] that none of the methods reads, unless it has its
    default.

    ``names``: the settings to look at, without their section. ``methods``: by default those of the
    run's phases.
    """
    default = type(run.method)()
    using = list(methods) or [name for name, _ in run.phases()]
    specs = [METHODS[name] for name in using if name in METHODS]
    # An unknown method may read every setting.
    if not specs:
        return
    for name in sorted(names):
        value = getattr(run.method, name)
        is_read = any(name in spec.reads for spec in specs)
        if not is_read and value != getattr(default, name):
            raise ConfigError(
                f"method.{name} = {shown(value)} has no effect with {' and '.join(using)}. "
                f"Leave it out, or use {_list_readers(name)}."
            )


def _list_readers(setting: str) -> str:
    """Return the methods that read a setting, as part of a sentence."""
    *others, last = [spec.name for spec in METHODS.values() if setting in spec.reads]
    if not others:
        return last
    return f"{', '.join(others)} or {last}"


def require_subnets(network: Architecture, deal: Partition, members: Iterable[int]) -> None:
    """Raise ConfigError if the subnet of one of the ranks ``members`` cannot be used."""
    for rank in members:
        network.require_usable(narrow(network.lengths, network.parameters, deal.held(rank)))


def require_classes(train: Train, task: str, classes: int, method: str) -> None:
    """Raise ConfigError if settings of losses of classes do not fit the data or the method."""
    for name in ("label_smoothing", "class_weights", "logit_adjustment"):
        value = getattr(train, name)
        if value and not TASKS[task].one_class:
            raise ConfigError(
                f"train.{name} = {shown(value)} is for classes, and these data have none. "
                "Leave it out."
            )
    weights = train.class_weights
    if weights is not None and weights != BALANCED:
        is_list = not isinstance(weights, str)
        if not is_list or len(weights) != classes or not any(weights):
            raise ConfigError(
                f"train.class_weights = {shown(weights)} must be {BALANCED!r} or a list of "
                f"{classes} numbers, not all 0."
            )
    if train.logit_adjustment and method == "codistillation":
        raise ConfigError(
            f"train.logit_adjustment = {train.logit_adjustment:g} does not go with codistillation, "
            "whose ranks also learn from each other's predictions. Leave it out, or use another "
            "method."
        )


def require_wire(spec: MethodSpec, run: Run) -> None:
    """Raise ConfigError if the form of sent values does not fit the method or the dtype."""
    if spec.stays and spec.sends_largest(run) and spec.takes_outer_step(run):
        raise ConfigError(
            "method.shared_wire = 'top-k' does not go with an outer step (outer_lr, "
            "outer_momentum), which needs all values. Leave one out."
        )
    wire = run.method.wire
    if wire != "float32" and not spec.encodes:
        raise ConfigError(
            f"method.wire = {wire!r} does not go with {spec.name}, which sends exact values. "
            "Leave it out, or use another method."
        )
    if wire != "float32" and run.model.dtype != "float32":
        raise ConfigError(
            f"method.wire = {wire!r} needs float32 values, but model.dtype = "
            f"{run.model.dtype!r}. Leave one out."
        )


def require_state(spec: MethodSpec, state: str | None) -> None:
    """Raise ConfigError if ranks cannot keep optimizer states of their own with the method.
    ``state``: as method.optimizer_state."""
    if state == KEEP and not spec.always_carries and KEEP not in spec.states:
        keeping = " and ".join(name for name, other in METHODS.items() if KEEP in other.states)
        raise ConfigError(
            f"method.optimizer_state = {state!r} goes with {keeping}, not with {spec.name}. "
            "Use reset or carry, or leave it out."
        )


def require_dealable(spec: MethodSpec, run: Run, architecture: Architecture) -> None:
    """Raise ConfigError if a method that deals out units cannot deal out those of the network."""
    if spec.deals and run.method.partition != ():
        # Outputs that are added up need no factor.
        scaled = run.model.scale != "none" and not spec.sums_outputs
        architecture.require_dealable(choose_groups(run.method.partition, architecture), scaled)


def require_room(spec: MethodSpec, run: Run, architecture: Architecture, ranks: int) -> None:
    """Raise ConfigError if settings do not fit into a round of ``local_steps``: a delay, fragments,
    or a mean that is taken only every few rounds (share_every)."""
    settings = run.method
    steps = settings.local_steps
    delay = settings.delay
    if delay is not None and delay >= steps and (spec.stays or spec.delay_by_default):
        raise ConfigError(
            f"method.delay = {delay} of {spec.name} must be below method.local_steps = {steps}. "
            f"Give at most {steps - 1}, or more local steps."
        )
    if settings.fragments is not None and "fragments" in spec.settings:
        _require_fragments(settings.fragments, steps, spec.delay(run), architecture)
    if spec.share_every(run) > 1 and ranks > 1 and spec.takes_outer_step(run):
        raise ConfigError(
            f"method.share_every = {settings.share_every} does not go with an outer step "
            "(outer_lr, outer_momentum), which needs all weights in every round. Leave one out."
        )
    _require_equal_shares(settings, spec.holders(run))
    if spec.leaves_early(run, architecture, ranks):
        require_undivided(
            spec.groups(run, architecture), architecture, "method.delay", "Leave it out"
        )
    elif spec.stays and spec.delay(run) and ranks > 1:
        # Nothing stays with its holders, so nothing can leave them early.
        why = "a network without dealt units (method.partition)"
        if spec.holders(run) > 1:
            why = f"method.holders = {spec.holders(run)}, whose means owners take after the round"
        if spec.takes_outer_step(run):
            why = (
                "an outer step (outer_lr, outer_momentum), which needs all weights after the round"
            )
        raise ConfigError(
            f"method.delay = {delay} of {spec.name} does not go with {why}. Leave one out."
        )


def _require_equal_shares(settings: Method, holders: int) -> None:
    """Raise ConfigError for shares of ranks where several ranks hold a unit."""
    if holders > 1 and settings.shares is not None:
        raise ConfigError(
            f"method.shares does not go with method.holders = {settings.holders}, whose ranks "
            "have equal shares. Leave one out."
        )


def _require_fragments(fragments: int, steps: int, delay: int, architecture: Architecture) -> None:
    """Raise ConfigError if the network and a round's steps do not allow so many fragments."""
    allowed = min(fragments, len(architecture.parameters))
    # Fragments that would not arrive before the next leaves have one departure together.
    while len(departures(architecture.parameters, allowed, steps, delay)) < allowed:
        allowed -= 1
    if allowed < fragments:
        raise ConfigError(
            f"method.fragments = {fragments} is more than this network, method.local_steps = "
            f"{steps} and method.delay = {delay} allow. Give at most {allowed}."
        )
