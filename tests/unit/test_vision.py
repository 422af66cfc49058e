"""The networks for numbers and images that ship: widths, what is dealt out by default, products, sizes, names."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from istmpi.config import Model
from istmpi.errors import ConfigError
from istmpi.inspection.examine import inspect
from istmpi.models import architecture, mlp_network
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import user_network
from istmpi.network.norms import build_module
from istmpi.outputs import join_outputs

IMAGE, IMAGENET = (3, 16, 16), (3, 224, 224)
SMALL = {
    "vgg": {"channels": [6, 7, 8, 9, 10], "dense": [12, 13]},
    "resnet": {"blocks": [1, 2], "channels": [6, 8], "inner": [5, 9]},
    "resnet with exits": {"blocks": [1, 1, 2], "channels": [6, 8, 8], "inner": [5, 9, 6], "exits": [1, 2]},
    "vgg with exits": {"channels": [6, 7, 8, 9, 10], "dense": [12], "exits": [2, 5]},
    "bottleneck": {"blocks": [2, 1], "channels": [8, 12], "inner": [5, 7], "bottleneck": True, "stem": 7},
}


@pytest.fixture(scope="module")
def network():
    known = {}

    def of(name):
        if name not in known:
            own = user_network("vgg" if name.startswith("vgg") else "resnet", IMAGE, 10, SMALL[name])
            known[name] = Architecture(own.name, inspect(own), "float32", own), own
        return known[name]

    return of


@pytest.mark.parametrize(
    "name, groups, default",
    [
        ("vgg", [*(f"channels{number}" for number in range(1, 6)), "dense1", "dense2"], ("dense1", "dense2")),
        ("resnet", ["blocks1", "blocks2", "channels1", "channels2", "inner1", "inner2"], ("inner1", "inner2")),
        ("bottleneck", ["blocks1", "channels1", "channels2", "inner1", "inner2"], ("inner1", "inner2")),
    ],
)
def test_what_can_be_dealt_out_and_what_is_by_default(network, name, groups, default):
    """As the papers have it: of VGG the dense layers, of a ResNet what is inside its blocks."""
    found, _ = network(name)
    assert list(found.groups) == groups
    assert found.default_groups == default


@pytest.mark.parametrize("name", SMALL)
def test_its_flops_are_those_that_pytorch_counts(network, name):
    found, own = network(name)
    for part in (1, 2):
        lengths = {group: -(-length // part) for group, length in found.lengths.items() if group not in found.blocks}
        module, (x,) = build_module(own, lengths).train(), own.examples(4, torch.float32)
        with FlopCounterMode(display=False) as counter:
            join_outputs(module(x)).square().mean().backward()
        per_example = sum(sum(operator.flops(lengths)) for operator in found.operators)
        assert 4 * per_example == counter.get_total_flops(), lengths


@pytest.mark.parametrize(
    "name, settings, parameters",
    [
        # The published sizes (Simonyan and Zisserman, table 2), without convolutions' biases, with the norms' numbers.
        ("vgg", {"layers": 11}, 132_863_336 - 2_752 + 2 * 2_752 + 2 * 2 * 4_096),
        ("vgg", {"layers": 16}, 138_357_544 - 4_224 + 2 * 4_224 + 2 * 2 * 4_096),
        # As torchvision's ResNet-18, but for the norms: pre-activation has one before each convolution.
        ("resnet", {"stem": 7}, 11_689_512 - 9_600 + 2 * 3_904),
    ],
)
def test_it_has_the_published_size(name, settings, parameters):
    with torch.device("meta"):
        module = user_network(name, IMAGENET, 1000, settings).build()
    assert sum(values.numel() for values in module.parameters()) == parameters


@pytest.mark.parametrize(
    "name, shape, changed, said",
    [
        ("vgg", IMAGE, {"layers": 12}, "layers = 12 must be one of 11, 13, 16"),
        ("vgg", IMAGE, {"channels": [8, 8]}, "must be 5 numbers, one for each section"),
        ("resnet", IMAGE, {"blocks": [1]}, "must have the same length"),
        ("resnet", IMAGE, {"stem": 5}, "stem = 5 must be 3 or 7"),
        ("resnet", (7,), {}, "are not images"),
        ("resnet", IMAGE, {"exits": [2, 1]}, r"exits = \[2, 1\] must be sections from 1 to 3, each once and in order"),
        ("vgg", IMAGE, {"exits": 3}, "'int' object is not iterable"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(name, shape, changed, said):
    with pytest.raises(ConfigError, match=said) as refused:
        user_network(name, shape, 10, changed).build()
    assert "\n" not in str(refused.value)


def test_a_class_says_what_is_dealt_out_by_default(tmp_path):
    file = tmp_path / "net.py"
    source = "from networks import Convolutional\n\n\nclass Net(Convolutional):\n    DEALT = {}\n"
    file.write_text(source.format("('hidden', 'nothing')"))
    assert inspect(user_network(f"{file}:Net", IMAGE, 10, {})).dealt == ("hidden",)
    file.write_text(source.format("'hidden'"))
    with pytest.raises(ConfigError, match="DEALT = 'hidden' must be names of arguments"):
        inspect(user_network(f"{file}:Net", IMAGE, 10, {}))


# ---- the mlp


@pytest.mark.parametrize(
    "norm, task, wanted, normalised",
    [
        ("batch", "classification", None, True),
        ("batch", "regression", None, False),
        ("layer", "classification", None, False),
        ("none", "classification", True, True),
        ("batch", "classification", False, False),
    ],
)
def test_the_logits_are_normalised_where_it_makes_sense(norm, task, wanted, normalised):
    network = architecture(4, 3, task, Model(hidden=(4,), norm=norm, output_norm=wanted))
    assert [type(layer).__name__ for layer in network.build(network.lengths)[-1][1:]] == ["BatchNorm"] * normalised


def test_an_unknown_name_is_refused_with_the_nearest_and_only_dropout_is_stochastic():
    for setting, wrong, near in (("name", "mlpp", "mlp"), ("norm", "layr", "layer"), ("activation", "rellu", "relu")):
        with pytest.raises(ConfigError, match=rf"^model.{setting} = '{wrong}' is not known; did you mean {near}\?"):
            architecture(4, 3, "classification", Model(**{setting: wrong}))
    assert mlp_network(4, [4], 2, dropout=0.1).stochastic and not mlp_network(4, [4], 2).stochastic
