"""The operators of networks of one's own: what torch's own counter counts, at any widths, forward and backward."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import layered_networks
import networks
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from istmpi.inspection.inference import infer
from istmpi.inspection.tracing import trace
from istmpi.network.arguments import user_network
from istmpi.network.norms import build_module
from istmpi.network.trials import one_thread

FILE, LAYERED = Path(networks.__file__), Path(layered_networks.__file__)
EXAMPLE = FILE.parents[2] / "examples" / "convnet.py"
JOINED = Path(__file__).parents[1] / "networks" / "joined_nets.py"
IMAGE, SEQUENCE, FLAT = (3, 16, 16), (10, 6), (7,)
NETWORKS = {
    f"{EXAMPLE}:ConvNet": IMAGE,
    f"{FILE}:Convolutional": IMAGE,
    f"{FILE}:Attention": SEQUENCE,
    f"{FILE}:Multihead": SEQUENCE,
    f"{FILE}:Interleaved": FLAT,
    f"{LAYERED}:Tokens": FLAT,
    f"{FILE}:Shaken": FLAT,
    f"{FILE}:Steps": FLAT,
    f"{FILE}:Fixed": FLAT,
    f"{LAYERED}:Added": SEQUENCE,
    f"{JOINED}:UnetSkips": IMAGE,
    f"{JOINED}:Growing": IMAGE,
    f"{LAYERED}:Grouping": IMAGE,
    f"{LAYERED}:Rooted": SEQUENCE,
}
BATCH = 6


@pytest.fixture(autouse=True, scope="module")
def alone():
    """Small networks are slow with threads that share cores with other tests."""
    with one_thread():
        yield


def traced(name, shape, **arguments):
    own = user_network(name, shape, 10, arguments)
    inferred = infer(own)
    return own, inferred, trace(own, inferred.widths, inferred.blocks)


@cache
def known(name):
    """The same of a network of these tests, found once."""
    path = next(path for path in NETWORKS if path.endswith(f":{name}"))
    return traced(path, NETWORKS[path])


def residual(what):
    own = user_network(f"{LAYERED}:Streams", SEQUENCE, 10, {"what": what})
    return trace(own, {"stream": 12, "hidden": 8}).residual


def predicted(operators, lengths, batch=BATCH):
    """FLOPs of a forward and of a backward pass."""
    of_each = [(2 * operator.multiply_adds(lengths, batch), operator.gradients) for operator in operators]
    return sum(flops for flops, _ in of_each), sum(flops * gradients for flops, gradients in of_each)


def counted(own, lengths, batch=BATCH):
    """The same by torch's counter, which knows no fused attention and no fused recurrent layers of the CPU's."""
    network = build_module(own, lengths).train()
    (x,) = own.examples(batch, torch.float32)
    torch.backends.mkldnn.enabled = False
    try:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            outputs = network(x)
            forward = counter.get_total_flops()
            outputs.square().mean().backward()
    finally:
        torch.backends.mkldnn.enabled = True
    return forward, counter.get_total_flops() - forward


def narrow(lengths, parts):
    return {name: -(-length // parts) for name, length in lengths.items()}


@pytest.mark.parametrize("name", list(NETWORKS)[:-2], ids=lambda name: name.rpartition(":")[2])
def test_flops_are_those_that_pytorch_counts(name):
    own, inferred, found = known(name.rpartition(":")[2])
    assert found.inexact == ()
    for parts in (1, 2, 3):
        lengths = narrow(inferred.widths, parts)
        if name.endswith("Steps") and parts == 3:
            continue
        assert predicted(found.products, lengths) == counted(own, lengths), parts


@pytest.mark.filterwarnings("default")  # what others' packages warn of
@pytest.mark.parametrize("name, package", [("llama.py:Llama", "transformers"), ("vit.py:ViT", "timm")])
def test_flops_of_other_peoples_networks_are_those_that_pytorch_counts(name, package):
    pytest.importorskip(package, reason=f"{package} is not installed; pip install 'istmpi[examples]' brings it")
    own, inferred, found = traced(str(EXAMPLE.with_name(name)), IMAGE)
    assert found.inexact == ()
    for parts in (1, 2):
        lengths = narrow(inferred.widths, parts)
        assert predicted(found.products, lengths) == counted(own, lengths), parts


KINDS = ["linear", "conv", "transposed", "gated", "attention", "batch", "normal", "recurrent"]


@settings(max_examples=8)
@given(layers=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(5, 12)), min_size=1, max_size=3), data=st.data())
def test_flops_of_any_chain_of_layers_are_those_that_pytorch_counts(layers, data):
    kinds, widths = ([*one] for one in zip(*layers))
    own, inferred, found = traced(f"{LAYERED}:Drawn", SEQUENCE, kinds=kinds, widths=widths)
    assert found.inexact == ()
    lengths = {name: data.draw(st.integers(1, 9), name) for name in inferred.widths}
    assert predicted(found.products, lengths) == counted(own, lengths)
    assert predicted(found.products, inferred.widths) == counted(own, inferred.widths)


class Apart(nn.Module):
    """A convolution of groups as one convolution for each group."""

    def __init__(self, conv):
        super().__init__()
        inputs, outputs = conv.in_channels // conv.groups, conv.out_channels // conv.groups
        settings = {"padding": conv.padding, "stride": conv.stride}
        self.parts = nn.ModuleList(nn.Conv2d(inputs, outputs, conv.kernel_size, **settings) for _ in range(conv.groups))

    def forward(self, x):
        return torch.cat([part(piece) for part, piece in zip(self.parts, x.chunk(len(self.parts), 1))], 1)


@pytest.mark.parametrize("lengths", [{"groups": 6, "channels": 8}, {"groups": 2, "channels": 3}])
def test_convolutions_of_groups_cost_what_their_groups_cost_apart(lengths, monkeypatch):
    """torch counts the gradient of such a weight as if there were no groups."""
    own, inferred, found = known("Grouping")
    own = replace(own)
    assert inferred.widths == {"groups": 6, "channels": 8}
    build = own.kind

    def apart(*arguments, **settings):
        network = build(*arguments, **settings)
        network.groups, network.alone = Apart(network.groups), Apart(network.alone)
        return network

    expected = counted(own, lengths)
    source = own.source
    object.__setattr__(own, "load", lambda: (apart, source))
    forward, backward = counted(own, lengths)
    assert predicted(found.products, lengths) == (forward, backward)
    assert expected[0] == forward and expected[1] > backward


def test_the_products_are_those_of_the_formulas():
    """Multiply-adds: convolutions by their positions, dense layers, attention without weights, look-ups for nothing."""
    _, _, found = known("Convolutional")
    facts = [(of.module, of.kind, of.parameter, str(of.shape), of.gradients, of.of_input) for of in found.products]
    assert facts == [
        ("first", "Conv2d", "first.weight", "256 27 channels1", 1, True),
        ("second", "Conv2d", "second.weight", "64 (9 channels1) channels2", 2, False),
        ("dense", "Linear", "dense.weight", "1 (16 channels2) hidden", 2, False),
        ("last", "Linear", "last.weight", "1 hidden 10", 2, False),
    ]
    assert found.normalised == ("(256 channels1)",)
    _, inferred, found = known("Attention")
    alone = [of for of in found.products if not of.parameter]
    assert [(of.module, of.kind, str(of.shape), of.calls) for of in alone] == [
        ("", "Attention", "(10 heads) 10 head_dim", 4)
    ]
    assert 2 * alone[0].multiply_adds(inferred.widths) == 2 * 2 * 2 * 10 * 10 * 128
    _, _, found = known("Tokens")
    by_weight = {of.parameter: of for of in reversed(found.products)}
    assert by_weight["bag.weight"].multiply_adds({"embed": 5}) == 0
    assert by_weight["bag.weight"].outputs({"embed": 5}, 4) == 4 * 5
    together = next(of for of in found.products if of.examples == 0)
    assert (str(together.shape), together.parameter) == ("embed rank hidden", "b")


@pytest.mark.parametrize(
    "name, axes",
    [
        ("Convolutional", {"first.weight": 0, "second.weight": 0, "dense.weight": 0, "last.weight": 0}),
        ("Grouping", {"first.weight": 0, "groups.weight": 0, "up.weight": 1, "alone.weight": 0, "last.weight": 0}),
        ("Tokens", {"table.weight": 0, "bag.weight": 1, "inner.weight": 0, "b": 1, "a": None, "last.weight": 0}),
        ("Multihead", {"first.weight": 0, "attention.in_proj_weight": 0, "attention.out_proj.weight": 0}),
    ],
)
def test_the_axis_that_is_the_layers_output_is_known(name, axes):
    _, _, found = known(name)
    of_each = {operator.parameter: operator.axis for operator in found.products if operator.parameter}
    assert {parameter: of_each[parameter] for parameter in axes} == axes


@pytest.mark.parametrize(
    "what",
    ["residual", "in place", "normalised behind", "highway", "subtracted", "later", "by matrix", "around a cell"],
)
def test_a_width_that_a_residual_addition_joins_layers_of_is_known(what):
    second = {"around a cell": "cell", "by matrix": "down.weight"}.get(what, "down")
    assert residual(what) == {"stream": f"first and {second}"}


def test_layers_that_meet_otherwise_make_no_residual_stream():
    for what in ("plain", "parallel", "gated", "concatenated", "lstm", "gru", "rnn", "by hand"):
        assert residual(what) == {}, what


@pytest.mark.parametrize(
    "name, expected",
    [("Convolutional", {}), ("Interleaved", {"hidden": "up and back"}), ("Attention", {"embed": "embed and out.0"})],
)
def test_the_residual_streams_of_networks(name, expected):
    _, _, found = known(name)
    assert found.residual == expected


def test_what_is_no_sum_of_products_of_widths_is_told_as_in_the_full_network():
    own, inferred, found = known("Rooted")
    assert [*inferred.lengths] == ["hidden"] and found.inexact == ("",)
    assert [str(of.shape) for of in found.products if not of.parameter] == ["1 4 1"]
    assert predicted(found.products, inferred.widths) == counted(own, inferred.widths)


def test_a_product_over_units_of_two_widths_has_their_sum_as_its_size():
    own, inferred, found = known("Added")
    assert [*inferred.lengths] == ["wide", "hidden"] and found.inexact == ()
    assert [str(of.shape) for of in found.products if not of.parameter] == ["10 wide + hidden 10", "10 10 6"]
