"""What a network of very many labels costs: products as PyTorch counts them, bags and memory by their formulas."""

import json

import numpy as np
import pytest
import torch
from sparse_rows import made
from torch.utils.flop_counter import FlopCounterMode

from istmpi.config import Run
from istmpi.cost import cost
from istmpi.data.sparse.split import SparseSplit
from istmpi.models.tables import Facts, find_table
from istmpi.models.xc import XC
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import user_network
from istmpi.network.linear import defer
from istmpi.tasks import MULTI_LABEL, TASKS, choose_task

FEATURES, LABELS, BATCH, IN_A_ROW = 400, 300, 6, 5


def network(**settings):
    code = user_network("xc", (FEATURES,), LABELS, settings, MULTI_LABEL)
    return Architecture("xc", find_table("xc", Facts((FEATURES,), LABELS, IN_A_ROW), code.settings), "float32")


def planned(ranks, optimizer="sgd", method="ist", momentum=0.0, **settings):
    given = {"model.name": "xc", "train.batch": BATCH, "optimizer.name": optimizer, "optimizer.momentum": momentum}
    return cost(Run().override(given), network(**settings), ranks, method).largest


@pytest.mark.parametrize("block", [0, 70])
def test_products_are_what_torch_counts(block):
    settings = {"hidden": (12, 8), "label_block": block}
    batch = SparseSplit(*made(BATCH, 0, FEATURES, LABELS)).batch(np.arange(BATCH))
    module = XC(FEATURES, LABELS, **settings)
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
    read, labels = BATCH * IN_A_ROW * width, LABELS * width
    rest = width + LABELS
    assert few.memory.gradients == itemsize * (read + rest)  # the last layer's step is taken block by block
    assert planned(1, hidden=(width,), momentum=0.9).memory.gradients == itemsize * (read + labels + rest)
    assert all_rows.memory.gradients == itemsize * (FEATURES * width + labels + rest) == all_rows.memory.network
    assert planned(1, method="data-parallel", hidden=(width,)).memory.gradients == all_rows.memory.gradients
    assert few.touched < all_rows.touched / 2


def test_activations_are_those_of_a_block():
    whole, blocks = (planned(1, hidden=(16,), label_block=block).memory for block in (0, 30))
    assert whole.activations - blocks.activations == 2 * 4 * BATCH * (LABELS - 30)


def test_its_weights_are_reckoned_of_a_published_size(istmpi_command):
    words = ["costmodel", "xc", "--layers", "135909-2560-670091", "--ranks", "8", "--optimizer", "sgd"]
    code, out, err = istmpi_command(*words, "--json")
    assert (code, err) == (0, "")
    rows = {row["method"]: row for row in json.loads(out)["rows"]}
    weights = 4 * ((135_909 + 670_091) * 2560)
    assert rows["ist"]["memory_network_bytes"] == pytest.approx(weights / 8, rel=0.01)
    assert rows["data-parallel"]["memory_network_bytes"] == pytest.approx(weights, rel=0.01)
