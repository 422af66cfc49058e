"""Reads the axes that a network's class declares by ``AXES = {parameter: pattern}``."""

from collections.abc import Mapping

from istmpi.engine.axes import Axis, Pattern
from istmpi.errors import ConfigError, did_you_mean
from istmpi.inspection.orders import Order, order_on
from istmpi.inspection.proof import Moving, Place, Reading
from istmpi.network.user import UserNetwork


def read_declared(
    network: UserNetwork, shapes: Mapping[str, tuple[int, ...]], moving: Moving
) -> Mapping[str, Reading]:
    """Return each width's readings that the class declares.

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
        if name not in shapes:
            others = did_you_mean(name, shapes)
            raise network.refused(f"AXES names {name!r}, which is not a parameter{others}")
        pattern = _parse(network, name, text, lengths)
        shape = pattern.shape(lengths)
        # Blocks are found, not declared.
        if shape != shapes[name] or "[" in text:
            raise network.refused(
                f"AXES has {text!r} for {name}: {shape}, but its shape is {shapes[name]}. Correct "
                "it."
            )
        for place, axis in enumerate(pattern.axes):
            _require_growth(network, text, (name, place), axis, lengths, moving)
            for width in axis.names:
                declared[width][name, place] = order_on(axis, width, lengths)
    return declared


def _parse(network: UserNetwork, name: str, text: object, lengths: Mapping[str, int]) -> Pattern:
    subject = f"AXES of {name}: "
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
    return pattern


def _require_growth(
    network: UserNetwork,
    text: str,
    place: Place,
    axis: Axis,
    lengths: Mapping[str, int],
    moving: Moving,
) -> None:
    """Raise ConfigError unless an axis grows with the widths that its pattern names, and as the
    pattern says."""
    name, number = place
    growing = {width for width, axes in moving.items() if place in axes}
    # A width is on exactly those axes that grow with it.
    differing = growing ^ axis.names
    if differing:
        width = min(differing)
        problem = f"{width} is on its axis {number}: its length doubles"
        if width in axis.names:
            problem = f"{width} is not on its axis {number}: its length stays"
        raise network.refused(
            f"AXES has {text!r} for {name}, but {problem} when the width doubles. Correct it, or "
            f"leave {name} out."
        )
    for width in axis.names:
        doubled = 2 * lengths[width]
        length = moving[width][place].length(doubled)
        if axis.length({**lengths, width: doubled}) != length:
            raise network.refused(
                f"AXES has {text!r} for {name}, but its axis {number} has {length} positions when "
                f"{width} doubles. Correct it, or leave {name} out."
            )
