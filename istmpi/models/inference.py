"""The axes of a network's parameters that go with integers of its constructor: inferred by doubling, then proved.

An axis that doubles with an integer is ``a * units * b``. Where ``a * b`` is more than 1 there are several readings, as
``(3 heads 64)`` and ``(heads 192)``; `istmpi.models.proof` refutes the wrong ones. An integer without a reading left
cannot be dealt out.
"""

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from istmpi.engine.axes import Pattern
from istmpi.errors import ConfigError
from istmpi.models.declared import declared
from istmpi.models.leaves import shaped
from istmpi.models.proof import Moving, Place, Reading, Trial, misread
from istmpi.models.residual import residual_blocks
from istmpi.models.table import ResidualBlock, inside, unit_of
from istmpi.models.trials import one_thread, shortly
from istmpi.models.user import UserNetwork, Width

READINGS = 256
SEEDS = 4
COUNTS = "it changes which parameters exist"
"""The problem of an integer that may count blocks."""


@dataclass(frozen=True)
class Finding:
    width: Width
    axes: Reading = field(default_factory=dict)
    spanned: bool = False
    """A narrow network differs from the full one whose other units are silent."""
    problem: str = ""
    vague: bool = False
    """The trial proves nothing."""
    blocks: tuple[ResidualBlock, ...] = ()
    """Its units, where it counts blocks that are dealt out whole."""

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
    def groups(self) -> tuple[str, ...]:
        return tuple(self.lengths)

    @property
    def lengths(self) -> dict[str, int]:
        return {finding.width.name: finding.units for finding in self.findings if finding.proved}

    @property
    def blocks(self) -> dict[str, tuple[ResidualBlock, ...]]:
        return {finding.width.name: finding.blocks for finding in self.findings if finding.blocks}

    @property
    def widths(self) -> dict[str, int]:
        """The full length of every other width that can be dealt out."""
        return {name: length for name, length in self.lengths.items() if name not in self.blocks}


def infer(network: UserNetwork, full: torch.nn.Module | None = None) -> Inferred:
    """Infer and prove the axes of a network's parameters; ``full``, the network itself, gets other values."""
    shapes = _shapes(network)
    full = (full or network.build()).eval()
    require_trainable(network, full)
    shortly(network, network.examples(2, torch.get_default_dtype()), partial(network.forward, full))
    doubled = {name: _doubled(network, shapes, width) for name, width in network.widths.items()}
    moving = {name: ratios for name, ratios in doubled.items() if isinstance(ratios, dict)}
    fixed = declared(network, shapes, moving)
    with one_thread():
        candidates = {
            name: _proved(network, width, moving, fixed) if name in moving else [Finding(width, problem=doubled[name])]
            for name, width in network.widths.items()
        }
        findings = _agreeing(candidates, shapes)
        problems = misread(network, {finding.width.name: finding.axes for finding in findings if finding.proved})
        findings = [
            Finding(finding.width, problem=problems[finding.width.name]) if finding.width.name in problems else finding
            for finding in findings
        ]
        findings = [_of_blocks(network, finding, findings, full) for finding in findings]
    blocks = {finding.width.name: finding.blocks for finding in findings if finding.blocks}
    patterns = {name: inside(_pattern(name, shape, findings), unit_of(blocks, name)) for name, shape in shapes.items()}
    return Inferred(patterns, tuple(findings))


def require_trainable(network: UserNetwork, module: torch.nn.Module) -> None:
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    if not parameters:
        raise ConfigError(f"{network.name} has no parameters to train.")
    for name, values in {**parameters, **buffers}.items():
        if values.is_meta:
            raise ConfigError(
                f"{network.name}: its {'buffer' if name in buffers else 'parameter'} {name} is on the device "
                "meta, which has no values. Create it without a device."
            )
    for name, parameter in parameters.items():
        problem = ""
        if not parameter.numel():
            problem = f"has no elements ({' x '.join(map(str, parameter.shape))}). Give its widths at least 1"
        elif not parameter.is_floating_point():
            problem = f"is of {parameter.dtype}; istmpi trains only real floating-point numbers"
        elif "/" in name:
            problem = "has a / in its name, which checkpoints need. Rename it"
        if problem:
            raise ConfigError(f"{network.name}: its parameter {name} {problem}.")


def _shapes(network: UserNetwork, lengths: Mapping[str, int] | None = None) -> dict[str, tuple[int, ...]]:
    built = shaped(lambda: network.build(lengths))
    return {name: tuple(parameter.shape) for name, parameter in built.named_parameters()}


def _doubled(network: UserNetwork, shapes: Mapping[str, tuple[int, ...]], width: Width) -> dict[Place, int] | str:
    """The axes that double with a width, with a unit's positions on each; or the problem."""
    try:
        wider = _shapes(network, {width.name: 2 * width.length})
    except ConfigError as error:
        return f"its double is refused ({error})"
    if wider.keys() != shapes.keys():
        return COUNTS
    ratios: dict[Place, int] = {}
    for name, shape in shapes.items():
        if len(wider[name]) != len(shape):
            return f"{name} has another number of axes when it doubles"
        for place, (length, longer) in enumerate(zip(shape, wider[name])):
            if longer == length:
                continue
            if longer != 2 * length or length % width.length:
                return f"an axis of {name} has {length} positions, and {longer} when it doubles"
            ratios[name, place] = length // width.length
    return ratios or "no parameter's shape depends on it"


def _of_blocks(network: UserNetwork, finding: Finding, findings: Sequence[Finding], full: torch.nn.Module) -> Finding:
    if finding.problem != COUNTS:
        return finding
    lengths = {other.width.name: other.width.length for other in findings if other.proved}
    blocks, problem = residual_blocks(network, finding.width, lengths, full)
    return Finding(finding.width, problem=problem, blocks=blocks)


def _proved(network: UserNetwork, width: Width, moving: Moving, declarations: Mapping[str, Reading]) -> list[Finding]:
    """The readings of a width under which its units can be permuted, or why there is none."""
    findings = []
    for seed in range(SEEDS):
        try:
            trial = Trial(network, width, moving, seed)
            findings = _proved_by(trial, width, moving, declarations[width.name], seed == SEEDS - 1)
        except ConfigError as error:
            return [Finding(width, problem=str(error))]
        if not findings[0].vague:
            break
    return findings


def _proved_by(trial: Trial, width: Width, moving: Moving, fixed: Reading, last: bool) -> list[Finding]:
    """The readings that one small network proves; ``last``: no other will be tried."""
    alone = all(moving[width.name].keys().isdisjoint(axes) for name, axes in moving.items() if name != width.name)
    proved: list[Finding] = []
    furthest = ""
    ratios = {
        place: moving[width.name][place]
        for name in trial.read_before("")
        for place in moving[width.name]
        if place[0] == name
    }
    read: list[str] = []
    for kind_of in _ALIKE:
        for reading in itertools.islice(_readings(ratios, kind_of, fixed, read), READINGS):
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
    as_declared = " as in AXES" if fixed else ""
    problem = f"exchanging its units{as_declared} changes the outputs, first those of {trial.shown(furthest)}"
    return [Finding(width, problem=problem)]


def _agreeing(candidates: Mapping[str, list[Finding]], shapes: Mapping[str, tuple[int, ...]]) -> list[Finding]:
    """A finding for each width, so that no two cross on an axis; the surest choose first."""
    chosen: dict[str, Finding] = {}
    for name in sorted(candidates, key=lambda name: candidates[name][0].spanned):
        for finding in candidates[name]:
            if _crossing([*chosen.values(), finding], shapes) is None:
                chosen[name] = finding
                break
        else:
            crossed = _crossing([*chosen.values(), candidates[name][0]], shapes)
            problem = f"its units cannot be separated from those of other widths in {crossed}"
            chosen[name] = Finding(candidates[name][0].width, problem=problem)
    return [chosen[name] for name in candidates]


def _crossing(findings: Sequence[Finding], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    for name, shape in shapes.items():
        if any(_factors(length, _on(findings, (name, place))) is None for place, length in enumerate(shape)):
            return name
    return None


_ALIKE: tuple[Callable[[Place, int], object], ...] = (
    lambda place, ratio: ratio,
    lambda place, ratio: (ratio, place[1]),
    lambda place, ratio: (ratio, re.sub(r"\d+", "#", place[0].rpartition(".")[0])),
)
"""Functions that give axes of the same kind, which are read alike, the simplest guess first."""


def _readings(
    ratios: Mapping[Place, int], kind_of: Callable[[Place, int], object], fixed: Reading, read: Collection[str]
) -> Iterator[Reading]:
    """Yield the ways to read the axes: axes of a kind alike, and some as they are declared.

    ``ratios`` are in the order in which the axes are read. ``read``: the parameters that were read where the last way
    showed to be wrong, as do all that differ from it in others alone.
    """
    kinds = {place: kind_of(place, ratio) for place, ratio in ratios.items() if place not in fixed}
    ratio_of = {kind: ratios[place] for place, kind in kinds.items()}

    def completed(*chosen: tuple[int, int]) -> Iterator[Reading]:
        if len(chosen) == len(ratio_of):
            reading = dict(zip(ratio_of, chosen))
            yield {**{place: reading[kind] for place, kind in kinds.items()}, **fixed}
            return
        kind, ratio = [*ratio_of.items()][len(chosen)]
        for a in (a for a in range(1, ratio + 1) if ratio % a == 0):
            yield from completed(*chosen, (a, ratio // a))
            if not any(place[0] in read for place in kinds if kinds[place] == kind):
                return

    yield from completed()


def _on(findings: Sequence[Finding], place: Place) -> list[tuple[int, Width]]:
    widths = [(it.axes[place][1], it.width) for it in findings if it.proved and place in it.axes]
    return sorted(widths, key=lambda pair: pair[0], reverse=True)


def _factors(length: int, widths: Sequence[tuple[int, Width]]) -> list[str] | None:
    """The factors of an axis, outermost first; None where the widths cross."""
    factors, left = [], length
    for inner, width in widths:
        outer, odd = divmod(left, width.length * inner)
        if odd or not outer:
            return None
        factors += [str(outer)] * (outer > 1) + [width.name]
        left = inner
    return factors + [str(left)] * (left > 1 or not factors)


def _pattern(name: str, shape: tuple[int, ...], findings: Sequence[Finding]) -> Pattern:
    axes = [_factors(length, _on(findings, (name, place))) for place, length in enumerate(shape)]
    return Pattern.parse(" ".join(axis[0] if len(axis) == 1 else f"({' '.join(axis)})" for axis in axes))
