"""Infers which axes of the parameters belong to which integers of the constructor: by doubling,
then by proof.

An axis that doubles with an integer has the length ``a * units * b``. If ``a * b`` is more than 1,
there are several readings, such as ``(3 heads 64)`` and ``(heads 192)``. An axis that grows by less
also has positions of no unit, as ``hidden + 6``; concatenations of the forward pass propose its
readings (`istmpi.inspection.orders`). `istmpi.inspection.proof` refutes wrong readings. An integer
cannot be dealt out if no reading is left.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from istmpi.engine.axes import Axis, Factor, Pattern, Segment
from istmpi.errors import ConfigError
from istmpi.inspection.declared import read_declared
from istmpi.inspection.misreading import find_misread
from istmpi.inspection.orders import (
    Growth,
    bounds,
    find_structures,
    within,
)
from istmpi.inspection.proof import Moving, Place, Reading, Trial
from istmpi.inspection.readings import ALIKE, readings
from istmpi.inspection.residual import find_residual_blocks
from istmpi.network.leaves import build_shapes
from istmpi.network.running import require_trainable, run_short
from istmpi.network.table import ResidualBlock, find_unit, inside
from istmpi.network.trials import one_thread
from istmpi.network.user import UserNetwork, Width

READINGS = 256
"""The most readings of a width that are tried for one way of guessing."""
SEEDS = 4
"""The most small networks, each with other random values, that try a width."""
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
    # The forward pass is refused here, in one line, before it is tried on many small networks.
    examples = network.examples(2, torch.get_default_dtype())
    run_short(network, examples, partial(network.forward, full))
    moving, problems = _double_widths(network, shapes)
    declared = read_declared(network, shapes, moving)
    with one_thread():
        candidates = {}
        for name, width in network.widths.items():
            if name in moving:
                candidates[name] = _prove(network, width, moving, declared[name])
            else:
                candidates[name] = [Finding(width, problem=problems[name])]
        findings = _choose_nesting(candidates, shapes)
        _refuse_misread(network, findings)
        _find_blocks(network, findings, full)
    inferred = Inferred({}, tuple(findings.values()))
    patterns = {}
    for name, shape in shapes.items():
        axes = []
        for place, length in enumerate(shape):
            axis = _axis(inferred.findings, (name, place), length)
            assert axis is not None, f"the widths of {name} were chosen so that they nest"
            axes.append(axis)
        patterns[name] = inside(Pattern(tuple(axes)), find_unit(inferred.blocks, name))
    return replace(inferred, parameters=patterns)


def _refuse_misread(network: UserNetwork, findings: dict[str, Finding]) -> None:
    """Replace findings that do not hold in the full network by their problems."""
    readings = {name: finding.axes for name, finding in findings.items() if finding.proved}
    for name, problem in find_misread(network, readings).items():
        findings[name] = Finding(network.widths[name], problem=problem)


def _find_blocks(network: UserNetwork, findings: dict[str, Finding], full: torch.nn.Module) -> None:
    """Find the blocks that integers count, where the number of parameters depends on them."""
    lengths = {name: finding.width.length for name, finding in findings.items() if finding.proved}
    for name, finding in findings.items():
        if finding.problem != COUNTS:
            continue
        blocks, problem = find_residual_blocks(network, finding.width, lengths, full)
        for other, counting in findings.items():
            if blocks and counting.blocks == blocks:
                problem = (
                    f"its blocks are those of {other}: name {other}, which deals out all of them"
                )
                blocks = ()
        findings[name] = Finding(finding.width, problem=problem, blocks=blocks)


def _shapes(
    network: UserNetwork, lengths: Mapping[str, int] | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter at these lengths. Raises ConfigError if none is built."""
    built = build_shapes(lambda: network.build(lengths))
    return {name: tuple(parameter.shape) for name, parameter in built.named_parameters()}


def _double_widths(
    network: UserNetwork, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, dict[Place, Growth]], dict[str, str]]:
    """Return the axes that grow when a width doubles, and how, for each width that has some; and
    the problems of the other widths."""
    moving = {}
    problems = {}
    for name, width in network.widths.items():
        growths = _double(network, shapes, width)
        if isinstance(growths, str):
            problems[name] = growths
        else:
            moving[name] = growths
    return moving, problems


def _double(
    network: UserNetwork, shapes: Mapping[str, tuple[int, ...]], width: Width
) -> dict[Place, Growth] | str:
    """Return the axes that grow when a width doubles, and how; or the problem, as text."""
    try:
        wider = _shapes(network, {width.name: 2 * width.length})
    except ConfigError as error:
        return f"its double is refused ({error})"
    # An integer that counts layers makes new parameters, and moves no axis.
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
                return (
                    f"an axis of {name} has {length} positions, not a multiple of its "
                    f"{width.length} units"
                )
            # An axis that grows by less than its length also has positions of no unit.
            if rest or not 0 < longer - length <= length:
                return f"an axis of {name} has {length} positions, and {longer} when it doubles"
            growths[name, place] = Growth(ratio, length - ratio * width.length)
    return growths or "no parameter's shape depends on it"


def _prove(network: UserNetwork, width: Width, moving: Moving, declared: Reading) -> list[Finding]:
    """Return the readings of a width that small networks prove, or a problem."""
    for seed in range(SEEDS):
        try:
            trial = Trial(network, width, moving, seed)
            findings = _prove_by(trial, width, moving, declared, last=seed == SEEDS - 1)
        except ConfigError as error:
            return [Finding(width, problem=str(error))]
        # Other random values may show what these do not.
        if not findings[0].vague:
            break
    return findings


def _prove_by(
    trial: Trial, width: Width, moving: Moving, fixed: Reading, last: bool
) -> list[Finding]:
    """Return the readings that one small network proves, or a problem. ``last``: no trial
    follows."""
    # No other width is on an axis of this one.
    is_alone = all(
        name == width.name or moving[width.name].keys().isdisjoint(axes)
        for name, axes in moving.items()
    )
    proved: list[Finding] = []
    furthest = ""
    read: list[str] = []
    for reading in _propose_readings(trial, moving[width.name], fixed, read, proved):
        broken = trial.broken_by(reading)
        # `_propose_readings` sees this list, and leaves out readings that would fail as this one.
        read[:] = trial.read_before(broken)
        if broken:
            # The reading that fails last is the nearest to a right one.
            furthest = max(furthest, broken, key=trial.number)
            continue
        vague = trial.find_indifferent(reading, last)
        if vague:
            problem = f"the outputs do not show the order of its units in {vague}"
            return [Finding(width, problem=problem, vague=True)]
        finding = Finding(width, reading, trial.is_spanned(reading))
        # No other width limits the choice, and no other reading can be better.
        if is_alone and not finding.spanned:
            return [finding]
        proved.append(finding)
    if proved:
        return sorted(proved, key=lambda finding: finding.spanned)
    declared = " as in AXES" if fixed else ""
    problem = f"exchanging its units{declared} changes the outputs, first those of "
    return [Finding(width, problem=problem + trial.describe(furthest))]


def _propose_readings(
    trial: Trial,
    growths: Mapping[Place, Growth],
    fixed: Reading,
    read: Sequence[str],
    proved: Sequence[Finding],
) -> Iterator[Reading]:
    """Yield readings to try, the likeliest first, up to the first way of guessing that has proved
    one.

    ``read``: the parameters used before the last reading failed. ``proved``: the findings so far.
    """
    # In the order of their use, so that a failed reading shows which axes to read anew.
    order = {name: number for number, name in enumerate(trial.read_before(""))}
    growths = dict(sorted(growths.items(), key=lambda item: order[item[0][0]]))
    joined = trial.structures()
    certain = {
        place: find_structures(growth, joined, guess=False) for place, growth in growths.items()
    }
    guessed = {
        place: find_structures(growth, joined, guess=True) for place, growth in growths.items()
    }
    ways = [certain]
    if guessed != certain:
        ways.append(guessed)
    for structures, kind_of in itertools.product(ways, ALIKE):
        proposed = readings(growths, structures, kind_of, fixed, read)
        yield from itertools.islice(proposed, READINGS)
        # The caller has filled this list meanwhile; the ways that follow guess more.
        if proved:
            return


def _choose_nesting(
    candidates: Mapping[str, list[Finding]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Finding]:
    """Choose a finding for each width so that the widths on every axis nest. Widths that are not
    spanned come first."""
    chosen: dict[str, Finding] = {}
    # A width that is not spanned is proved more strongly, so it chooses first.
    for name in sorted(candidates, key=lambda name: candidates[name][0].spanned):
        crossed = [_crossing([*chosen.values(), finding], shapes) for finding in candidates[name]]
        if "" in crossed:
            chosen[name] = candidates[name][crossed.index("")]
        else:
            problem = f"its units cannot be separated from those of other widths in {crossed[0]}"
            chosen[name] = Finding(candidates[name][0].width, problem=problem)
    return {name: chosen[name] for name in candidates}


def _crossing(findings: Sequence[Finding], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return a parameter on one of whose axes the widths do not nest, or ""."""
    for name, shape in shapes.items():
        for place, length in enumerate(shape):
            if _axis(findings, (name, place), length) is None:
                return name
    return ""


def _axis(findings: Iterable[Finding], place: Place, length: int) -> Axis | None:
    """Return an axis as a sum of products of the findings' widths, the outermost first; None if
    they do not nest."""
    present = [finding for finding in findings if place in finding.axes]
    cuts = {0, length}
    for finding in present:
        cuts.update(bounds(finding.axes[place], finding.width.length))
    if max(cuts) != length:
        return None
    segments = []
    for start, stop in itertools.pairwise(sorted(cuts)):
        bands = []
        for finding in present:
            band, fits = within(finding.axes[place], start, stop, finding.width.length)
            if not fits:
                return None
            if band:
                bands.append((band.inner, finding.width))
        segment = _segment(bands, stop - start)
        if segment is None:
            return None
        segments.append(segment)
    return Axis(tuple(segments))


def _segment(bands: Iterable[tuple[int, Width]], length: int) -> Segment | None:
    """Return the product of widths, each with the length that is inside its units; None if they do
    not nest."""
    factors: list[Factor] = []
    left = length
    # The outermost width has the most positions inside its units.
    for inner, width in sorted(bands, key=lambda pair: pair[0], reverse=True):
        outer, rest = divmod(left, width.length * inner)
        if rest or not outer:
            return None
        if outer > 1:
            factors.append(Factor(None, outer))
        factors.append(Factor(width.name))
        left = inner
    if left > 1 or not factors:
        factors.append(Factor(None, left))
    return Segment(tuple(factors))
