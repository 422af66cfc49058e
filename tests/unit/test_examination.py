"""A network of one's own as it is made ready for training: its table, what is refused, and how it is built."""

import json
from dataclasses import fields
from pathlib import Path

import layered_networks
import networks
import pytest
import torch

from istmpi.deploy.fitting import note_changed_source
from istmpi.errors import ConfigError
from istmpi.inspection import large
from istmpi.inspection.examine import inspect
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import user_network
from istmpi.network.table import Table
from tests.networks import dense_nets, recurrent_nets

FILE = Path(networks.__file__)


def own(name, shape=(7,), **arguments):
    file = FILE if hasattr(networks, name) else layered_networks.__file__
    return user_network(f"{file}:{name}", shape, 10, arguments)


def ready(name, shape=(7,), dtype="float32", **arguments):
    network = own(name, shape, **arguments)
    return Architecture(network.name, inspect(network), dtype, network)


@pytest.fixture(scope="module")
def shaken():
    return ready("Shaken", dtype="float64")


@pytest.fixture(scope="module")
def convolutional():
    return ready("Convolutional", (1, 8, 8), channels=[6, 4], hidden=9)


def test_a_product_is_scaled_whose_output_an_activation_changes_in_place():
    """Unless a batch normalisation is behind it; layers may be called by position and by name."""
    network = ready("InPlace")
    assert network.sums == {"inner": ("hidden",), "last": ("hidden",)}
    network.build({"hidden": 4}, {"hidden": 0.25})(torch.ones(3, 7))


def test_a_table_is_the_same_behind_json(convolutional):
    table = convolutional.table
    again = Table.from_tree(json.loads(json.dumps(table.tree())))
    assert again.tree() == table.tree() and again.difference(table) == ""
    other = inspect(own("Convolutional", (1, 8, 8), channels=[6, 4], hidden=8))
    assert other.difference(table) == "settings, hidden: 8 or 9"


ODD = ("random buffer", "counting", "complex", "lazy", "no call")


@pytest.mark.parametrize(
    "what, problem",
    [
        ("random buffer", "buffer noise has random values"),
        ("counting", "buffer count changes in a forward pass"),
        ("complex", "parameter scale is of torch.complex64"),
        ("lazy", "parameter last.weight has no shape before the first forward pass"),
        ("no call", "batch normalisation norm is not called in a forward pass"),
        ("constructor leaves", "constructor fails with what = 'constructor leaves', hidden = 8: SystemExit: 5"),
        ("forward leaves", "forward fails on examples of shape 2 x 7: SystemExit: enough"),
        ("constructor's own end", "constructor fails with .*: OwnEnd: over"),
        ("no gradients", "constructor fails with .*: it turns gradients off globally"),
        ("meta", "parameter first.weight is on the device meta"),
        ("nothing", "forward returns NoneType for 2 examples"),
        ("text", "forward returns str for 2 examples"),
        ("training", "forward fails on examples of shape 2 x 7: RuntimeError: only in use"),
        ("two", r"forward returns \(2, 7\) as output 2 for 2 examples"),
        ("two in training", "forward returns 2 outputs in training and 1 in evaluation"),
        ("integers", "forward returns numbers of torch.int64"),
        ("detached", "outputs have no gradient with respect to any parameter"),
        ("inf", "parameter gain does not start with finite numbers"),
    ],
)
def test_what_goes_wrong_in_a_network_is_one_line(what, problem):
    with pytest.raises(ConfigError, match=problem) as refused:
        inspect(own("Odd" if what in ODD else "Faulty", what=what))
    assert "\n" not in str(refused.value)


def test_another_class_and_a_forward_that_fails_on_the_data_are_refused_and_a_look_draws_nothing():
    with pytest.raises(ConfigError, match="its class makes int, not a torch.nn.Module"):
        inspect(own("MakesNumbers"))
    examples = torch.ones(4, 7)
    with pytest.raises(ConfigError, match="examples of shape 4 x 7: RuntimeError: no more than three"):
        ready("Faulty", what="few examples").require_finite(examples)
    dropping, before = ready("Shaken"), torch.get_rng_state()
    dropping.require_finite(examples)
    assert torch.equal(torch.get_rng_state(), before)


def test_sums_outside_of_layers_single_numbers_and_computed_values_are_found():
    assert ready("Odd", what="by hand").table.folded == {"weight": ("hidden",)}
    assert ready("Odd", what="scalar").parameters["scale"].pattern.shape({}) == (1,)
    computed = ready("Odd", what="computed")
    assert computed.table.computed == ("scale",)
    torch.testing.assert_close(computed.plain(3).scale.detach(), torch.linspace(1, 2, 7))


def test_what_the_constructor_computed_and_tied_is_kept(shaken):
    with torch.device("meta"):
        built = shaken.build({"hidden": 5})
    assert torch.equal(built.table, (torch.arange(7) / 7).double())
    assert built.first.weight.dtype == torch.float64 and built.first.weight.device.type == "cpu"
    assert built.tied.weight is built.inner.weight
    assert own("Plain", (1, 8, 8)).inputs == (64,), "a constructor of features and no shape gets examples flat"


def test_without_its_code_a_network_can_be_described_but_not_built(convolutional):
    described = Architecture(convolutional.name, convolutional.table, "float32")
    assert described.parameters == convolutional.parameters
    with pytest.raises(ConfigError, match="give its code, --model FILE.py:Class"):
        described.build(described.lengths)
    assert not note_changed_source(described.with_code(own("Convolutional", (1, 8, 8), channels=[6, 4], hidden=9)))
    with pytest.raises(ConfigError, match="its parameter first.weight has the shape"):
        described.with_code(own("Convolutional", (2, 8, 8), channels=[6, 4], hidden=9))


# ---- networks that no rank may hold


NETWORKS = {
    "convolutions": (networks.Convolutional, (1, 8, 8), {"channels": [40, 33], "hidden": 70}),
    "attention": (networks.Rows, (1, 8, 8), {"heads": 8, "head_dim": 16, "embed": 128, "hidden": 72}),
    "recurrent": (recurrent_nets.Lstm, (5, 6), {"hidden": 72}),
    "blocks": (dense_nets.ResidualMlp, (6,), {"stream": 33, "hidden": 24, "depth": 18}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_table_of_few_units_is_that_of_all(name, monkeypatch):
    kind, shape, settings = NETWORKS[name]
    network = user_network("net.py:Net", shape, 10, settings, network=kind)
    expected = inspect(network)
    monkeypatch.setattr(kind, "LARGE", True, raising=False)
    monkeypatch.setattr(large, "KEPT", 16)
    built = []
    monkeypatch.setattr(type(network), "build", noting(type(network).build, built))
    table = large.inspect_any(network)
    for field in fields(table):
        assert getattr(table, field.name) == getattr(expected, field.name), field.name
    assert max(built) < sum(values.numel() for values in network.build().parameters())


def noting(build, sizes):
    def noted(network, lengths=None):
        module = build(network, lengths)
        sizes.append(sum(values.numel() for values in module.parameters() if not values.is_meta))
        return module

    return noted


def test_values_that_need_the_whole_network_are_refused(monkeypatch):
    monkeypatch.setattr(networks.Odd, "LARGE", True, raising=False)
    network = user_network("net.py:Net", (7,), 10, {"what": "computed"}, network=networks.Odd)
    with pytest.raises(ConfigError, match="LARGE = True, but its constructor computes the values of scale"):
        large.inspect_any(network)
