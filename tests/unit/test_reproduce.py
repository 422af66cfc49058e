"""Claims and how they are checked: the page, the figures in benchmarks/results, and a claim that is run."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import reporting, reproduce

ROOT = Path(__file__).parents[2]

CLAIMS = reproduce.read()
COMMANDS = [command for claim in CLAIMS for command in (claim.full, claim.quick) if command]
FIGURE_2 = next(claim for claim in CLAIMS if claim.name == "figure-2")


def program(command):
    first, *rest = shlex.split(command)[1:]
    return ROOT.joinpath(*rest[0].split(".")).with_suffix(".py") if first == "-m" else ROOT / first


def test_the_page_is_what_the_claims_say():
    assert (ROOT / "REPRODUCE.md").read_text(encoding="utf-8") == reproduce.page(CLAIMS)


def test_rows_of_the_papers_name_what_there_is():
    rows, claims = reproduce.read_rows(), {claim.name: claim for claim in CLAIMS}
    assert len({row.name for row in rows}) == len(rows) >= 62
    for row in rows:
        assert row.state in reproduce.STATES and row.command and row.figure, row.name
        assert row.file == "-" or (ROOT / "benchmarks" / "results" / row.file).is_file(), row.name
        assert not row.claim or row.claim in claims, row.name
        assert not row.quick or shlex.split(row.quick)[0] in ("istmpi", "mpirun", "python"), row.name
    assert sum(row.choose_claim(claims, True) is not None for row in rows) > 15


def test_commands_are_programs_of_ours_and_nothing_that_was_measured_before_is_used_again():
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    for command in COMMANDS:
        assert shlex.split(command)[0] in ("istmpi", "mpirun") or program(command).is_file(), command
        if command.startswith("python") and '"--cells"' in program(command).read_text(encoding="utf-8"):
            assert "--cells {scratch}/cells" in command, command
    assert sum(claim.minutes[1] for claim in CLAIMS if claim.quick) < 30, "small forms take half an hour"


def test_raw_data_are_named_as_programs_take_them(shared_data):
    """A file where a program reads one, the folder where it finds its files by itself."""
    wanted = {"convolutions": "cifar10.tar", "graphs": "cora.npz", "xc": "reuters-xc.tar.gz"}
    for command in COMMANDS:
        words = shlex.split(command.replace("{raw}", str(shared_data)))
        if "--raw" in words:
            name = program(command).stem
            assert Path(words[words.index("--raw") + 1]) == shared_data / wanted.get(name, "")
            assert (shared_data / wanted.get(name, "")).exists()


def claimed(code, *checks):
    """A claim whose command is this code, without braces, and these checks of what it leaves."""
    return replace(FIGURE_2, quick=f"python -c {shlex.quote(code)}", checks=[*checks])


def test_only_what_the_command_leaves_counts(tmp_path):
    """A report of an earlier run, and what cells it kept, are out of reach; what this run leaves is beside them."""
    (tmp_path / "old.json").write_text('{"rows": [{"x": 2}]}', encoding="utf-8")
    old = claimed("", reproduce.Check("old", "x", least=1))
    assert "x is missing" in reproduce.verdict(old, True, tmp_path, tmp_path)
    path = "pathlib.Path(os.environ['ISTMPI_RESULTS'], 'new.json')"
    write = f"import json, os, pathlib; {path}.write_text(json.dumps(dict(rows=[dict(x=3)])))"
    for least, said in ((1, ": holds: x is 3"), (4, ": does not hold: x is 3")):
        fresh = claimed(write, reproduce.Check("new", "x", least=least))
        assert said in reproduce.verdict(fresh, True, tmp_path, tmp_path)
    assert (tmp_path / "new.json").is_file() and (tmp_path / "old.json").is_file()
    assert "ended with 2" in reproduce.verdict(claimed("raise SystemExit(2)"), True, tmp_path, tmp_path)


@pytest.mark.parametrize("printed", ["Warning: no GPU", "3"])
def test_a_claim_that_prints_no_report_does_not_hold(tmp_path, printed):
    said = reproduce.verdict(claimed(f"print('{printed}')", *FIGURE_2.checks), True, tmp_path, tmp_path)
    assert "does not hold: it printed no report" in said and "\n" not in said


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_recorded_figures_hold(claim):
    """What a full run left in benchmarks/results is within the bounds, where it is recorded there."""
    for check in claim.checks:
        path = ROOT / "benchmarks" / "results" / f"{check.source}.json"
        if check.source != "stdout" and check.only != "quick":
            figure = check.figure(json.loads(path.read_text(encoding="utf-8")))
            assert figure is not None and check.least <= figure <= check.most, check.subject


def test_a_claim_is_run(tmp_path):
    """The paper's Figure 2, whose figures are exact."""
    assert reproduce.verdict(FIGURE_2, True, tmp_path, tmp_path).startswith("figure-2: holds: ")
    claim = replace(CLAIMS[0], needs=("data",))
    assert "not tried, it needs the raw data" in reproduce.verdict(claim, True, tmp_path / "none", tmp_path)
    assert "no small form" in reproduce.verdict(replace(claim, quick=""), True, tmp_path, tmp_path)


def test_figures_are_read_from_tables():
    rows = [{"method": "IST", "P": 8, "s": "7.39*"}, {"method": "local SGD", "P": 8, "s": "107 (90 to 120)"}]
    check = reproduce.Check("x", "s", {"method": "local SGD"}, {"method": "IST", "P": "8"})
    assert check.figure({"rows": rows}) == pytest.approx(107 / 7.39)
    for record in ({"rows": rows[:1]}, {}, {"error": "no"}, {"last": None}, {"rows": []}, {"rows": [{"y": 1}]}):
        assert check.figure(record) is None, "a report without the figure is no error"


def test_stored_cells_are_restored_as_they_were(tmp_path):
    """Equal cells are equal files, and a cell that is there stays."""
    for folder in "cells", "again", "results":
        (tmp_path / folder).mkdir()
    for number in range(3):
        reporting.keep_cell(tmp_path / "cells" / f"{number}.json", f"cell {number}", 0.0, {"loss": number / 3})
    stored = tmp_path / "results" / "x-cells.jsonl.gz"
    contents = []
    for _ in range(2):
        reporting.store_cells("x", (tmp_path / "cells").glob("*.json"), tmp_path / "results")
        contents.append(stored.read_bytes())
    assert contents[0] == contents[1]
    (tmp_path / "again" / "1.json").write_text("kept")
    reporting.restore_cells("x", tmp_path / "again", tmp_path / "results")
    expected = [(tmp_path / "cells" / f"{number}.json").read_text() for number in range(3)]
    assert [path.read_text() for path in sorted((tmp_path / "again").iterdir())] == [expected[0], "kept", expected[2]]
