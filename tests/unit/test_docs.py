"""What the pages refer to is there: files, headings, settings, and the run files that they show."""

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import click
import pytest

import istmpi
from benchmarks import reproduce
from benchmarks.scale import link_rates
from istmpi.cli.main import COMMANDS
from istmpi.cli.main import istmpi as command_line
from istmpi.cli.run_options import resolve
from istmpi.config import Run, shipped
from istmpi.cost import cost
from istmpi.errors import ConfigError, DataError
from istmpi.models import mlp_network

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])


@cache
def anchors(page):
    """The fragments that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = []
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.append(f"{name}-{found.count(name)}" if name in found else name)
    return found


def links(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"https?:", link)]


def test_every_link_leads_somewhere():
    for page, link in ((place, link) for place in PAGES for link in links(place)):
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page}: {link} does not exist"
        assert not fragment or fragment in anchors(target), f"{page}: {link}: there is no such heading"


def test_every_decision_and_page_that_code_names_is_in_an_installation():
    decisions = {path.name[:2] for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}
    pages = decisions | {str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")}
    for path in (ROOT / "istmpi").rglob("*.py"):
        assert {*re.findall(r"(?<=# decision )\d+(?=:)|[\w/.-]+\.md", path.read_text(encoding="utf-8"))} <= pages, path


def test_every_month_of_the_log_has_a_file_and_a_line_in_its_index():
    index = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    months = [path.stem for path in sorted((ROOT / "docs" / "log").glob("*.md"))]
    assert sorted(re.findall(r"\]\(log/([\d-]+)\.md\)", index)) == months
    assert not re.findall(r"^## ", index, re.M), "entries go to the month's file"
    for month in months:
        text = (ROOT / "docs" / "log" / f"{month}.md").read_text(encoding="utf-8")
        dates = re.findall(r"^## (\S+): ", text, re.M)
        assert dates == sorted(dates) and {date[:7] for date in dates} == {month}, month


def test_the_site_builds_whole_and_without_a_warning(tmp_path):
    pytest.importorskip("mkdocstrings", reason="needs istmpi[docs]")
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    for path in ROOT.glob("[!.]*"):  # an environment beside the pages has ten thousand files to look at
        (source / path.name).symlink_to(path)
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", source / "tools/mkdocs.yml"]
    done = subprocess.run(words, env=os.environ | {"ISTMPI_SITE": str(site)}, capture_output=True, text=True)
    assert done.returncode == 0 and (site / "index.html").exists(), done.stderr
    assert list(site.glob("assets/stylesheets/*.css")) and list(site.glob("assets/javascripts/*.js"))
    api = (site / "docs/api/index.html").read_text(encoding="utf-8")
    assert {*istmpi.__all__} == {*re.findall(r'<h3 id="istmpi[\w.]*\.(\w+)"', api)}
    for page in site.rglob("*.html"):
        for link in re.findall(r"\s(?:href|src)=[\"']?([^\"'\s>#?]+)", page.read_text(encoding="utf-8")):
            target = site / link[1:] if link.startswith("/") else page.parent / link
            there = re.match(r"[a-z]+:", link) or target.is_file() or (target / "index.html").is_file()
            assert there, f"{page.relative_to(site)}: {link} is not in the site"


def test_every_run_file_that_is_shown_is_one(tmp_path):
    for page in PAGES:
        for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            file = tmp_path / f"{page.stem}.toml"
            file.write_text(block)
            Run.load(str(file))


def test_no_block_reads_a_network_of_a_run_whose_folder_it_does_not_name():
    """Without --out, a run of a folder that has runs/NAME already is runs/NAME-2."""
    for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        for block in re.findall(r"^```\w*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
            if "istmpi train" in block:
                read = set(re.findall(r"runs/([\w-]+)/network\.h5", block))
                assert read <= set(re.findall(r"--out runs/([\w-]+)", block)), f"{page}: {block}"


README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"
DIGITS, CIFAR = "spoken digits 4096-4096-10", "CIFAR-10 3072-4096-4096-10"
REACHED = {DIGITS: "0.92", CIFAR: "0.455"}


def rows(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.startswith("|")]


def measured(method):
    """The seconds of a method to each accuracy; * after those that were computed."""
    for network, accuracy in REACHED.items():
        key = [network, "8", "20", "200", accuracy, method]
        (row,) = [row for row in rows(RESULTS / "time-to-accuracy.md") if row[:6] == key]
        yield float(row[9]), "*" * (row[13] == "composed")


def controlled(networks, method):
    """The seconds of a control, which are all computed."""
    for network, accuracy in zip(networks, REACHED.values()):
        (row,) = [row for row in rows(RESULTS / "controls.md") if row[:3] == [network, "alike", method]]
        yield float(re.search(rf"{accuracy} in \d+ steps, ([\d.]+) s", row[-1])[1]), "*"


def sent(method, features=4096, hidden=(4096,), ranks=8, rounds=12, redeal=1.0):
    """The MB of rounds of 20 steps, as the cost model counts them; by default of 240 steps on the digits."""
    run = Run().override({"method.name": method, "method.local_steps": 20, "method.redeal": redeal})
    plan = cost(run, mlp_network(features, hidden, 10), ranks)
    return float(rounds * plan.round_bytes + plan.start_bytes) / 1e6


def test_the_first_table_of_readme_has_the_figures_of_the_results():
    narrow = ["spoken digits 4096-512-10", "CIFAR-10 3072-512-512-10"]
    expected = [
        ([*measured("data parallel")], sent("data-parallel")),
        ([*measured("local SGD")], sent("local-sgd")),
        ([*measured("IST")], sent("ist")),
        ([*measured("IST, a tenth redealt")], sent("ist", redeal=0.1)),
        (controlled([DIGITS, CIFAR], "IST, never redealt"), sent("ist", redeal=0.0)),
        (controlled(narrow, "narrow network, local SGD"), sent("local-sgd", hidden=(512,))),
    ]
    shown = [row[1:] for row in rows(ROOT / "README.md")[2:]]
    for (*cells, megabytes), (seconds, total) in zip(shown, expected, strict=True):
        for cell, (figure, computed) in zip(cells, seconds, strict=True):
            number = cell.removesuffix("*")
            digits = len(number.replace(".", "").rstrip("0") or "0")
            assert float(number) == float(f"{figure:.{digits}g}") and cell[len(number) :] == computed, cell
        assert float(megabytes.replace(",", "")) == pytest.approx(total, rel=0.005)
    assert [row[0].endswith("†") for row in rows(ROOT / "README.md")[2:]] == [False] * 4 + [True] * 2


def test_the_two_cases_of_readme_have_the_figures_of_the_results():
    """Accuracies from the tables with weight decay, megabytes from the cost model."""
    tables = rows(ROOT / "docs" / "results.md")
    decayed = {row[0]: row[3].split()[0] for row in tables if len(row) == 4}
    assert f"separately trained subnets: {decayed['IST, never redealt, side by side']}% on" in README
    assert sent("ist", 768, (512, 512), 4, 200, redeal=0.0) == 0
    for title, method in {"SparseLoCo": "sparse-loco", "local SGD": "local-sgd"}.items():
        megabytes = f"{sent(method, 768, (128, 128), 4, 200):.0f} MB"
        assert f"{megabytes} ({title}, {decayed[f'narrow network, {title}']}%)" in README
    (tuned,) = [row for row in tables if row[0] == "CIFAR-10, 16 (five seeds)"]
    sparse, ensemble = (cell.split(", ")[1].split()[0] for cell in tuned[2:4])
    assert (
        f"{sparse}% for about as many bytes (SparseLoCo)" in README.replace("\n ", "") and f"{ensemble}% for" in README
    )


@pytest.mark.parametrize(
    ("said", "page", "sources"),
    [
        ("1.1 GB into .venv", "quickstart.md", ["| `.venv` | 1,149 MB"]),
        ("a first run, 3-6 minutes", "quickstart.md", ["178 s in all", "| the prediction is printed | | 347 |"]),
        ("# 15-60 minutes", "tests.md", ["tests cut | idle | 15:34 |", "a slow machine | 57 |"]),
    ],
)
def test_what_readme_says_of_time_and_room_was_measured(said, page, sources):
    text = (RESULTS / page).read_text(encoding="utf-8")
    assert said in README and all(source in text for source in sources)


def test_the_page_has_the_lines_that_the_code_makes():
    page = link_rates.PAGE.read_text(encoding="utf-8").splitlines()
    first = page.index(link_rates.head()[0])
    wanted = [*link_rates.head(), *link_rates.lines(link_rates.DECLARED)]
    assert page[first : first + len(wanted)] == wanted


def shown_commands():
    """(place, words) of every istmpi command of rows.toml, and of blocks of code in pages and help texts."""
    lines = [(row.name, text) for row in reproduce.read_rows() for text in (row.command, row.quick)]
    for page in [*PAGES, *ROOT.glob("istmpi/cli/commands/*.py")]:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        blocks = re.findall(r"^```(?:bash|sh)?\n(.*?)^```", text, re.M | re.S)
        indented = re.findall(r"^ {4}(?:istmpi|mpirun) .*", text, re.M)
        lines += [(page, line) for line in [*"".join(blocks).splitlines(), *indented]]
    names = "|".join(name.rstrip("*") for name in COMMANDS)
    for place, line in lines:
        begins = [match.start() for match in re.finditer(rf"(?<![^\s;])istmpi (?=({names})(?:\s|$))", line)]
        for begin, end in zip(begins, [*begins[1:], None]):
            words = shlex.split(re.split(r"\s*[;|&>]| #", line[begin:end])[0])[1:]
            yield place, [re.sub(r"\$\w+", "1", word) for word in words if not re.match(r"\$[A-Z]{2}|\.\.\.$", word)]


def parsed(words):
    command = command_line
    while isinstance(command, click.Group) and words:
        with click.Context(command) as context:
            command = command.get_command(context, words[0])
        words = words[1:]
    return command.make_context("istmpi", [*words]).params


def test_every_command_that_is_shown_parses_and_its_run_is_no_data(monkeypatch):
    monkeypatch.chdir(ROOT)
    commands = [*shown_commands()]
    assert len(commands) > 150
    for place, words in commands:
        try:
            values = parsed(words)
            run = values.pop("run", "")
            assert not run or run in shipped() or re.match(r"RUN$|.*\.toml$|runs/", run), f"{place}: {words}"
            if words[0] in ("train", "simulate", "costmodel"):
                resolve(run if run in shipped() else None, values.pop("assignments"), values)
        except (click.ClickException, ConfigError) as error:
            pytest.fail(f"{place}: istmpi {shlex.join(words)}: {error}")
        except DataError:  # a logger that is not installed
            assert "--log" in words, place


def test_a_command_that_goes_on_in_the_next_line_says_so():
    for page in PAGES:
        for block in re.findall(r"^```(?:bash|sh)?\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            assert not re.search(r"[^\\]\n +--\w", block), f"{page}: {block}"
