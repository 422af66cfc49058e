"""The facts of a run in words: at its beginning, after a round, and at its end."""

from collections.abc import Mapping
from dataclasses import replace

from istmpi import comm
from istmpi.checkpoint.folder import NETWORK
from istmpi.checkpoint.saver import Saver
from istmpi.comm.ledger import EVALUATION, ROUNDS, SAVING, START
from istmpi.cost import cost
from istmpi.cost.calibration import SHARE
from istmpi.data.graph.split import GraphSplit
from istmpi.optim import schedules
from istmpi.record import RunFolder
from istmpi.report import tables
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.watch import Summary
from istmpi.units import counted, duration, list_first, number, size


def banner(training: Training, folder: RunFolder, saver: Saver) -> dict[str, str]:
    """Return the facts of a run that begins, by their names."""
    run = training.run
    network = training.architecture
    weights = sum(parameter.size(network.lengths) for parameter in network.parameters.values())
    plan = cost(run, network, training.communicator.size)
    dealt = ", ".join(plan.groups) or "nothing"
    held = number(float(plan.largest.elements))
    facts = {
        "run": f"{run.name} in {folder.path}",
        "MPI": comm.library(),
        "ranks": _describe_ranks(training),
        "compute": f"{training.device}, {counted(training.threads, 'thread')} a rank",
        "data": _describe_data(training),
        "assumed": "; ".join(training.dataset.assumed),
        "network": f"{run.model.name} {network.outline}, {number(weights)} weights",
        "method": _describe_method(training, plan.spec.in_passes),
        "images": training.sizes_in_words,
        "lr": _describe_rate(training),
        "dealt out": f"{dealt}; each rank trains {held} weights",
        "widths": tables.warn_of_widths(network, plan.held).removeprefix("warning: "),
        "evaluation": _describe_evaluations(training),
        "checkpoint": _describe_checkpoints(training, saver),
        "traffic": f"{size(float(plan.round_bytes))} a round over all ranks",
    }
    # An empty fact does not apply to this run.
    return {name: fact for name, fact in facts.items() if fact}


def _describe_ranks(training: Training) -> str:
    ranks = training.communicator.size
    hosts = list(dict.fromkeys(training.hosts))
    words = f"{ranks} on {counted(len(hosts), 'host')}: {list_first(hosts)}"
    if training.group:
        words += f", in {training.group.membership.in_words}"
    # A launcher sets the variable, even for a single rank.
    if ranks == 1 and not comm.rank_variable():
        words += " (started without mpirun; use mpirun -n P istmpi train for P ranks)"
    return words


def _describe_data(training: Training) -> str:
    run = training.run
    data = training.dataset
    train = data.train
    test = data.test
    if isinstance(train, GraphSplit) and isinstance(test, GraphSplit):
        words = f"{len(train.graph):,} nodes with {train.graph.edges:,} neighbours, "
        words += f"{len(train.nodes):,} to learn from, {len(test.nodes):,} for testing"
    else:
        words = f"{len(data.train):,} + {len(data.test):,} examples"
    if training.best:
        validation = training.sizes[0].dataset.splits["validation"]
        words += f", {len(validation):,} for validation"
    words = f"{run.data.source}, {words}, placement {run.data.placement}"
    if data.columns:
        words += f", columns of the ranks: {list_first(data.columns)}"
    changes = []
    for name in ("crop", "flip", "cutout"):
        value = getattr(run.data, name)
        if value:
            changes.append(f"{name} {value}")
    if changes:
        words += f", training images randomly changed ({', '.join(changes)})"
    return words


def _describe_rate(training: Training) -> str:
    course = training.course
    words = schedules.describe(training.run.optimizer, training.method.first_step(course.planned))
    if course.changed:
        words += f" (counted on the first number of ranks, with {course.planned} rounds)"
    return words


_EXAMPLES_OF_GRAPHS = {"full": "whole graph", "clusters": "clusters"}


def _describe_method(training: Training, in_passes: bool) -> str:
    run = training.run
    if in_passes:
        passes = "1 pass" if run.method.epochs == 1 else f"{run.method.epochs} passes"
        steps = f"{passes} over a rank's examples in batches of {run.train.batch}"
    else:
        examples = "examples"
        if isinstance(training.dataset.train, GraphSplit):
            examples = _EXAMPLES_OF_GRAPHS.get(run.data.graph, "nodes and their neighbours")
        steps = f"{run.method.local_steps} local steps of {run.train.batch} {examples} a rank"
    return f"{run.method.name}, {counted(run.train.rounds, 'round')} of {steps}"


def _describe_checkpoints(training: Training, saver: Saver) -> str:
    every = training.run.checkpoint.every
    words = "final only"
    if every:
        words = f"every {every} rounds"
    words += f", writer {saver.writer}"
    if saver.background and every > 0:
        words += ", in the background"
    return words


def _describe_evaluations(training: Training) -> str:
    run = training.run
    planned = training.evaluator.planned
    # A program may have set other rounds since.
    evaluations = replace(planned, run=run)
    every = run.evaluate.rounds_between(run.train.rounds)
    words = "every round"
    if every >= run.train.rounds:
        words = "after the last round"
    elif every > 1:
        words = f"every {every} rounds"
    if evaluations.is_graph:
        return words
    words += f" on {evaluations.scored_in_training:,} examples"
    if training.architecture.batch_norms:
        words += f", calibrated on {planned.sampled:,}"
    share = evaluations.find_share()
    words += f": {share:.0%} of the FLOPs"
    by_default = replace(evaluations, run=run.override({"evaluate.every": 0}))
    # The default is as rare as bytes and FLOPs together ask for.
    if share > SHARE and every < by_default.every:
        words += ", more than a tenth (reduce it with evaluate.every, evaluate.examples)"
    return words


def round_line(progress: Progress, rounds: int, verbose: bool) -> str:
    width = len(str(rounds))
    text = f"round {progress.round:>{width}}/{rounds}  {progress.seconds:8.1f} s"
    text += f"  loss {progress.loss:.4f}"
    last = progress.last_round
    if verbose:
        text += f"  lr {progress.learning_rate:.3g}"
    if verbose and last and last.rates:
        examples, sent = last.rates
        text += f"  {number(examples)} examples/s  {size(sent)}/s  {_phases(last.phases)}"
        if progress.slowest:
            text += f"  {progress.slowest}"
        if last.shares:
            text += f"  shares {','.join(f'{share:.3g}' for share in last.shares)}"
    for split, score in (("validation", progress.validation), ("test", progress.score)):
        if score:
            text += f"  {split} loss {score.loss:.4f}  {progress.score_name} {score.describe()}"
    if progress.score or progress.validation:
        text += f"  evaluate {progress.evaluating:.0%}"
    return text


def outcome(summary: Summary, rounds: int, loading: float, elapsed: float) -> dict[str, str]:
    """Return the facts of a run that has ended, by their names."""
    last = summary.last
    score = last.score
    assert score is not None, "a run ends with an evaluation"
    ended = ""
    if last.round != rounds:
        ended = f"after round {last.round} of {rounds}: {summary.ended}"
    # Training time counts from the run's first job on, so it may exceed this job's time.
    since = " since it was resumed" if elapsed < last.seconds else ""
    speed = f"{number(summary.examples_per_second)} examples/s"
    facts = {
        summary.score_name: (
            f"{score.describe()} on {score.examples:,} test examples, loss {score.loss:.4f}"
        ),
        "scores": score.further.describe() if score.further else "",
        "ended": ended,
        "best": _describe_best(summary),
        "slowest": str(summary.slowest or ""),
        "speed": f"{speed} over all ranks in {duration(last.seconds)}",
        "time": (
            f"{duration(elapsed)}{since} with evaluation and saving: {_phases(summary.seconds)}; "
            f"loading took {duration(loading)}"
        ),
        "sent": _describe_sent(summary),
        "waits": _describe_waits(summary),
        "energy": _describe_energy(summary),
        "network": str(summary.folder / NETWORK),
        "run folder": str(summary.folder),
    }
    return {name: fact for name, fact in facts.items() if fact}


def _describe_sent(summary: Summary) -> str:
    """Return the values that the run's rounds sent, and all that this job sent by purpose, which
    adds up to the summary's ``sent``."""
    text = f"{size(summary.last.bytes)} of values by all ranks"
    values = summary.last.bytes - summary.earlier_bytes
    if summary.earlier_bytes:
        text += f"; in this job {size(values)}"
    others = {"agreements": summary.sent[ROUNDS].bytes - values}
    for purpose, name in ((EVALUATION, "evaluations"), (SAVING, "saving"), (START, "loading")):
        others[name] = summary.sent[purpose].bytes
    for name, nbytes in others.items():
        if nbytes:
            text += f"; {name} {size(nbytes)}"
    if summary.line_bytes is not None:
        text += f"; this job about {size(summary.line_bytes)} on the line, with headers"
    if summary.resent_bytes:
        text += f"; TCP of the hosts sent about {size(summary.resent_bytes)} again"
    return text


def _describe_waits(summary: Summary) -> str:
    """Return this job's collective calls, each of which takes a round trip at least; empty for
    ranks of one host, where they take no time."""
    if summary.line_bytes is None:
        return ""
    calls = {purpose: sent.calls for purpose, sent in summary.sent.items()}
    return (
        f"{sum(calls.values()):,} calls of this job, one after the other: "
        f"{calls[ROUNDS]:,} in rounds, {calls[EVALUATION]:,} in evaluations, "
        f"{calls[SAVING]:,} to save, {calls[START]:,} to load"
    )


def _describe_energy(summary: Summary) -> str:
    if summary.energy is None:
        return ""
    return summary.energy.describe()


def _describe_best(summary: Summary) -> str:
    best = summary.best
    if not best:
        return ""
    return (
        f"{best.path} of round {best.round}: {summary.score_name} {best.validation:.4f} on the "
        f"validation split, {best.score.describe()} on the test split"
    )


def _phases(seconds: Mapping[str, float]) -> str:
    """Return the phases' shares of the time, the largest first, without those below 0.5%."""
    # A run may end before any time is measured.
    total = sum(seconds.values()) or 1
    shares = []
    for phase, part in sorted(seconds.items(), key=lambda item: -item[1]):
        # Less would be shown as 0%.
        if part / total >= 0.005:
            shares.append(f"{phase} {part / total:.0%}")
    return ", ".join(shares)
