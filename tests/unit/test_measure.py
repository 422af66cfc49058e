"""How measurements become figures: the fit, without any clock."""

import numpy as np
import pytest

from istmpi.cluster.figures import fit


def test_a_fit_finds_the_line_that_the_points_are_on():
    sizes = [1e3, 1e5, 1e7]
    (latency, each), error = fit([[3, 3, 3], sizes], [3 * 1e-4 + 1e-9 * size for size in sizes])
    assert (latency, each) == (pytest.approx(1e-4), pytest.approx(1e-9))
    assert error < 1e-9


def test_short_messages_count_as_much_as_long_ones():
    """Points off by tenths, up and down: by absolute errors the latency would be lost beside the longest message."""
    sizes = np.array([1e2, 1e3, 1e8, 2e8])
    seconds = (1e-5 + 1e-9 * sizes) * [1.1, 0.9, 1.1, 0.9]
    (latency, each), error = fit([np.ones(4), sizes], seconds)
    assert latency == pytest.approx(1e-5, rel=0.15) and each == pytest.approx(1e-9, rel=0.15)
    assert 0.05 < error < 0.15


def test_no_coefficient_is_negative():
    """Falling times would give a negative rate: it becomes zero, and the rest the best constant."""
    (latency, each), _ = fit([[1, 1, 1], [1.0, 2.0, 3.0]], [3.0, 2.0, 1.0])
    assert each == 0 and 1 <= latency <= 3
