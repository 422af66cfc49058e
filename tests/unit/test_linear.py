"""The linear layer that keeps its gradient's memory, against torch's own."""

import pytest
import torch
from torch import nn

from istmpi.network import linear
from istmpi.network.linear import Linear, release_gradients

INPUTS, OUTPUTS = 30, 20


@pytest.fixture
def layers(monkeypatch):
    """Ours and torch's, with the same values."""
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
def test_gradients_are_torchs_and_stay_where_they_are(layers, shape):
    ours, theirs = layers
    places = set()
    for _ in range(3):
        x = torch.randn(shape)
        torch.testing.assert_close(backward(ours, x), backward(theirs, x))
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
        torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)
        places.add(ours.weight.grad.data_ptr())
    assert len(places) == 1


def test_gradients_add_up_until_they_are_zeroed(layers):
    for layer in layers:
        for zero in (True, False):
            backward(layer, torch.ones(8, INPUTS), zero)
        layer.zero_grad(set_to_none=True)
        x = torch.linspace(-1, 1, 8 * INPUTS).view(8, INPUTS)
        layer(x + layer(x).mean()).square().sum().backward()  # used twice in one pass
    torch.testing.assert_close(layers[0].weight.grad, layers[1].weight.grad)


def test_what_the_memory_held_before_does_not_matter(layers):
    ours, _ = layers
    backward(ours, torch.ones(8, INPUTS))
    expected = ours.weight.grad.clone()
    ours.weight.grad.fill_(torch.nan)
    backward(ours, torch.ones(8, INPUTS))
    assert torch.equal(ours.weight.grad, expected)


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
