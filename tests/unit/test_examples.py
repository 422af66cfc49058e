"""Other people's networks in examples/: what is found out of them, where their package is there (istmpi[examples])."""

import re
from pathlib import Path

import pytest

from istmpi.models.blocks import ResidualBlock
from istmpi.models.examination import examine
from istmpi.models.own import own_network

FOLDER = Path(__file__).parents[2] / "examples"
IMAGE = (3, 16, 16)


@pytest.mark.parametrize("file", ["llama.py", "vit.py"])
def test_a_wrapper_has_at_most_15_lines(file):
    text = re.sub(r'""".*?"""', "", (FOLDER / file).read_text(), flags=re.DOTALL)
    assert 0 < len([line for line in text.splitlines() if line.strip()]) <= 15


def table(name, package, **settings):
    pytest.importorskip(package, reason=f"{package} is not installed; pip install 'istmpi[examples]' brings it")
    return examine(own_network(f"{FOLDER}/{name}", IMAGE, 10, settings))


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
    assert found.groups == {"num_heads": 4, "mlp_hidden": 256}
    axes = {name: one.axes for name, one in found.parameters.items()}
    assert (axes["blocks.1.attn.qkv.weight"], axes["blocks.1.attn.qkv.bias"]) == (
        "(3 num_heads 16) 64",
        "(3 num_heads 16)",
    )
    assert axes["blocks.1.attn.proj.weight"] == "64 (num_heads 16)"
    assert (axes["blocks.0.mlp.fc1.weight"], axes["blocks.0.mlp.fc2.weight"]) == ("mlp_hidden 64", "64 mlp_hidden")
