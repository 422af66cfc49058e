"""The law of any network: what is found in each of tests/networks is what its table says, is true, and is trained so.

The table was written by hand. Permutations and twins are made by code of this file, on the plain module in its full
size: of istmpi it asks which axes were found. What does not hold yet is listed in tests/networks/failing.py.
"""

import inspect as python
import json
import math
import re
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from istmpi.models.architecture import Architecture
from istmpi.models.inspection import inspect
from tests.networks.failing import FAILING
from tests.networks.running import data, module_of, network, place, train
from tests.networks.table import NODES, ROWS, TOKENS

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*weight_norm. is deprecated", "ignore:.*nested tensor", "ignore:LSTM with projections"
)


def rows(law, having=lambda row: True):
    """The rows of a law as pytest has them, those that do not hold yet as expected failures."""
    failing = FAILING.get(law, {})
    reason = {name: why for why, names in failing.items() for name in names.split()}
    assert reason.keys() <= {row.name for row in ROWS if having(row)}, f"{law}: {sorted(reason)}"
    marks = {name: [pytest.mark.xfail(strict=True, reason=why)] for name, why in reason.items()}
    return [pytest.param(row, id=row.name, marks=marks.get(row.name, ())) for row in ROWS if having(row)]


def examinable(row):
    return row.refused == "" or row.trains is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for data, the same for all networks of one shape."""
    return tmp_path_factory.mktemp("data")


@cache
def table_of(row):
    """What istmpi finds out about a network."""
    return inspect(network(row))


@cache
def trained(row, folder):
    return train(row, folder)


# ---- what is found


@pytest.mark.parametrize("row", rows("found", examinable))
def test_what_is_found_is_what_was_written_down(row):
    table = table_of(row)
    assert {*table.groups} == {*row.dealt.split()}
    assert table.undealt.keys() == row.undealt.keys()
    for name, kind in row.undealt.items():
        assert re.search(kind, table.undealt[name]), table.undealt[name]
    assert {*table.dealt} == row.default_groups
    assert {*table.blocks} == {*row.blocks.split()}


# ---- permutations and twins on the plain module


def lengths_of(row):
    """The width of each argument, by its name in the table."""
    widths = {}
    for name, argument in python.signature(kind_of(row)).parameters.items():
        if isinstance(argument.default, int):
            widths[name] = argument.default
        elif isinstance(argument.default, tuple):
            widths |= {f"{name}{number}": width for number, width in enumerate(argument.default, 1)}
    return widths


def kind_of(row):
    module, _, name = row.network.partition(".")
    return getattr(module_of(module), name)


def plain(row, **changed):
    """The module as its class makes it, with other widths; small numbers are added to variances, dropout is none."""
    kind, widths = kind_of(row), {**lengths_of(row), **changed}
    facts = {"shape": row.shape, "features": row.shape[0], "outputs": row.outputs}
    arguments = {}
    for name, argument in python.signature(kind).parameters.items():
        if name in facts:
            arguments[name] = facts[name]
        elif isinstance(argument.default, tuple):
            arguments[name] = tuple(widths[f"{name}{number}"] for number in range(1, len(argument.default) + 1))
        elif name in widths:
            arguments[name] = widths[name]
    torch.manual_seed(0)
    return quiet(kind(**arguments).to(getattr(torch, row.dtype)))


def quiet(module):
    for part in module.modules():
        if isinstance(getattr(part, "eps", None), float):
            part.eps = 1e-12
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0
    return module


def examples(row):
    """A batch, as the network takes it."""
    generator = torch.Generator().manual_seed(1)
    if row.shape == TOKENS:
        return (torch.randint(row.outputs, (4, *row.shape), generator=generator),)
    x = torch.randn(6, *row.shape, generator=generator, dtype=torch.float64).to(getattr(torch, row.dtype))
    if row.shape == NODES:
        return x, torch.tensor([0, 2, 3, 3, 5, 6, 7]), torch.tensor([1, 4, 0, 5, 2, 3, 0])
    return (x,)


def outputs_of(row, module, values, training=False):
    """All outputs side by side, with these values; buffers stay as they were."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.train(training)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            assert parameter.shape == values[name].shape, name
            parameter.copy_(values[name])
        torch.manual_seed(2)
        outputs = module(*examples(row))
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
    return torch.cat([one.flatten(1) for one in (outputs if isinstance(outputs, tuple) else (outputs,))], dim=1)


def random_values(module):
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(values.shape, generator=generator, dtype=torch.float64).to(values.dtype) * 0.4
        for name, values in module.named_parameters()
    }


def factors(axis, lengths):
    """The factors of an axis, as pairs of a name, or an empty one, and a length; a block's own factor is none."""
    words = [word for word in axis.strip("()").split() if "[" not in word]
    return [(word, lengths[word]) if word in lengths else ("", int(word)) for word in words]


def selected(axes, values, group, lengths, order):
    """Values whose units of a group are others: those in ``order``, wherever the group stands among the axes."""
    for number, axis in enumerate(re.findall(r"\([^)]*\)|\S+", axes)):
        words = factors(axis, lengths)
        names = [name for name, _ in words]
        for at in [at for at, name in enumerate(names) if name == group]:
            outer, inner = (math.prod(length for _, length in part) for part in (words[:at], words[at + 1 :]))
            positions = torch.arange(outer * lengths[group] * inner).view(outer, lengths[group], inner)
            values = values.index_select(number, positions[:, order].reshape(-1))
    return values


def with_units(table, values, group, order, lengths):
    return {
        name: selected(table.parameters[name].axes, of_parameter, group, lengths, order)
        for name, of_parameter in values.items()
    }


def assert_near(row, found, expected):
    precision = {"float64": 1e-8, "float32": 1e-3}[row.dtype]
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= precision * max(float(expected.abs().max()), 1e-6)


def widths_in(row):
    """The groups of a row that are no blocks, and some of which its network has."""
    return [group for group in row.dealt.split() if group not in row.blocks.split()]


@pytest.mark.parametrize("row", rows("permuted", widths_in))
def test_units_can_be_permuted_at_full_size(row):
    table, module = table_of(row), plain(row)
    values, lengths = random_values(module), lengths_of(row)
    for group in set(table.groups) - set(table.blocks):
        order = torch.randperm(lengths[group], generator=torch.Generator().manual_seed(4))
        other = with_units(table, values, group, order, lengths)
        for training in (False, True):
            expected = outputs_of(row, module, values, training)
            assert_near(row, outputs_of(row, module, other, training), expected)


@pytest.mark.parametrize("row", rows("order", lambda row: re.search("permut", " ".join(row.undealt.values()))))
def test_units_that_are_not_alike_are_never_dealt_out(row):
    assert not {*table_of(row).groups} & row.undealt.keys()


@pytest.mark.parametrize("row", rows("written", widths_in))
def test_what_was_written_down_makes_twins_as_one(row):
    """Each unit is there twice: half of each use that the table names makes the outputs of half the units."""
    table, lengths = table_of(row), lengths_of(row)
    for group in widths_in(row):
        uses = row.scaled.get(group, "").split()
        if group in row.means.split() or any(use.startswith("+") for use in uses):
            continue
        narrow = plain(row, **{group: lengths[group] // 2})
        values = random_values(narrow)
        twins = twinned(table, values, group, lengths)
        for use in uses:
            twins[use] = twins[use] / 2
        assert_near(row, outputs_of(row, plain(row), twins, True), outputs_of(row, narrow, values, True))


def twinned(table, values, group, lengths):
    half = {**lengths, group: lengths[group] // 2}
    assert lengths[group] % 2 == 0, f"{group} must be even"
    return with_units(table, values, group, torch.arange(half[group]).repeat(2), half)


@pytest.mark.parametrize("row", rows("scaled", lambda row: widths_in(row) and row.trains))
def test_a_full_network_of_twins_makes_what_a_subnet_does(row):
    """The full network that istmpi builds, by the share of a half, makes the outputs of a subnet of half the units."""
    table, lengths = table_of(row), lengths_of(row)
    architecture = Architecture(row.network, table, row.dtype, network(row))
    architecture.require_dealable(table.dealt)
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


# ---- training


@pytest.mark.parametrize("row", rows("trained"))
def test_it_is_trained_or_refused_for_a_true_reason(row, folder):
    run = trained(row, folder)
    assert run.stopped == ""
    kinds = [row.refused] if row.refused else [*row.undealt.values()]
    if row.trains or (row.trains is None and not run.refused):
        assert run.refused == "" and np.isfinite([*run.losses, *run.scores]).all()
    else:
        assert any(re.search(kind, run.refused) for kind in kinds), run.refused


@pytest.mark.parametrize("row", rows("agree"))
def test_the_command_and_training_agree(row, folder, istmpi_command):
    """What training refuses `istmpi model` refuses, in the same words; what it says can be dealt out trains."""
    settings = [word for name, value in row.settings.items() for word in ("--set", f"{name}='{value}'")]
    code, out, err = istmpi_command("model", place(row), *facts(row, folder), *settings)
    words = trained(row, folder).refused.removeprefix("rank 0: ")
    assert (code, words != "") == (2 if words else 0, err != ""), err
    assert words in err


def facts(row, folder):
    """The options by which `istmpi model` knows a network's data."""
    if row.shape == NODES:
        return ["--data", data(row, folder)]
    tokens = ["--tokens"] if row.shape == TOKENS else []
    return ["--shape", "x".join(map(str, row.shape)), "--outputs", row.outputs, *tokens]


@pytest.mark.parametrize("row", rows("json", lambda row: row.name in ("Mlp", "Sorted", "Vae")))
def test_a_refusal_is_a_field_of_json(row, folder, istmpi_command):
    code, out, _ = istmpi_command("model", place(row), *facts(row, folder), "--json")
    words = trained(row, folder).refused.removeprefix("rank 0: ")
    assert json.loads(out)["refused"] == words and code == (2 if words else 0)


# ---- initial values


@pytest.mark.parametrize("row", rows("initial", lambda row: row.fan))
def test_initial_values_follow_the_inputs_of_their_use(row):
    bounds = {name: table_of(row).parameters[name].bound for name in row.fan}
    assert bounds == pytest.approx({name: inputs**-0.5 for name, inputs in row.fan.items()})


@pytest.mark.parametrize("row", rows("kept", lambda row: row.kept))
def test_initial_values_of_the_constructor_are_kept_where_they_are_asked_for(row, folder):
    initial, module = trained(row, folder).initial, plain(row)
    for name in row.kept:
        np.testing.assert_allclose(initial[name], module.get_parameter(name).detach().numpy(), atol=1e-7)
