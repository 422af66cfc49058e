"""Own loops in examples/, docs/library.md and docs/own-loop.md: they learn, their exports load, a port is short."""

import difflib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from following import lines

FOLDER = Path(__file__).parents[2] / "examples"
PLAIN = {
    "vae": ("VAE", {"features": 64, "hidden": 32}),
    "multi_task": ("TwoHeads", {"features": 32, "hidden": 32}),
    "contrastive": ("Towers", {"features": 32, "hidden": 32}),
    "lightning_module": ("Digits", {"features": 64, "hidden": 32}),
}
OF_TRANSFORMERS = {
    "masked_language_model": ("Bert", {"intermediate": 32}),
    "lora": ("Lora", {"trunk": "runs/trunk", "rank": 8}),
}
ROUNDS = 10

RUN = """
import runpy, sys, torch
sys.argv = [{name!r}, "ist", str({width}), str({rounds})]
names = runpy.run_path("{folder}/{name}.py", run_name="__main__")
if rank == 0:
    print(names[{kind!r}](**{arguments}).load_state_dict(torch.load("runs/{name}-ist-{width}/network.pt")))
"""
PORT = f"import runpy, sys; sys.argv = ['tagger']; runpy.run_path('{FOLDER}/tagger.py', run_name='__main__')"
PAGE = (FOLDER.parent / "docs" / "library.md").read_text()
LIBRARY = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


# ---- the page for those who keep their loop or come from DDP: its named programs and its command, as they stand
WAYS = (FOLDER.parent / "docs" / "own-loop.md").read_text(encoding="utf-8")
PROGRAMS = {name: text for text, name in re.findall(r"^```python\n(# (\w+\.py).*?)^```", WAYS, re.M | re.S)}
DIFFERENCE = re.search(r"^```diff\n(.*?)^```", WAYS, re.M | re.S).group(1).splitlines()
COMMANDS = re.search(r"^```bash\n(.*?)^```", WAYS, re.M | re.S).group(1).splitlines()
DATA = """
import os, runpy, sys, time
if rank == 0:
    runpy.run_path("make_data.py")
    open("made", "w").close()
while not os.path.exists("made"):
    time.sleep(0.01)
sys.path.insert(0, "")
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
"""


def ways_of_the_page(folder):
    """Write the files of the page; return its steps by name."""
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
    (folder / "train.py").write_text("\n".join(line[1:] for line in DIFFERENCE if line[:1] != "-") + "\n")
    words = COMMANDS[-1].split()
    program = "import runpy\nif rank < {}: runpy.run_path('{}', run_name='__main__')"
    steps = {"peer": program.format(1, "ddp.py"), "program": program.format(2, "train.py")}
    return {"data": DATA, **steps, "command": words[words.index("istmpi") + 1 :]}


def test_both_ways_of_the_page_train_its_network(said, folder):
    assert [*PROGRAMS] == ["ddp.py", "net.py", "make_data.py"]
    assert [line[1:] for line in DIFFERENCE if line[:1] != "+"] == PROGRAMS["ddp.py"].splitlines()
    assert sum(line[:1] == "+" for line in DIFFERENCE) <= 12
    assert len({re.sub(r"--method \S+", "", command) for command in COMMANDS}) == 1
    assert COMMANDS[-1].startswith("mpirun") and "--method ist" in COMMANDS[-1]
    for name in ("peer", "program", "command"):
        assert said[name].returncode == 0, said[name].stderr
        assert float(re.search(r"accuracy +(\S+)", said[name].stdout).group(1).rstrip("%,")) > 0.85, said[name]
    assert torch.load(folder / "network.pt")["layers.0.weight"].shape == (256, 20)


def run_all(examples):
    commands = {}
    for name, (kind, arguments) in examples.items():
        *_, width = arguments.values()
        facts = {"name": name, "kind": kind, "arguments": arguments, "width": width}
        commands[name] = RUN.format(rounds=ROUNDS, folder=FOLDER, **facts)
    return commands


@pytest.fixture(scope="module")
def said(series, folder):
    """The outcomes of programs of one job."""
    examples = run_all(PLAIN)
    if find_spec("transformers"):
        examples |= run_all(OF_TRANSFORMERS)
    examples |= {"port": PORT, "library": LIBRARY, "library again": LIBRARY, **ways_of_the_page(folder)}
    return series(2, folder, examples).end(400)


def test_the_script_of_the_librarys_page_runs_as_it_stands_and_a_second_time(said):
    assert said["library"].returncode == said["library again"].returncode == 0, said
    text = said["library"].stdout
    for number in (1, 2, 3):
        assert len(re.findall(rf"^round {number}: loss \d\.\d+$", text, re.MULTILINE)) == 1, text
    assert re.search(r"^accuracy 0\.\d\d after \d+ local steps$", text, re.MULTILINE)
    assert "rank 0 has 32 of 64 rows" in text and "rank 1 has 32 of 64 rows" in text
    assert re.search(r"^evaluated: accuracy 0\.\d\d of 360 examples$", text, re.MULTILINE), text
    assert "outputs (5, 10)" in text
    dealt = re.search(r"^rank 0 holds units \[(.*)\], rank 1 \[(.*)\]$", text, re.MULTILINE)
    assert sorted(", ".join(dealt.groups()).split(", ")) == list("01234567")
    assert "refused: hidden1 has 1 unit, but the run has 2 ranks" in text


@pytest.mark.parametrize("name", [*PLAIN, *OF_TRANSFORMERS])
def test_a_loop_learns_and_exports_what_the_class_loads(said, folder, name):
    if name not in said:
        pytest.skip("transformers is not installed; pip install 'istmpi[examples]' brings it")
    done = said[name]
    assert done.returncode == 0 and "<All keys matched successfully>" in done.stdout, done
    (metrics,) = folder.glob(f"runs/{name}-*/metrics.jsonl")
    first, *_, last = lines(metrics.parent)
    assert last["loss"] < 0.95 * first["loss"]
    assert len(re.findall(f"{ROUNDS} rounds in \\d+ s, .* MB sent", done.stdout)) == 1


def read_code(name):
    """Read an example's lines below its docstring, without empty ones."""
    return [line for line in (FOLDER / name).read_text().split('"""', 2)[2].splitlines() if line]


def test_a_port_of_a_plain_script_has_at_most_20_new_lines_and_trains_as_well(said):
    difference = difflib.ndiff(read_code("tagger_before.py"), read_code("tagger.py"))
    assert sum(line.startswith("+ ") for line in difference) <= 20
    done = said["port"]
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"^best accuracy (.*)$", done.stdout, re.MULTILINE)
    assert float(accuracy) > 0.85


def test_the_commands_of_the_page_on_fine_tuning_train(mpirun, tmp_path, monkeypatch):
    if not find_spec("transformers"):
        pytest.skip("transformers is not installed; pip install 'istmpi[examples]' brings it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "examples").symlink_to(FOLDER)
    page = (FOLDER.parent / "docs" / "fine-tuning.md").read_text()
    sent = []
    for line in re.findall(r"^mpirun -n 2 (python examples/fine_tuning.*)$", page, re.MULTILINE):
        done = mpirun(2, *re.sub(r"\s+#.*", "", line).split(), timeout=200)
        assert done.returncode == 0, done.stderr
        sent.append(float(re.search(r"2 rounds in \d+ s, (\S+) MB sent", done.stdout)[1]))
    assert len(sent) == 2 and min(sent) > 0
