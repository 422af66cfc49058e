"""The law of any network: what is found in each of tests/networks is what its table says, is true, and is trained so.

The table was written by hand. Permutations and twins are made by code of this file, on the plain module in its full
size: of istmpi it asks which axes were found.
"""

import json
import re
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from istmpi.errors import ConfigError
from istmpi.inspection import examine
from istmpi.inspection.examine import inspect
from istmpi.network.architecture import Architecture
from istmpi.network.norms import calibrate
from tests.networks.plain import (
    examples,
    lengths_of,
    outputs_of,
    plain,
    quiet,
    random_values,
    twinned,
    widths_in,
    with_units,
)
from tests.networks.running import data, network, place, train
from tests.networks.table import NODES, ROWS, TOKENS

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*weight_norm. is deprecated", "ignore:.*nested tensor", "ignore:LSTM with projections"
)


def rows(having=lambda row: True):
    """The rows of a law as pytest has them."""
    return [pytest.param(row, id=row.name) for row in ROWS if having(row)]


def examinable(row):
    return row.refused == "" or row.trains is None


@pytest.fixture(autouse=True, scope="module")
def examined_once():
    """A network is examined once, whether a test, training or the command asks."""
    known, once = [], examine.examine

    def remembered(network):
        if network not in [other for other, _ in known]:
            known.append((network, once(network)))
        return next(found for other, found in known if other == network)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examine, "examine", remembered)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@cache
def find_table(row):
    return inspect(network(row))


@cache
def trained(row, folder):
    return train(row, folder)


@pytest.mark.parametrize("row", rows(examinable))
def test_what_is_found_is_what_was_written_down(row):
    table = find_table(row)
    assert {*table.groups} == {*row.dealt.split()}
    assert table.undealt.keys() == row.undealt.keys()
    for name, kind in row.undealt.items():
        assert re.search(kind, table.undealt[name]), table.undealt[name]
    assert {*table.dealt} == row.default_groups
    assert {*table.blocks} == {*row.blocks.split()}


# ---- permutations and twins on the plain module


def assert_near(row, found, expected):
    precision = {"float64": 1e-8, "float32": 1e-3}[row.dtype]
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= precision * max(float(expected.abs().max()), 1e-6)


@pytest.mark.parametrize("row", rows(widths_in))
def test_units_can_be_permuted_at_full_size(row):
    table, module = find_table(row), plain(row)
    values, lengths = random_values(module), lengths_of(row)
    for group in set(table.groups) - set(table.blocks):
        order = torch.randperm(lengths[group], generator=torch.Generator().manual_seed(4))
        other = with_units(table, values, group, order, lengths)
        for training in (False, True):
            assert_near(row, outputs_of(row, module, other, training), outputs_of(row, module, values, training))


@pytest.mark.parametrize("row", rows(lambda row: widths_in(row) and row.trains is not False))
def test_a_full_network_of_twins_makes_what_a_subnet_does(row):
    """The full network that istmpi builds, by the share of a half, makes the outputs of a subnet of half the units."""
    table, lengths = find_table(row), lengths_of(row)
    architecture = Architecture(row.network, table, row.dtype, network(row))
    try:
        architecture.require_dealable(table.dealt)
    except ConfigError:
        assert row.trains is None
        return
    full = quiet(architecture.build(architecture.lengths, {}))
    for group in widths_in(row):
        scaled = quiet(architecture.build(architecture.lengths, {group: 0.5}))
        if group in row.means.split():
            values = random_values(full)
            assert_near(row, outputs_of(row, scaled, values), outputs_of(row, full, values))
            continue
        narrow = quiet(architecture.build({**architecture.lengths, group: lengths[group] // 2}, {group: 0.5}))
        values = random_values(narrow)
        twins = twinned(table, values, group, lengths)
        assert_near(row, outputs_of(row, scaled, twins, True), outputs_of(row, narrow, values, True))


NORMS = ["OfSubclass", "NormTwice", "InstanceTracked"]


@pytest.mark.parametrize("row", rows(lambda row: row.name in NORMS))
def test_calibrated_moments_are_those_that_pytorch_keeps(row):
    architecture = Architecture(row.network, find_table(row), row.dtype, network(row))
    module, ours, numbers = plain(row), quiet(architecture.build(lengths_of(row), {})), {}
    values = random_values(module)
    for one in (module, ours):
        outputs_of(row, one, values)  # it has them now
    layers = architecture.batch_norm_layers(ours)
    calibrate(ours.eval(), layers, examples(row))

    def count(layer, inputs):
        each = isinstance(layer, nn.InstanceNorm2d)
        numbers[layer] = inputs[0].numel() / layer.num_features / (len(inputs[0]) if each else 1)

    for name in layers:
        module.get_submodule(name).register_forward_pre_hook(count)
        # The last, or the mean of all.
        module.get_submodule(name).momentum = 1.0 if row.name == "InstanceTracked" else None
    module.train()(*examples(row))
    for name, layer in layers.items():
        kept = module.get_submodule(name)
        variance = kept.running_var * (1 - 1 / numbers[kept])  # theirs is over all numbers but one
        torch.testing.assert_close(layer.moments, (kept.running_mean, variance))


@pytest.mark.parametrize("row", rows())
def test_it_is_trained_or_refused_for_a_true_reason(row, folder):
    run = trained(row, folder)
    assert run.stopped == ""
    kinds = [row.refused] if row.refused else [*row.undealt.values()]
    if row.trains or (row.trains is None and not run.refused):
        assert run.refused == "" and np.isfinite([*run.losses, *run.scores]).all()
    else:
        assert any(re.search(kind, run.refused) for kind in kinds), run.refused


@pytest.mark.parametrize("row", rows(lambda row: row.trains))
def test_the_bytes_that_are_sent_are_those_of_the_plan(row, folder):
    run = trained(row, folder)
    assert run.counted and run.counted == run.planned


WHOLE = ["Lstm", "SoftExperts", "SoftmaxUnits", "Bilinear", "Kan", "UnusedLayer"]


@pytest.mark.parametrize("row", rows(lambda row: row.name in WHOLE))
@pytest.mark.parametrize("ranks, scale", [(1, "share"), (2, "none")])
def test_where_nothing_is_scaled_nothing_is_refused_for_it(row, folder, ranks, scale):
    run = train(row, folder, ranks, model__scale=scale)
    assert (run.refused, run.stopped) == ("", "") and np.isfinite(run.losses).all()


@pytest.mark.parametrize("row", rows(lambda row: not row.trains or ROWS.index(row) % 4 == 0))
def test_the_command_and_training_agree(row, folder, istmpi_command):
    """What training refuses `istmpi model` refuses, in the same words; what it says can be dealt out trains."""
    code, out, err = istmpi_command("model", place(row), *facts(row, folder), "--json")
    words = trained(row, folder).refused.removeprefix("rank 0: ")
    assert (code, words != "") == (2 if words else 0, err != ""), err
    assert words in err
    assert out == "" or json.loads(out)["refused"] == words


def facts(row, folder):
    """The options by which `istmpi model` knows a network's data."""
    if row.shape == NODES:
        return ["--data", data(row, folder)]
    tokens = ["--tokens"] if row.shape == TOKENS else []
    return ["--shape", "x".join(map(str, row.shape)), "--outputs", row.outputs, *tokens]


@pytest.mark.parametrize("row", rows(lambda row: row.fan))
def test_initial_values_follow_the_inputs_of_their_use(row):
    bounds = {name: find_table(row).parameters[name].bound for name in row.fan}
    # Where no use is seen, a deviation like the constructor's own is as good.
    assert bounds == pytest.approx({name: inputs**-0.5 for name, inputs in row.fan.items()}, rel=0.05)


@pytest.mark.parametrize("row", rows(lambda row: row.kept))
def test_initial_values_of_the_constructor_are_kept_where_they_are_asked_for(row, folder):
    initial, module = trained(row, folder).initial, plain(row)
    for name in row.kept:
        np.testing.assert_allclose(initial[name], module.get_parameter(name).detach().numpy(), atol=1e-7)


FIRST_OF_EACH_FILE = {row.network.partition(".")[0]: row for row in reversed(ROWS) if row.dealt and row.trains}


@pytest.mark.parametrize("row", rows(lambda row: row in FIRST_OF_EACH_FILE.values()))
def test_subnets_learn_from_the_sum_of_their_outputs(row, folder):
    """Four ranks send the planned bytes, unless a parameter is dealt out in part."""
    joint = train(row, folder, ranks=4, method__name="joint")
    if "+" in joint.refused:
        assert "which is dealt out in part" in joint.refused
    else:
        assert (joint.refused, joint.stopped) == ("", "")
        assert joint.counted == joint.planned and np.isfinite(joint.scores).all()
