"""What the pages refer to is there: files, headings, settings, and the run files that they show."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import istmpi
from istmpi.config import Run

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
    pairs = [(page, link) for page in PAGES for link in links(page)]
    for page, link in pairs:
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page}: {link} does not exist"
        assert not fragment or fragment in anchors(target), f"{page}: {link}: there is no such heading"


def test_the_site_builds_whole_and_without_a_warning(tmp_path):
    pytest.importorskip("mkdocstrings", reason="needs istmpi[docs]")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", ROOT / "bin/mkdocs.yml"]
    done = subprocess.run(words, env=os.environ | {"ISTMPI_SITE": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "index.html").exists(), done.stderr
    assert list(tmp_path.glob("assets/stylesheets/*.css")) and list(tmp_path.glob("assets/javascripts/*.js"))
    api = (tmp_path / "docs/api/index.html").read_text(encoding="utf-8")
    assert {*istmpi.__all__} == {*re.findall(r'<h3 id="istmpi[\w.]*\.(\w+)"', api)}
    for page in tmp_path.rglob("*.html"):
        for link in re.findall(r"\s(?:href|src)=[\"']?([^\"'\s>#?]+)", page.read_text(encoding="utf-8")):
            target = tmp_path / link[1:] if link.startswith("/") else page.parent / link
            there = re.match(r"[a-z]+:", link) or target.is_file() or (target / "index.html").is_file()
            assert there, f"{page.relative_to(tmp_path)}: {link} is not in the site"


def test_every_run_file_that_is_shown_is_one(tmp_path):
    for page in PAGES:
        for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            file = tmp_path / f"{page.stem}.toml"
            file.write_text(block)
            Run.load(str(file))
