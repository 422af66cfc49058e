"""Other people's networks in examples/: what is found out of them, where their package is there (istmpi[examples])."""

import re
from pathlib import Path

import pytest

from istmpi.inspection.examine import inspect
from istmpi.network.arguments import user_network
from istmpi.tasks import NEXT_TOKEN, NODE_CLASSES

FOLDER = Path(__file__).parents[2] / "examples"


WITH_DATA = ("segmentation.py", "two_targets.py")
"""Whole examples, each with its data set, its loss and its score."""
LOOPS = {path.name for path in FOLDER.glob("*.py") if "istmpi.Distributed" in path.read_text()}
OTHERS = {"convnet.py", "lars.py", "tagger_before.py"}
"""A network of its own, an optimizer, and a script without istmpi."""
WRAPPERS = {path.name for path in FOLDER.glob("*.py")} - {*OTHERS, *WITH_DATA, *LOOPS}


def test_an_example_has_less_than_80_lines_and_a_wrapper_at_most_15():
    for file in {*WITH_DATA, *LOOPS} - {"tagger.py"}:  # the port of a longer script
        assert (FOLDER / file).read_text().count("\n") < 80, file
    for file in WRAPPERS:
        text = re.sub(r'""".*?"""', "", (FOLDER / file).read_text(), flags=re.DOTALL)
        assert 0 < len([line for line in text.splitlines() if line.strip()]) <= 15, file


IMAGES = {"shape": (3, 16, 16), "outputs": 10}
TEXT = {"shape": (8,), "outputs": 50, "task": NEXT_TOKEN}
NODES = {"shape": (9,), "outputs": 3, "task": NODE_CLASSES}
EXAMPLES = {
    "llama.py:Llama": (
        ("transformers", IMAGES, {"num_attention_heads": 4}),
        {"num_attention_heads": 4, "intermediate_size": 256, "hidden_size": 96, "layers": 2},
        {"num_attention_heads", "intermediate_size"},
        {
            "layers.0.self_attn.q_proj.weight": "(layers[0] num_attention_heads 16) hidden_size",
            "layers.0.self_attn.o_proj.weight": "(layers[0] hidden_size) (num_attention_heads 16)",
            "layers.0.mlp.down_proj.weight": "(layers[0] hidden_size) intermediate_size",
        },
    ),
    "llama_text.py:Llama": (
        ("transformers", TEXT, {"num_attention_heads": 4, "intermediate_size": 24, "hidden_size": 48, "layers": 2}),
        {"num_attention_heads": 4, "intermediate_size": 24, "hidden_size": 48, "layers": 2},
        {"num_attention_heads", "intermediate_size"},
        {},
    ),
    "vit.py:ViT": (
        ("timm", IMAGES, {"num_heads": 4}),
        {"num_heads": 4, "mlp_hidden": 256, "depth": 2},
        {"num_heads", "mlp_hidden"},
        {
            "blocks.1.attn.qkv.weight": "(depth[1] 3 num_heads 16) 64",
            "blocks.1.attn.proj.weight": "(depth[1] 64) (num_heads 16)",
            "blocks.0.mlp.fc2.weight": "(depth[0] 64) mlp_hidden",
        },
    ),
    "gpt2.py:GPT2": (("transformers", TEXT, {"n_layer": 3, "n_embd": 32}), {"n_layer": 3}, {"n_layer"}, {}),
    "lstm_text.py:Lstm": (("torch", TEXT, {"embed": 6, "hidden": 10}), {"embed": 6, "hidden": 10}, {"hidden"}, {}),
    "gcn_pyg.py:Gcn": (
        ("torch_geometric", NODES, {"hidden": 12}),
        {"hidden": 12},
        {"hidden"},
        {"first.lin.weight": "hidden 9"},
    ),
    "mixtral.py:Mixtral": (
        ("transformers", TEXT, {"experts": 8, "intermediate_size": 16, "layers": 2}),
        {"experts": 8, "intermediate_size": 16, "layers": 2},
        {"experts"},
        {"0.mlp.experts.gate_up_proj": "(layers[0] experts) (2 intermediate_size) 64"},
    ),
    "efficientnet.py:Net": (
        ("timm", IMAGES, {"expand": [2, 3], "wide": 10}),
        {"expand1": 2, "expand2": 3, "wide": 10},
        {"expand1", "expand2", "wide"},
        {"blocks.1.0.conv_dw.weight": "(expand2 8) 1 3 3"},
    ),
}
"""Their arguments; then the widths that are found, those that are dealt out by default, and some axes."""


@pytest.mark.filterwarnings("default")  # what others' packages warn of
@pytest.mark.parametrize("name", EXAMPLES)
def test_networks_of_others_are_dealt_out_by_heads_experts_and_hidden_units(name):
    (package, data, arguments), groups, dealt, axes = EXAMPLES[name]
    pytest.importorskip(package, reason=f"{package} is not installed; pip install 'istmpi[examples]' brings it")
    found = inspect(user_network(f"{FOLDER}/{name}", settings=arguments, **data))
    assert found.groups == groups and {*found.dealt} == dealt
    for ending, expected in axes.items():
        (parameter,) = (one for one in found.parameters if one.endswith(ending))
        assert found.parameters[parameter].axes == expected
