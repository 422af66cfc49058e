"""The values that a rank hands to MPI, counted."""

from dataclasses import dataclass


@dataclass
class Traffic:
    bytes: int = 0
    calls: int = 0

    def add(self, nbytes: int, calls: int = 1) -> None:
        self.bytes += nbytes
        self.calls += calls
