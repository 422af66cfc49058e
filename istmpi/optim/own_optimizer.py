"""An optimizer that a user's program makes, of any class, with parameter groups and a schedule."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any

import torch
from torch import nn

from istmpi.code import calling, shown
from istmpi.errors import ConfigError, did_you_mean
from istmpi.foreign import is_figure
from istmpi.optim.own_schedule import READ, Curve, FindPlace, OwnSchedule, read_factor
from istmpi.optim.probe import probe
from istmpi.optim.spec import OptimizerSettings
from istmpi.units import list_first

Make = Callable[[Any], torch.optim.Optimizer]


class OwnOptimizer:
    """An optimizer and its schedule, given as functions. Every subnet gets a new optimizer.

    ``make`` takes a list of parameters, or of groups of them, and returns an optimizer. ``groups``
    maps patterns of parameter names, such as ``*.bias``, to options; the first matching pattern
    counts. ``schedule`` takes an optimizer and returns a `torch.optim.lr_scheduler`. It steps after
    every local step, a `ReduceLROnPlateau` after every score. A name, or a function with the
    parameter ``fraction``, is described in `istmpi.optim.own_schedule`.
    """

    _curve: Curve | None = None
    """The schedule, once `follow` has told the run's plan; None for a scheduler of torch."""

    def __init__(
        self,
        make: Make,
        groups: Mapping[str, Mapping[str, Any]],
        schedule: OwnSchedule | None,
    ):
        _require_function("optimizer", make)
        _require_groups(groups)
        self._make = make
        self._groups = groups
        self._schedule: Callable[[Any], Any] | None = None
        self._factor = read_factor(schedule)
        self._of_plan = isinstance(schedule, str) or self._factor is not None
        if not isinstance(schedule, str) and not self._factor:
            # Without a schedule there is nothing more to check, so ``make`` is checked twice.
            _require_function("schedule", schedule or make)
            self._schedule = schedule
        self.spec = probe("optimizer", make)
        self.scores: dict[int, float] = {}
        """Scores of the full network, for `ReduceLROnPlateau`, by the number of the next local
        step."""
        self.scores_known = True
        """False if a run is resumed without the scores of its earlier rounds."""
        self._pilot: _Pilot | None = None
        """Runs the schedule; None until the first subnet gives it parameters' names."""
        self._heard: list[dict[str, Any]] | None = None
        """The options of the next local step in another member of a replica group; None in a
        rank."""

    @property
    def rates(self) -> dict[str, float]:
        """The optimizer's default lr and weight_decay, without those that are 0."""
        defaults = self._make([nn.Parameter(torch.zeros(1))]).defaults
        rates = {name: float(defaults.get(name) or 0.0) for name in ("lr", "weight_decay")}
        return {name: rate for name, rate in rates.items() if rate > 0}

    def require_no_others(self, settings: Iterable[str]) -> None:
        """Raise ConfigError if the run sets options of a named optimizer, which would be ignored;
        clip is allowed, and what the schedule reads."""
        allowed = ["name", "clip"]
        if self._of_plan:
            allowed += ["schedule", *READ]
        for setting in settings:
            section, _, name = setting.partition(".")
            if section == "optimizer" and name in READ and name not in allowed:
                raise ConfigError(
                    f"{name} goes with an optimizer by name, with a schedule by name, such as "
                    "schedule='cosine', or with a function of the fraction of the run."
                )
            if section == "optimizer" and name not in allowed:
                raise ConfigError(
                    f"{name} goes with an optimizer by name. Set it in the function that you gave."
                )

    def require_usable(self, names: Iterable[str]) -> None:
        """Raise ConfigError if the groups' options or patterns fit neither the optimizer nor a
        parameter's name."""
        names = list(names)
        defaults = self._make([nn.Parameter(torch.zeros(1))]).defaults
        for pattern, options in self._groups.items():
            for option in options:
                if option not in defaults:
                    raise ConfigError(
                        f"groups: {pattern!r} has {option}{did_you_mean(option, defaults)}"
                    )
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigError(
                    f"groups: no parameter's name matches {pattern!r}; the network has "
                    f"{list_first(names)}."
                )

    def follow(self, settings: OptimizerSettings, find_place: FindPlace) -> None:
        """Take the run's settings, and the function that finds a local step's place in its plan:
        all that a schedule by name, or of the fraction of the run, needs."""
        if self._of_plan:
            self._curve = Curve(settings, self._factor, find_place)

    def make(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return a new optimizer of a network's parameters. Raises ConfigError if its schedule
        lacks scores."""
        if self._pilot is None:
            # On the device meta, because the pilot never steps and needs no values.
            meta = {
                name: nn.Parameter(values.detach().to("meta"))
                for name, values in network.named_parameters()
            }
            optimizer = self._make(self._group(meta.items()))
            self._pilot = _Pilot(optimizer, self._schedule, self.scores)
        if self._pilot.follows_scores and not self.scores_known:
            raise ConfigError(
                "schedule: ReduceLROnPlateau needs the scores of earlier rounds, which this folder "
                "lacks. Resume "
                "in the run's folder."
            )
        return self._make(self._group(network.named_parameters()))

    def _group(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> list[Any]:
        """Return the parameters, or their groups; the last group has those that no pattern
        matches."""
        if not self._groups:
            return [parameter for _, parameter in parameters]
        groups: list[dict[str, Any]] = [
            {"params": [], **options} for options in (*self._groups.values(), {})
        ]
        for name, parameter in parameters:
            matching = (
                number for number, pattern in enumerate(self._groups) if fnmatchcase(name, pattern)
            )
            # The last group, -1, has no pattern.
            groups[next(matching, -1)]["params"].append(parameter)
        return groups

    def schedule(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Set the optimizer's options to those of the schedule at a local step of the run."""
        options = self._heard
        if options is None:
            options = self.plan(step)
        if not options:
            return
        for group, changed in zip(optimizer.param_groups, options, strict=True):
            group.update(changed)

    def plan(self, step: int) -> list[dict[str, Any]]:
        """Return the options that the schedule sets at a local step of the run, for each group of
        the optimizer; an empty list if it sets none."""
        if not self._pilot:
            return []
        if self._curve:
            rates = self._pilot.first_rates
            return [{"lr": self._curve.rate(lr, step)} for lr in rates]
        if not self._schedule:
            return []
        # A subnet's optimizer is new, so a schedule of its own would begin at step 0.
        planned = []
        for group in self._pilot.groups_at(step):
            planned.append({key: value for key, value in group.items() if key != "params"})
        return planned

    def hear(self, options: list[dict[str, Any]]) -> None:
        """Take the options of the next local step from the leader of a replica group, which alone
        knows the run's plan and its scores."""
        self._heard = options

    def rate(self, step: int) -> float:
        """Return the learning rate of the first group; 0 before an optimizer is made."""
        if not self._pilot:
            return 0.0
        if self._curve:
            return self._curve.rate(self._pilot.first_rates[0], step)
        return float(self._pilot.groups_at(step)[0].get("lr", 0.0))


def _require_function(argument: str, value: object) -> None:
    if not callable(value):
        words = repr(value) if isinstance(value, str) else f"an instance of {type(value).__name__}"
        raise ConfigError(f"{argument} is {words}; it must be a function that returns one.")


def _require_groups(groups: Any) -> None:
    """Raise ConfigError unless ``groups`` maps patterns of names to an optimizer's options."""
    if not isinstance(groups, Mapping):
        raise ConfigError(
            f"groups is a {type(groups).__name__}; it must be a dict of patterns and options."
        )
    for pattern, options in groups.items():
        if not isinstance(pattern, str) or not isinstance(options, Mapping):
            raise ConfigError(
                f"groups: {shown(pattern)} = {shown(options)} must be a pattern of names and a "
                "dict of options."
            )
        for option in {"lr", "weight_decay"} & options.keys():
            if not is_figure(options[option], 0.0):
                raise ConfigError(
                    f"groups: {pattern!r} has {option} = {shown(options[option])}; it must be "
                    "at least 0."
                )


class _Pilot:
    """An optimizer that takes no steps: only its schedule runs, to give the groups' options at a
    local step."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: Callable[[Any], Any] | None,
        scores: Mapping[int, float],
    ):
        self._optimizer = optimizer
        self._scores = scores
        self._first = [{**group} for group in optimizer.param_groups]
        """The groups before the schedule changed them, to begin it anew."""
        self.first_rates = [float(group.get("lr", 0.0)) for group in self._first]
        self._create = schedule
        self._begin()

    def _begin(self) -> None:
        """Begin the schedule at local step 0."""
        self._step = 0
        self._seen = list[float]()
        """The scores that the schedule has got."""
        self._schedule: Any = self._create_schedule()
        self.follows_scores = isinstance(self._schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)

    def _create_schedule(self) -> Any:
        """Return a new schedule of the pilot's optimizer; None if there is none."""
        if not self._create:
            return None
        with calling("schedule"):
            scheduler = self._create(self._optimizer)
        if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
            raise ConfigError(
                f"schedule returns {type(scheduler).__name__}, not a torch.optim.lr_scheduler."
            )
        return scheduler

    def groups_at(self, step: int) -> list[dict[str, Any]]:
        """Return the groups' options at a local step. Raises ConfigError if the schedule fails."""
        if self._schedule is None:
            return self._optimizer.param_groups
        scores: list[float] = []
        if self.follows_scores:
            # A score counts from the local step that follows it.
            scores = [score for first, score in self._scores.items() if first <= step]
        # A schedule cannot step back: a dropped round, or another score, begins it anew.
        if step < self._step or scores[: len(self._seen)] != self._seen:
            for group, first in zip(self._optimizer.param_groups, self._first, strict=True):
                group.clear()
                group.update(first)
            self._begin()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that the optimizer never steps
            with calling("schedule: step"):
                self._step_to(step, scores)
        for group in self._optimizer.param_groups:
            if "lr" in group and not isfinite(group["lr"]):
                raise ConfigError(
                    f"schedule gives the learning rate {group['lr']} at local step {step + 1}."
                )
        self._step = step
        self._seen = scores
        return self._optimizer.param_groups

    def _step_to(self, step: int, scores: list[float]) -> None:
        if self.follows_scores:
            # ReduceLROnPlateau steps once for a score, not for a local step.
            for score in scores[len(self._seen) :]:
                self._schedule.step(score)
            return
        for _ in range(step - self._step):
            self._schedule.step()
