"""Draws where the time of a run's rounds goes: bars of the median round, without the first two and the last.

    python -m benchmarks.scale.round_times PICTURE.svg "NAME=FOLDER" ...

Seconds are means over ranks, from each folder's metrics.jsonl; they are printed as a table, too.
"""

import sys
from pathlib import Path
from statistics import median

from benchmarks.reporting import table
from istmpi.record import RunFolder
from istmpi.report.styles import ASH, BLUE, GRID, ORANGE, PURPLE, VERMILLION

PHASES = {
    "local steps": (BLUE, ("compute",)),
    "other ranks": (ASH, ("wait",)),
    "weights": (ORANGE, ("hop", "pull", "push", "all_reduce")),
    "deal": (VERMILLION, ("deal",)),
    "the rest": (PURPLE, ("other",)),
}
HEIGHT, LEFT, WIDTH = 22, 190, 760


def seconds(folder: str) -> dict[str, float]:
    """The seconds of each phase of the median round."""
    rounds = RunFolder(Path(folder)).metrics()[2:-1]
    return {
        phase: median(sum(line.get(f"{name}_seconds", 0.0) for name in names) for line in rounds)
        for phase, (_, names) in PHASES.items()
    }


def picture(bars: dict[str, dict[str, float]]) -> str:
    """An SVG that is readable on light and dark pages."""
    scale, parts = (WIDTH - LEFT - 60) / max(sum(bar.values()) for bar in bars.values()), []
    for row, (name, bar) in enumerate(bars.items()):
        y, x = 30 + row * HEIGHT, float(LEFT)
        parts.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{name}</text>')
        for phase, took in bar.items():
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{took * scale:.1f}" height="17" fill="{PHASES[phase][0]}"/>'
            )
            x += took * scale
        parts.append(f'<text x="{x + 5:.0f}" y="{y + 13}">{bar["local steps"] / sum(bar.values()):.0%}</text>')
    for place, (phase, (colour, _)) in enumerate(PHASES.items()):
        parts.append(f'<rect x="{LEFT + place * 105}" y="8" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 14 + place * 105}" y="17">{phase}</text>')
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {38 + len(bars) * HEIGHT}" fill="{GRID}"'
    return f'{frame} font-family="sans-serif" font-size="12">\n' + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    bars = {name: seconds(folder) for name, folder in (words.split("=", 1) for words in sys.argv[2:])}
    Path(sys.argv[1]).write_text(picture(bars), encoding="utf-8")
    print(table([{"run": name, **bar} for name, bar in bars.items()]))
