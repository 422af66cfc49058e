"""The palette: every method has a style, and colours are apart for everybody, by formulas of its own."""

import re
from itertools import combinations
from pathlib import Path

import pytest
from colours import VISIONS, contrast, distance, lab, lightness_gap, nearest

from istmpi.cost.rivals import RIVALS
from istmpi.methods import METHODS
from istmpi.report.styles import INK, PAPER, PHASES, STYLES, styles

APART, USUAL_APART = 10, 28
"""CIEDE2000 between any two methods, and between those that `istmpi compare` takes by itself; 1 can just be seen."""
USUAL = ("ist", "local-sgd", "data-parallel")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "first, other, expected",
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((50, 2.5, 0), (58, 24, 15), 19.4535),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
        ((6.7747, -0.2908, -2.4247), (5.8714, -0.0985, -2.2286), 0.6377),
    ],
)
def test_the_oracle_gives_the_distances_of_its_paper(first, other, expected):
    assert distance(first, other) == pytest.approx(expected, abs=1e-4) == distance(other, first)


def test_the_oracle_knows_what_the_blind_confuse():
    assert lab("#ffffff") == pytest.approx((100, 0, 0), abs=0.02)
    red_green = {vision: distance(lab("#d62728", vision), lab("#2ca02c", vision)) for vision in VISIONS}
    assert red_green["deuteranopia"] < 5 < 25 < red_green["protanopia"] + 1 < red_green["normal"]
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


def test_every_method_has_a_style_of_its_own():
    assert set(RIVALS) <= set(STYLES)
    drawn = styles([*METHODS, "a method of tomorrow"])
    assert len({style.marker for style in drawn.values()}) == len(drawn)
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)
    assert len({STYLES[name].colour for name in METHODS if name in STYLES}) == len({*METHODS} & {*STYLES})
    for first, other in combinations(STYLES.values(), 2):
        assert first.colour != other.colour or first.line != other.line


@pytest.mark.parametrize("vision", VISIONS)
def test_methods_are_apart_for_every_eye(vision):
    colours = {name: STYLES[name].colour for name in METHODS if name in STYLES}
    assert nearest(colours.values(), vision)[0] > APART
    assert nearest([colours[name] for name in USUAL], vision)[0] > USUAL_APART


def test_the_usual_methods_are_apart_on_a_grey_print():
    assert lightness_gap([STYLES[name].colour for name in USUAL]) > 20


def test_lines_and_letters_are_seen_on_their_page():
    assert contrast(INK, PAPER) > 7
    for style in STYLES.values():
        assert contrast(style.colour, PAPER) > 2.2, "orange and sky blue are as Okabe and Ito have them"


@pytest.mark.parametrize("vision", VISIONS)
def test_phases_are_apart(vision):
    colours = list(PHASES.values())
    assert nearest(colours, vision)[0] > 6 and lightness_gap(colours) > 8
    assert all(lightness_gap(pair) > 15 for pair in zip(colours, colours[1:])), "neighbours in a bar"
    assert not set(colours) & {style.colour for style in STYLES.values()}


def test_methods_of_others_get_what_is_left():
    found = styles(["ist", "torch-ddp", "fedprox", "local-sgd", "ist"])
    assert found["ist"] is STYLES["ist"] and sorted(found) == ["fedprox", "ist", "local-sgd", "torch-ddp"]
    assert len({style.colour for style in found.values()}) == len({style.marker for style in found.values()}) == 4
    many = styles([*METHODS, *map(str, range(20))])
    assert len(many) == len(METHODS) + 20


def test_colours_stand_in_one_place():
    for folder in ("istmpi/report", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            named = re.findall(r"""tab:\w+|["'](?:red|green|blue|orange|black|grey)["']""", path.read_text("utf-8"))
            assert not named, f"{path}: {named}"
    for path in (ROOT / "istmpi" / "report").glob("*.py"):
        if path.name not in ("styles.py", "html.py"):
            assert not re.findall(r"#[0-9a-fA-F]{6}\b", path.read_text("utf-8")), path
