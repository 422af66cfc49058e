"""The course of a run: the number of its rounds, and how far each of them leads.

A run that is measured in epochs takes more or fewer rounds after it has resumed on another number
of ranks. Schedules, phases and image sizes then follow the plan of the first number of ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil


@dataclass(frozen=True)
class Course:
    """A run's rounds, and the rounds of its plan that they stand for.

    ``knots``: pairs (rounds done, rounds of the plan done) at the start, at each change of the
    ranks and at the end. Between two knots the plan advances evenly.
    """

    knots: tuple[tuple[int, Fraction], ...]

    @staticmethod
    def from_rounds(rounds: int) -> "Course":
        return Course(((0, Fraction(0)), (rounds, Fraction(rounds))))

    @staticmethod
    def from_epochs(
        epochs: Fraction, in_a_round: int, most_examples: Mapping[int, int]
    ) -> "Course":
        """Return the course of a run that takes ``epochs`` passes over the data.

        ``in_a_round``: the examples that a rank takes in a round. ``most_examples``: the examples
        of the rank that has most, by the number of rounds done when it became so; the first is of
        0.
        """
        plan = Fraction(ceil(epochs * most_examples[0] / in_a_round))
        begin = 0
        at = Fraction(0)
        passes = Fraction(0)
        knots = [(begin, at)]
        for end in sorted(most_examples)[1:]:
            left = _rounds_left(epochs - passes, in_a_round, most_examples[begin])
            done = end - begin
            # Rounds beyond the end are those of a run that later got fewer epochs.
            at += (plan - at) * Fraction(min(done, left), max(left, 1))
            passes += Fraction(done * in_a_round, most_examples[begin])
            knots.append((end, at))
            begin = end
        left = _rounds_left(epochs - passes, in_a_round, most_examples[begin])
        knots.append((begin + left, plan))
        return Course(tuple(knots))

    @property
    def rounds(self) -> int:
        """The number of rounds of the run."""
        return self.knots[-1][0]

    @property
    def planned(self) -> int:
        """The number of rounds that the run would have had on its first number of ranks."""
        return int(self.knots[-1][1])

    @property
    def changed(self) -> bool:
        return len(self.knots) > 2

    def find_planned_step(self, step: int, in_a_round: int) -> float:
        """Return how many local steps of the plan are done after ``step`` local steps, of which a
        round has ``in_a_round``; ``step`` itself unless the ranks have changed."""
        if not self.changed:
            return step
        done = Fraction(step, in_a_round)
        return float(self._planned_at(done) * in_a_round)

    def find_round(self, planned: int) -> int:
        """Return the first number of rounds after which ``planned`` rounds of the plan are done."""
        if not self.changed:
            return planned
        for (first, at), (last, end) in zip(self.knots, self.knots[1:]):
            if planned <= end and end > at:
                return first + ceil((planned - at) * (last - first) / (end - at))
        return self.rounds

    def _planned_at(self, done: Fraction) -> Fraction:
        for (first, at), (last, end) in zip(self.knots, self.knots[1:]):
            if done < last:
                return at + (end - at) * (done - first) / (last - first)
        return Fraction(self.planned)


def _rounds_left(epochs: Fraction, in_a_round: int, examples: int) -> int:
    return ceil(max(epochs, Fraction(0)) * examples / in_a_round)
