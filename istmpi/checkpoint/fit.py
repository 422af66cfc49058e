"""The fit of a file of initial weights to a network, and the lines that say so."""

from dataclasses import dataclass
from pathlib import Path

from istmpi.foreign import printable

SHOWN = 6
"""The most names in a line."""


@dataclass(frozen=True)
class Fit:
    path: Path
    fitted: tuple[str, ...]
    widened: tuple[str, ...]
    """The fitted parameters that are narrower in the file."""
    weights: tuple[int, int]
    """The number of weights that come from the file, and the number of all weights."""
    missing: tuple[str, ...]
    misshapen: tuple[str, ...]
    """Parameters of another shape in the file, as ``name (3 x 2 in the file, 4 x 2 here)``."""
    unused: tuple[str, ...]
    unheld: str = ""
    """A factor of a sum that no weight can hold, of the full network or of the file, in words."""

    @property
    def lines(self) -> list[str]:
        """Lines for the user: the numbers of the fit, then names that do not fit."""
        total = len(self.fitted) + len(self.missing) + len(self.misshapen)
        lines = [
            f"initial weights from {self.path}: {len(self.fitted)} of {total} parameters fit, "
            f"{self.weights[0]:,} of {self.weights[1]:,} weights."
        ]
        unfitting = {
            "narrower in the file, in the first places here": self.widened,
            "wrong shape, ignored": self.misshapen,
            "not in the file, initialized as usual": self.missing,
            "only in the file": self.unused,
        }
        for problem, names in unfitting.items():
            if not names:
                continue
            shown = ", ".join(map(printable, names[:SHOWN]))
            if len(names) > SHOWN:
                shown += f", and {len(names) - SHOWN} more"
            lines.append(f"{problem}: {shown}.")
        if self.unheld:
            lines.append(describe_unheld(self.unheld))
        return lines


def describe_unheld(factor: str) -> str:
    return f"the full network begins with other outputs than these weights have: {factor}."
