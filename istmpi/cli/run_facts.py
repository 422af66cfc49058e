"""The facts of a run in words: at its beginning, after a round, and at its end."""

from collections.abc import Mapping

from istmpi import comm
from istmpi.checkpoint.folder import NETWORK
from istmpi.checkpoint.saver import Saver
from istmpi.cost import cost
from istmpi.cost.calibration import SHARE
from istmpi.evaluation.evaluator import Score
from istmpi.evaluation.sample import count_scored_in_training
from istmpi.optim import schedules
from istmpi.record import RunFolder
from istmpi.report import tables
from istmpi.tasks import TASKS
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.watch import Summary
from istmpi.units import counted, duration, number, size


def banner(training: Training, folder: RunFolder, saver: Saver) -> dict[str, str]:
    run, ranks, network, data = (
        training.run,
        training.communicator.size,
        training.architecture,
        training.dataset,
    )
    hosts = list(dict.fromkeys(training.hosts))
    some_hosts = ", ".join(hosts[:4]) + ", ..." * (len(hosts) > 4)
    weights = sum(parameter.size(network.lengths) for parameter in network.parameters.values())
    plan = cost(run, network, ranks)
    examples, counts = "examples", f"{len(data.train):,} + {len(data.test):,} examples"
    if TASKS[data.task].of_nodes:
        examples = {"full": "whole graph", "clusters": "clusters"}.get(
            run.data.graph, "nodes and their neighbours"
        )
        graph, learnt, tested = data.train.graph, len(data.train.nodes), len(data.test.nodes)
        counts = f"{len(graph):,} nodes with {graph.edges:,} neighbours, "
        counts += f"{learnt:,} to learn from, {tested:,} for testing"
    if training.best:
        counts += f", {len(training.sizes[0].dataset.splits['validation']):,} for validation"
    if changed := [
        f"{name} {value}"
        for name in ("crop", "flip", "cutout")
        if (value := getattr(run.data, name))
    ]:
        changed = [f", training images randomly changed ({', '.join(changed)})"]
    steps = f"{run.method.local_steps} local steps of {run.train.batch} {examples} a rank"
    if plan.spec.in_passes:
        passes = f"{run.method.epochs} pass{'es' * (run.method.epochs > 1)}"
        steps = f"{passes} over a rank's examples in batches of {run.train.batch}"
    every = f"every {run.checkpoint.every} rounds" if run.checkpoint.every else "final only"
    behind = ", in the background" * (saver.background and run.checkpoint.every > 0)
    facts = {
        "run": f"{run.name} in {folder.path}",
        "MPI": comm.library(),
        "ranks": f"{ranks} on {counted(len(hosts), 'host')}: {some_hosts}"
        + " (started without mpirun; use mpirun -n P istmpi train for P ranks)"
        * (ranks == 1 and not comm.rank_variable()),
        "compute": f"{training.device}, {counted(training.threads, 'thread')} a rank",
        "data": f"{run.data.source}, {counts}, placement {run.data.placement}{''.join(changed)}",
        "assumed": "; ".join(data.assumed),
        "network": f"{run.model.name} {network.outline}, {number(weights)} weights",
        "method": f"{run.method.name}, {counted(run.train.rounds, 'round')} of {steps}",
        "images": training.plan_of_sizes if run.train.resolution else "",
        "lr": schedules.in_words(run.optimizer, training.method.first_step(run.train.rounds)),
        "dealt out": f"{', '.join(plan.groups) or 'nothing'}; each rank trains {number(plan.largest.elements)} weights",
        "widths": tables.warn_of_widths(network, plan.held).removeprefix("warning: "),
        "evaluation": _evaluations(training),
        "checkpoint": f"{every}, writer {saver.writer}{behind}",
        "traffic": f"{size(plan.round_bytes)} a round over all ranks",
    }
    return {name: fact for name, fact in facts.items() if fact}


def _evaluations(training: Training) -> str:
    run, data, evaluator = training.run, training.dataset, training.evaluator
    every = run.evaluate.rounds_between(run.train.rounds)
    words = f"every {every} rounds" if every > 1 else "every round"
    if TASKS[data.task].of_nodes:
        return words
    words += f" on {count_scored_in_training(run, data):,} examples"
    if training.architecture.batch_norms:
        words += f", calibrated on {evaluator.sampled:,}"
    words += f": {evaluator.share:.0%} of the FLOPs"
    return words + ", more than a tenth (reduce it with evaluate.every, evaluate.examples)" * (
        evaluator.share > SHARE
    )


def round_line(progress: Progress, rounds: int, verbose: bool) -> str:
    text = f"round {progress.round:>{len(str(rounds))}}/{rounds}  {progress.seconds:8.1f} s  loss {progress.loss:.4f}"
    last = progress.last_round
    if verbose:
        text += f"  lr {progress.learning_rate:.3g}"
    if verbose and last and last.rates:
        examples, sent = last.rates
        text += f"  {number(examples)} examples/s  {size(sent)}/s  {_phases(last.phases)}"
        text += f"  {progress.slowest}" if progress.slowest else ""
        text += (
            f"  shares {','.join(f'{share:.3g}' for share in last.shares)}" if last.shares else ""
        )
    for split, score in (("validation", progress.validation), ("test", progress.score)):
        if score:
            text += f"  {split} loss {score.loss:.4f}  {progress.score_name} {_scores(score)}"
    return text + f"  evaluate {progress.evaluating:.0%}" * bool(
        progress.score or progress.validation
    )


def outcome(summary: Summary, rounds: int, loading: float, elapsed: float) -> dict[str, str]:
    last, best, score = summary.last, summary.best, summary.last.score
    # Training time counts from the run's first job on, so it may exceed this job's time.
    since = " since it was resumed" if elapsed < last.seconds else ""
    facts = {
        summary.score_name: f"{_scores(score)} on {score.examples:,} test examples, loss {score.loss:.4f}",
        "ended": f"after round {last.round} of {rounds}: {summary.ended}" * (last.round != rounds),
        "best": f"{best.path} of round {best.round}: {summary.score_name} {best.validation:.4f} on the validation "
        f"split, {_scores(best.score)} on the test split"
        if best
        else "",
        "slowest": str(summary.slowest or ""),
        "speed": f"{number(summary.examples_per_second)} examples/s over all ranks in {duration(last.seconds)}",
        "time": f"{duration(elapsed)}{since} with evaluation and saving: {_phases(summary.seconds)}; loading took "
        f"{duration(loading)}",
        "sent": f"{size(last.bytes)} by all ranks",
        "network": str(summary.folder / NETWORK),
        "run folder": str(summary.folder),
    }
    return {name: fact for name, fact in facts.items() if fact}


def _scores(score: Score) -> str:
    exits = f" (exits {', '.join(f'{each:.4f}' for each in score.exits)})" if score.exits else ""
    bits = f" ({score.bits_per_byte:.4f} bits a byte)" if score.bits_per_byte else ""
    more = "".join(f"  {name} {value:.4f}" for name, value in (score.more or {}).items())
    form = " by the ranks' subnets, averaged" * (score.form == "blocks")
    return f"{score.score:.4f}{exits}{bits}{more}{form}"


def _phases(seconds: Mapping[str, float]) -> str:
    total = sum(seconds.values()) or 1
    most_first = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{phase} {part / total:.0%}" for phase, part in most_first if part / total >= 0.005
    )
