"""Other people's networks in examples/: what is found out of them, where their package is there (istmpi[examples])."""

import re
from pathlib import Path

import pytest

from istmpi.inspection.examine import inspect
from istmpi.network.arguments import user_network
from istmpi.network.table import ResidualBlock
from istmpi.tasks import NEXT_TOKEN, NODE_CLASSES

FOLDER = Path(__file__).parents[2] / "examples"
IMAGE = (3, 16, 16)


WITH_DATA = ("segmentation.py", "two_targets.py")
"""Whole examples, each with its data set, its loss and its score."""
LOOPS = {path.name for path in FOLDER.glob("*.py") if "istmpi.Distributed" in path.read_text()}
WRAPPERS = {path.name for path in FOLDER.glob("*.py")} - {"convnet.py", *WITH_DATA, *LOOPS}


@pytest.mark.parametrize("file", [*WITH_DATA, *sorted(LOOPS)])
def test_an_example_has_less_than_80_lines(file):
    assert (FOLDER / file).read_text().count("\n") < 80


@pytest.mark.parametrize("file", sorted(WRAPPERS))
def test_a_wrapper_has_at_most_15_lines(file):
    text = re.sub(r'""".*?"""', "", (FOLDER / file).read_text(), flags=re.DOTALL)
    assert 0 < len([line for line in text.splitlines() if line.strip()]) <= 15


def table(name, package, **settings):
    pytest.importorskip(package, reason=f"{package} is not installed; pip install 'istmpi[examples]' brings it")
    return inspect(user_network(f"{FOLDER}/{name}", IMAGE, 10, settings))


@pytest.mark.filterwarnings("default")  # what others' packages warn of
def test_a_llama_is_dealt_out_by_heads_and_feed_forward_units():
    found = table("llama.py:Llama", "transformers", num_attention_heads=4)
    widths = {"num_attention_heads": 4, "intermediate_size": 256, "hidden_size": 96}
    assert found.groups == {"layers": 2, **widths} and "layers" not in found.dealt
    layer = "llama.model.layers.0"
    assert found.blocks["layers"][0] == ResidualBlock(layer, (f"{layer}.self_attn.o_proj", f"{layer}.mlp.down_proj"))
    assert list(found.residual) == ["hidden_size"]
    axes = {name.rpartition("0.")[2]: one.axes for name, one in found.parameters.items()}
    heads = "(layers[0] num_attention_heads 16) hidden_size"
    assert axes["self_attn.q_proj.weight"] == axes["self_attn.v_proj.weight"] == heads
    assert axes["self_attn.o_proj.weight"] == "(layers[0] hidden_size) (num_attention_heads 16)"
    assert axes["mlp.gate_proj.weight"] == "(layers[0] intermediate_size) hidden_size"
    assert axes["mlp.down_proj.weight"] == "(layers[0] hidden_size) intermediate_size"
    assert not found.undealt
    sums = {name.rpartition(".")[2]: of for name, of in found.sums.items()}
    assert (sums["o_proj"], sums["down_proj"]) == (("num_attention_heads",), ("intermediate_size",))
    assert "llama.lm_head.weight" not in found.parameters  # tied to the embedding


@pytest.mark.filterwarnings("default")
def test_a_vision_transformer_is_dealt_out_by_heads_and_feed_forward_units():
    found = table("vit.py:ViT", "timm", num_heads=4)
    assert found.groups == {"num_heads": 4, "mlp_hidden": 256, "depth": 2} and "depth" not in found.dealt
    axes = {name: one.axes for name, one in found.parameters.items()}
    assert (axes["blocks.1.attn.qkv.weight"], axes["blocks.1.attn.qkv.bias"]) == (
        "(depth[1] 3 num_heads 16) 64",
        "(depth[1] 3 num_heads 16)",
    )
    assert axes["blocks.1.attn.proj.weight"] == "(depth[1] 64) (num_heads 16)"
    layers = axes["blocks.0.mlp.fc1.weight"], axes["blocks.0.mlp.fc2.weight"]
    assert layers == ("(depth[0] mlp_hidden) 64", "(depth[0] 64) mlp_hidden")


@pytest.mark.filterwarnings("default")
def test_a_gpt2_is_dealt_out_by_whole_layers_and_by_nothing_else():
    pytest.importorskip("transformers", reason="transformers is not installed; istmpi[examples] brings it")
    small = {"n_layer": 3, "n_embd": 32}
    found = inspect(user_network(f"{FOLDER}/gpt2.py:GPT2", (8,), 50, small, NEXT_TOKEN))
    assert found.groups == {"n_layer": 3} and found.dealt == ("n_layer",)
    layer = "gpt2.transformer.h.1"
    assert found.blocks["n_layer"][1] == ResidualBlock(layer, (f"{layer}.attn.c_proj", f"{layer}.mlp.c_proj"))
    assert "no parameter's shape depends on it" in found.undealt["n_head"]
    assert "exchanging its units changes the outputs" in found.undealt["n_embd"]


@pytest.mark.filterwarnings("default")
def test_a_llama_for_text_is_dealt_out_by_heads_and_feed_forward_units():
    pytest.importorskip("transformers", reason="transformers is not installed; istmpi[examples] brings it")
    small = {"num_attention_heads": 4, "intermediate_size": 24, "hidden_size": 48, "layers": 2}
    found = inspect(user_network(f"{FOLDER}/llama_text.py:Llama", (8,), 50, small, NEXT_TOKEN))
    assert found.dealt == ("num_attention_heads", "intermediate_size") and found.groups["layers"] == 2


def test_an_lstm_for_text_is_dealt_out_by_its_state():
    found = inspect(user_network(f"{FOLDER}/lstm_text.py:Lstm", (8,), 50, {"embed": 6, "hidden": 10}, NEXT_TOKEN))
    assert found.groups == {"embed": 6, "hidden": 10} and found.dealt == ("hidden",)
    assert found.folded["cell.weight_hh_l1"] == ("hidden",) and not found.unscaled


@pytest.mark.filterwarnings("default")
def test_graph_convolutions_of_pyg_are_dealt_out_by_hidden_units():
    pytest.importorskip("torch_geometric", reason="torch_geometric is not installed; istmpi[examples] brings it")
    found = inspect(user_network(f"{FOLDER}/gcn_pyg.py:Gcn", (9,), 3, {"hidden": 12}, NODE_CLASSES))
    assert found.groups == {"hidden": 12} and found.folded == {"last.lin.weight": ("hidden",)}
    assert found.parameters["first.lin.weight"].axes == "hidden 9" and found.stochastic


@pytest.mark.filterwarnings("default")
def test_a_mixtral_is_dealt_out_by_its_experts():
    pytest.importorskip("transformers", reason="transformers is not installed; istmpi[examples] brings it")
    small = {"experts": 8, "intermediate_size": 16, "layers": 2}
    found = inspect(user_network(f"{FOLDER}/mixtral.py:Mixtral", (8,), 50, small, NEXT_TOKEN))
    assert found.dealt == ("experts",) and found.groups == {"experts": 8, "intermediate_size": 16, "layers": 2}
    axes = {name.rpartition("0.mlp.")[2]: one.axes for name, one in found.parameters.items()}
    assert axes["experts.gate_up_proj"] == "(layers[0] experts) (2 intermediate_size) 64"
    assert all("experts" not in groups for groups in (*found.sums.values(), *found.folded.values()))
    made = [str(one.shape) for one in found.operators if one.parameter.endswith("0.mlp.experts.gate_up_proj")]
    assert made == ["(layers[0] 16) 64 (2 intermediate_size)"]


@pytest.mark.filterwarnings("default")
def test_an_efficientnet_is_dealt_out_by_what_its_blocks_expand_to():
    found = table("efficientnet.py:Net", "timm", expand=[2, 3], wide=10)
    assert found.groups == {"expand1": 2, "expand2": 3, "wide": 10} and {*found.dealt} == {*found.groups}
    assert found.parameters["blocks.1.0.conv_dw.weight"].axes == "(expand2 8) 1 3 3"
    assert "blocks.1.0.bn2" in found.norms and found.sums["classifier"] == ("wide",)
