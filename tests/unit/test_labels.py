"""Names beside curves: inside the picture, on no other name, and nearest to the curve that they name."""

import numpy as np
import pytest

from istmpi.report.figures import looking_alike
from istmpi.report.labels import Named, label, without_room

pytest.importorskip("matplotlib")


def drawn(curves, **scale):
    """A panel with some curves and their labels; the boxes of these in points."""
    with looking_alike():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.8, 3.5), layout="constrained")
        axis = figure.subplots()
        for curve in curves:
            axis.plot(curve.x, curve.y)
        axis.set(**scale)
        axis.margins(0.1)
        label(figure, [(axis, curves)])
        figure.draw_without_rendering()
        boxes = [text.get_bbox_patch().get_window_extent().extents for text in axis.texts]
        return axis, [text.get_text() for text in axis.texts], boxes


def overlap(first, other):
    return (first[:2] < other[2:]).all() and (other[:2] < first[2:]).all()


def random_curves(seed, count):
    random = np.random.default_rng(seed)
    for number in range(count):
        length = random.integers(1, 30)
        x = np.cumsum(random.exponential(size=length)) * 10 ** random.uniform(-1, 1)
        y = 1 - np.exp(-x * random.uniform(0.1, 1)) + random.normal(0, 0.02, length)
        yield Named(x.tolist(), y.tolist(), "C0", f"method-{number}" + ", with local steps 60" * (number % 2))


@pytest.mark.parametrize("seed", range(8))
def test_labels_are_inside_and_on_no_other(seed):
    curves = list(random_curves(seed, 2 + seed % 4))
    axis, texts, boxes = drawn(curves, xscale="log" if seed % 2 else "linear")
    assert [text.replace("\n", " ") for text in texts] == [curve.label for curve in curves]
    frame = axis.get_figure().bbox.extents
    for place, box in enumerate(boxes):
        assert (box[:2] > frame[:2]).all() and (box[2:] < frame[2:]).all()
        assert not any(overlap(box, other) for other in boxes[:place])


def test_a_label_is_nearest_to_its_own_curve():
    x = np.linspace(0, 10, 50)
    curves = [Named(x, level + 0.1 * np.sin(x), "C0", f"level {level}") for level in range(5)]
    axis, texts, boxes = drawn(curves)
    for text, box in zip(texts, boxes):
        centre = (box[:2] + box[2:]) / 2
        apart = [np.hypot(*(axis.transData.transform(np.column_stack([c.x, c.y])) - centre).T).min() for c in curves]
        assert text == f"level {int(np.argmin(apart))}"


def test_curves_without_a_label_or_without_a_point_have_none():
    nothing = float("nan")
    curves = [Named([1, 2], [1, 2], "C0"), Named([nothing], [nothing], "C0", "gone"), Named([], [], "C0", "empty")]
    assert drawn(curves)[1] == []
    assert drawn([*curves, Named([1.5], [1.5], "C0", "$point")])[1] == [r"\$point"]


def test_a_bar_that_is_narrower_than_its_name_has_none():
    with looking_alike():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4, 2))
        axis = figure.subplots()
        for lengths, start in (([10, 0.1], [0, 0]), ([0.2, 9], [10, 0.1])):
            name = f"from {start}"
            axis.bar_label(axis.barh([0, 1], lengths, left=start, label=name), [name] * 2, label_type="center")
        figure.draw_without_rendering()
        without_room([axis])
    assert [text.get_visible() for text in axis.texts] == [True, False, False, True]
