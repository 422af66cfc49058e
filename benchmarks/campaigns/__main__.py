"""Campaigns against istmpi itself: seeded, bounded in time, repeatable; figures go into ``results/campaign-NAME.*``.

    python -m benchmarks.campaigns kill --minutes 30  # or so many: --kills 300
    python -m benchmarks.campaigns stops --stops 440  # --mpirun: real signals
    python -m benchmarks.campaigns records --cases 300
    python -m benchmarks.campaigns corrupt --minutes 30  # --cases 2000
    python -m benchmarks.campaigns hang --minutes 30  # --cases 60
    python -m benchmarks.campaigns soak --minutes 30  # --rounds 10000
    python -m benchmarks.campaigns bad-input --minutes 30  # --cases 2000

The same --seed draws the same cases, one after the other, however many there is time for.

Each is a module of this folder; its ``main(arguments)`` returns the exit code: 0 when nothing was found.
"""

import importlib
import sys

CAMPAIGNS = {
    "bad-input": "bad_input",
    "kill": "kill",
    "stops": "stops",
    "records": "records",
    "corrupt": "corrupt",
    "hang": "hang",
    "soak": "soak",
}


def main(arguments: list[str]) -> int:
    """Run the named campaign; 2 for a name that there is none of."""
    if not arguments or arguments[0] not in CAMPAIGNS:
        print(f"benchmarks.campaigns: name one of {', '.join(CAMPAIGNS)}; --help behind it says more.", file=sys.stderr)
        return 2
    return importlib.import_module(f"benchmarks.campaigns.{CAMPAIGNS[arguments[0]]}").main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
