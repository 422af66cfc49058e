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
from istmpi.optim.optimizers import probed

Make = Callable[[Any], torch.optim.Optimizer]


class OwnOptimizer:
    """An optimizer and its schedule, given as functions. Every subnet gets a new optimizer.

    ``make`` takes a list of parameters, or of groups of them, and returns an optimizer. ``groups``
    maps patterns of parameter names, such as ``*.bias``, to options; the first matching pattern
    counts. ``schedule`` takes an optimizer and returns a `torch.optim.lr_scheduler`. It steps after
    every local step, a `ReduceLROnPlateau` after every score.
    """

    def __init__(
        self,
        make: Make,
        groups: Mapping[str, Mapping[str, Any]],
        schedule: Callable[[Any], Any] | None,
    ):
        for name, function in (("optimizer", make), ("schedule", schedule or make)):
            if not callable(function):
                given = f"an instance of {type(function).__name__}"
                if isinstance(function, str):
                    given = repr(function)
                raise ConfigError(f"{name} is {given}; it must be a function that returns one.")
        _require_groups(groups)
        self._make, self._groups, self._schedule = make, groups, schedule
        self.spec = probed("optimizer", make)
        self.scores: dict[int, float] = {}
        """Scores of the full network, for `ReduceLROnPlateau`, by the number of the next local
        step."""
        self.scores_known = True
        """False if a run is resumed without the scores of its earlier rounds."""
        self._pilot: _Pilot | None = None

    @property
    def rates(self) -> dict[str, float]:
        defaults = self._make([nn.Parameter(torch.zeros(1))]).defaults
        rates = {name: float(defaults.get(name) or 0.0) for name in ("lr", "weight_decay")}
        return {name: rate for name, rate in rates.items() if rate > 0}

    def require_no_others(self, settings: Iterable[str]) -> None:
        """Raise ConfigError if the run sets options of a named optimizer, which would be ignored;
        clip is allowed."""
        for setting in settings:
            section, _, name = setting.partition(".")
            if section == "optimizer" and name not in ("name", "clip"):
                raise ConfigError(
                    f"{name} goes with an optimizer by name. Set it in the function that you gave."
                )

    def require_usable(self, names: Iterable[str]) -> None:
        names, options = list(names), self._make([nn.Parameter(torch.zeros(1))]).defaults
        for pattern, given in self._groups.items():
            if unknown := next((option for option in given if option not in options), None):
                raise ConfigError(
                    f"groups: {pattern!r} has {unknown}{did_you_mean(unknown, options)}"
                )
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigError(
                    f"groups: no parameter's name matches {pattern!r}; the network has "
                    f"{', '.join(names[:4])}"
                    f"{', ...' * (len(names) > 4)}."
                )

    def make(self, network: nn.Module) -> torch.optim.Optimizer:
        if self._pilot is None:
            meta = {
                name: nn.Parameter(values.detach().to("meta"))
                for name, values in network.named_parameters()
            }
            self._pilot = _Pilot(
                self._make(self._grouped(meta.items())), self._schedule, self.scores
            )
        if self._pilot.follows_scores and not self.scores_known:
            raise ConfigError(
                "schedule: ReduceLROnPlateau needs the scores of earlier rounds, which this folder "
                "lacks. Resume "
                "in the run's folder."
            )
        return self._make(self._grouped(network.named_parameters()))

    def _grouped(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> list[Any]:
        if not self._groups:
            return [parameter for _, parameter in parameters]
        groups = [{"params": [], **options} for options in (*self._groups.values(), {})]
        for name, parameter in parameters:
            matching = (
                number for number, pattern in enumerate(self._groups) if fnmatchcase(name, pattern)
            )
            groups[next(matching, -1)]["params"].append(parameter)
        return groups

    def schedule(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Set the optimizer's options to those of the schedule at a local step of the run."""
        if self._schedule:
            for group, its in zip(optimizer.param_groups, self._pilot.groups_at(step), strict=True):
                group.update((key, value) for key, value in its.items() if key != "params")

    def rate(self, step: int) -> float:
        """Return the learning rate of the first group; 0 before an optimizer is made."""
        return float(self._pilot.groups_at(step)[0].get("lr", 0.0)) if self._pilot else 0.0


def _require_groups(groups: Any) -> None:
    """Raise ConfigError unless ``groups`` maps patterns of names to options that an optimizer takes."""
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
        self._optimizer, self._scores = optimizer, scores
        self._first = [{**group} for group in optimizer.param_groups]
        self._new = schedule
        self._step, self._followed = 0, list[float]()
        self._schedule = self._scheduled()
        self.follows_scores = isinstance(self._schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)

    def _scheduled(self) -> Any:
        if not self._new:
            return None
        with calling("schedule"):
            scheduler = self._new(self._optimizer)
        if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
            raise ConfigError(
                f"schedule returns {type(scheduler).__name__}, not a torch.optim.lr_scheduler."
            )
        return scheduler

    def groups_at(self, step: int) -> list[dict[str, Any]]:
        if self._schedule is None:
            return self._optimizer.param_groups
        scores = (
            [score for first, score in self._scores.items() if first <= step]
            if self.follows_scores
            else []
        )
        if step < self._step or scores[: len(self._followed)] != self._followed:
            for group, first in zip(self._optimizer.param_groups, self._first, strict=True):
                group.clear()
                group.update(first)
            self._schedule, self._step, self._followed = self._scheduled(), 0, []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that the optimizer never steps
            with calling("schedule: step"):
                for score in scores[len(self._followed) :]:
                    self._schedule.step(score)
                for _ in range(0 if self.follows_scores else step - self._step):
                    self._schedule.step()
        for group in self._optimizer.param_groups:
            if "lr" in group and not isfinite(group["lr"]):
                raise ConfigError(
                    f"schedule gives the learning rate {group['lr']} at local step {step + 1}."
                )
        self._step, self._followed = step, scores
        return self._optimizer.param_groups
