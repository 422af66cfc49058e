"""Checks what the README and the papers claim: runs the command of each claim, and looks at the figures that it leaves.

    bin/reproduce                       # all of them: a day on two cores
    bin/reproduce --quick               # in small, under half an hour
    bin/reproduce gist decoder          # these alone
    bin/reproduce rows --quick          # the rows of the papers that seconds suffice for
    bin/reproduce --list                # what there is; REPRODUCE.md is that list

The claims stand in claims.toml. A claim holds where its command ends well and each of its figures is within its bounds.
Figures go into a folder of their own (--out), not over those in benchmarks/results. The exit code is 1 where a claim
does not hold; what cannot be tried here (it needs data, say, that are not there) is said, and is no failure.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
CLAIMS = HERE / "claims.toml"
ROWS = HERE / "rows.toml"
CHEAP = 0.5
"""The most minutes of a claim that `rows --quick` checks."""
STATES = ("holds", "reversed", "in part", "not here")

ABOUT = """# Reproduce

Each claim of the README, and of the papers that istmpi implements, with the command that checks it. `bin/reproduce`
runs all of them, `bin/reproduce NAME` one, `bin/reproduce --quick` their small forms in under half an hour on two
cores; it says of each whether it holds. This page is `bin/reproduce --list`; the claims stand in
[benchmarks/claims.toml](benchmarks/claims.toml). The papers' figures were measured on other machines and data: compare
ratios.
"""
ABOUT_ROWS = """## Rows of the papers

Every system, table, figure and ablation of the papers ([rows.toml](benchmarks/rows.toml)). *Holds*: it works, and the
figure agrees. *Reversed*: it works, and our figure says the opposite. *In part*: something is missing, as the figure
says. *Not here*: the data or machines are missing; the command would run it. `bin/reproduce rows --quick` runs what is
marked with * in minutes and says which hold.

| paper | row | state | figure | command | file |
| --- | --- | --- | --- | --- | --- |"""


@dataclass(frozen=True)
class Check:
    """A figure and its bounds; fields as in claims.toml."""

    source: str
    column: str
    row: Mapping[str, Any] = field(default_factory=dict)
    over: Mapping[str, Any] | None = None
    least: float = -math.inf
    most: float = math.inf
    only: str = ""

    @property
    def subject(self) -> str:
        """Which figure it is."""
        of = f" of {_named(self.row)}" if self.row else ""
        return f"{self.column}{of}" + (f" over that of {_named(self.over)}" if self.over else "")

    @property
    def bounds(self) -> str:
        """What the figure has to be."""
        if self.least == self.most:
            return f"{self.least:g}"
        both = (("at least", self.least), ("at most", self.most))
        return " and ".join(f"{word} {bound:g}" for word, bound in both if math.isfinite(bound))

    def figure(self, record: Mapping[str, Any]) -> float | None:
        """The figure of a report; None where there is no such row or column."""
        rows = [_row(record, wanted) for wanted in (self.row, self.over) if wanted is not None]
        if None in rows:
            return None
        if not all(self.column in row for row in rows):
            return None
        value, *others = (_number(row[self.column]) for row in rows)
        return value / others[0] if others else value


@dataclass(frozen=True)
class Claim:
    """One claim; fields as in claims.toml."""

    name: str
    text: str
    theirs: str
    ours: str
    minutes: tuple[float, float]
    full: str
    checks: Sequence[Check]
    quick: str = ""
    needs: Sequence[str] = ()

    def lacks(self, raw: Path) -> str:
        """What it needs and this machine does not have; empty where there is nothing."""
        for need in self.needs:
            if need == "slow network" and (reason := _obstacle()):
                return f"the emulated slow network, and {reason}"
            if need == "data" and not raw.is_dir():
                return f"the raw data in {raw} (--raw)"
            if need.endswith("GB") and _memory() < float(need.split()[0]):
                return f"{need} of memory"
        return ""


@dataclass(frozen=True)
class Row:
    """A row of the papers; fields as in rows.toml."""

    paper: str
    row: str
    state: str
    command: str
    figure: str
    file: str
    claim: str = ""
    quick: str = ""
    checks: Sequence[Check] = ()

    @property
    def name(self) -> str:
        return f"{self.paper}, {self.row}"

    def choose_claim(self, claims: Mapping[str, Claim], quick: bool) -> Claim | None:
        """Return what checks the row; None where nothing does, or with ``quick`` nothing cheap."""
        if self.quick:
            return Claim(self.name, self.row, "-", self.figure, (1, 1), self.quick, self.checks, self.quick)
        claim = claims.get(self.claim)
        if claim is None or (quick and (not claim.quick or claim.minutes[1] > CHEAP)):
            return None
        return claim

    def describe(self, claims: Mapping[str, Claim]) -> str:
        """Return the row of the table."""
        mark = "*" * (self.choose_claim(claims, True) is not None)
        file = "-" if self.file == "-" else f"[{self.file}](benchmarks/results/{self.file})"
        command = self.command.replace("|", "\\|")
        return f"| {self.paper} | {self.row}{mark} | {self.state} | {self.figure} | `{command}` | {file} |"


def main() -> int:
    """Run the claims that are asked for, and say which hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claims", nargs="*", help="their names; without any all of them")
    parser.add_argument("--quick", action="store_true", help="in small, where a claim has a small form")
    parser.add_argument("--list", action="store_true", help="print the page REPRODUCE.md, and end")
    parser.add_argument(
        "--raw", type=Path, default=HERE.parent.parent / "shared/data", help="raw data (../shared/data)"
    )
    parser.add_argument("--out", type=Path, default=HERE.parent / "reproduced", help="where figures go (reproduced/)")
    options = parser.parse_args()
    claims = read()
    if options.list:
        print(page(claims), end="")
        return 0
    unknown = set(options.claims) - {claim.name for claim in claims} - {"rows"}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such claim; there are {', '.join(one.name for one in claims)}")
    chosen = [claim for claim in claims if not options.claims or claim.name in options.claims]
    if "rows" in options.claims:
        by_name = {claim.name: claim for claim in claims}
        of_rows = [row.choose_claim(by_name, options.quick) for row in read_rows()]
        # Several rows may have one claim.
        chosen = list({claim.name: claim for claim in [*chosen, *filter(None, of_rows)]}.values())
    options.out.mkdir(parents=True, exist_ok=True)
    verdicts = []
    for claim in chosen:
        verdicts.append(verdict(claim, options.quick, options.raw.resolve(), options.out.resolve()))
        print(f"\n{verdicts[-1]}", flush=True)
    print("\n".join(["", f"All {len(chosen)}:", *verdicts]))
    return int(any(": does not hold" in line for line in verdicts))


def read() -> list[Claim]:
    """The claims of claims.toml."""
    claims = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))["claim"]
    return [Claim(**{**claim, "checks": [Check(**check) for check in claim["checks"]]}) for claim in claims]


def read_rows() -> list[Row]:
    """The rows of rows.toml."""
    rows = tomllib.loads(ROWS.read_text(encoding="utf-8"))["row"]
    return [Row(**{**row, "checks": [Check(**check) for check in row.get("checks", ())]}) for row in rows]


def verdict(claim: Claim, quick: bool, raw: Path, out: Path) -> str:
    """Run a claim's command; a line that says whether it holds, and why."""
    command, lacks = claim.quick if quick else claim.full, claim.lacks(raw)
    if not command:
        return f"{claim.name}: has no small form; {claim.minutes[0]:g} minutes in full"
    if lacks:
        return f"{claim.name}: not tried, it needs {lacks}"
    print(f"\n== {claim.name}: {claim.text}", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        words = [word.format(raw=raw, scratch=scratch) for word in shlex.split(command)]
        words[0] = {"python": sys.executable, "mpirun": os.environ.get("MPIRUN", "mpirun")}.get(words[0], words[0])
        print(f"   {shlex.join(words)}", flush=True)
        printed = any(check.source == "stdout" for check in claim.checks)
        results = Path(scratch, "results")  # empty, so that no earlier report or cell is taken for a new one
        results.mkdir()
        environment = {**os.environ, "ISTMPI_RESULTS": str(results)}
        output = subprocess.PIPE if printed else None
        nothing = subprocess.DEVNULL
        done = subprocess.run(words, cwd=HERE.parent, env=environment, stdin=nothing, stdout=output, text=True)
        shutil.copytree(results, out, dirs_exist_ok=True)
        checks = [check for check in claim.checks if check.only in ("", "quick" if quick else "full")]
        reports = {check.source: _report(check.source, done.stdout, results) for check in checks}
    took = f"{(time.monotonic() - start) / 60:.1f} minutes"
    if done.returncode:
        return f"{claim.name}: does not hold: the command ended with {done.returncode} ({took})"
    if None in reports.values():
        return f"{claim.name}: does not hold: it printed no report, but {done.stdout[:80]!r} ({took})"
    holds, said = True, []
    for check in checks:
        figure = check.figure(reports[check.source])
        holds &= figure is not None and check.least <= figure <= check.most
        said.append(f"{check.subject} is {'missing' if figure is None else f'{figure:.4g}'}, wanted {check.bounds}")
    words = "; ".join(said) or "the command ended well"
    return f"{claim.name}: {'holds' if holds else 'does not hold'}: {words} ({took})"


def _report(source: str, printed: str | None, folder: Path) -> Mapping[str, Any] | None:
    """What a command printed, None where that is no report; or left in a folder, empty where it left nothing."""
    if source == "stdout":
        with suppress(ValueError):
            found = json.loads(printed)
            return found if isinstance(found, dict) else None
        return None
    path = folder / f"{source}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"rows": []}


def _row(record: Mapping[str, Any], wanted: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first row with these values, of a report or a comparison; a run's summary has its last score alone."""
    last = record.get("last") or {}
    compared = [row for comparison in record.get("comparisons", ()) for row in comparison["rows"]]
    rows = record.get("rows") or compared or [last.get("score") or {}]
    return next((row for row in rows if all(str(row.get(key)) == str(value) for key, value in wanted.items())), None)


def _number(value: str | int | float) -> float:
    """A figure, of a text the one that it begins with: tables mark some with a star, or give the spread behind."""
    return float(str(value).split()[0].rstrip("*%"))


def _named(row: Mapping[str, Any]) -> str:
    return ", ".join(value if isinstance(value, str) else f"{key} = {value}" for key, value in row.items())


def _obstacle() -> str:
    from benchmarks.emulated import obstacle  # the page is made where istmpi is not installed

    return obstacle()


def _memory() -> float:
    """Of this machine, in GB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def page(claims: Sequence[Claim]) -> str:
    """REPRODUCE.md."""
    by_name = {claim.name: claim for claim in claims}
    text = [ABOUT, ABOUT_ROWS, *(row.describe(by_name) for row in read_rows()), ""]
    only = {"full": ", in full", "quick": ", in small", "": ""}
    for claim in claims:
        full, quick = claim.minutes
        minutes = f"{full:g} minutes" + (f", in small {quick:g}" if claim.quick else "; no small form")
        needs = f" Needs {', '.join(claim.needs)}." if claim.needs else ""
        wanted = [f"{check.subject} is {check.bounds}{only[check.only]}" for check in claim.checks]
        text += [f"## {claim.name}", "", claim.text, "", f"* the papers: {claim.theirs}", f"* ours: {claim.ours}"]
        text += [f"* holds if {'; '.join(wanted) or 'the command ends well'}", f"* {minutes}.{needs}", ""]
        commands = dict.fromkeys(command for command in (claim.full, claim.quick) if command)
        text += ["```", *commands, "```", ""]
    return "\n".join(text)


if __name__ == "__main__":
    sys.exit(main())
