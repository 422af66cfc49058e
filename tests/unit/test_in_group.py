"""A member's part of a batch in a user's own loop: which backward passes its replica group averages."""

from types import SimpleNamespace

import pytest
import torch

from istmpi.errors import ConfigError
from istmpi.program.in_group import Part

X = torch.ones(3, 4)


class Heads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.left, self.right = (torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        x = self.body(x)
        return self.left(x).mean(), self.right(x).mean()


@pytest.fixture
def network():
    return Heads()


@pytest.fixture
def part(network):
    counted = []
    part = Part(SimpleNamespace(size=2, count_averaging=lambda: counted.append(1)))
    part.counted = counted
    part.weigh(network)
    yield part
    part.release()


def test_losses_may_share_a_pass_or_have_passes_of_their_own(network, part):
    """A mean of two halves of a batch: a factor of 1/2, times the number of members."""
    left, right = network(X)
    (left + right).backward()
    part.note_update()
    expected = network.body.weight.grad.clone()
    network.zero_grad()
    for head in range(2):
        network(X)[head].backward()
    part.note_update()
    torch.testing.assert_close(network.body.weight.grad, expected)
    with torch.no_grad():
        network(X)
    assert part.counted == [1, 1]


@pytest.mark.parametrize("passes", [1, 2])
def test_a_second_backward_pass_through_the_same_parameters_is_refused(network, part, passes):
    for _ in range(passes):
        left, right = network(X)
    left.backward(retain_graph=True)
    with torch.no_grad():
        network(X)
    with pytest.raises(ConfigError, match="a second backward pass follows a call of round.module"):
        right.backward()


def test_gradients_that_no_backward_pass_has_averaged_are_refused(network, part):
    left, _ = network(X)
    part.note_update()
    network.body.weight.grad = torch.autograd.grad(left, network.body.weight)[0]
    with pytest.raises(ConfigError, match=r"the gradients do not come from loss.backward\(\)"):
        part.note_update()
