"""The operators of networks of one's own: what torch's own counter counts, at any widths, forward and backward."""

from functools import cache
from pathlib import Path

import layered_networks
import networks
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from istmpi.inspection.inference import infer
from istmpi.inspection.tracing import trace
from istmpi.network.arguments import user_network
from istmpi.network.norms import build_module

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
    f"{LAYERED}:Added": SEQUENCE,
    f"{JOINED}:UnetSkips": IMAGE,
    f"{LAYERED}:Grouping": IMAGE,
    f"{LAYERED}:Rooted": SEQUENCE,
}
BATCH = 6


def traced(name, shape, **arguments):
    own = user_network(name, shape, 10, arguments)
    inferred = infer(own)
    return own, inferred, trace(own, inferred.widths, inferred.blocks)


@cache
def known(name):
    path = next(path for path in NETWORKS if path.endswith(f":{name}"))
    return traced(path, NETWORKS[path])


def predicted(operators, lengths, batch=BATCH):
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


@pytest.mark.parametrize("name", list(NETWORKS)[:-2], ids=lambda name: name.rpartition(":")[2])
def test_flops_are_those_that_pytorch_counts(name):
    own, inferred, found = known(name.rpartition(":")[2])
    assert found.inexact == ()
    for parts in (1, 2):
        lengths = {name: -(-length // parts) for name, length in inferred.widths.items()}
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


@pytest.mark.parametrize("lengths", [{"groups": 6, "channels": 8}, {"groups": 2, "channels": 3}])
def test_convolutions_of_groups_cost_what_their_groups_cost_apart(lengths):
    """Their gradients are as large as they are: torch counts that of the weight as if there were no groups."""
    own, _, found = known("Grouping")
    forward, backward = predicted(found.products, lengths)
    (of_input,) = (operator for operator in found.products if operator.of_input)
    assert forward == counted(own, lengths)[0]
    assert backward == 2 * forward - 2 * of_input.multiply_adds(lengths, BATCH)


@pytest.mark.parametrize(
    "name, axes",
    [
        ("Grouping", {"first.weight": 0, "groups.weight": 0, "up.weight": 1, "alone.weight": 0, "last.weight": 0}),
        ("Tokens", {"table.weight": 0, "bag.weight": 1, "inner.weight": 0, "b": 1, "a": None, "last.weight": 0}),
        ("Multihead", {"first.weight": 0, "attention.in_proj_weight": 0, "attention.out_proj.weight": 0}),
    ],
)
def test_the_axis_that_is_the_layers_output_is_known(name, axes):
    _, _, found = known(name)
    of_each = {operator.parameter: operator.axis for operator in found.products if operator.parameter}
    assert {parameter: of_each[parameter] for parameter in axes} == axes


def test_what_is_no_sum_of_products_of_widths_is_told_as_in_the_full_network():
    own, inferred, found = known("Rooted")
    assert [*inferred.lengths] == ["hidden"] and found.inexact == ("",)
    assert [str(of.shape) for of in found.products if not of.parameter] == ["1 4 1"]
    assert predicted(found.products, inferred.widths) == counted(own, inferred.widths)


@pytest.mark.parametrize(
    "expected, networks",
    [
        ({"stream": "first and down"}, "residual; in place; normalised behind; highway; subtracted; later"),
        ({"stream": "first and down.weight"}, "by matrix"),
        ({"stream": "first and cell"}, "around a cell"),
        ({}, "plain; parallel; gated; concatenated; lstm; gru; rnn; by hand"),
    ],
)
def test_a_width_is_a_residual_stream_if_an_addition_joins_layers_of_it(expected, networks):
    for what in networks.split("; "):
        own = user_network(f"{LAYERED}:Streams", SEQUENCE, 10, {"what": what})
        assert trace(own, {"stream": 12, "hidden": 8}).residual == expected, what
