"""Blocks that can be dealt out whole: which are found, what a network without some of them computes and costs."""

from types import SimpleNamespace

import pytest
import residual_networks
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from istmpi.config import Run
from istmpi.cost import cost
from istmpi.engine.axes import Parameter, Pattern
from istmpi.errors import ConfigError
from istmpi.inspection.examine import inspect
from istmpi.inspection.inference import infer
from istmpi.models.resnet import ResNet
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import user_network
from istmpi.report.tables import warn_of_widths

FILE = residual_networks.__file__
IMAGE, FLAT = (1, 8, 8), (6,)
SMALL = {"blocks": [1, 3], "channels": [4, 6], "inner": [3, 5]}


def found(name, shape, **arguments):
    return infer(user_network(name, shape, 10, arguments))


@pytest.mark.parametrize(
    "name, shape, group, paths, ends",
    [
        ("resnet", IMAGE, "blocks2", ["sections.1.1"], ["convolutions.1"]),
        (f"{FILE}:PostActivated", IMAGE, "blocks", ["layers.0", "layers.1", "layers.2"], ["other"]),
        (f"{FILE}:Mixed", FLAT, "pairs", ["layers.0", "layers.2"], ["mixing", "down"]),
        (f"{FILE}:Stack", FLAT, "blocks", ["blocks.1", "blocks.2"], ["mixing", "down"]),
    ],
)
def test_residual_blocks_are_found(name, shape, group, paths, ends):
    inferred = found(name, shape, **(SMALL | {"blocks": [1, 2]} if name == "resnet" else {}))
    blocks = inferred.blocks[group]
    assert [block.path for block in blocks] == paths
    assert all(list(block.ends) == [f"{block.path}.{end}" for end in ends] for block in blocks)
    assert inferred.lengths[group] == len(paths)
    for name, pattern in inferred.parameters.items():
        unit = next((number for number, path in enumerate(paths) if name.startswith(f"{path}.")), None)
        assert str(pattern).startswith(f"({group}[{unit}] ") == (unit is not None)


def test_layers_that_add_nothing_are_no_blocks_and_those_of_one_list_belong_to_one_width():
    reasons = {finding.width.name: finding.problem for finding in found(f"{FILE}:Chain", FLAT).findings}
    assert reasons["depth"] == "it counts the modules of layers, which are not residual"
    inferred = found(f"{FILE}:Flat", FLAT)
    assert inferred.lengths["layers1"] == 3 and "layers2" not in inferred.lengths
    run = Run().override({"model.name": f"{FILE}:Flat", "method.partition": ["layers2"]})
    network = ready(f"{FILE}:Flat", FLAT)
    with pytest.raises(ConfigError, match="layers2 cannot be dealt out: its blocks are those of layers1: name layers1"):
        cost(run, network, 2)


@pytest.mark.parametrize("axes, few", [("(base many)", ""), ("(base many) many base", "2 of the 16 units of base")])
def test_a_narrow_subnet_is_told_by_its_channels(axes, few):
    held = SimpleNamespace(groups=("base",), ranks=8, parts=[SimpleNamespace(lengths={"base": 2})])
    parameters = {"weight": Parameter(Pattern.parse(axes))}
    table = SimpleNamespace(residual={}, fading={"base": 0.02})
    network = SimpleNamespace(blocks={}, lengths={"base": 16, "many": 24}, parameters=parameters, table=table)
    warning = warn_of_widths(network, held)
    assert few in warning and ("learns little" in warning) == bool(few)
    assert "sums over units of base have no exact factor: equal halves differ by 2.0%" in warning


def test_a_residual_stream_alone_needs_another_argument_or_another_deal():
    held = SimpleNamespace(groups=("base",), ranks=2, parts=[SimpleNamespace(lengths={"base": 8})])
    for groups, cure in (("base",), "Give the class an argument"), (("base", "inner"), "Deal out a width inside"):
        table = SimpleNamespace(residual={"base": "stem and end"}, fading={})
        parameters = {"weight": Parameter(Pattern.parse("base"))}
        network = SimpleNamespace(groups=groups, blocks={}, lengths={"base": 16}, table=table, parameters=parameters)
        assert f"subnets learn little. {cure}" in warn_of_widths(network, held)


def ready(name, shape, **arguments):
    own = user_network(name, shape, 10, arguments)
    return Architecture(name, inspect(own), "float64", own)


@pytest.fixture(scope="module")
def resnet():
    return ready("resnet", IMAGE, **SMALL)


@pytest.mark.parametrize("held", [(1,), (0, 1), ()])
def test_a_network_without_some_blocks_computes_what_the_whole_one_does_whose_blocks_add_nothing(resnet, held):
    lengths = {**resnet.lengths, "blocks2": len(held), **{f"blocks2[{n}]": int(n in held) for n in range(2)}}
    narrow, whole = resnet.build(lengths).eval(), ResNet(IMAGE, 10, **SMALL).double()
    whole.train()
    narrow.load_state_dict({name: whole.state_dict()[name] for name, _ in narrow.named_parameters()})
    narrow.train()
    for number, block in enumerate(resnet.blocks["blocks2"]):
        if number not in held:
            whole.get_submodule(block.ends[0]).register_forward_hook(lambda _, __, output: 0 * output)
    x = torch.randn(5, *IMAGE, dtype=torch.float64)
    torch.testing.assert_close(narrow(x), whole(x))
    with FlopCounterMode(display=False) as counter:
        functional.cross_entropy(narrow(x), torch.zeros(5, dtype=torch.long)).backward()
    assert counter.get_total_flops() == 5 * sum(sum(one.flops(lengths)) for one in resnet.operators)


SHAPES = {"Stack": FLAT, "PostActivated": IMAGE, "OwnProducts": FLAT, "Encoder": (5, 6)}


@pytest.mark.parametrize("name, shape", SHAPES.items())
def test_the_full_network_adds_a_share_of_what_blocks_make(name, shape):
    """Of all that an end makes, its bias included."""
    network = ready(f"{FILE}:{name}", shape)
    share = 0.3
    full = network.build(network.lengths, {"blocks": share}).train()
    by_hand = network.build(network.lengths).train()
    by_hand.load_state_dict(full.state_dict())
    with torch.no_grad():
        for block in network.blocks["blocks"]:
            attention = ["self_attn.out_proj", "linear2"] if "Encoder" in name else []
            ends = [f"{block.path}.{end}" for end in attention] or block.ends
            for end in ends:
                for parameter in by_hand.get_submodule(end).parameters():
                    parameter *= share
    x = torch.randn(5, *shape, dtype=torch.float64)
    torch.testing.assert_close(full(x), by_hand(x))
