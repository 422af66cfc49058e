"""The palette: every method has a style of its own, and colours stand in one place."""

import re
from itertools import combinations
from pathlib import Path

from istmpi.config.methods import METHODS
from istmpi.cost.rivals import RIVALS
from istmpi.report.styles import STYLES, styles

ROOT = Path(__file__).parents[2]


def test_every_method_has_a_style_of_its_own():
    assert set(RIVALS) <= set(STYLES)
    drawn = styles([*METHODS, "a method of tomorrow"])
    assert len({style.marker for style in drawn.values()}) == len(drawn)
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)
    assert len({STYLES[name].colour for name in METHODS if name in STYLES}) == len({*METHODS} & {*STYLES})
    for first, other in combinations(STYLES.values(), 2):
        assert first.colour != other.colour or first.line != other.line


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
