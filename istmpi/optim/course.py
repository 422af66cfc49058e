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
        # Fractions are exact: a rounding error could add a round.
        plan_done = Fraction(0)
        epochs_done = Fraction(0)
        knots = [(begin, plan_done)]
        for end in sorted(most_examples)[1:]:
            rounds_left = _rounds_left(epochs - epochs_done, in_a_round, most_examples[begin])
            rounds_done = end - begin
            # Rounds beyond the end are those of a run that later got fewer epochs.
            share_done = Fraction(min(rounds_done, rounds_left), max(rounds_left, 1))
            plan_done += (plan - plan_done) * share_done
            epochs_done += Fraction(rounds_done * in_a_round, most_examples[begin])
            knots.append((end, plan_done))
            begin = end
        rounds_left = _rounds_left(epochs - epochs_done, in_a_round, most_examples[begin])
        knots.append((begin + rounds_left, plan))
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
        for (first, plan_before), (last, plan_after) in zip(self.knots, self.knots[1:]):
            # A stretch in which the plan does not advance reaches no round of it.
            if planned <= plan_after and plan_after > plan_before:
                rounds_a_planned_round = (last - first) / (plan_after - plan_before)
                return first + ceil((planned - plan_before) * rounds_a_planned_round)
        return self.rounds

    def _planned_at(self, done: Fraction) -> Fraction:
        """Return how many rounds of the plan are done after ``done`` rounds of the run."""
        for (first, plan_before), (last, plan_after) in zip(self.knots, self.knots[1:]):
            if done < last:
                share = (done - first) / (last - first)
                return plan_before + (plan_after - plan_before) * share
        return Fraction(self.planned)


def _rounds_left(epochs: Fraction, in_a_round: int, examples: int) -> int:
    """Return the rounds of ``epochs`` passes over ``examples``, the last one perhaps in part."""
    return ceil(max(epochs, Fraction(0)) * examples / in_a_round)
