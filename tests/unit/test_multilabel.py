"""Very many labels: losses by blocks, ranks from parts, steps that touch few rows, each against its naive version."""

import json

import numpy as np
import pytest
import torch
from sparse_rows import FEATURES, LABELS, dense, made, write
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from istmpi.config import Run
from istmpi.cost import cost
from istmpi.data.sources import open_dataset
from istmpi.data.sparse.split import Ragged, SparseSplit
from istmpi.engine.store import ParameterStore
from istmpi.inspection.examine import inspect
from istmpi.models.tables import Facts, find_table
from istmpi.models.xc import XC
from istmpi.multilabel import AT, Labels, Ranking, compute_losses, compute_parts
from istmpi.network import linear
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import user_network
from istmpi.network.linear import LabelBlocks, Linear, defer, release_gradients
from istmpi.tasks import MULTI_LABEL, TASKS, choose_task
from istmpi.training.network import plan_network


def split(count, seed=0):
    return SparseSplit(*made(count, seed))


def naive_losses(logits, y, loss):
    """From dense targets [b, labels] of zeros and ones."""
    if loss == "binary":
        return functional.binary_cross_entropy_with_logits(logits, y, reduction="none").sum(dim=1)
    share = y / y.sum(dim=1, keepdim=True).clamp(min=1)
    return -(share * logits.log_softmax(dim=1)).sum(dim=1)


def test_a_row_without_labels_has_a_loss():
    targets = Labels(torch.tensor([0, 2, 2]), torch.tensor([3, 1]))
    logits = torch.randn(2, 5, dtype=torch.float64)
    y = torch.tensor([[0, 1, 0, 1, 0], [0] * 5], dtype=torch.float64)
    for loss in ("softmax", "binary"):
        assert torch.allclose(compute_losses(logits, targets, loss), naive_losses(logits, y, loss))


@pytest.mark.parametrize("loss", ["softmax", "binary"])
def test_logits_of_a_block_alone_are_in_memory(loss):
    block, labels, examples, inputs = 16, 400, 30, 3
    layer = LabelBlocks(inputs, labels, block)
    defer(layer)
    made = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            output = func(*args, **(kwargs or {}))
            made.extend(one.numel() for one in [output] if isinstance(one, torch.Tensor))
            return output

    targets = Labels(torch.arange(examples + 1), torch.arange(examples) * 13)
    with Watch():
        layer(torch.randn(examples, inputs, requires_grad=True)).losses(targets, loss).sum().backward()
    assert max(made) == labels * inputs  # its gradient; all logits would be ten times as much
    assert examples * block in made


def naive_scores(logits, y, counts, rows, a=0.55, b=1.5):
    c = (np.log(rows) - 1) * (b + 1) ** a
    inverse = 1 + c * (counts + b) ** -a
    found = {}
    for k in AT:
        hits = gains = most = 0.0
        for example, true in zip(logits, y):
            ranked = sorted(range(len(example)), key=lambda label: (-example[label], label))[:k]
            hits += sum(true[label] for label in ranked) / k
            gains += sum(true[label] * inverse[label] for label in ranked)
            most += sum(sorted(inverse[true > 0], reverse=True)[:k])
        found[f"P@{k}"], found[f"PSP@{k}"] = hits / len(logits), gains / most
    return found


@pytest.mark.parametrize("parts", [1, 4, LABELS + 2])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("loss", ["softmax", "binary"])
def test_ranks_are_the_same_from_any_parts_of_the_labels(parts, ties, loss):
    data = split(40)
    batch, (_, y) = data.batch(np.arange(40)), dense(data, np.arange(40))
    logits = torch.randn(40, LABELS, dtype=torch.float64)
    logits = logits.round() if ties else logits
    counts = data.count_labels(LABELS)
    ends = [LABELS * n // parts for n in range(parts + 1)]
    found = [compute_parts(logits[:, start:stop], start, batch.targets, loss) for start, stop in zip(ends, ends[1:])]
    sums = Ranking(counts, 40, (0.55, 1.5), loss).sums(found, batch.targets)
    assert Ranking.scores(sums) == pytest.approx(naive_scores(logits.numpy(), y, counts, 40), abs=1e-12)
    assert sums[0] == pytest.approx(float(naive_losses(logits, torch.from_numpy(y), loss).sum()), abs=1e-9)
    assert sums[1] == 40
    if parts == 1:
        points = choose_task(TASKS[MULTI_LABEL], loss).points(logits, batch.targets)
        assert points / 40 == pytest.approx(Ranking.scores(sums)["P@1"])


@pytest.mark.parametrize("norm, hidden", [("none", (8,)), ("batch", (8, 7, 5)), ("layer", (8, 7))])
def test_the_table_is_what_is_found_of_the_network(norm, hidden):
    settings = {"hidden": hidden, "norm": norm, "dropout": 0.1 * (norm == "none")}
    own = user_network("xc", (FEATURES,), LABELS, settings, MULTI_LABEL)
    table = find_table("xc", Facts((FEATURES,), LABELS), own.settings)
    assert table.tree() | {"source": own.source.hash} == inspect(own).tree()


def test_under_the_binary_loss_labels_start_as_rare_as_they_are(tmp_path):
    data = open_dataset(write(tmp_path / "rows.h5"))
    run = Run().override({"model.name": "xc", "model.hidden": [8], "train.multi_label_loss": "binary"})
    network = plan_network(run, data)
    store = ParameterStore(network.parameters, network.lengths, ranks=1, rank=0)
    store.initialise(seed=3)
    _, y = dense(data.train, np.arange(len(data.train)))
    assert store.tensors["output.bias"].mean() == pytest.approx(np.log(y.mean() / (1 - y.mean())), abs=0.15)
    other = plan_network(run.override({"train.multi_label_loss": "softmax"}), data)
    centres = {name: entry.centre for name, entry in network.table.parameters.items()}
    others = {name: entry.centre for name, entry in other.table.parameters.items()}
    assert set(others.values()) == {0.0}
    assert {name for name in centres if centres[name] != others[name]} == {"output.bias"}


def test_odds_of_labels_stay_finite_where_rows_have_none_or_all():
    rows, _ = made(5, 1)
    for has in (0, LABELS):
        targets = Ragged(np.arange(6) * has, (np.tile(np.arange(has), 5),))
        assert 0 < SparseSplit(rows, targets).estimate_label_odds(LABELS) < 1


# ---- the linear layer that keeps its gradient's memory, against torch's own


INPUTS, OUTPUTS = 30, 20


@pytest.fixture
def layers(monkeypatch):
    monkeypatch.setattr(linear, "SMALL", 0)
    ours, theirs = Linear(INPUTS, OUTPUTS), nn.Linear(INPUTS, OUTPUTS)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def backward(layer, inputs, zero=True):
    x = inputs.clone().requires_grad_()
    if zero:
        layer.zero_grad(set_to_none=True)
    layer(x).sin().sum().backward()
    return x.grad


@pytest.mark.parametrize("shape", [(8, INPUTS), (2, 4, INPUTS)], ids=["batch", "sequence"])
def test_gradients_are_torchs_and_stay_where_they_are_whatever_was_there(layers, shape):
    ours, theirs = layers
    places = set()
    for _ in range(3):
        x = torch.randn(shape)
        torch.testing.assert_close(backward(ours, x), backward(theirs, x))
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
        torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)
        places.add(ours.weight.grad.data_ptr())
        ours.weight.grad.fill_(torch.nan)
    assert len(places) == 1


def test_gradients_add_up_until_they_are_zeroed(layers):
    for layer in layers:
        for zero in (True, False):
            backward(layer, torch.ones(8, INPUTS), zero)
        layer.zero_grad(set_to_none=True)
        x = torch.linspace(-1, 1, 8 * INPUTS).view(8, INPUTS)
        layer(x + layer(x).mean()).square().sum().backward()  # used twice in one pass
    torch.testing.assert_close(layers[0].weight.grad, layers[1].weight.grad)


def test_it_tells_what_is_made_once_it_has_its_final_values(layers, monkeypatch):
    ours, theirs = layers
    monkeypatch.setattr(linear, "BLOCK_BYTES", 4 * INPUTS * 8)
    x = torch.randn(8, INPUTS)
    for layer in layers:
        layer.zero_grad(set_to_none=True)
    theirs(x + theirs(x).mean()).square().sum().backward()
    told = []

    def made(elements):
        told.append(elements)
        torch.testing.assert_close(
            ours.weight.grad.view(-1)[:elements], theirs.weight.grad.view(-1)[:elements], rtol=1e-4, atol=1e-4
        )

    ours.made = made
    ours(x + ours(x).mean()).square().sum().backward()
    assert told == [8 * INPUTS, 16 * INPUTS, OUTPUTS * INPUTS]


def test_released_memory_is_not_held(layers):
    ours, _ = layers
    network = nn.Sequential(ours)
    backward(network, torch.ones(8, INPUTS))
    memory = ours.weight.grad
    release_gradients(network)
    assert all(parameter.grad is None for parameter in network.parameters())
    backward(network, torch.ones(8, INPUTS))
    assert ours.weight.grad.data_ptr() != memory.data_ptr()


def test_without_gradients_or_under_autocast_it_is_torchs(layers):
    ours, theirs = layers
    x = torch.randn(8, INPUTS)
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))
    with torch.autocast("cpu", torch.bfloat16):
        backward(ours, x), backward(theirs, x)
    assert torch.equal(ours.weight.grad, theirs.weight.grad)


# ---- what a network of very many labels costs

MANY_FEATURES, MANY_LABELS, BATCH, IN_A_ROW = 400, 300, 6, 5


def network(**settings):
    code = user_network("xc", (MANY_FEATURES,), MANY_LABELS, settings, MULTI_LABEL)
    return Architecture(
        "xc", find_table("xc", Facts((MANY_FEATURES,), MANY_LABELS, IN_A_ROW), code.settings), "float32"
    )


def planned(ranks, optimizer="sgd", method="ist", momentum=0.0, **settings):
    given = {"model.name": "xc", "train.batch": BATCH, "optimizer.name": optimizer, "optimizer.momentum": momentum}
    return cost(Run().override(given), network(**settings), ranks, method).largest


@pytest.mark.parametrize("block", [0, 70])
def test_products_are_what_torch_counts(block):
    settings = {"hidden": (12, 8), "label_block": block}
    batch = SparseSplit(*made(BATCH, 0, MANY_FEATURES, MANY_LABELS)).batch(np.arange(BATCH))
    module = XC(MANY_FEATURES, MANY_LABELS, **settings)
    defer(module)

    def product(_, x, y, **__):
        return 2 * x[0] * x[1] * y[1]

    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: product})
    with counter:
        choose_task(TASKS[MULTI_LABEL], "softmax").loss(module(*batch.inputs), batch.targets).backward()
    flops = planned(1, **settings).flops
    assert counter.get_total_flops() == flops.products
    assert flops.lookups == 2 * 2 * BATCH * IN_A_ROW * 12


def test_rows_that_are_not_read_cost_neither_memory_nor_traffic():
    itemsize, width = 4, 16
    few, all_rows = (planned(1, hidden=(width,), optimizer=name) for name in ("sgd", "adam"))
    read, labels = BATCH * IN_A_ROW * width, MANY_LABELS * width
    rest = width + MANY_LABELS
    assert few.memory.gradients == itemsize * (read + rest)  # the last layer's step is taken block by block
    assert planned(1, hidden=(width,), momentum=0.9).memory.gradients == itemsize * (read + labels + rest)
    assert all_rows.memory.gradients == itemsize * (MANY_FEATURES * width + labels + rest) == all_rows.memory.network
    assert planned(1, method="data-parallel", hidden=(width,)).memory.gradients == all_rows.memory.gradients
    assert few.touched < all_rows.touched / 2


def test_activations_are_those_of_a_block():
    whole, blocks = (planned(1, hidden=(16,), label_block=block).memory for block in (0, 30))
    assert whole.activations - blocks.activations == 2 * 4 * BATCH * (MANY_LABELS - 30)


def test_its_weights_are_reckoned_of_a_published_size(answer):
    words = ["costmodel", "xc", "--layers", "135909-2560-670091", "--ranks", "8", "--optimizer", "sgd"]
    rows = {row["method"]: row for row in json.loads(answer(*words, "--json"))["rows"]}
    weights = 4 * ((135_909 + 670_091) * 2560)
    assert rows["ist"]["memory_network_bytes"] == pytest.approx(weights / 8, rel=0.01)
    assert rows["data-parallel"]["memory_network_bytes"] == pytest.approx(weights, rel=0.01)
