"""How a factor of a sum over units is found: copies of units, powers of their share, and deviations that fade."""

import torch
from torch import nn

from istmpi.inspection.examine import inspect
from istmpi.inspection.twins import copy_units
from istmpi.network.arguments import user_network
from istmpi.network.table import split_power, with_power
from tests.networks.plain import lengths_of, plain, random_values, with_units
from tests.networks.running import network
from tests.networks.table import RESIDUAL


def test_copied_units_are_those_of_the_oracle():
    row = RESIDUAL
    table, lengths = inspect(network(row)), lengths_of(row)
    values = random_values(plain(row))
    for group in ("stream", "hidden"):
        expected = with_units(table, values, group, torch.arange(lengths[group]).repeat(3), lengths)
        made = copy_units(table, values, [group], lengths, 3)
        for name, copied in expected.items():
            torch.testing.assert_close(made[name], copied, rtol=0, atol=0)
    both = copy_units(table, values, ["stream", "hidden"], lengths, 2)
    expected = copy_units(table, copy_units(table, values, ["stream"], lengths, 2), ["hidden"], lengths, 2)
    for name, copied in expected.items():
        if "stream" not in table.parameters[name].axes or "hidden" not in table.parameters[name].axes:
            torch.testing.assert_close(both[name], copied, rtol=0, atol=0)


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


def test_powers_are_read_as_they_are_written():
    assert [split_power(text) for text in ("hidden", "hidden^0.5", "hidden^-1")] == [
        ("hidden", 1.0),
        ("hidden", 0.5),
        ("hidden", -1.0),
    ]
    assert with_power(("hidden", "heads"), "hidden", 0.5) == ("heads", "hidden^0.5")
    assert with_power(("hidden", "hidden"), "hidden", 0) == ()
