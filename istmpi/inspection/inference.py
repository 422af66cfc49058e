"""Infers which axes of the parameters belong to which integers of the constructor: by doubling,
then by proof.

An axis that doubles with an integer has the length ``a * units * b``. If ``a * b`` is more than 1,
there are several readings, such as ``(3 heads 64)`` and ``(heads 192)``. An axis that grows by less
also has positions of no unit, as ``hidden + 6``; concatenations of the forward pass propose its
readings (`istmpi.inspection.orders`). `istmpi.inspection.proof` refutes wrong readings. An integer cannot
be dealt out if no reading is left.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from istmpi.engine.axes import Axis, Factor, Pattern, Segment
from istmpi.errors import ConfigError, did_you_mean
from istmpi.inspection.orders import (
    Growth,
    Order,
    bounds,
    order_on,
    structures_of,
    within,
)
from istmpi.inspection.proof import Moving, Place, Reading, Trial, misread
from istmpi.inspection.readings import ALIKE, readings
from istmpi.inspection.residual import residual_blocks
from istmpi.network.leaves import shaped
from istmpi.network.running import require_trainable, run_short
from istmpi.network.table import ResidualBlock, inside, unit_of
from istmpi.network.trials import one_thread
from istmpi.network.user import UserNetwork, Width

READINGS = 256
SEEDS = 4
COUNTS = "it changes which parameters exist"
"""The problem of an integer that may count blocks."""


@dataclass(frozen=True)
class Finding:
    width: Width
    axes: Reading = field(default_factory=dict)
    spanned: bool = False
    """True if a narrower network gives other outputs than the full network whose other units are
    zero."""
    problem: str = ""
    vague: bool = False
    """True if the trial proves nothing: the outputs do not show the units' order."""
    blocks: tuple[ResidualBlock, ...] = ()
    """The blocks, if the integer counts blocks. Each block is a unit, dealt out whole."""

    @property
    def units(self) -> int:
        return len(self.blocks) or self.width.length

    @property
    def proved(self) -> bool:
        return not self.problem


@dataclass(frozen=True)
class Inferred:
    parameters: Mapping[str, Pattern]
    findings: tuple[Finding, ...]

    @property
    def lengths(self) -> dict[str, int]:
        return {finding.width.name: finding.units for finding in self.findings if finding.proved}

    @property
    def blocks(self) -> dict[str, tuple[ResidualBlock, ...]]:
        return {finding.width.name: finding.blocks for finding in self.findings if finding.blocks}

    @property
    def widths(self) -> dict[str, int]:
        """The full length of every width that can be dealt out, without counts of blocks."""
        return {name: length for name, length in self.lengths.items() if name not in self.blocks}


def infer(network: UserNetwork, full: torch.nn.Module | None = None) -> Inferred:
    """Infer and prove the axes of a network's parameters. Overwrites the values of ``full``, the
    built network.

    Raises ConfigError if the network cannot be trained, or if its ``AXES`` do not fit.
    """
    shapes = _shapes(network)
    full = (full or network.build()).eval()
    require_trainable(network, full)
    run_short(
        network, network.examples(2, torch.get_default_dtype()), partial(network.forward, full)
    )
    doubled = {name: _doubled(network, shapes, width) for name, width in network.widths.items()}
    moving = {name: ratios for name, ratios in doubled.items() if isinstance(ratios, dict)}
    fixed = _declared(network, shapes, moving)
    with one_thread():
        candidates = {
            name: _proved(network, width, moving, fixed)
            if name in moving
            else [Finding(width, problem=doubled[name])]
            for name, width in network.widths.items()
        }
        by_name = {finding.width.name: finding for finding in _agreeing(candidates, shapes)}
        problems = misread(
            network, {name: finding.axes for name, finding in by_name.items() if finding.proved}
        )
        by_name |= {
            name: Finding(network.widths[name], problem=problem)
            for name, problem in problems.items()
        }
        lengths = {
            name: finding.width.length for name, finding in by_name.items() if finding.proved
        }
        for name, finding in by_name.items():
            if finding.problem == COUNTS:
                blocks, problem = residual_blocks(network, finding.width, lengths, full)
                if blocks and (
                    first := [other for other, its in by_name.items() if its.blocks == blocks]
                ):
                    problem = f"its blocks are those of {first[0]}: name {first[0]}, which deals out all of them"
                    blocks = ()
                by_name[name] = Finding(finding.width, problem=problem, blocks=blocks)
    inferred = Inferred({}, tuple(by_name.values()))
    axes = {
        name: Pattern(
            tuple(
                _axis(by_name.values(), (name, place), length) for place, length in enumerate(shape)
            )
        )
        for name, shape in shapes.items()
    }
    patterns = {
        name: inside(pattern, unit_of(inferred.blocks, name)) for name, pattern in axes.items()
    }
    return replace(inferred, parameters=patterns)


def _shapes(
    network: UserNetwork, lengths: Mapping[str, int] | None = None
) -> dict[str, tuple[int, ...]]:
    built = shaped(lambda: network.build(lengths))
    return {name: tuple(parameter.shape) for name, parameter in built.named_parameters()}


def _doubled(
    network: UserNetwork, shapes: Mapping[str, tuple[int, ...]], width: Width
) -> dict[Place, Growth] | str:
    """Return the axes that grow when a width doubles, and how; or the problem, as text."""
    try:
        wider = _shapes(network, {width.name: 2 * width.length})
    except ConfigError as error:
        return f"its double is refused ({error})"
    if wider.keys() != shapes.keys():
        return COUNTS
    growths: dict[Place, Growth] = {}
    for name, shape in shapes.items():
        if len(wider[name]) != len(shape):
            return f"{name} has another number of axes when it doubles"
        for place, (length, longer) in enumerate(zip(shape, wider[name])):
            if longer == length:
                continue
            ratio, rest = divmod(longer - length, width.length)
            if rest and longer == 2 * length:
                return f"an axis of {name} has {length} positions, not a multiple of its {width.length} units"
            if rest or not 0 < longer - length <= length:
                return f"an axis of {name} has {length} positions, and {longer} when it doubles"
            growths[name, place] = Growth(ratio, length - ratio * width.length)
    return growths or "no parameter's shape depends on it"


def _declared(
    network: UserNetwork, shapes: Mapping[str, tuple[int, ...]], moving: Moving
) -> dict[str, Reading]:
    """Return each width's readings that the class declares by ``AXES = {parameter: pattern}``.

    A declared reading replaces inferred readings of an axis, and is proved too. Raises ConfigError
    if AXES do not fit.
    """
    declared: dict[str, dict[Place, Order]] = {name: {} for name in moving}
    lengths = {name: network.widths[name].length for name in moving}
    axes = getattr(network.kind, "AXES", {})
    if not isinstance(axes, Mapping):
        raise network.refused(
            f"AXES = {axes!r} must be a dict, such as {{'out.weight': '10 hidden'}}."
        )
    for name, text in axes.items():
        subject = f"AXES of {name}: "
        if name not in shapes:
            others = did_you_mean(name, shapes)
            raise network.refused(f"AXES names {name!r}, which is not a parameter{others}")
        if not isinstance(text, str):
            raise network.refused(f"{subject}{text!r} must be text, such as '(3 heads 16) embed'.")
        try:
            pattern = Pattern.parse(text)
        except ConfigError as error:
            raise network.refused(f"{subject}{error}") from None
        for unknown in sorted(pattern.names - lengths.keys()):
            others = did_you_mean(unknown, lengths)
            raise network.refused(
                f"{subject}{unknown} is not a width that a parameter's shape depends on{others}"
            )
        if (given := pattern.shape(lengths)) != shapes[name] or "[" in text:
            raise network.refused(
                f"AXES has {text!r} for {name}: {given}, but its shape is {shapes[name]}. Correct it."
            )
        for place, axis in enumerate(pattern.axes):
            for width in axis.names:
                declared[width][name, place] = order_on(axis, width, lengths)
            if others := {width for width in moving if (name, place) in moving[width]} ^ axis.names:
                width = min(others)
                verb, behaves = ("is not", "stays") if width in axis.names else ("is", "doubles")
                raise network.refused(
                    f"AXES has {text!r} for {name}, but {width} {verb} on its axis {place}: "
                    f"its length {behaves} when the width doubles. Correct it, or leave {name} out."
                )
            for width in axis.names:
                growth = moving[width][name, place]
                if axis.length({**lengths, width: 2 * lengths[width]}) != growth.length(
                    2 * lengths[width]
                ):
                    raise network.refused(
                        f"AXES has {text!r} for {name}, but its axis {place} has {growth.length(2 * lengths[width])} "
                        f"positions when {width} doubles. Correct it, or leave {name} out."
                    )
    return declared


def _proved(
    network: UserNetwork, width: Width, moving: Moving, declarations: Mapping[str, Reading]
) -> list[Finding]:
    for seed in range(SEEDS):
        try:
            trial = Trial(network, width, moving, seed)
            findings = _proved_by(trial, width, moving, declarations[width.name], seed == SEEDS - 1)
        except ConfigError as error:
            return [Finding(width, problem=str(error))]
        if not findings[0].vague:
            break
    return findings


def _proved_by(
    trial: Trial, width: Width, moving: Moving, fixed: Reading, last: bool
) -> list[Finding]:
    """Return the readings that one small network proves, or a problem. ``last``: no trial
    follows."""
    alone = all(
        moving[width.name].keys().isdisjoint(axes)
        for name, axes in moving.items()
        if name != width.name
    )
    proved: list[Finding] = []
    furthest = ""
    order = {name: number for number, name in enumerate(trial.read_before(""))}
    growths = dict(sorted(moving[width.name].items(), key=lambda axis: order[axis[0][0]]))
    joined = trial.structures()
    read: list[str] = []
    for guess, kind_of in itertools.product((False, True), ALIKE):
        structures = {}
        guessed = False
        for place, growth in growths.items():
            structures[place] = structures_of(growth, joined, guess)
            guessed |= structures[place] != structures_of(growth, joined, guess=False)
        if guess and not guessed:
            break
        for reading in itertools.islice(
            readings(growths, structures, kind_of, fixed, read), READINGS
        ):
            broken = trial.broken_by(reading)
            read[:] = trial.read_before(broken)
            if broken:
                furthest = max(furthest, broken, key=trial.order)
            elif vague := trial.indifferent_to(reading, last):
                problem = f"the outputs do not show the order of its units in {vague}"
                return [Finding(width, problem=problem, vague=True)]
            else:
                proved.append(Finding(width, reading, trial.spanned(reading)))
                if alone and not proved[-1].spanned:
                    return proved[-1:]
        if proved:
            return sorted(proved, key=lambda finding: finding.spanned)
    problem = (
        f"exchanging its units{' as in AXES' * bool(fixed)} changes the outputs, first those of "
    )
    return [Finding(width, problem=problem + trial.shown(furthest))]


def _agreeing(
    candidates: Mapping[str, list[Finding]], shapes: Mapping[str, tuple[int, ...]]
) -> list[Finding]:
    """Choose a finding for each width so that the widths on every axis nest. Widths that are not
    spanned come first."""
    chosen: dict[str, Finding] = {}
    for name in sorted(candidates, key=lambda name: candidates[name][0].spanned):
        crossed = [_crossing([*chosen.values(), finding], shapes) for finding in candidates[name]]
        if "" in crossed:
            chosen[name] = candidates[name][crossed.index("")]
        else:
            problem = f"its units cannot be separated from those of other widths in {crossed[0]}"
            chosen[name] = Finding(candidates[name][0].width, problem=problem)
    return [chosen[name] for name in candidates]


def _crossing(findings: Sequence[Finding], shapes: Mapping[str, tuple[int, ...]]) -> str:
    for name, shape in shapes.items():
        if None in (_axis(findings, (name, place), length) for place, length in enumerate(shape)):
            return name
    return ""


def _axis(findings: Iterable[Finding], place: Place, length: int) -> Axis | None:
    """Return an axis as a sum of products of the findings' widths, the outermost first; None if
    they do not nest."""
    there = [finding for finding in findings if place in finding.axes]
    cuts = sorted(
        {0, length}.union(*(bounds(finding.axes[place], finding.width.length) for finding in there))
    )
    if cuts[-1] != length:
        return None
    segments = []
    for start, stop in zip(cuts, cuts[1:]):
        runs = []
        for finding in there:
            run, fits = within(finding.axes[place], start, stop, finding.width.length)
            if not fits:
                return None
            if run:
                runs.append((run.inner, finding.width))
        segment = _segment(runs, stop - start)
        if segment is None:
            return None
        segments.append(segment)
    return Axis(tuple(segments))


def _segment(runs: Iterable[tuple[int, Width]], length: int) -> Segment | None:
    """Return the product of widths, each with the length that is inside its units; None if they do
    not nest."""
    factors, left = [], length
    for inner, width in sorted(runs, key=lambda pair: pair[0], reverse=True):
        outer, odd = divmod(left, width.length * inner)
        if odd or not outer:
            return None
        factors += [Factor(None, outer)] * (outer > 1) + [Factor(width.name)]
        left = inner
    return Segment((*factors, *[Factor(None, left)] * (left > 1 or not factors)))
