"""Seconds of a whole run by hand: what passes a link, and how many messages follow each other."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from istmpi.cluster.figures import Cluster, Link, network
from istmpi.cluster.run_time import predict_run
from istmpi.cluster.time import round_time
from istmpi.config import Run
from istmpi.cost import cost
from istmpi.data.sources import open_dataset
from istmpi.evaluation.planning import plan_evaluation
from istmpi.training.network import plan_network

NO_FLOPS = (1e30,)
"""A speed at which products take no time."""


def predict(cluster, ranks, **settings):
    settings = {name.replace("__", "."): value for name, value in settings.items()}
    run = Run.load("digits").override({"train.rounds": 6, "evaluate.every": 2, **settings}).with_implied()
    data = open_dataset("digits")
    architecture = plan_network(run, data)
    found = predict_run(run, architecture, data, ranks, cluster, evaluations=3)
    return found, plan_evaluation(run, architecture, data, ranks, ranks), cost(run, architecture, ranks)


@pytest.mark.parametrize("ranks, hops", [(2, 1), (4, 2), (5, 3), (8, 3)])
def test_messages_that_follow_each_other_take_a_latency_each(ranks, hops):
    """The newest values for their owners, and an evaluation's weights, are messages of each other rank, as in a round;
    the sums, and the five calls of a save, pass from rank to rank. Bytes and products take no time."""
    cluster = Cluster("late", "by hand", network(latency=0.01, bandwidth=1e30), NO_FLOPS)
    found, planned, plan = predict(cluster, ranks)
    assert planned.on_one
    assert found.rounds == pytest.approx(6 * round_time(plan, cluster).total)
    assert found.evaluations == pytest.approx(3 * 0.01 * (2 * (ranks - 1) + hops))
    assert found.saving == pytest.approx(5 * 0.01 * hops)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_weights_of_an_evaluation_pass_the_link_of_one_rank(ranks):
    cluster = Cluster("narrow", "by hand", network(latency=0.0, bandwidth=1e6), NO_FLOPS)
    found, planned, plan = predict(cluster, ranks)
    to_owners = float(plan.flush_bytes) / ranks
    assert planned.on_one and found.evaluations == pytest.approx(3 * (planned.sent + to_owners) / 1e6)
    of_first = Fraction(plan.start_bytes) / ranks / 10**6
    assert found.rounds == pytest.approx(6 * round_time(plan, cluster).total + float(of_first))
    assert found.saving == 0


@pytest.mark.parametrize("members, hops", [(2, 1), (4, 2), (8, 3)])
def test_groups_wait_for_their_own_network_and_compute_as_ranks_with_parts_of_the_batch(members, hops):
    """A step's call goes from member to member, and its gradients around a ring; an evaluation's weights follow it."""
    here = replace(Cluster("fast", "by hand", network(0.0, 1e30), NO_FLOPS), inside=Link(0.001, 0.0))
    found, _, plan = predict(here, 2, train__group_size=members)
    assert found.rounds == pytest.approx(6 * plan.local_steps * 0.001 * (hops + 2 * (members - 1)), rel=1e-3)
    slow = replace(here, flops=(1e9,), inside=Link(0.0, 0.0))
    groups, _, _ = predict(slow, 2, train__group_size=members, train__batch=64)
    ranks, _, _ = predict(slow, 2, train__batch=64 // members)
    assert groups.rounds == pytest.approx(ranks.rounds)
    assert groups.evaluations == pytest.approx(ranks.evaluations / members, rel=1e-3)
    found, planned, _ = predict(replace(here, inside=Link(0.0, 1e-6)), 2, train__group_size=members)
    assert planned.on_one and found.evaluations == pytest.approx(3 * hops * planned.gathered_bytes * 1e-6, rel=1e-3)


def test_what_has_no_prediction_is_left_out(istmpi_command):
    """Subnets side by side gather weights to be saved once more; a file of a measurement names the cluster."""
    words = ["train", "digits", "--dry-run", "--cluster", "1gbit"]
    _, out, _ = istmpi_command(*words, "--json", "--redeal", "0")
    found = json.loads(out)["seconds"]
    assert found["rounds"] > 0 and found["evaluations"] is None and found["saving"] is None
    _, out, _ = istmpi_command(*words)
    assert "on 1gbit: " in out and "s in saving; loading is not predicted" in out
    code, _, err = istmpi_command("train", "digits", "--cluster", "1gbit")
    assert code == 2 and "--cluster needs --dry-run" in err
