"""`istmpi report` and the files it writes: the console, JSON, CSV, a picture, and HTML that needs nothing else."""

import json
import platform
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from xml.etree import ElementTree

import pytest
from curves import curve

from istmpi import __version__
from istmpi.config.methods import METHODS
from istmpi.report.comparison import compare
from istmpi.report.html import page
from istmpi.report.plots import pictures
from istmpi.report.styles import GRID, INK, PAPER, STYLES, styles

FAST = [0.5, 0.7, 0.8, 0.9]
SLOW = [0.2, 0.4, 0.6, 0.8]
MADE = "Made on 2026-01-02"
EVIL = "<script>alert('x')</script> & \"$\\frac{1}{0}$\" --> [bold]"


@pytest.fixture
def runs(tmp_path):
    for method, scores, step in (("ist", FAST, 1.0), ("torch-ddp", SLOW, 3.0)):
        for seed in range(2):
            folder = tmp_path / "runs" / f"{method}-{seed}"
            folder.mkdir(parents=True)
            curve(method, scores, seed, step, phases={"compute": 2.0}).save(folder / "curve.json")
    return tmp_path / "runs"


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize(
    "name, text, output",
    [("run.toml", "[train]\nrounds = -3\n", []), ("metrics.jsonl", "{}\n", ["--json"]), ("curve.json", "[]", [])],
)
def test_a_run_that_cannot_be_read_is_named_and_left_out(istmpi_command, refusal, runs, name, text, output):
    bad = runs / "bad[red]"
    bad.mkdir()
    (bad / "run.toml").write_text('name = "a"\n')
    (bad / "metrics.jsonl").touch()
    (bad / name).write_text(text)
    code, out, err = istmpi_command("report", runs, *output)
    assert code == 0 and "torch-ddp" in out
    assert err.startswith("istmpi: left out: ") and str(bad) in err and err.count("\n") == 1
    assert str(bad) in refusal("report", bad, *output)


def test_it_prints_the_tables(istmpi_command, answer, runs):
    out = answer("report", runs, "--targets", "0.8,0.5")
    lines = [line.split() for line in out.splitlines()]
    assert ["accuracy", "reached", "ist", "torch-ddp"] in lines
    assert ["0.5", "1", "s", "1.00x", "9", "s", "9.00x"] in lines
    assert ["0.8", "3", "s", "1.00x", "12", "s", "4.00x"] in lines
    assert "median of it and its two neighbours" in out
    (tree,) = json.loads(istmpi_command("report", runs, "--json")[1])["comparisons"]
    assert (tree["targets"], tree["rows"][-1]["seconds_ratio"]) == ([0.7, 0.75, 0.8], 4)
    assert "not reached" in istmpi_command("report", runs / "torch-ddp-0", "--targets", "0.95")[1]


def test_the_page_needs_nothing_else_and_says_when_where_and_how_it_was_made(
    istmpi_command, runs, tmp_path, monkeypatch
):
    html = tmp_path / "r.html"
    monkeypatch.setattr(sys, "argv", ["/usr/bin/istmpi", "report", "my runs", "--html", "r.html"])
    code, _, err = istmpi_command("report", runs, "--html", html)
    assert code == 0 and err.splitlines() == [f"written: {html}"]
    found = Tags(html.read_text(encoding="utf-8"))
    first = found.text.index("ist reached an accuracy of 0.8 after 3 s of training")
    assert first < found.text.index("accuracy reached")
    assert f"by istmpi {__version__} on {platform.node()}: istmpi report 'my runs' --html r.html" in found.text
    assert re.search(r"Made on \d{4}-\d\d-\d\d \d\d:\d\d [+-]\d{4} by", found.text)
    assert sum(tag == "svg" for tag, _ in found.tags) == 3 and sum(tag == "table" for tag, _ in found.tags) == 6
    for tag, attributes in found.tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "image"), tag
        assert not {"src", "srcset", "onload"} & set(attributes)
        for name in ("href", "xlink:href"):
            assert attributes.get(name, "#").startswith("#"), attributes
    assert "@import" not in html.read_text() and "url(http" not in html.read_text()


def test_everything_on_the_page_and_on_the_console_is_escaped(istmpi_command, tmp_path):
    curve(EVIL, FAST, problem=EVIL).save(tmp_path / "curve.json")
    assert istmpi_command("report", tmp_path)[1].count("[bold]") >= 2
    runs = [
        curve(EVIL, FAST, settings={"model.name": EVIL, EVIL: EVIL}, problem=EVIL, source=EVIL, phases={EVIL: 1.0}),
        curve("ist", SLOW, problem=EVIL, settings={"model.name": EVIL, EVIL: EVIL}),
    ]
    found = compare(runs, [0.5])
    made = page(found, pictures(found), EVIL, EVIL) + page(found, None, EVIL, EVIL)
    seen = Tags(made)
    assert not [tag for tag, _ in seen.tags if tag in ("script", "bold")]
    assert seen.text.count(EVIL) >= 6
    assert "<script" not in made


def test_numbers_keep_their_units_and_the_best_is_marked_by_more_than_a_colour():
    made = page(compare([curve("ist", FAST, step=2.5), curve("local-sgd", FAST, step=5.0)], [0.9]), None, "x", MADE)
    assert '<td class="best" title="the best of its row"><span class="value">10 s</span>' in made
    assert '<td><span class="value">20 s</span> <span class="value">2.00x</span></td>' in made
    assert re.search(r"td\.best[^}]*font-weight: 700", made)


def test_every_picture_tells_what_it_shows():
    found = compare([curve("ist", FAST, sent=10**6), curve("data-parallel", SLOW, sent=10**9)])
    for title, picture in pictures(found).items():
        tree = ElementTree.fromstring(picture)
        named = tree.find(f".//*[@id='{tree.attrib['aria-labelledby']}']")
        assert tree.attrib["role"] == "img" and named.text == title
        colours = set(re.findall(r"(?:fill|stroke): (#\w{6})", picture))
        both = {INK, PAPER, GRID} | {STYLES[name].colour.lower() for name in ("ist", "data-parallel")}
        assert colours <= both
    _, sent = pictures(found).values()
    assert "bytes sent by all ranks (GB)" in sent and ">data-parallel<" in sent, "text stays text"
    validated = pictures(compare([replace(curve("ist", FAST), test=0.7)]))
    assert "Test accuracy against training time" in pictures(found)
    assert "Validation accuracy against training time" in validated


def test_without_matplotlib_or_a_folder_the_page_says_so(istmpi_command, runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert istmpi_command("report", runs, "--html", tmp_path / "r.html")[0] == 0
    assert "matplotlib is not installed" in (tmp_path / "r.html").read_text()
    code, _, err = istmpi_command("report", runs, "--html", tmp_path / "gone" / "r.html")
    assert code == 74 and "gone/r.html: cannot be written" in err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], "nowhere does not exist"),
        (["--targets", "0.5;0.7"], "--targets 0.5;0.7 must be numbers separated by commas"),
        (["--targets", "63"], "--targets 63: a target of the accuracy must be above 0 and at most 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(refusal, runs, arguments, message):
    assert message in refusal("report", *([runs] if arguments[0].startswith("--") else []), *arguments)


def test_every_method_has_a_style_of_its_own():
    assert set(METHODS) <= set(STYLES), "also those that no paper of IST compares with"
    drawn = styles([*METHODS, "a method of tomorrow"])
    assert len({style.marker for style in drawn.values()}) == len(drawn)
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)
    assert len({STYLES[name].colour for name in METHODS if name in STYLES}) == len({*METHODS} & {*STYLES})
    for first, other in combinations(STYLES.values(), 2):
        assert first.colour != other.colour or first.line != other.line
    several = styles(["ist", "torch-ddp", "fedprox", "local-sgd", "ist"])
    assert several["ist"] is STYLES["ist"] and sorted(several) == ["fedprox", "ist", "local-sgd", "torch-ddp"]
    assert len({style.colour for style in several.values()}) == len({style.marker for style in several.values()}) == 4
    assert len(styles([*METHODS, *map(str, range(20))])) == len(METHODS) + 20, "more than there are colours"
