"""The mixture of experts that ships: what is dealt out, a mean that is not scaled, the losses inside it."""

import pytest
import torch
from torch import nn

from istmpi.errors import ConfigError
from istmpi.inspection.examine import inspect
from istmpi.models.moe import Experts
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import user_network
from istmpi.network.trials import one_thread
from istmpi.tasks import NEXT_TOKEN

SMALL = {"layers": 2, "embed": 8, "heads": [2, 3], "head_dim": 4, "hidden": 12, "experts": [6, 5]}
WEIGHTS = ("router.weight", "gate", "up", "down")
PATHS = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["grouped", "masked"])


@pytest.fixture(autouse=True, scope="module")
def alone():
    with one_thread():
        yield


def own(**changed):
    return user_network("moe", (7,), 20, {**SMALL, **changed}, NEXT_TOKEN)


def mixture(dtype, experts=6, top=2, balance=0.3, z=0.2, hidden=12):
    """The experts of a layer, and a batch."""
    torch.manual_seed(0)
    network = Experts(8, experts, hidden, top, balance, z).to(dtype)
    return network, torch.randn(3, 7, 8, dtype=dtype, requires_grad=True)


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


def test_what_cannot_be_built_is_refused_in_one_line():
    for changed in ({"experts": []}, {"top": 0}):
        with pytest.raises(ConfigError, match="needs at least one number, and top = . must be at least 1"):
            own(**changed).build()
