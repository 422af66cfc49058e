"""Axes that a class declares: ``AXES = {parameter: pattern}``, for a shape that doubling the widths leaves ambiguous.

    AXES = {"qkv.weight": "(heads 3 16) embed", "qkv.bias": "(heads 3 16)"}

The declared axes are tried in place of all other readings, and proved like them; parameters that are not named are
inferred.
"""

from collections.abc import Mapping

from istmpi.engine.axes import Axis, Pattern
from istmpi.errors import ConfigError, did_you_mean
from istmpi.models.proof import Moving, Place
from istmpi.models.user import UserNetwork


def declared(
    network: UserNetwork, shapes: Mapping[str, tuple[int, ...]], moving: Moving
) -> dict[str, dict[Place, tuple[int, int]]]:
    """The declared order of each width's units on axes: ``(a, b)`` of ``a * units * b``; ConfigError for wrong axes."""
    readings: dict[str, dict[Place, tuple[int, int]]] = {name: {} for name in moving}
    lengths = {name: network.widths[name].length for name in moving}
    axes = getattr(network.kind, "AXES", {})
    if not isinstance(axes, Mapping):
        raise ConfigError(f"{network.name}: AXES = {axes!r} must be a dict, such as {{'out.weight': '10 hidden'}}.")
    for name, text in axes.items():
        if name not in shapes:
            raise ConfigError(
                f"{network.name}: AXES names {name!r}, which is not a parameter{did_you_mean(name, shapes)}"
            )
        for place, axis in enumerate(_parsed(network, name, text, lengths, shapes[name])):
            positions = axis.length(lengths)
            for factor in axis.factors:
                positions //= lengths.get(factor.name, factor.literal)
                if factor.name:
                    ratio = axis.length(lengths) // lengths[factor.name]
                    readings[factor.name][name, place] = ratio // positions, positions
            if others := {width for width in moving if (name, place) in moving[width]} ^ axis.names:
                width = min(others)
                verb, behaves = ("is not", "stays") if width in axis.names else ("is", "doubles")
                raise ConfigError(
                    f"{network.name}: AXES has {text!r} for {name}, but {width} {verb} on its axis {place}: "
                    f"its length {behaves} when the width doubles. Correct it, or leave {name} out."
                )
    return readings


def _parsed(
    network: UserNetwork, name: str, text: object, lengths: Mapping[str, int], shape: tuple[int, ...]
) -> tuple[Axis, ...]:
    subject = f"{network.name}: AXES of {name}: "
    if not isinstance(text, str):
        raise ConfigError(f"{subject}{text!r} must be text, such as '(3 heads 16) embed'.")
    try:
        pattern = Pattern.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{subject}{error}") from None
    for unknown in sorted(pattern.names - lengths.keys()):
        raise ConfigError(
            f"{subject}{unknown} is not a width that a parameter's shape depends on{did_you_mean(unknown, lengths)}"
        )
    numbered = any(factor.unit is not None for axis in pattern.axes for factor in axis.factors)
    if (given := pattern.shape(lengths)) != shape or numbered:
        raise ConfigError(
            f"{network.name}: AXES has {text!r} for {name}: {given}, but its shape is {shape}. Correct it."
        )
    return pattern.axes
