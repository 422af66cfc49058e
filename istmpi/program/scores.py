"""The scores that a program computed in its rounds: for the record, and for a schedule."""

from collections.abc import Sequence
from typing import Any

from istmpi.evaluation.score import Score
from istmpi.optim.own_optimizer import OwnOptimizer
from istmpi.tasks import LOWER
from istmpi.training.loop import Training


class Scores:
    """The scores after the last scored round. A program's own optimizer gets all rounds' scores."""

    def __init__(self, training: Training, own_optimizer: OwnOptimizer | None):
        self._training = training
        self._own_optimizer = own_optimizer
        self._last: Score | None = None
        self._round = 0
        """The number of rounds before `_last`."""

    def find(self) -> Score | None:
        """Return the scores after the training's last round, if there are any."""
        return self._last if self._round == self._training.rounds_done else None

    def clear(self) -> None:
        self._last = None

    def restore(self, lines: Sequence[dict[str, Any]]) -> None:
        """Take up the scores of earlier rounds from the ``lines`` of metrics.jsonl."""
        training = self._training
        scored = [line for line in lines if line.get("score") is not None]
        if scored:
            training.score_name = scored[-1].get("score_name", training.score_name)
        own_optimizer = self._own_optimizer
        if own_optimizer:
            # The folder of a resumed run may lack the lines of earlier rounds.
            own_optimizer.scores_known = len(lines) >= training.rounds_done
            own_optimizer.scores.clear()
            for line in scored:
                own_optimizer.scores[training.method.first_step(line["round"])] = line["score"]

    def keep(self, means: dict[str, float], examples: int, higher_is_better: bool) -> Score:
        """Keep and return scores after the last round, with those that it has already.

        The round's first score is the run's; ``higher_is_better`` is its direction.
        """
        training = self._training
        before = self.find()
        if before:
            first = training.score_name.removesuffix(LOWER)
            # The count belongs to the run's score, which this call did not compute again.
            if first not in means:
                examples = before.examples
            means = {first: before.score, **(before.more or {}), **means}
        else:
            first = next(iter(means))
            training.score_name = first if higher_is_better else first + LOWER
        more = {name: mean for name, mean in means.items() if name != first}
        # The loss is the program's own, so istmpi has none for the full network.
        score = Score(loss=float("nan"), score=means[first], examples=examples, more=more or None)
        self._last = score
        self._round = training.rounds_done
        if self._own_optimizer and training.rounds_done:
            step = training.method.first_step(training.rounds_done)
            self._own_optimizer.scores[step] = score.score
        return score
