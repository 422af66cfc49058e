"""Layers whose rows lie elsewhere: their parts against the layers themselves, who may be one, and what it costs."""

import networks
import pytest
import torch
from torch import nn

from istmpi.cost.evaluation import evaluation_plan
from istmpi.engine.layout import Owners
from istmpi.inspection.examine import inspect
from istmpi.inspection.inference import infer
from istmpi.inspection.proved_leaves import prove_leaves
from istmpi.models import mlp_network
from istmpi.network import leaves
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import user_network
from istmpi.network.leaves import Elsewhere, Leaf, list_candidates, prepare, without_values
from tests.networks import attention_nets

FILE = networks.__file__
WORDS = torch.tensor([[0, 5, 5, 2], [6, 1, 3, 0]])
FLAT, STARTS = torch.tensor([0, 5, 5, 2, 6, 1, 1, 3]), torch.tensor([0, 3, 3, 7])
LAST, WEIGHTS = torch.tensor([0, 3, 3, 8]), torch.randn(2, 4)

LAYERS = {
    "linear": (nn.Linear(5, 7), [torch.randn(2, 3, 5)], {}),
    "linear without bias": (nn.Linear(5, 7, bias=False), [torch.randn(5)], {}),
    "convolution 2": (nn.Conv2d(3, 7, (3, 1), padding=1, padding_mode="reflect"), [torch.randn(2, 3, 5, 4)], {}),
    "convolution 2, one example": (nn.Conv2d(3, 7, 2, dilation=2), [torch.randn(3, 5, 4)], {}),
    "convolution 3": (nn.Conv3d(2, 7, 2, bias=False), [torch.randn(2, 2, 3, 3, 3)], {}),
    "table": (nn.Embedding(7, 3, padding_idx=5), [WORDS], {}),
    "bags": (nn.EmbeddingBag(7, 3, mode="sum"), [WORDS], {}),
    "bags, mean": (nn.EmbeddingBag(7, 3, mode="mean", padding_idx=1), [FLAT, STARTS], {}),
    "bags, last offset": (nn.EmbeddingBag(7, 3, include_last_offset=True), [FLAT], {"offsets": LAST}),
    "bags, weighted": (nn.EmbeddingBag(7, 3, mode="sum", padding_idx=5), [WORDS], {"per_sample_weights": WEIGHTS}),
}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_the_parts_of_a_layer_are_the_layer(name, ranks):
    layer, inputs, named = LAYERS[name]
    expected = layer(*inputs, **named)
    assert list(list_candidates(nn.Sequential(layer))) == ["0"]
    keys = [key for key, _ in layer.named_parameters()]
    leaf = Leaf(layer, {key: key for key in keys})
    owners, parts = Owners({}, ranks), []
    for rank in range(ranks):
        rows = owners.rows(7, rank)
        values = {key: getattr(layer, key).detach()[rows.start : rows.stop] for key in keys}
        parts.append(leaf.outputs(rows, values, *inputs, **named))
    found = sum(parts) if leaf.of_inputs else torch.cat(parts, dim=leaf.axis)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(layer(*inputs, **named), expected, rtol=0, atol=0)  # it has its own weight again


@pytest.mark.parametrize("block", [1, 12])
@pytest.mark.parametrize("name", ["linear", "convolution 2", "bags"])
def test_a_layer_is_tried_a_block_of_rows_at_a_time(name, block, monkeypatch):
    layer, inputs, named = LAYERS[name]
    expected, given, largest = layer(*inputs, **named), {"weight": 0, "bias": 0}, 0
    leaf = Leaf(layer, {key: key for key, _ in layer.named_parameters()})

    def make(key, shape):
        nonlocal largest
        largest = max(largest, torch.Size(shape).numel())
        first = given[key]
        given[key] += shape[0]
        return getattr(layer, key).detach()[first : given[key]]

    monkeypatch.setattr(leaves, "BLOCK", block)
    torch.testing.assert_close(leaf.block_by_block(make)(*inputs, **named), expected)
    assert given == {"weight": 7, "bias": 7 if "bias" in leaf.names else 0}
    assert largest <= max(block, layer.weight[0].numel())


def test_what_does_not_compute_row_by_row_is_no_leaf():
    others = nn.Conv2d(4, 4, 1, groups=2), nn.Embedding(7, 3, max_norm=1), nn.EmbeddingBag(7, 3, mode="max")
    for layer in (*others, nn.ConvTranspose2d(4, 4, 1), nn.LSTM(3, 4), nn.BatchNorm1d(3)):
        assert list_candidates(nn.Sequential(layer)) == {}


def test_what_is_elsewhere_has_a_shape_and_no_values():
    gone = Elsewhere.in_place_of(torch.empty(3, 4, dtype=torch.float64, device="meta"), "here.weight")
    assert (gone.shape, gone.dtype, gone.numel(), len(gone), gone.ndim) == ((3, 4), torch.float64, 12, 3, 2)
    assert gone.device == torch.device("cpu") and gone.size(1) == 4 and not gone.read
    x = torch.ones(2, 4, dtype=torch.float64)
    for read in (
        lambda: nn.functional.linear(x, gone),
        lambda: gone[0],
        lambda: torch.cat([x, gone]),
        lambda: bool(gone.sum() > 0),
        lambda: gone.data,
        lambda: gone.numpy(),
        lambda: list(gone),
    ):
        gone.read = False
        with pytest.raises(RuntimeError, match="here.weight is read outside its layer"):
            read()
        assert gone.read


def test_a_network_without_values_has_the_constructors_buffers_and_ties():
    with without_values():
        network = networks.Shaken(6, 3)
        recurrent = nn.LSTM(3, 4)
        table = nn.Embedding(5, 2, padding_idx=1)
    assert table.weight.is_meta and all(parameter.is_meta for parameter in network.parameters())
    assert torch.equal(network.table, torch.arange(6) / 6)
    gathered = prepare(network, {"first.weight"})
    assert "tied.weight" not in gathered and "first.weight" not in gathered
    assert network.tied.weight is network.inner.weight is gathered["inner.weight"]
    assert isinstance(network.first.weight, Elsewhere) and network.first.weight.shape == (12, 6)
    values = {name: torch.randn(p.shape) for name, p in nn.LSTM(3, 4).named_parameters()}
    for name, parameter in prepare(recurrent, ()).items():
        parameter.data = values[name]
    plain = nn.LSTM(3, 4)
    plain.load_state_dict(values)
    x = torch.randn(2, 5, 3)
    assert torch.equal(recurrent(x)[0], plain(x)[0])
    assert not nn.Linear(2, 2).weight.is_meta


LEAVES = {
    "Convolutional": ((1, 8, 8), "first second dense last"),
    "Multihead": ((8, 16), "first last"),
    "Shaken": ((16,), "first inner tied unused last"),
    "Words": ((16,), "table bags inner last"),
    "Branching": ((16,), "first last odd even"),
    "Listed": ((16,), ""),
    "Choosing": ((16,), "first last"),
    # It looks first whether its layers' weights are plain; where they are not, it calls its layers.
    "EncoderLayer": ((4, 6), "into layer.linear1 layer.linear2 last"),
}


@pytest.mark.parametrize("name", LEAVES)
def test_leaves_are_layers_that_alone_read_their_weights(name):
    shape, expected = LEAVES[name]
    file = FILE if hasattr(networks, name) else attention_nets.__file__
    network = user_network(f"{file}:{name}", shape, 3, {})
    assert list(prove_leaves(network, infer(network).lengths)) == expected.split()


def architecture(name, shape, outputs=3, **settings):
    own = user_network(f"{FILE}:{name}", shape, outputs, settings)
    return Architecture(own.name, inspect(own), "float32", own)


def test_within_the_memory_fewer_bytes_decide_unless_they_take_longer():
    """Of 3,999 examples bytes would be saved, too, but every rank would pass all of them."""
    network = architecture("Grown", (4000,), widths=(50, 3000), kinds=("plain", "plain"), norms=("none", "none"))
    wide = {"into.0.weight", "into.0.bias"}
    for ranks, examples, expected in [(2, 100, wide), (4, 100, wide), (2, 3999, set())]:
        assert evaluation_plan(network, ranks, 10**9, [examples]).sharded & wide == expected
    assert evaluation_plan(network, 2, 10**9, [], local=True).sharded == frozenset()
    assert "into.0.weight" in evaluation_plan(network, 2, 500_000, [], local=True).sharded


def test_what_is_tied_is_sharded_together_and_an_mlp_is_gathered_where_that_sends_less_and_fits():
    network = architecture("Interleaved", (16,))
    assert {"back.weight", "up.weight", "last.bias"} <= evaluation_plan(network, 2, 0, [10]).sharded
    assert "last.weight" not in evaluation_plan(network, 4, 0, [10]).sharded  # three rows
    network = mlp_network(64, [13, 11], 10, bias=True)
    weights = {f"{stage}.linear.{key}" for stage in network.stages for key in ("weight", "bias")}
    assert not evaluation_plan(network, 4, 10**9, [10**6]).sharded
    assert evaluation_plan(network, 4, 0, [10**6]).sharded == weights
