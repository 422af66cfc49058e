"""Axes that a class declares: ``AXES = {parameter: pattern}``, for what doubling its widths cannot tell apart.

    AXES = {"qkv.weight": "(heads 3 16) embed", "qkv.bias": "(heads 3 16)"}

What is declared is tried in place of all other readings, and proved as they are; parameters that are not named are
inferred.
"""

from __future__ import annotations

from collections.abc import Mapping

from istmpi.engine.axes import Axis, Pattern
from istmpi.errors import ConfigError, did_you_mean
from istmpi.models.proof import Place
from istmpi.models.user import UserNetwork


def declared(
    network: UserNetwork, shapes: Mapping[str, tuple[int, ...]], moving: Mapping[str, Mapping[Place, int]]
) -> dict[str, dict[Place, tuple[int, int]]]:
    """For each width how its units lie on the axes that are declared: ``(a, b)`` of ``a * units * b``.

    ``shapes``: of the parameters; ``moving``: the axes that double with each width. ConfigError for axes that are not
    those of the network.
    """
    found: dict[str, dict[Place, tuple[int, int]]] = {name: {} for name in moving}
    lengths = {name: network.widths[name].length for name in moving}
    axes = getattr(network.kind, "AXES", {})
    if not isinstance(axes, Mapping):
        raise ConfigError(f"{network.name}: AXES = {axes!r} must be a dict, as {{'out.weight': '10 hidden'}}.")
    for name, text in axes.items():
        if name not in shapes:
            raise ConfigError(f"{network.name}: AXES names {name!r}, which is no parameter{did_you_mean(name, shapes)}")
        for place, axis in enumerate(_parsed(network, name, text, lengths, shapes[name])):
            positions = axis.length(lengths)
            for factor in axis.factors:
                positions //= lengths.get(factor.name, factor.literal)
                if factor.name:
                    ratio = axis.length(lengths) // lengths[factor.name]
                    found[factor.name][name, place] = ratio // positions, positions
            names = {factor.name for factor in axis.factors if factor.name}
            if others := {width for width in moving if (name, place) in moving[width]} ^ names:
                width = min(others)
                verb = "is not" if width in names else "is"
                raise ConfigError(
                    f"{network.name}: AXES has {text!r} for {name}, but {width} {verb} on its axis {place}: its length "
                    f"{'stays' if width in names else 'doubles'} with twice of it. Correct it, or leave {name} out."
                )
    return found


def _parsed(
    network: UserNetwork, name: str, text: object, lengths: Mapping[str, int], shape: tuple[int, ...]
) -> tuple[Axis, ...]:
    """The axes of one parameter, which have its very shape."""
    try:
        pattern = Pattern.parse(text) if isinstance(text, str) else None
    except ConfigError as error:
        raise ConfigError(f"{network.name}: AXES of {name}: {error}") from None
    if pattern is None:
        raise ConfigError(f"{network.name}: AXES of {name}: {text!r} must be a text, as '(3 heads 16) embed'.")
    for unknown in sorted(pattern.names - lengths.keys()):
        raise ConfigError(
            f"{network.name}: AXES of {name}: {unknown} is no width that any parameter's shape depends on"
            f"{did_you_mean(unknown, lengths)}"
        )
    if (given := pattern.shape(lengths)) != shape or any(
        factor.unit is not None for axis in pattern.axes for factor in axis.factors
    ):
        raise ConfigError(
            f"{network.name}: AXES has {text!r} for {name}: {given}, but its shape is {shape}. Correct it."
        )
    return pattern.axes
