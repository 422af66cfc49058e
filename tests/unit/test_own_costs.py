"""What a network of one's own costs: as the built-in one where they are the same, and what a plan tells of it."""

import json
from pathlib import Path

import networks
import pytest

from istmpi.config import Run
from istmpi.config.methods import METHODS
from istmpi.cost import RIVALS, cost, round_bytes
from istmpi.data.sources import open_dataset
from istmpi.models import mlp_network
from istmpi.training.network import plan_network
from tests.networks import trap_nets

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


@pytest.mark.parametrize("norm, bias", [("batch", False), ("layer", True)])
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


def test_the_cost_model_compares_methods_on_ones_user_network(istmpi_command, answer, example):
    wanted, network = example
    words = "costmodel", "digits", "--model", f"{EXAMPLE}:ConvNet", "--ranks", "1,4"
    out = answer(*words, "--json", "--compare", "ist,local-sgd")
    rows = {(row["method"], row["ranks"]): row for row in json.loads(out)["rows"]}
    assert rows["ist", 4]["sent_bytes_per_round"] == float(cost(wanted, network, 4).round_bytes)
    assert rows["local-sgd", 4]["flops_per_step"] == 4 * rows["local-sgd", 1]["flops_per_step"]
    assert "digits: with channels1 32, channels2 64, hidden 128, batch 128 a rank" in istmpi_command(*words)[1]
    assert "An example trains" in istmpi_command(*words[:1], *words[2:4], "--hidden", "64", "--advise")[1]
    # What cannot be dealt out is compared without a deal.
    words = "costmodel", "digits", "--model", f"{FILE}:Fixed", "--method", "local-sgd"
    methods = [row["method"] for row in json.loads(answer(*words, "--ranks", "2", "--json"))["rows"]]
    assert methods == ["data-parallel-broadcast", "data-parallel", "local-sgd"]
    assert istmpi_command(*words, "--advise")[0] == 0


NUMBERED = f"{trap_nets.__file__}:Numbered"
STEPS = "train", "--dry-run", "--model", f"{FILE}:Steps", "--ranks", "2", "--set", "model.hidden=18"
SMALL = ("model.blocks=[1,1]", "model.channels=[4,6]", "model.inner=[5,7]", "model.exits=[1]")
EXITS = "train", "--dry-run", "--model", "resnet", *(word for one in SMALL for word in ("--set", one)), "--set"


@pytest.mark.parametrize(
    "words, message",
    [
        (["train", "--dry-run", "--model", NUMBERED], "no width that can be dealt out (hidden: exchanging"),
        (STEPS, "its constructor fails with hidden = 9: ValueError: 9 is"),
        ([*EXITS, "train.exit_weights=[1, 2, 3]"], "resnet has 2 outputs, including the last. Give 2 numbers"),
        ([*EXITS, "train.exit_weights=[0, 0]"], "has no weight above 0"),
        ([*EXITS[:2], "--set", "train.exit_weights=[1, 2]"], "has 1 output, including the last. Leave it out"),
        (["costmodel", "digits", "--model", f"{FILE}:Fixed"], "no width that can be dealt out (its constructor has no"),
        (["costmodel", "digits", "--model", f"{FILE}:Fixed", "--compare", "ist"], "Use another method"),
        (["costmodel", "--model", f"{FILE}:Fixed", "--layers", "64-10"], "--layers 64-10 with"),
        (["measure", "--model", f"{FILE}:Fixed", "--layers", "64-10"], "gives the widths of an mlp"),
    ],
)
def test_what_cannot_be_planned_is_one_line(words, message, refusal):
    assert message in refusal(*words)
