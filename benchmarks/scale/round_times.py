"""Draws where the time of rounds went: a bar for the median round of each run, and its share of local steps.

python -m benchmarks.scale.round_times PICTURE.svg "NAME=FOLDER" ...
"""

import sys
from pathlib import Path
from statistics import median

from istmpi.record import RunFolder
from istmpi.report.styles import ASH, BLUE, GRID, ORANGE, PURPLE, VERMILLION

COLOURS = {"local steps": BLUE, "other ranks": ASH, "weights": ORANGE, "deal": VERMILLION, "the rest": PURPLE}
FIELDS = "compute", "wait", "hop pull push all_reduce", "deal", "other"
LEFT, WIDTH = 190, 760


def seconds(folder: str) -> list[float]:
    """The seconds of each phase: means over ranks, medians over rounds but the first two and the last."""
    rounds = RunFolder(Path(folder)).metrics()[2:-1]
    return [
        median(sum(line.get(f"{name}_seconds", 0) for name in names.split()) for line in rounds) for names in FIELDS
    ]


def picture(bars: dict[str, list[float]]) -> str:
    """An SVG that is readable on light and dark pages."""
    scale, parts = (WIDTH - LEFT - 60) / max(map(sum, bars.values())), []

    def add(x: float, y: float, text: str, width: float = 0, colour: str = "none") -> None:
        parts.append(f'<rect x="{x:.1f}" y="{y - 13}" width="{width:.1f}" height="17" fill="{colour}"/>')
        parts.append(f'<text x="{x + width + 5:.0f}" y="{y}">{text}</text>')

    for place, (phase, colour) in enumerate(COLOURS.items()):
        add(LEFT + place * 110, 18, phase, 12, colour)
    for y, (name, bar) in zip(range(47, 47 + 22 * len(bars), 22), bars.items(), strict=True):
        add(0, y, name)
        for number, colour in enumerate(COLOURS.values()):
            add(LEFT + sum(bar[:number]) * scale, y, "", bar[number] * scale, colour)
        add(LEFT + sum(bar) * scale, y, f"{bar[0] / sum(bar):.0%}")
    size = f'viewBox="0 0 {WIDTH} {40 + len(bars) * 22}" font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} fill="{GRID}">\n' + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    drawn = {name: seconds(folder) for name, folder in (words.split("=", 1) for words in sys.argv[2:])}
    Path(sys.argv[1]).write_text(picture(drawn), encoding="utf-8")
    print(*drawn.items(), sep="\n")
