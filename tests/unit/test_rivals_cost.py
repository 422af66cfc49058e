"""What streaming-diloco and sparse-loco send and need, and the seconds of a whole run, against figures by hand."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from istmpi.cluster.advice import advise
from istmpi.cluster.figures import Cluster, Link, network, preset
from istmpi.cluster.run_time import predict_run
from istmpi.cluster.survey import Scenario
from istmpi.cluster.time import epoch_seconds, link_rate, round_time
from istmpi.config import Run
from istmpi.cost import cost
from istmpi.data.sources import open_dataset
from istmpi.engine.fragments import departures
from istmpi.errors import ConfigError
from istmpi.evaluation.planning import Evaluations
from istmpi.models import mlp_network
from istmpi.training.network import plan_network
from istmpi.units import in_seconds, number

PLAIN = Cluster("plain", "by hand", network(0.0, 1e9), (1e12,))
NETWORK = mlp_network(512, (1024, 512), 64, norm="none")  # three matrices of 524,288, 524,288 and 32,768 values


def run(**settings):
    base = {"model.norm": "none", "train.batch": 100, "method.local_steps": 100}
    return Run().override(base | {key.replace("__", "."): value for key, value in settings.items()})


@pytest.mark.parametrize(
    "fragments, steps, delay, expected",
    [
        (1, 100, 0, [(100, 100, "012")]),
        (2, 100, 10, [(45, 55, "02"), (90, 100, "1")]),
        (3, 100, 10, [(30, 40, "0"), (60, 70, "1"), (90, 100, "2")]),
        (9, 100, 10, [(30, 40, "0"), (60, 70, "1"), (90, 100, "2")]),  # there are three layers
        (3, 10, 3, [(3, 6, "0"), (7, 10, "12")]),  # the second would leave at 5, and the first is there at 6
        (3, 1, 10, [(1, 1, "012")]),
    ],
)
def test_departures_by_hand(fragments, steps, delay, expected):
    names = list(NETWORK.parameters)
    wanted = [(leaves, arrives, tuple(names[int(digit)] for digit in digits)) for leaves, arrives, digits in expected]
    assert [
        (one.leaves, one.arrives, one.names) for one in departures(NETWORK.parameters, fragments, steps, delay)
    ] == wanted


def test_bytes_of_sparse_loco_by_hand():
    """264 chunks of 4,096: 64 places of 12 bits, 64 values of 2 bits, two bfloat16."""
    wanted = run(method__name="sparse-loco")
    message = 264 * (64 * 12 // 8 + 64 * 2 // 8 + 4)
    plan = cost(wanted, NETWORK, 4)
    assert (plan.round_bytes, plan.received_elements) == (12 * message, 12 * 264 * 64)


@pytest.mark.parametrize("method", ["ist", "data-parallel", "streaming-diloco", "sparse-loco", "ist-push-pull"])
def test_at_the_rate_a_rank_computes_that_part_of_its_time(method):
    plan = cost(run(method__delay=3), NETWORK, 4, method)
    rate = link_rate(plan, PLAIN, 0.8)
    for factor, above in (1.001, True), (0.999, False):
        time = round_time(plan, Cluster("at", "by hand", network(0.0, factor * rate / 8), (1e12,)))
        assert (time.compute / time.total > 0.8) is above


def test_the_exchange_of_ist_beside_local_steps_by_hand():
    """What nobody trains has the steps up to the departure, all else those behind it; memory for two more subnets."""
    plain, early = (cost(run(method__name="ist", method__delay=delay), NETWORK, 4) for delay in (0, 30))
    hop, pull, push = plain.loads
    step = round_time(plain, PLAIN).compute / 100
    slow = Cluster("slow", "by hand", network(0.0, float(hop.busiest + push.busiest) / (50 * step)), (1e12,))
    seconds = 50 * step / float(hop.busiest + push.busiest)
    assert round_time(plain, slow).transfer == pytest.approx(float(pull.busiest) * seconds + 50 * step)
    assert float(pull.busiest) * seconds < 70 * step
    assert round_time(early, slow).transfer == pytest.approx(20 * step)
    assert early.round_bytes == plain.round_bytes and early.start_bytes == plain.start_bytes
    part = early.parts[0]
    assert part.memory.copies - plain.parts[0].memory.copies == 2 * 4 * part.elements


@pytest.mark.parametrize("fragments, steps, delay, room", [(4, 100, 0, 3), (3, 10, 3, 1)])
def test_more_fragments_than_there_is_room_for_are_refused(fragments, steps, delay, room):
    settings = {"method__name": "streaming-diloco", "method__local_steps": steps, "method__delay": delay}
    with pytest.raises(ConfigError) as refused:
        cost(run(**settings, method__fragments=fragments), NETWORK, 4)
    message = str(refused.value)
    assert message.startswith(f"method.fragments = {fragments} is more than ") and "\n" not in message
    assert message.endswith(f" allow. Give at most {room}.")
    for fitting in ({**settings, "method__fragments": room}, settings):
        assert cost(run(**fitting), NETWORK, 4).loads, "by default as many as there is room for"


def test_advice_knows_what_else_is_cheap():
    """Less redealing, coarser values and narrow networks, by the same costs as everything else."""
    scenario = Scenario(run(), mlp_network(4096, (4096, 4096), 35), preset("m5.2xlarge"), 84_843)
    advice = advise(scenario, 4)
    first, rows = advice.first, {title: columns for title, *columns in advice.rows}
    steps = int(first.split(" with ")[1].split()[0])

    def seconds_of(scenario, method):
        return epoch_seconds(scenario.cost(method, 4), scenario.cluster, 84_843)

    assert first.startswith("Run ist on 4 ranks")
    cases = {
        "ist, a tenth redealt": ("ist", {"method.redeal": 0.1}, (4096, 4096)),
        "ist, a tenth redealt, int8": ("ist", {"method.redeal": 0.1, "method.wire": "int8"}, (4096, 4096)),
        "sparse-loco, network 1/P as wide": ("sparse-loco", {}, (1024, 1024)),
    }
    assert rows["ist"][:2] == ["4", str(steps)] and steps != scenario.run.method.local_steps
    assert rows["streaming-diloco"][1] == "100"
    for title, (name, settings, hidden) in cases.items():
        other = scenario.run.override({**settings, "method.local_steps": steps})
        rate = link_rate(cost(other, mlp_network(4096, hidden, 35), 4, name), scenario.cluster)
        ranks, local_steps, epoch, link = rows[title]
        amount, unit = f"{link} ".split(" ")[:2]
        sizes = {"Gbit/s": 1e9, "Mbit/s": 1e6}
        assert (0 if amount == "none" else float(amount) * sizes[unit]) == pytest.approx(float(rate), rel=0.01)
        other = Scenario(other, mlp_network(4096, hidden, 35), scenario.cluster, 84_843)
        assert (ranks, local_steps, epoch) == ("4", str(steps), in_seconds(seconds_of(other, name)))
    # Joint training is named where subnets are narrow, and its outputs are fewer bytes than their weights.
    narrow = replace(scenario, architecture=mlp_network(100_000, (64,), 35))
    first, notes = advise(narrow, 4).first, advise(narrow, 4).notes
    joint = cost(run(method__local_steps=int(first.split(" ")[6])), narrow.architecture, 4, "joint").round_bytes
    weights = cost(run(), mlp_network(100_000, (16,), 35), 4, "local-sgd").round_bytes
    outputs, replaced = (f"{number(float(count))}B" for count in (joint, weights))
    said = f"joint sends {outputs} a round, and local-sgd of a network 1/P as wide {replaced}. A rank has 16 units of a"
    (found,) = [note for note in notes if note.startswith(said)]
    assert all(words in found for words in ("ranks had the same data", "sparse-loco", "ensemble"))
    for case in (mlp_network(100_000, (128,), 35), mlp_network(64, (64,), 4096)):
        assert not any(note.startswith("joint") for note in advise(replace(narrow, architecture=case), 4).notes)


NO_FLOPS = (1e30,)  # products take no time


def predict(cluster, ranks, **settings):
    """By default rank 0 evaluates alone, because a batch is too small for a pass of all examples at once."""
    settings = {name.replace("__", "."): value for name, value in ({"evaluate__batch": 512} | settings).items()}
    run = Run.load("digits").override({"train.rounds": 6, "evaluate.every": 2, **settings}).with_implied()
    data = open_dataset("digits")
    planned = Evaluations.in_training(run, plan_network(run, data), data, ranks)
    return predict_run(planned, cluster), planned.plan, cost(run, planned.architecture, ranks)


@pytest.mark.parametrize("ranks, hops, told", [(2, 1, 1 / 2), (5, 1, 4 / 5), (8, 1, 7 / 8), (64, 6, 3)])
def test_messages_that_follow_each_other_take_a_latency_each(monkeypatch, ranks, hops, told):
    """Messages of each other rank take a latency each; sums of a score and calls of a save one, on up to 32 ranks."""
    cluster = Cluster("late", "by hand", network(latency=0.01, bandwidth=1e30), NO_FLOPS)
    found, planned, plan = predict(cluster, ranks)
    assert planned.on_one
    assert found.rounds == pytest.approx(6 * round_time(plan, cluster).total)
    assert found.evaluations == pytest.approx(3 * 0.01 * (2 * (ranks - 1) + told))
    assert found.saving == pytest.approx(4 * 0.01 * hops)
    assert predict(replace(cluster, save_seconds=0.25), ranks)[0].saving == pytest.approx(found.saving + 0.25)
    # Outputs and moments of subnets for sample and scored examples travel in two messages.
    best, _, _ = predict(cluster, ranks, method__redeal=0.0, evaluate__batch=1024)
    assert best.evaluations == pytest.approx(found.evaluations + 3 * 0.01 * 2)
    assert best.saving == found.saving
    # An all-gather that was not measured is as late as transfers.
    gathers = replace(cluster, links={**cluster.links, "allgather": Link(0.03, 0.0)})
    sparse, later = (predict(one, ranks, method__name="sparse-loco")[0].rounds for one in (cluster, gathers))
    assert later - sparse == pytest.approx(6 * 0.02 * (ranks - 1))
    ended = predict(cluster, ranks, method__finish="local-sgd:34%")[0].evaluations  # twice, all ranks have all weights
    assert ended == pytest.approx(0.01 * (2 * (ranks - 1) + 3 * told))
    # Ranks that share the examples add up the moments of three normalisations, call by call, and the score.
    monkeypatch.setattr("istmpi.cost.evaluation.FLOPS_OF_ONE", 0)
    shared = predict(cluster, ranks)[0].evaluations
    assert shared == pytest.approx(3 * 0.01 * (2 * (ranks - 1) + (3 * 3 + 2) * hops))


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_weights_of_an_evaluation_pass_the_link_of_one_rank(ranks):
    cluster = Cluster("narrow", "by hand", network(latency=0.0, bandwidth=1e6), NO_FLOPS)
    found, planned, plan = predict(cluster, ranks)
    to_owners = float(plan.flush_bytes) / ranks
    assert planned.on_one and found.evaluations == pytest.approx(3 * (planned.sent + to_owners) / 1e6)
    alone = replace(cluster, flops=(1.0,), alone_seconds_per_flop=1e-30, evaluation_seconds=0.25)
    assert predict(alone, ranks)[0].evaluations == pytest.approx(found.evaluations + 3 * 0.25)
    of_first = Fraction(plan.start_bytes) / ranks / 10**6
    assert found.rounds == pytest.approx(6 * round_time(plan, cluster).total + float(of_first)) and found.saving == 0


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_add_up_their_units_share_the_bytes_of_an_evaluation(ranks):
    """An evaluation brings values to owners and weights to all ranks, and waits twice for the sums."""
    late = Cluster("late", "by hand", network(latency=0.01, bandwidth=1e30), NO_FLOPS)
    found, planned, plan = predict(late, ranks, evaluate__batch=1024)
    assert planned.summed and found.evaluations == pytest.approx(3 * 0.01 * (2 * (ranks - 1) + 2))
    assert found.saving == pytest.approx(4 * 0.01)
    narrow = replace(late, links=network(latency=0.0, bandwidth=1e6))
    found, _, _ = predict(narrow, ranks, evaluate__batch=1024)
    assert found.evaluations == pytest.approx(3 * float(planned.sent + plan.flush_bytes) / ranks / 1e6)


@pytest.mark.parametrize("members, hops", [(2, 1), (4, 2), (8, 3)])
def test_groups_wait_for_their_own_network_and_compute_as_ranks_with_parts_of_the_batch(members, hops):
    """Gradients, and three sums of each of three normalisations, go around a ring; weights and a step's call do not."""
    here = replace(Cluster("fast", "by hand", network(0.0, 1e30), NO_FLOPS), inside=Link(0.001, 0.0))
    for synchronised, rings in ((False, 1), (True, 1 + 3 * 3)):
        found, _, plan = predict(here, 2, train__group_size=members, train__sync_batch_norm=synchronised)
        a_step = 0.001 * (1 + 2 * (members - 1) * rings)
        assert found.rounds == pytest.approx(6 * plan.local_steps * a_step, rel=1e-3)
    slow = replace(here, flops=(1e9,), inside=Link(0.0, 0.0))
    groups, _, _ = predict(slow, 2, train__group_size=members, train__batch=64)
    ranks, _, _ = predict(slow, 2, train__batch=64 // members)
    assert (groups.rounds, members * groups.evaluations) == pytest.approx((ranks.rounds, ranks.evaluations), rel=1e-3)
    found, planned, _ = predict(replace(here, inside=Link(0.0, 1e-6)), 2, train__group_size=members)
    assert planned.on_one and found.evaluations == pytest.approx(3 * hops * planned.gathered_bytes * 1e-6, rel=1e-3)


def test_what_has_no_prediction_is_left_out(istmpi_command, refusal):
    """Subnets side by side pass examples to be saved; a file of a measurement names the cluster."""
    words = ["train", "digits", "--dry-run", "--cluster", "1gbit"]
    _, out, _ = istmpi_command(*words, "--json", "--redeal", "0", "--set", "data.validation=0.2")
    found = json.loads(out)["seconds"]
    assert found["rounds"] > 0 and found["evaluations"] is None and found["saving"] is None
    _, out, _ = istmpi_command(*words)
    assert "on 1gbit: " in out and "s in saving; not predicted: loading" in out
    _, out, _ = istmpi_command(*words, "--method", "joint")
    assert "s in evaluations; not predicted: saving, loading" in out
    # The interval that a plan chooses decides how many examples calibrate: given as a setting, it changes nothing.
    words += ["--ranks", "4", "--rounds", "8", "--batch", "32", "--hidden", "1024,1024", "--method", "local-sgd"]
    chosen, given = (istmpi_command(*words, "--json", *more)[1] for more in ((), ("--evaluate-every", "4")))
    assert json.loads(chosen) == json.loads(given)
    assert "--cluster needs --dry-run" in refusal("train", "digits", "--cluster", "1gbit")
