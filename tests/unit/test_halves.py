"""The law of two halves: what fades with the width is no fault, and a power that is not tried is refused."""

import torch
from torch import nn

from istmpi.inspection.examine import inspect
from istmpi.network.arguments import user_network


class TwoLayers(nn.Module):
    BIAS = True

    def __init__(self, features, outputs, units=16):
        super().__init__()
        self.first, self.last = nn.Linear(features, units), nn.Linear(units, outputs, bias=self.BIAS)


class OthersAlone(TwoLayers):
    """Each unit adds up the other units: its own place is masked."""

    def forward(self, x):
        h = self.first(x).tanh()
        scores = h[:, :, None] * h[:, None, :]
        scores = scores.masked_fill(torch.eye(h.shape[1], dtype=torch.bool), -torch.inf)
        return self.last((scores.softmax(-1) @ h[..., None])[..., 0])


class Deviation(TwoLayers):
    """The deviation of all units, with n - 1."""

    def forward(self, x):
        h = self.first(x).tanh()
        return self.last(h / h.std(-1, keepdim=True))


class SquareOfWidth(TwoLayers):
    """A sum times the square of the width: the right power of the share is 3, which is not tried."""

    BIAS = False

    def forward(self, x):
        return self.last(self.first(x).tanh()) * self.last.in_features**2


def test_a_deviation_that_fades_with_the_width_is_no_fault_and_a_power_that_is_not_tried_is_refused():
    names = ("OthersAlone", "Deviation", "SquareOfWidth")
    others, deviation, square = (inspect(user_network(f"{__file__}:{name}", (6,), 3, {})) for name in names)
    for table in (others, deviation):
        assert not table.unscaled and table.dealt == ("units",)
        assert 0 < table.fading["units"] < 0.2
    (place,) = square.unscaled
    assert place.startswith("last: two equal halves change the outputs by") and square.dealt == ()
