"""Says which examples pass together through subnets side by side, so that ranks wait for one
message. Without torch."""

from __future__ import annotations

from istmpi.evaluation.planning import Evaluations
from istmpi.evaluation.sample import may_keep_logits


def scores_together(evaluations: Evaluations) -> bool:
    """Return True if an evaluation that chooses the form passes the scored examples through both
    forms at once, beside the sample (decision 56): then one message has the sums of both."""
    return (
        evaluations.form == "best"
        and evaluations.plan.leaves_outputs
        and evaluations.knows_outputs
        and evaluations.may_pass_together
        and evaluations.may_send_both
    )


def keeps_logits(evaluations: Evaluations) -> bool:
    """Return True if the last evaluation of subnets side by side also passes the sample, whose
    logits the save of a classifier needs."""
    return (
        evaluations.form in ("sum", "blocks")
        and evaluations.data.scoring.one_class
        and evaluations.knows_outputs
        and evaluations.may_pass_together
        # The members of a replica group would not help.
        and evaluations.run.train.group_size <= 1
        and may_keep_logits(evaluations.sampled, evaluations.data.outputs)
    )
