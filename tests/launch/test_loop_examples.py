"""Own loops in examples/: the loss falls, what they export is a network of the plain class, and a port is short."""

import difflib
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

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

# One job runs several, for most of what a job takes is its imports.
RUN_ALL = """
import json, runpy, sys
import istmpi, torch
world = istmpi.world()
for name, (kind, arguments) in json.loads(sys.argv[2]).items():
    *_, width = arguments.values()
    sys.argv = [name, "ist", str(width), sys.argv[-1]]
    names = runpy.run_path(f"{folder}/{name}.py", run_name="__main__")
    if world.rank == 0:
        print(f"{name}:", names[kind](**arguments).load_state_dict(torch.load(f"runs/{name}-ist-{width}/network.pt")))
    world.barrier()
""".replace("{folder}", str(FOLDER))


@pytest.mark.parametrize("package, examples", [("", PLAIN), ("transformers", OF_TRANSFORMERS)], ids=["plain", "others"])
def test_a_loop_learns_and_exports_what_the_class_loads(mpirun, tmp_path, monkeypatch, package, examples):
    if package and not find_spec(package):
        pytest.skip(f"{package} is not installed; pip install 'istmpi[examples]' brings it")
    monkeypatch.chdir(tmp_path)
    done = mpirun(2, "python", "-c", RUN_ALL, "examples", json.dumps(examples), ROUNDS, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\w+): <All keys matched successfully>$", done.stdout, re.MULTILINE) == [*examples]
    for name in examples:
        (metrics,) = tmp_path.glob(f"runs/{name}-*/metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        assert lines[-1]["loss"] < 0.95 * lines[0]["loss"], name
        text = f"{ROUNDS} rounds in \\d+ s, .* MB sent"
    assert len(re.findall(text, done.stdout)) == len(examples)


def read_code(name):
    """Read an example's lines below its docstring, without empty ones."""
    return [line for line in (FOLDER / name).read_text().split('"""', 2)[2].splitlines() if line]


def test_a_port_of_a_plain_script_has_at_most_20_new_lines_and_trains_as_well(mpirun, tmp_path, monkeypatch):
    lines = difflib.ndiff(read_code("tagger_before.py"), read_code("tagger.py"))
    assert sum(line.startswith("+ ") for line in lines) <= 20
    monkeypatch.chdir(tmp_path)
    done = mpirun(2, "python", FOLDER / "tagger.py", timeout=200)
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
