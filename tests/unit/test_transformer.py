"""The decoder and the mixture of experts that ship: what can be dealt out, what a token sees, losses inside."""

from functools import cache

import pytest
import torch
from torch import nn

from istmpi.cluster.advice import advise
from istmpi.cluster.figures import preset
from istmpi.cluster.survey import Scenario
from istmpi.config import Run
from istmpi.cost import cost
from istmpi.errors import ConfigError
from istmpi.inspection.examine import inspect
from istmpi.models import architecture
from istmpi.models.moe import Experts
from istmpi.models.transformer import Transformer
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import user_network
from istmpi.tasks import NEXT_TOKEN
from istmpi.units import number

WINDOW, WORDS = 12, 20
SMALL = {"layers": 2, "embed": 10, "heads": [4, 5], "head_dim": 6, "hidden": [7, 8]}
KINDS = [
    {"norm": norm, "positions": positions, "feed_forward": feed_forward, "tied": tied, "queries": queries}
    for norm, positions, feed_forward, tied, queries in (
        ("rms", "rotary", "swiglu", True, 1),
        ("layer", "learnt", "gelu", False, 2),
        ("rms", "rotary", "gelu", True, 3),
    )
]


@cache
def examined(number):
    own = user_network("transformer", (WINDOW,), WORDS, {**SMALL, **KINDS[number]}, NEXT_TOKEN)
    return Architecture("transformer", inspect(own), "float64", own)


@pytest.mark.parametrize("changed, said", [({}, 1), ({"data.placement": "shared"}, 0), ({"method.partition": []}, 0)])
def test_advice_names_experts_by_likelihood_where_each_rank_has_text_of_its_own(changed, said):
    run = Run().override({"data.source": "site-{rank}.h5", "data.placement": "local", **changed})
    text = Scenario(run, examined(0), preset("100gbit"), 1000)
    notes = [note for note in advise(text, 2).notes if note.startswith("Experts by likelihood")]
    plan = cost(run.override({"method.redeal": 0.0}), text.architecture, 2, "ist")
    needs = f"{number(float(plan.round_bytes))}B a round, and nothing if method.partition has all widths. A rank needs "
    needs += f"{float(plan.largest.memory.total) / 1e9:.3g} GB. An evaluation passes each text through 2 networks"
    assert [needs in note for note in notes] == [True] * said


def module(**changed):
    torch.manual_seed(0)
    return Transformer((WINDOW,), WORDS, **{**SMALL, **changed}).double()


def tokens(count=2, length=WINDOW):
    return torch.randint(WORDS, (count, length), generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("number", [0, 1])
def test_heads_and_feed_forward_units_are_dealt_out_layer_by_layer(number):
    found, kind = examined(number), KINDS[number]
    assert found.default_groups == ("heads1", "heads2", "hidden1", "hidden2")
    assert [block.path for block in found.blocks["layers"]] == ["layers.0", "layers.1"]
    ends = "layers.0.attention.output", "layers.0.feed_forward.down"
    assert found.blocks["layers"][0].ends == ends
    axes = {name: str(one.pattern) for name, one in found.parameters.items()}
    length = "6" if kind["positions"] == "rotary" else "head_dim"  # rotations tell the dimensions of a head apart
    queries = f"heads2 queries {length}" if kind["queries"] > 1 else f"heads2 {length}"
    assert axes["layers.1.attention.query.weight"] == f"(layers[1] {queries}) embed"
    assert axes["layers.1.attention.value.weight"] == f"(layers[1] heads2 {length}) embed"
    assert axes["layers.1.attention.output.weight"] == f"(layers[1] embed) ({queries})"
    assert axes["layers.1.feed_forward.down.weight"] == "(layers[1] embed) hidden2"
    assert ("outputs.weight" in axes) == (not kind["tied"])
    summed = {name: groups for name, groups in found.sums.items() if set(groups) & {*found.default_groups}}
    assert {name.split(".", 2)[2] for name in summed} == {"attention.output", "feed_forward.down"}


@pytest.mark.parametrize("kind", KINDS[:2], ids=str)
def test_a_later_token_changes_nothing_that_was_said_before(kind):
    network, x = module(**kind), tokens()
    expected = network(x)
    for place in (1, 5, WINDOW - 1):
        other = x.clone()
        other[:, place:] = (other[:, place:] + 1) % WORDS
        found = network(other)
        torch.testing.assert_close(found[:, :place], expected[:, :place], rtol=0, atol=0)
        assert not torch.equal(found[:, place:], expected[:, place:])


def test_positions_matter_and_rotary_ones_only_by_their_distance():
    torch.manual_seed(1)
    rotary, learnt = module(), module(positions="learnt")
    x = tokens(1)
    swapped = x.clone()
    swapped[:, [1, 3]] = swapped[:, [3, 1]]
    for network in (rotary, learnt):
        assert not torch.allclose(network(x)[:, -1], network(swapped)[:, -1])
    layer = rotary.layers[0]
    stream = torch.randn(1, 5, SMALL["embed"], dtype=torch.float64)
    here, there = (layer(stream, torch.arange(5) + shift, None, 0) for shift in (0, 7))
    torch.testing.assert_close(here, there)


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"norm": "batch"}, "norm = 'batch' must be rms or layer"),
        ({"heads": []}, "each need at least one number"),
        ({"head_dim": 5}, "head_dim = 5 must be even with rotary positions"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(changed, said):
    with pytest.raises(ConfigError, match=said) as refused:
        user_network("transformer", (WINDOW,), WORDS, {**SMALL, **changed}, NEXT_TOKEN).build()
    assert "\n" not in str(refused.value)
    # Text is not for an mlp, and images are no text.
    with pytest.raises(ConfigError, match="model.name = 'mlp' takes numbers, but these data are text"):
        architecture(WINDOW, WORDS, NEXT_TOKEN, Run().model)
    with pytest.raises(ConfigError, match=r"examples of shape \(3, 8, 8\) are not windows of tokens"):
        user_network("transformer", (3, 8, 8), 10, SMALL).build()


# ---- the mixture of experts

EXPERTS = {"layers": 2, "embed": 8, "heads": [2, 3], "head_dim": 4, "hidden": 12, "experts": [6, 5]}
WEIGHTS = ("router.weight", "gate", "up", "down")
PATHS = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["grouped", "masked"])


def own(**changed):
    return user_network("moe", (7,), 20, {**EXPERTS, **changed}, NEXT_TOKEN)


def mixture(dtype, experts=6, top=2, balance=0.3, z=0.2, hidden=12):
    torch.manual_seed(0)
    return Experts(8, experts, hidden, top, balance, z).to(dtype), torch.randn(3, 7, 8, dtype=dtype, requires_grad=True)


def with_values(network, values):
    network.load_state_dict(values)
    return network


def results(network, x):
    """The outputs, and the gradients of the inputs and of all parameters."""
    network.zero_grad()
    x.grad = None
    made = network(x)
    (made * torch.linspace(-1, 1, made.numel(), dtype=made.dtype).view_as(made)).sum().backward()
    return made.detach(), x.grad.clone(), {name: value.grad.clone() for name, value in network.named_parameters()}


@pytest.fixture(scope="module")
def found():
    code = own()
    return Architecture("moe", inspect(code), "float32", code)


def test_no_sum_over_experts_is_scaled_and_those_that_a_token_takes_are_computed(found):
    assert found.default_groups == ("experts1", "experts2")
    assert not found.table.unscaled and not found.uses
    assert not found.summed & {*found.default_groups}
    bounds = [found.parameters[f"layers.1.feed_forward.{name}"].bound for name in WEIGHTS]
    assert bounds == pytest.approx([8**-0.5] * 3 + [12**-0.5])
    products = [str(one.shape) for one in found.operators if one.kind == "Experts"]
    assert not found.inexact
    assert products[:3] == ["(layers[0] 14) embed hidden"] * 2 + ["(layers[0] 14) hidden embed"]


@pytest.mark.parametrize("hidden", [12, 16])
def test_a_token_costs_its_experts_or_all_of_them_and_gets_the_same(hidden):
    """In half precision rows of 12 numbers are no multiple of 16 bytes."""
    one, x = mixture(torch.float32, hidden=hidden)
    other = with_values(mixture(torch.float64, hidden=hidden)[0], one.state_dict())
    assert one._can_group(x) and not other._can_group(x.double())
    found, expected = results(one, x), results(other, x.detach().double().requires_grad_())
    torch.testing.assert_close(found, expected, check_dtype=False, rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert one._can_group(x) == (hidden == 16)
        torch.testing.assert_close(one(x), found[0], check_dtype=False, rtol=0.05, atol=0.05)


@PATHS
@pytest.mark.parametrize("held", [1, 2])
def test_where_fewer_are_held_all_are_taken(dtype, held):
    network, x = mixture(dtype, held, 4)
    shares = network.router(x).softmax(-1)
    made = [
        (nn.functional.silu(x @ network.gate[n]) * (x @ network.up[n])) @ network.down[n] * shares[..., n : n + 1]
        for n in range(held)
    ]
    torch.testing.assert_close(network(x), sum(made))


@PATHS
def test_the_losses_inside_are_those_added_by_hand(dtype):
    network, x = mixture(dtype)
    _, of_x, gradients = results(network, x)
    plain, again = mixture(dtype, balance=0, z=0)
    made = plain(again)
    scores = plain.router(again.flatten(0, 1))
    taken = torch.stack([(scores.topk(2).indices == n).sum() / (2 * len(scores)) for n in range(6)]).to(dtype)
    balance, z = 6 * (taken * scores.softmax(-1).mean(0)).sum(), (scores.logsumexp(-1) ** 2).mean()
    assert balance > 0.9
    weights = torch.linspace(-1, 1, made.numel(), dtype=dtype).view_as(made)
    ((made * weights).sum() + 0.3 * balance + 0.2 * z).backward()
    torch.testing.assert_close(again.grad, of_x)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name])
    before = results(plain.eval(), x)
    torch.testing.assert_close(results(network.eval(), x), before, rtol=0, atol=0)  # nothing is added in evaluation


def test_experts_that_cannot_be_built_are_refused():
    for changed in ({"experts": []}, {"top": 0}):
        with pytest.raises(ConfigError, match="needs at least one number, and top = . must be at least 1"):
            own(**changed).build()
