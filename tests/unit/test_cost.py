"""What a run costs: the paper's golden values, plans and counters to the byte, and naive sums for every closed form."""

import itertools
import json
from fractions import Fraction

import numpy as np
import pytest

from istmpi.cli.networks import describe_run
from istmpi.cluster.survey import FIGURE_2
from istmpi.config import Run
from istmpi.config.methods import METHODS
from istmpi.cost import cost, pair_bytes, round_bytes, run_bytes
from istmpi.cost.deal import expect_deal, expect_route
from istmpi.cost.holdings import Holdings
from istmpi.cost.loads import expect_load, later_legs
from istmpi.cost.messages import LONG, sends_long_messages
from istmpi.cost.one_round import draw_route
from istmpi.cost.pairs import leg_bytes
from istmpi.engine.axes import Parameter, Pattern, narrow
from istmpi.engine.layout import Owners
from istmpi.engine.partition import Cut, Partition
from istmpi.models import mlp_network
from istmpi.optim.optimizers import choose_optimizer

NETWORK = mlp_network(1000, (4000, 4000, 4000), 200, norm="none")
W, IO, MID, BATCH = 36_800_000, 4_800_000, 32_000_000, 512
RANKS = (1, 2, 4, 8, 16, 32)


def run(**method) -> Run:
    return Run().override({f"method.{key}": value for key, value in method.items()})


def figure_2(method: str, ranks: int):
    return cost(Run().override(FIGURE_2), NETWORK, ranks, method, shared_batch=True)


def within_noise(values, expected):
    return abs(np.mean(values) - float(expected)) <= 4 * np.std(values) / len(values) ** 0.5 + 1e-9


def sent_bytes(pairs):
    return pairs.sum() - np.trace(pairs)


# ---- golden values of the paper's Figure 2: lengths 1000-4000-4000-4000-200, B = 512, J = 10


@pytest.mark.parametrize("ranks, gigaflops", list(zip(RANKS, (113.05, 63.90, 39.32, 27.03, 20.89, 17.82))))
def test_figure_2_as_the_paper_counts(ranks, gigaflops):
    ist, parallel = figure_2("ist", ranks), figure_2("data-parallel-broadcast", ranks)
    assert parallel.received_elements == 10 * ranks * W
    assert figure_2("local-sgd", ranks).received_elements == ranks * W
    assert ist.received_elements == IO + MID // ranks
    assert figure_2("data-parallel", ranks).received_elements == 10 * 2 * (ranks - 1) * W
    assert figure_2("codistillation", ranks).received_elements == ranks * (ranks - 1) * W
    flops = ist.flops("products", "first_input_gradient")
    assert flops == 6 * BATCH * (IO + MID // ranks)
    assert float(flops) / 1e9 == pytest.approx(gigaflops, abs=0.005)
    assert parallel.flops("products", "first_input_gradient") == 6 * BATCH * W
    assert (parallel.examples_per_step, ist.examples_per_step) == (BATCH, ranks * BATCH)


DEALT = [{}, {"shares": (3.0, 1.0, 1.0, 2.0)}, {"redeal": 0.3}, {"outer_momentum": 0.5}, {"partition": ["hidden2"]}]


@pytest.mark.parametrize("wire", ["float32", "int8"])
@pytest.mark.parametrize("settings", [*DEALT, {"delay": 1, "local_steps": 3}, {"share_every": 2}], ids=str)
def test_each_leg_is_expected_to_send_the_mean_over_its_draws(settings, wire):
    """The legs of drawn and of expected rounds are the same, but for a mean that is not due."""
    ranks, network = 4, mlp_network(40, (90, 60), 30, bias=True)
    drawn_run = run(name="ist", wire=wire, optimizer_state="carry", **settings)
    drawn_run = drawn_run.override({"optimizer.name": "adam", "train.rounds": 100})
    deal = expect_deal(METHODS["ist"], drawn_run, network, ranks)
    expected = later_legs(expect_route(METHODS["ist"], drawn_run, network, deal), network.parameters)
    route, totals = draw_route(drawn_run, network, ranks), {leg.name: [] for leg in expected}
    for number in range(1, 42, 2):
        legs = route.legs(network.parameters, number, fresh=False)
        assert [(leg.name, leg.during, set(leg.parameters)) for leg in legs] == [
            (leg.name, leg.during, set(leg.parameters)) for leg in expected
        ]
        for leg in legs:
            totals[leg.name].append(leg_bytes(leg, ranks, network.lengths).sum())
    for leg in expected:
        assert within_noise(totals[leg.name], expect_load(leg, deal).sent), leg.name


def test_a_mean_in_a_round_counts_what_is_sent_alone():
    """Largest changes of weights have no slots; they are picked in the rounds of a mean."""
    network = mlp_network(40, (90, 60), 30, bias=True)
    changed = {"shared_wire": "top-k", "optimizer_state": "carry", "share_every": 2}
    adam = run(name="ist", **changed).override({"optimizer.name": "adam"})
    bare, every = adam.override({"method.optimizer_state": "reset"}), adam.override({"method.share_every": 1})
    of_adam, of_bare, of_every = (cost(settings, network, 4).loads[2] for settings in (adam, bare, every))
    assert of_adam == of_bare and 0 < of_adam.handled == of_every.handled / 2
    undealt = cost(run(name="ist", partition=()), mlp_network(2000, (300,), 300), 4)
    assert [load.link for load in undealt.loads] == ["allreduce"], "no transfer where nothing is dealt out"


OTHERS = [(name, wire) for name, spec in METHODS.items() for wire in ("float32", "int8")[: 1 + spec.encodes]]


@pytest.mark.parametrize("method, wire", OTHERS)
def test_expected_bytes_are_the_mean_over_deals(method, wire):
    """So wide that in hardly any deal two ranks have nothing for each other, whose scales the closed sums count."""
    ranks, network = 3, mlp_network(40, (90, 60), 30, bias=True)
    wanted = run(name=method, wire=wire).override({"optimizer.momentum": 0.9})
    plan = cost(wanted, network, ranks)
    assert within_noise([sum(round_bytes(wanted, network, ranks, number)) for number in range(1, 30)], plan.round_bytes)
    first = [sum(round_bytes(wanted.override({"train.seed": seed}), network, ranks, 0)) for seed in range(30)]
    assert within_noise(first, plan.sent_bytes(0, 1))
    if wire != "float32":
        assert plan.round_bytes < cost(wanted.override({"method.wire": "float32"}), network, ranks).round_bytes


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("ist", "fedavg", "joint")])
def test_what_a_run_sends_is_the_sum_of_its_rounds(method):
    network, wanted = mlp_network(6, (10, 7), 5), run(name=method, local_steps=3, optimizer_state="carry", burn_in=2)
    wanted = wanted.override({"optimizer.name": "adam"})
    plan = cost(wanted, network, 4)
    for rounds in (1, 2, 5):
        assert plan.sent_bytes(0, rounds) == sum(sum(round_bytes(wanted, network, 4, n)) for n in range(rounds))
    assert plan.sent_bytes(1, 3) - plan.start_bytes == sum(sum(round_bytes(wanted, network, 4, n)) for n in (1, 2, 3))


def test_fedavg_takes_passes_of_some_ranks():
    """A rank has 600 of 4,800 examples if they are sharded; three of eight ranks train and fetch the network."""
    network = mlp_network(6, (10, 7), 5)
    wanted = run(name="fedavg", fraction=0.4, epochs=2).override({"train.batch": 100, "data.placement": "sharded"})
    plan = cost(wanted, network, 8, examples=4800)
    assert (plan.local_steps, plan.examples_per_step) == (12, 300)
    assert cost(wanted.override({"data.placement": "shared"}), network, 8, examples=4800).local_steps == 96
    one = cost(wanted.override({"method.name": "local-sgd"}), network, 1)
    assert plan.flops("products") == 3 * one.flops("products")
    assert plan.round_bytes == 2 * 3 * Fraction(7, 8) * plan.held.network_bytes


@pytest.mark.parametrize("ranks, shares", [(1, None), (7, None), (3, (2.0, 1.0, 1.0))])
@pytest.mark.parametrize("groups", [("hidden1", "hidden2"), ("hidden2",), ()])
def test_what_ranks_hold_is_what_their_layouts_say(ranks, shares, groups):
    network = mlp_network(6, (10, 8), 4, bias=True)
    held = Holdings(network.parameters, network.lengths, groups, Cut(ranks, shares))
    deal = Partition.draw(network.lengths, groups, ranks, 0, 0, shares)
    by_rank = {rank: part for part in held.parts for rank in part.ranks}
    assert sorted(by_rank) == list(range(ranks))
    for rank, part in by_rank.items():
        assert part.lengths == narrow(network.lengths, network.parameters, deal.held(rank))
    owners = Owners(network.lengths, ranks)
    assert held.held_elements * 4 == pair_bytes(network.parameters, owners, deal).sum()
    for rank in range(ranks):
        owned = (
            4 * np.prod([len(owners.positions(axis, n, rank)) for n, axis in enumerate(one.pattern.axes)])
            for one in network.parameters.values()
        )
        assert held.owned_bytes >= sum(owned)


def test_where_whole_blocks_are_dealt_sizes_are_expected_ones():
    """Five blocks on two ranks: the mean over deals of what the layouts say, and each block once over all ranks."""
    lengths = {"blocks": 5, "out": 5, "in": 3}
    parameters = {f"b{n}": Parameter(Pattern.parse(f"(blocks[{n}] out) in")) for n in range(5)}
    held, owners = Holdings(parameters, lengths, ("blocks",), Cut(2)), Owners(lengths, 2)
    assert held.held_elements == 5 * 15
    assert [held.bytes(part) for part in held.parts] == [4 * 3 * 15, 4 * 2 * 15]
    deals = (Partition.draw(lengths, ("blocks",), 2, 0, number) for number in range(300))
    assert within_noise([sent_bytes(pair_bytes(parameters, owners, deal)) for deal in deals], held.fetched_bytes)


@pytest.mark.parametrize("redeal, wire", [(None, "float32"), (1.0, "float32"), (0.3, "int8")])
def test_where_an_axis_is_a_sum_bytes_are_the_mean_over_deals(redeal, wire):
    """Segments that are not dealt out go to and from the owners in each round; others stay as long as they can."""
    ranks, longer = 4, 1 if wire == "float32" else 7  # no message in fewer bits is empty
    lengths = {"a": 9 * longer, "b": 14 * longer, "c": 5 * longer}
    texts = ("3 a + 4", "b a + 2", "b + 7 a + c", "(2 a) + b + 3", "c + 2 b", "c", "b c + 5 3")
    parameters = {text: Parameter(Pattern.parse(text)) for text in texts}
    dealt = {text: parameters[text] for text in texts if text != "c"}
    held = Holdings(parameters, lengths, ("a", "b"), Cut(ranks), redeal=redeal, wire=wire)
    owners, fetched, hopped = Owners(lengths, ranks), [], []
    deals = [Partition.draw(lengths, ("a", "b"), ranks, 0, each, redeal=redeal or 1.0) for each in range(80)]
    for before, deal in itertools.pairwise(deals):
        exclude = None if redeal is None else before
        fetched.append(sent_bytes(pair_bytes(parameters, owners, deal, exclude, wire)))
        hopped.append(sent_bytes(pair_bytes(dealt, before, deal, wire=wire, shared=False)))
        parts = [narrow(lengths, parameters, deal.held(rank)) for rank in range(ranks)]
        assert held.held_elements == sum(one.size(part) for one in parameters.values() for part in parts)
    assert within_noise(fetched, held.fetched_bytes)
    if redeal is not None:
        assert within_noise(hopped, sum(len(part.ranks) * held.hop_bytes(part) for part in held.parts))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer, momentum, slots", [("sgd", 0.0, 0), ("sgd", 0.9, 1), ("adam", 0.0, 2)])
@pytest.mark.parametrize("state", ["reset", "carry"])
def test_memory_has_a_tensor_for_everything_that_is_kept(method, optimizer, momentum, slots, state):
    wanted = run(name=method, optimizer_state=state)
    wanted = wanted.override({"optimizer.name": optimizer, "optimizer.momentum": momentum})
    plan = cost(wanted, mlp_network(6, (12, 8), 4), 2)
    memory = plan.largest.memory
    owned = plan.held.owned_undealt_bytes if METHODS[method].sums_outputs else plan.held.owned_bytes
    assert memory.owned == owned * (1 + len(METHODS[method].slots(wanted)))
    assert memory.network == memory.gradients == 4 * plan.largest.elements
    assert memory.optimizer == slots * memory.network
    assert plan.largest.flops.optimizer == choose_optimizer(wanted.optimizer).flops * plan.largest.elements


def test_a_dry_run_says_them(istmpi_command):
    words = ("train", "--dry-run", "--ranks", "3", "--rounds", "7", "--redeal", "0.3")
    plan = json.loads(istmpi_command(*words, "--json")[1])
    run = Run.load("digits").override({"train.rounds": 7, "method.redeal": 0.3})
    assert plan["sent_bytes"] == run_bytes(run, describe_run(run, None).architecture, 3)
    assert plan["parameters"][1]["network"] == [512] and plan["parameters"][1]["largest_subnet"] == [171]
    _, out, _ = istmpi_command(*words)
    facts = (f"{plan['sent_bytes']:,} bytes sent by all", "FLOPs a local", "bytes sent a round", "memory", "no folder")
    facts += ("other: 6 to load (1 more without a shared folder), 34 in rounds, 4 in evaluations, 4 to save (2 more",)
    assert all(fact in out.replace("\n", " ") for fact in facts)
    assert "bytes inside groups and memory need --group-size N\n" in istmpi_command(*words, "--group-size", "host")[1]


def test_both_forms_of_a_prediction_count_what_groups_send_inside_and_the_memory_of_a_leader(istmpi_command):
    """Only a dry run knows the passes of an evaluation."""
    words = "digits", "--ranks", "2", "--set", "train.group_size=2"
    group = json.loads(istmpi_command("train", *words, "--dry-run", "--json")[1])["group"]
    words = "costmodel", *words, "--compare", "ist,local-sgd"
    row, other = json.loads(istmpi_command(*words, "--json")[1])["rows"]
    wanted = {f"memory_{name}_bytes": amount for name, amount in group["leader"].items() if name != "evaluation"}
    wanted |= {"members": 2, "sent_bytes_inside_groups_per_round": group["round_bytes"]}
    assert row | wanted == row and other["memory_network_bytes"] > row["memory_network_bytes"]
    assert "group of 2 processes. Their link: 16 Gbit/s, 50 µs (assumed)." in istmpi_command(*words)[1]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("redeal", [1.0, 0.1])
def test_messages_are_long_where_the_drawn_deals_have_long_ones(ranks, redeal):
    """The mean of the busiest rank's messages in some leg, over drawn deals, is on the same side of a megabyte."""
    for width in (256, 8192):
        network = mlp_network(64, [width, width], 10, bias=False)
        run = Run().override({"method.redeal": redeal})
        route = draw_route(run, network, ranks)
        sizes = {}
        for number in range(1, 4):
            for leg in route.legs(network.parameters, number, fresh=False):
                sizes.setdefault(leg.name, []).append(leg_bytes(leg, ranks, network.lengths).max() / (ranks - 1))
        longest = max(np.mean(sizes[name]) for name in ("pull", "hop", "push"))
        assert sends_long_messages(run, network, ranks) == (longest >= LONG)
    assert not sends_long_messages(run, network, 1)
