"""The page for those who keep their loop or come from DDP: its named programs and its command, as they stand."""

import re
import runpy
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "own-loop.md"


def test_both_ways_of_the_page_train_its_network(tmp_path, series, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(# (\w+\.py).*?)^```", text, re.M | re.S)
    assert [name for _, name in programs] == ["ddp.py", "net.py", "make_data.py"]
    for block, name in programs:
        (tmp_path / name).write_text(block)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("make_data.py")
    old = re.search(r"^```python\n(# ddp.py.*?)^```", text, re.M | re.S).group(1)
    diff = re.search(r"^```diff\n(.*?)^```", text, re.M | re.S).group(1).splitlines()
    assert [line[1:] for line in diff if line[:1] != "+"] == old.splitlines()
    assert sum(line[:1] == "+" for line in diff) <= 12
    (tmp_path / "train.py").write_text("\n".join(line[1:] for line in diff if line[:1] != "-") + "\n")
    commands = re.search(r"^```bash\n(.*?)^```", text, re.M | re.S).group(1).splitlines()
    assert len({re.sub(r"--method \S+", "", command) for command in commands}) == 1
    launcher, _, _, *words = commands[-1].split()
    assert (launcher, words[words.index("--method") + 1]) == ("mpirun", "ist")
    program = "import runpy, sys; sys.path.insert(0, '')\nif rank < {}: runpy.run_path('{}', run_name='__main__')"
    steps = {
        "peer": program.format(1, "ddp.py"),
        "program": program.format(2, "train.py"),
        "command": words[words.index("istmpi") + 1 :],
    }
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    for done in series(2, tmp_path, steps, env=alone).end().values():
        assert done.returncode == 0, done.stderr
        assert float(re.search(r"accuracy +(\S+)", done.stdout).group(1).rstrip("%,")) > 0.85, done
    network = torch.load("network.pt")
    assert {name: tuple(values.shape) for name, values in network.items()}["layers.0.weight"] == (256, 20)
