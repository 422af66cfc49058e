"""What a network of one's own costs: as the built-in one where they are the same, and without torch from its table."""

import json
import subprocess
import sys
from pathlib import Path

import networks
import pytest
from patience import patience

from istmpi.config import Run
from istmpi.config.methods import METHODS
from istmpi.cost import RIVALS, cost, round_bytes
from istmpi.data.sources import open_dataset
from istmpi.models import mlp_network
from istmpi.training.network import plan_network

DRY = "train", "--dry-run", "--ranks"
FILE = Path(networks.__file__)
EXAMPLE = FILE.parents[2] / "examples" / "convnet.py"


def run(name, **settings):
    return Run().override({"model.name": name} | {key.replace("__", "."): value for key, value in settings.items()})


def planned(name, **settings):
    wanted = run(name, **settings)
    return wanted, plan_network(wanted, open_dataset("digits"))


@pytest.fixture(scope="module")
def example():
    return planned(f"{EXAMPLE}:ConvNet")


@pytest.mark.parametrize("norm, bias", [("batch", False), ("layer", True), ("none", True)])
def test_an_mlp_of_ones_own_costs_what_the_built_in_one_does(norm, bias):
    wanted, own = planned(f"{FILE}:Plain", model__norm=norm, model__bias=bias, model__output_norm=norm == "batch")
    network = mlp_network(64, (13, 11), 10, norm=norm, bias=bias, output_norm=norm == "batch")
    assert list(own.parameters) == list(network.parameters)
    for method in (*METHODS, *RIVALS):
        for ranks in (1, 2, 3):
            one, other = (cost(wanted, of, ranks, method) for of in (own, network))
            assert one.loads == other.loads and one.start_bytes == other.start_bytes
            for mine, its in zip(one.parts, other.parts, strict=True):
                assert (mine.flops, mine.memory, mine.touched) == (its.flops, its.memory, its.touched)
            if method in METHODS:
                named = wanted.override({"method.name": method})
                assert round_bytes(named, own, ranks, 1) == round_bytes(named, network, ranks, 1)


def test_all_that_a_plan_needs_is_in_the_table(example, tmp_path):
    """In a process that has neither torch nor the code, as on a login node."""
    wanted, network = example
    path = tmp_path / "table.json"
    path.write_text(json.dumps(network.table.tree()))
    program = (
        "import json, sys\n"
        "from istmpi.config import Run\n"
        "from istmpi.cost import cost\n"
        "from istmpi.network.architecture import Architecture\n"
        "from istmpi.network.table import Table\n"
        f"table = Table.from_tree(json.load(open({str(path)!r})))\n"
        f"plan = cost(Run(), Architecture('net', table, 'float32'), 3)\n"
        "print(plan.round_bytes, plan.flops('products'), plan.largest.memory.total)\n"
        "print(sorted({'torch', 'mpi4py'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60 * patience(), check=True
    )
    plan = cost(wanted, network, 3)
    assert done.stdout.splitlines() == [
        f"{plan.round_bytes} {plan.flops('products')} {plan.largest.memory.total}",
        "[]",
    ]


# ---- the commands


def test_a_dry_run_tells_shapes_bytes_flops_and_memory(istmpi_command, example):
    wanted, network = example
    code, out, err = istmpi_command("train", "--dry-run", "--ranks", 4, "--model", f"{EXAMPLE}:ConvNet")
    assert (code, err) == (0, "")
    assert "ist on 4 ranks, channels1, channels2, hidden dealt out" in out
    plan = cost(wanted, network, 4)
    rows = {line.split("  ")[0]: line.split("  ")[1:] for line in out.splitlines()}
    cells = [cell.strip() for cell in rows["FLOPs a local step"] if cell.strip()]
    assert float(cells[1].split()[0]) == pytest.approx(float(plan.flops("products")) / 1e6, rel=0.01)
    assert [word for word in rows["second.weight"] if word][-2:] == ["64 x 32 x 3 x 3", "16 x 8 x 3 x 3"]


def test_the_cost_model_compares_methods_on_ones_user_network(istmpi_command, example):
    wanted, network = example
    words = "costmodel", "digits", "--model", f"{EXAMPLE}:ConvNet", "--ranks", "1,4"
    code, out, err = istmpi_command(*words, "--json", "--compare", "ist,local-sgd")
    assert (code, err) == (0, "")
    rows = {(row["method"], row["ranks"]): row for row in json.loads(out)["rows"]}
    assert rows["ist", 4]["sent_bytes_per_round"] == float(cost(wanted, network, 4).round_bytes)
    assert rows["local-sgd", 4]["flops_per_step"] == 4 * rows["local-sgd", 1]["flops_per_step"]
    code, out, err = istmpi_command(*words)
    assert (code, err) == (0, "")
    assert "digits: with channels1 32, channels2 64, hidden 128, batch 128 a rank" in out
    code, out, err = istmpi_command("costmodel", "--model", f"{EXAMPLE}:ConvNet", "--hidden", "64", "--advise")
    assert (code, err) == (0, "") and "An example trains" in out
    # What cannot be dealt out is compared without a deal.
    words = "costmodel", "digits", "--model", f"{FILE}:Fixed", "--method", "local-sgd", "--ranks", "2"
    code, out, err = istmpi_command(*words, "--json")
    assert (code, err) == (0, "")
    methods = [row["method"] for row in json.loads(out)["rows"]]
    assert methods == ["data-parallel-broadcast", "data-parallel", "local-sgd"]
    assert istmpi_command(*words[:-2], "--advise")[0] == 0
    assert istmpi_command(*words)[0] == 0


@pytest.mark.parametrize(
    "words, message",
    [
        (["train", "--dry-run", "--model", f"{FILE}:Grouped"], "no width that can be dealt out (channels: exchanging"),
        (
            [*DRY, "2", "--model", f"{FILE}:Steps", "--set", "model.hidden=18"],
            "its constructor fails with hidden = 9: ValueError: 9 is odd",
        ),
        ([*DRY, "9", "--model", f"{FILE}:Steps"], "hidden has 8 units, but the run has 9"),
        (["train", "--dry-run", "--model", f"{EXAMPLE}:ConvNet", "--batch", "1"], "batch statistics need at least 2"),
        (["costmodel", "digits", "--model", f"{FILE}:Fixed"], "no width that can be dealt out (its constructor has no"),
        (["costmodel", "digits", "--model", f"{FILE}:Fixed", "--compare", "ist"], "Use another method"),
        (["costmodel", "--model", f"{FILE}:Fixed", "--layers", "64-10"], "--layers 64-10 with"),
        (["measure", "--model", f"{FILE}:Fixed", "--layers", "64-10"], "gives the widths of an mlp"),
        (["measure", "--model", f"{FILE}:Failing", "--hidden", "8"], "its forward fails on examples of shape 2 x 64"),
        (["train", "--dry-run", "--model", "nowhere.py:Net"], "nowhere.py does not exist"),
    ],
)
def test_what_cannot_be_planned_is_one_line(words, message, istmpi_command):
    code, _, said = istmpi_command(*words)
    assert code == 2 and said.count("\n") == 1 and message in said, said
