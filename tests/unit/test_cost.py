"""The cost model: golden values of the paper, and predicted bytes against planned ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istmpi import cost
from istmpi.axes import narrowed
from istmpi.config import Run
from istmpi.errors import ConfigError
from istmpi.layout import Owners
from istmpi.methods import METHODS
from istmpi.models.mlp import MLP
from istmpi.partition import Partition
from istmpi.transfer import Transfer

FIGURE_2 = MLP(1000, (4000, 4000, 4000), 200, norm="none")


def run(**method) -> Run:
    return Run().override({f"method.{key}": value for key, value in method.items()})


@pytest.mark.parametrize("ranks, megafloats", [(1, 36.8), (2, 20.8), (4, 12.8), (8, 8.8), (16, 6.8), (32, 5.8)])
def test_figure_2_of_the_paper_counts_io_plus_mid_over_p(ranks, megafloats):
    plan = cost.cost(run(), FIGURE_2, ranks)
    assert sum(rank.trained_elements for rank in plan.ranks) == round(megafloats * 1e6)


@pytest.mark.parametrize(
    "ranks, gigaflops", [(1, 113.05), (2, 63.90), (4, 39.32), (8, 27.03), (16, 20.89), (32, 17.82)]
)
def test_figure_2_of_the_paper_counts_six_flops_a_weight_and_example(ranks, gigaflops):
    batch = 512
    plan = cost.cost(Run().override({"train.batch": batch}), FIGURE_2, ranks)
    flops = sum(rank.flops for rank in plan.ranks)
    input_gradient = 2 * batch * 1000 * 4000
    assert (flops + input_gradient) / 1e9 == pytest.approx(gigaflops, abs=0.005)


def test_flops_are_those_that_pytorch_counts():
    assert cost.cost(Run().override({"train.batch": 512}), FIGURE_2, 1).ranks[0].flops == 108_953_600_000


@given(
    widths=st.lists(st.integers(7, 23), min_size=1, max_size=3),
    ranks=st.integers(1, 7),
    norm=st.sampled_from(["batch", "none"]),
    bias=st.booleans(),
    deal=st.sampled_from([None, (), ("hidden1",)]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=30, deadline=None)
def test_predicted_bytes_are_the_planned_bytes(widths, ranks, norm, bias, deal, seed):
    network = MLP(11, widths, 5, norm=norm, bias=bias)
    owners = Owners(network.lengths, ranks)
    partition = Partition.draw(network.lengths, network.groups if deal is None else deal, ranks, seed, 3)
    for source, target in ((owners, partition), (partition, owners)):
        predicted = cost.pair_bytes(network.parameters, source, target)
        for rank in range(ranks):
            plan = Transfer(network.parameters, source, target, rank)
            planned = [sum(block.nbytes for block in message) for message in plan.sends]
            assert predicted[rank].tolist() == planned
            assert plan.bytes_sent == predicted[rank].sum() - predicted[rank, rank]


@pytest.mark.parametrize("shares", [None, (3, 1, 1, 2)])
def test_expected_bytes_are_the_mean_over_deals(shares):
    ranks, network = 4, MLP(6, (9, 7), 3)
    owners = Owners(network.lengths, ranks)
    totals = []
    for number in range(400):
        partition = Partition.draw(network.lengths, network.groups, ranks, 1, number, shares)
        moved = cost.pair_bytes(network.parameters, owners, partition)
        totals.append(2 * (moved.sum() - np.trace(moved)))
    expected = cost.cost(run(shares=shares), network, ranks).round_bytes
    deviation = np.std(totals) / len(totals) ** 0.5
    assert abs(np.mean(totals) - expected) < 4 * deviation


def test_what_a_rank_holds_is_what_its_layouts_say():
    ranks, network = 3, MLP(6, (10, 7), 4)
    plan = cost.cost(run(shares=(2, 1, 1)), network, ranks)
    partition = Partition.draw(network.lengths, network.groups, ranks, 0, 0, (2, 1, 1))
    for rank in range(ranks):
        assert plan.ranks[rank].lengths == narrowed(network.lengths, network.parameters, partition.held(rank))
    owned = sum(rank.owned_bytes for rank in plan.ranks)
    assert owned == sum(4 * parameter.size(network.lengths) for parameter in network.parameters.values())


def test_every_method_has_a_cost():
    assert set(cost.METHODS) == set(METHODS)


def test_one_rank_sends_nothing():
    for name in METHODS:
        assert cost.cost(run(name=name), FIGURE_2, 1).round_bytes == 0


def test_more_ranks_than_units_are_refused_by_name():
    with pytest.raises(ConfigError, match="hidden1 has 4000 units but the run has 4001 ranks"):
        cost.cost(run(), FIGURE_2, 4001)
