"""What documentation says of istmpi in Python, run as it stands."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def code(page):
    """All Python of a page, in the order of its blocks."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE))


def test_the_script_of_the_librarys_page_runs_as_it_stands(mpirun, tmp_path):
    script = tmp_path / "library.py"
    script.write_text(f"import os; os.chdir({str(tmp_path)!r})\n{code('docs/library.md')}")
    result = mpirun(2, "python", script)
    assert result.returncode == 0, result.stderr
    said = result.stdout
    for number in (1, 2, 3):
        assert len(re.findall(rf"^round {number}: loss \d\.\d+$", said, re.MULTILINE)) == 1, said
    assert re.search(r"^accuracy 0\.\d\d after \d+ local steps$", said, re.MULTILINE)
    assert "rank 0 has 32 of 64 rows" in said and "rank 1 has 32 of 64 rows" in said
    assert re.search(r"^evaluated: accuracy 0\.\d\d of 360 examples$", said, re.MULTILINE), said
    assert "outputs (5, 10)" in said
    dealt = re.search(r"^rank 0 holds units \[(.*)\], rank 1 \[(.*)\]$", said, re.MULTILINE)
    assert sorted(", ".join(dealt.groups()).split(", ")) == list("01234567")
    assert "refused: hidden1 has 1 unit, but the run has 2 ranks" in said
