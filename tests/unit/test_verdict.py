"""The sentences that a report begins with: they say who was first, and no more than the runs bear out."""

import pytest
from curves import curve

from istmpi.report.comparison import compare
from istmpi.report.verdict import verdict

FAST = [0.5, 0.7, 0.8, 0.9]
SLOW = [0.2, 0.4, 0.6, 0.8]


def test_the_verdict_in_full():
    runs = [curve("ist", FAST, step=1.0, sent=10**6), curve("local-sgd", SLOW, step=2.5, sent=10**7)]
    assert verdict(compare([*runs, curve("fedavg", [0.1, 0.2], problem="failed: x")], [0.5, 0.8])) == (
        "ist reached an accuracy of 0.8 first, after 3 s of training; local-sgd 10 s (3.33x); fedavg never. "
        "By then ist had sent the least, 3 MB; local-sgd 40 MB (13.3x). "
        "Best accuracy at the end: ist, 0.9000; local-sgd 0.8000 and fedavg 0.2000. "
        "One run of each method: what noise there is does not show. Not all runs of fedavg came to their end."
    )


def test_what_is_about_the_same_is_called_so():
    found = verdict(compare([curve("ist", FAST, step=1.0), curve("local-sgd", FAST, step=1.05)], [0.9]))
    assert "ist and local-sgd reached an accuracy of 0.9 about equally fast, after 4 s to 4.2 s" in found
    assert "sent the least" not in found and "All have the same accuracy at the end, 0.9000." in found


def test_with_repeats_their_spread_decides():
    near = [curve("ist", FAST, seed, 1 + seed) for seed in range(3)]
    far = [curve("local-sgd", FAST, seed, 2 + seed) for seed in range(3)]
    assert "about equally fast" in verdict(compare([*near, *far], [0.9]))
    far = [curve("local-sgd", FAST, seed, 20 + seed) for seed in range(3)]
    found = verdict(compare([*near, *far], [0.9]))
    assert "ist reached an accuracy of 0.9 first, after 8 s" in found and "One run" not in found
    ends = [curve("ist", [0.8 + 0.05 * seed], seed) for seed in range(3)]
    others = [curve("local-sgd", [0.82 + 0.05 * seed], seed) for seed in range(3)]
    assert "cannot be told apart" in verdict(compare([*ends, *others], [0.5]))
    worse = [curve("fedavg", [0.1 + 0.05 * seed], seed) for seed in range(3)]
    found = verdict(compare([*ends, *others, *worse], [0.5]))
    assert "Best by their accuracy at the end, within their spread: ist and local-sgd (0.8700); fedavg 0.1500." in found


def test_an_error_is_best_where_it_is_least():
    runs = [curve(name, scores, score_name="perplexity") for name, scores in (("ist", [9, 4.0]), ("diloco", [9, 5.0]))]
    found = verdict(compare(runs, [6]))
    assert "ist and diloco reached a perplexity of 6 about equally fast" in found
    assert "Best perplexity at the end: ist, 4.0000; diloco 5.0000." in found


def test_of_many_methods_the_first_and_the_last_are_named():
    runs = [curve(f"m{number}", FAST, step=1 + number) for number in range(6)]
    assert (
        "m0 reached an accuracy of 0.9 first, after 4 s of training; m1 8 s (2.00x), 3 more and m5 24 s (6.00x)."
        in (verdict(compare(runs, [0.9])))
    )


@pytest.mark.parametrize(
    "runs, expected",
    [
        ([curve("ist", [])], "No run has been evaluated yet: there is nothing to compare."),
        (
            [curve("ist", FAST, sent=10**6)],
            "ist reached an accuracy of 0.9 after 4 s of training, with 4 MB sent by all ranks, and ended at an "
            "accuracy of 0.9.",
        ),
        ([curve("ist", [0.5])], "ist ended at an accuracy of 0.5."),
    ],
)
def test_where_there_is_nothing_to_compare_with(runs, expected):
    assert verdict(compare(runs, [0.9])) == expected
    assert "No method reached an accuracy of 0.9." in verdict(compare([curve("a", [0.1]), curve("b", [0.2])], [0.9]))
