"""The sentences that a report begins with: one for each method."""

from curves import curve

from istmpi.report.comparison import compare
from istmpi.report.sheets import verdict

FAST = [0.5, 0.7, 0.8, 0.9]
SLOW = [0.2, 0.4, 0.6, 0.8]


def test_the_verdict_in_full():
    runs = [curve("local-sgd", SLOW, step=2.5, sent=10**7), curve("ist", FAST, step=1.0, sent=10**6)]
    assert verdict(compare([*runs, curve("fedavg", [0.1, 0.2], problem="failed: x")], [0.5, 0.8])) == (
        "ist reached an accuracy of 0.8 after 3 s of training with 3 MB sent by all ranks, and ended at 0.9. "
        "local-sgd reached an accuracy of 0.8 after 10 s of training with 40 MB sent by all ranks, and ended at 0.8. "
        "fedavg never reached an accuracy of 0.8, and ended at 0.2. "
        "One run of each method: what noise there is does not show. Not all runs of fedavg came to their end."
    )
