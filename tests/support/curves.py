"""Runs to compare, made by hand."""

from istmpi.report.curves import Curve, Point


def curve(method, scores, seed=0, step=1.0, sent=1000, **more):
    """A run of 4 ranks whose round r took ``step`` seconds and ``sent`` bytes and had ``scores[r - 1]`` behind it."""
    points = tuple(
        Point(round, round * step, round * sent, round * 256, score) for round, score in enumerate(scores, 1)
    )
    return Curve(method, points, seed, **{"ranks": 4, "score_name": "accuracy", **more})
