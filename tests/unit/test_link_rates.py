"""The table of docs/link-rates.md is what the cost model says, and its rates are what they are called."""

from dataclasses import replace

import pytest

from benchmarks.scale import link_rates
from istmpi.cost import cost
from istmpi.cost.cluster import network, preset
from istmpi.cost.time import COMPUTING, round_time


def test_the_page_has_the_lines_that_the_code_makes():
    page = link_rates.PAGE.read_text(encoding="utf-8").splitlines()
    first = page.index(link_rates.head()[0])
    wanted = [*link_rates.head(), *link_rates.lines(link_rates.DECLARED)]
    assert page[first : first + len(wanted)] == wanted


def test_a_rate_follows_from_bytes_and_flops():
    """Local SGD by hand: 2(P-1)/P of the weights a round, each way, in a nineteenth of its computing."""
    run = link_rates.Run().override({"model.hidden": [1024], "model.norm": "none", "method.local_steps": 5})
    found = link_rates.described(run, "1024-1024-10")
    cluster = preset("m5.2xlarge")
    weights = 1024 * 1024 + 1024 + 1024 * 10 + 10
    flops = 5 * run.train.batch * (6 * 1024 * 1024 - 2 * 1024 * 1024 + 6 * 1024 * 10)
    by_hand = 8 * 4 * weights * 2 * 7 / 8 / (flops / cluster.flops[0] / 19)
    rate = link_rates.link_rate(found.run, found.architecture, "local-sgd", cluster)
    assert rate == pytest.approx(by_hand, rel=2e-3)


@pytest.mark.parametrize("method", ["ist", "data-parallel", "codistillation", "streaming-diloco", "sparse-loco"])
def test_at_the_rate_a_rank_computes_so_much(method):
    found = link_rates.described(link_rates.Run.load("speech"), "4096-4096-35")
    cluster = preset("m5.2xlarge")
    rate = link_rates.link_rate(found.run, found.architecture, method, cluster)
    plan = cost(found.run, found.architecture, link_rates.RANKS, method)
    for factor, above in (1.01, True), (0.99, False):
        time = round_time(plan, replace(cluster, links=network(0, factor * rate / 8)))
        assert (time.compute / time.total > COMPUTING) is above
