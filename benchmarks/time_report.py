"""Tables and plots of `benchmarks/time_to_accuracy.py`, from whichever cells are there."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import reporting
from reporting import table
from time_analysis import (
    averaged,
    final,
    mean_curve,
    ratios,
    steps_to,
)
from time_found import (
    ALL_NAMES,
    NAMES,
    Contestant,
    Records,
    Situation,
    contestants,
    measured_turns,
    situations,
    speed_of,
)
from time_plan import BATCH, CONTESTANTS, EVERY_STEP, JOBS, METHODS, PEERS, TENTH, Cell, Scale, cells, settings_of
from time_plots import draw, draw_scaling

from istmpi.config import Run
from istmpi.cost import cost
from istmpi.cost.cluster import load
from istmpi.cost.time import round_time
from istmpi.models import mlp_network

PAIRS = {"local SGD": ("local-sgd", "pytorch-local-sgd"), "data parallel": ("data-parallel", "pytorch-ddp")}
BELOW = (0.0, 0.02, 0.05)
"""Accuracies that times are given for: so far below the highest that all reach."""
MODEL_RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)


def pictured(found: list[Situation]) -> dict[str, list[Situation]]:
    """Those of one bandwidth and J together, by the names of their pictures; the first are `time-to-accuracy`."""
    families: dict[str, list[Situation]] = {}
    for one in found:
        parts = [one.bandwidth] * (one.bandwidth != found[0].bandwidth)
        parts += [f"J{one.local_steps}"] * (one.local_steps != found[0].local_steps)
        families.setdefault("-".join(["time-to-accuracy", *parts]), []).append(one)
    return families


def headline(situation: Situation, below: float = 0.0) -> dict:
    """Seconds to an accuracy so far below the highest that all reach, and how much faster IST is; stars: composed."""
    accuracy, row = round(situation.common - below, 6), dict(situation.about)
    row["accuracy"] = f"{accuracy:.3f}"
    for name, title in NAMES.items():
        one = situation.contestants.get(name)
        seconds, composed = one.time_to(accuracy) if one else (None, True)
        row[f"{title}, s"] = "-" if seconds is None else f"{seconds:.3g}{'*' * composed}"
    for kind, pair in PAIRS.items():
        for ist, redealt in (("ist", ""), (TENTH, ", a tenth")):
            found = [slower(situation, name, ist, accuracy) for name in pair]
            reached = [times for times in found if times is not None]
            row[f"against {kind}{redealt}"] = f"{min(reached):.3g}" if reached else "-"
    return row


def slower(situation: Situation, name: str, ist_name: str, accuracy: float) -> float | None:
    """How many times as long as IST a rival takes: the ratio of steps times the ratio of a step's seconds in turns."""
    ist, rival = (situation.contestants.get(one) for one in (ist_name, name))
    if not ist or not rival:
        return None
    steps, theirs = steps_to(ist.curve, accuracy), steps_to(rival.curve, accuracy)
    if not steps or theirs is None:
        return None
    (group,) = rival.turns
    return theirs / steps * ratios(rival.per_turn(group), ist.per_turn(group))[0]


def details(situation: Situation) -> list[dict]:
    """Every method's steps, seconds, bytes and samples to the accuracies."""
    rows = []
    for below in BELOW:
        accuracy = round(situation.common - below, 6)
        for name, one in situation.contestants.items():
            steps = steps_to(one.curve, accuracy)
            seconds, composed = one.time_to(accuracy)
            by_seed = [steps_to(averaged(mean_curve([curve])), accuracy) for curve in one.curves]
            reached = [steps * one.seconds for steps in by_seed if steps is not None]
            rows.append(
                {
                    **situation.about,
                    "accuracy": accuracy,
                    "method": NAMES[name],
                    "s a step": one.seconds,
                    "MB a step": one.bytes / 1e6,
                    "steps": "-" if steps is None else steps,
                    "seconds": "-" if seconds is None else seconds,
                    "seeds": f"{min(reached):.3g} .. {max(reached):.3g}, {len(reached)} of {len(by_seed)}"
                    if reached
                    else f"none of {len(by_seed)}",
                    "MB": "-" if steps is None else steps * one.bytes / 1e6,
                    "samples": "-" if steps is None else steps * BATCH * situation.ranks,
                    "time is": "composed" if composed else "by the clock of a whole run",
                }
            )
    return rows


def against_pytorch(scale: Scale, record: Records) -> list[dict]:
    """Our data parallel and local SGD against PyTorch's, turn by turn."""
    rows = []
    for bandwidth in ("1x", "10x"):
        for task in scale.tasks:
            for ranks in sorted({*scale.ranks, *scale.model_ranks}, reverse=True):
                found = contestants(scale, record, task, ranks, bandwidth, scale.local_steps[0])
                for kind, (ours, theirs) in PAIRS.items():
                    if ours in found:
                        (group,) = found[ours].turns
                        middle, least, most = ratios(found[theirs].per_turn(group), found[ours].per_turn(group))
                        rows.append(
                            {
                                "network": task.title,
                                "P": ranks,
                                "Mbit/s": speed_of(record, task, ranks, bandwidth)["rate"] / 1e6,
                                "method": kind,
                                "ours, s a step": found[ours].seconds,
                                "PyTorch, s a step": found[theirs].seconds,
                                "PyTorch / ours": middle,
                                "range": f"{least:.2f} .. {most:.2f}",
                                "turns": len(found[ours].every_turn),
                            }
                        )
    return rows


def time_split(found: list[Situation]) -> list[dict]:
    """Where a step's milliseconds go."""
    return [
        {
            **situation.about,
            "method": NAMES[name],
            "ms a step": 1e3 * one.seconds,
            "of which": ", ".join(f"{phase} {1e3 * took:.0f}" for phase, took in one.split().items() if took > 5e-4),
        }
        for situation in found
        for name, one in situation.contestants.items()
    ]


def finals(scale: Scale, record: Records, kind: str = "curve") -> list[dict]:
    """Accuracy at the end of the curves, over seeds, and where the shortest of a situation's curves ends."""
    rows = []
    for task in scale.tasks:
        for local_steps in scale.local_steps:
            for ranks in scale.ranks:
                found = {}
                for method in METHODS:
                    spread = 0 if method in EVERY_STEP else local_steps
                    wanted = (
                        Cell(kind, ranks, task, method=method, local_steps=spread, seed=seed) for seed in scale.seeds
                    )
                    curves = [one["points"] for one in map(record, wanted) if one]
                    if curves and (spread or local_steps == scale.local_steps[0]):
                        found[method] = curves
                ends = {method: final(curves) for method, curves in found.items()}
                least = min((end.steps for end in ends.values()), default=0)
                for method, end in ends.items():
                    early = [[point for point in curve if point["step"] <= least] for curve in found[method]]
                    rows.append(
                        {
                            "network": task.title,
                            "P": ranks,
                            "J": "-" if method in EVERY_STEP else local_steps,
                            "method": NAMES[method],
                            "final accuracy": f"{end.mean:.4f}",
                            "least and most": f"{end.least:.4f} .. {end.most:.4f}",
                            "seeds": end.seeds,
                            "steps": end.steps,
                            "at equal steps": f"{final(early).mean:.4f} ({least})",
                        }
                    )
    return rows


def whole_runs(found: list[Situation]) -> list[dict]:
    """Whole runs on the slow network beside what is composed of curve and speed."""
    rows = []
    for situation in found:
        for name, one in situation.contestants.items():
            if one.direct:
                last = one.direct[-1]
                curve = {point["step"]: point["accuracy"] for point in one.curves[0]}
                shared = [point for point in one.direct if point["step"] in curve]
                apart = max((abs(point["accuracy"] - curve[point["step"]]) for point in shared), default=None)
                rows.append(
                    {
                        **situation.about,
                        "method": NAMES[name],
                        "steps": last["step"],
                        "s of the run": last["seconds"],
                        "s composed": last["step"] * one.seconds,
                        "composed / run": last["step"] * one.seconds / last["seconds"],
                        "accuracy apart": "-" if apart is None else f"{apart:.4f}",
                    }
                )
    return rows


def machines(scale: Scale, record: Records) -> list[dict]:
    """FLOP/s of a rank and the line rates that follow."""
    rows = []
    for ranks in sorted({*scale.ranks, *scale.model_ranks}):
        found = record(Cell("machine", ranks))
        if found:
            rates = {
                bandwidth: next(
                    (
                        f"{speed['rate'] / 1e6:.0f}"
                        for task in scale.tasks
                        for group in CONTESTANTS
                        if (speed := record(Cell("speed", ranks, task, bandwidth, group)))
                    ),
                    "-",
                )
                for bandwidth in ("1x", "10x")
            }
            rows.append(
                {
                    "P": ranks,
                    "GFLOP/s of a rank": found["flops"] / 1e9,
                    "Mbit/s": rates["1x"],
                    "Mbit/s, 10x": rates["10x"],
                    "load average": found["load"],
                }
            )
    return rows


def scaling(scale: Scale, record: Records) -> list[dict]:
    """Samples a second: measured, and by the cost model up to 1,000 ranks as fast as with the most ranks here."""
    task, local_steps = scale.tasks[0], scale.local_steps[0]
    clusters = {ranks: record(Cell("model", ranks, task, "1x")) for ranks in scale.model_ranks}
    clusters = {ranks: found["cluster"] for ranks, found in clusters.items() if found}
    if not clusters:
        return []
    most = max(clusters)
    run = Run().override({"method.local_steps": local_steps, "train.batch": BATCH})
    features, *hidden, labels = task.widths
    network = mlp_network(features, hidden, labels, output_norm=True)

    def flops(ranks: int) -> float:
        return record(Cell("machine", ranks))["flops"]

    rows = []
    for ranks in sorted({*MODEL_RANKS, *clusters}):
        slower = flops(most) / flops(ranks) if ranks in clusters else 1.0
        cluster = _cluster(clusters.get(ranks, clusters[most]))
        found = measured_turns(record, task, ranks, "1x") if ranks in clusters else {}
        for name, title in ALL_NAMES.items():
            measured = predicted = None
            if name in found:
                seconds = Contestant(name, found[name], local_steps, [], None).seconds
                measured = BATCH * ranks / seconds
            if name not in PEERS and ranks <= min(hidden):
                plan = cost(run.override(settings_of(name)), network, ranks)
                predicted = ranks * BATCH * plan.local_steps / round_time(plan, cluster).total
            if measured or predicted and ranks > most:
                rows.append(
                    {
                        "P": ranks,
                        "method": title,
                        "samples a second": measured or "-",
                        "cost model": predicted or "-",
                        "model / measured": predicted / measured if measured and predicted else "-",
                        "measured, equal ranks": measured * slower if measured else "-",
                        "model, equal ranks": predicted * slower if predicted else "-",
                    }
                )
    return rows


def _cluster(tree: Mapping):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.json"
        path.write_text(json.dumps(tree), encoding="utf-8")
        return load(path)


def over_interfaces(scale: Scale, record: Records) -> str:
    """How the interfaces' bytes compare with those that the programs counted."""
    found = [
        one["wire"] / one["bytes"]
        for task in scale.tasks
        for ranks in scale.ranks
        for bandwidth in ("1x", "10x")
        for group in JOBS
        if (speed := record(Cell("speed", ranks, task, bandwidth, group)))
        for turns in speed["contestants"].values()
        for rounds in turns
        for one in rounds
        if one["wire"] and one["bytes"]
    ]
    if not found:
        return "No bytes were counted."
    return (
        f"In each of {len(found)} measured rounds the hosts' interfaces sent what the program counted: "
        f"{min(found):.3f} to {max(found):.3f} times as much, headers and repeated packets included."
    )


def provenance(scale: Scale, record: Records) -> str:
    """How many cells are there, and of which commits, days and loads."""
    planned = list(cells(scale))
    there = [one for one in map(record, planned) if one]
    commits, dates = (sorted({one[key] for one in there}) for key in ("commit", "date"))
    loads = [one["load"] for one in there]
    return (
        f"{len(there)} of {len(planned)} cells, measured at {', '.join(commits)} on {', '.join(dates)}; load average "
        f"at their ends {min(loads):.1f} to {max(loads):.1f}, of which a job of P ranks makes up to P."
    )


def report(bench, folder: Path, failed: Mapping[str, str]) -> None:
    """Write time-to-accuracy and scaling, as .md, .json and .png, into a folder."""
    scale, record = bench.scale, bench.record
    found = list(situations(scale, record))
    if not found:
        print("no network has both its speeds and its curves yet: there is nothing to report")
        return
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["ISTMPI_NETWORK"] = "emulated by benchmarks/cluster, TCP, rates as given"
    every_detail = [row for situation in found for row in details(situation)]
    families = pictured(found)
    main = families["time-to-accuracy"]
    best = [row for situation in main for row in details(situation)[: len(situation.contestants)]]
    pytorch, runs = against_pytorch(scale, record), whole_runs(found)
    ends, far_ends = finals(scale, record), finals(scale, record, "long")
    for name, shown in families.items():
        draw(shown, folder / f"{name}.png")
    sections = [
        "Seconds of training to the highest accuracy that all methods reach, evaluations left out, and with them the "
        "flush of IST's weights to their owners, which takes as long as a hop of a full deal. They are the time of the "
        "steps that it takes (curves: P ranks in one process, the same algorithm): by the clock of a whole run on the "
        "slow network when it had taken so many, or, with a *, composed of them and the seconds of a step there. "
        "`against`: how many times as long as IST the fastest local SGD or data parallel takes, ours or PyTorch's; "
        "with `a tenth` as IST that deals a tenth of the units anew in each round. It is the ratio of steps times that "
        "of a step's seconds, the median over turns within one job. Curves are means over seeds, each point averaged "
        "with its neighbours, crossings on the line between points. In a step every rank takes a batch, with every "
        "method. What has no row has not been measured yet. "
        f"{provenance(scale, record)}",
        "\n\n".join(f"![Accuracy against time]({name}.png)" for name in families),
        "## To lower accuracies\n\n"
        + table([headline(situation, below) for situation in found for below in BELOW if below]),
        "## The network\n\nRates are 1.25e-3 bytes a FLOP of a rank, all ranks computing at once with one thread each "
        f"on the cores that they share.\n\n{table(machines(scale, record))}\n\n{over_interfaces(scale, record)}",
        "## Ours against PyTorch's\n\nSeconds of a step, in turns within one job; ratios are medians over turns.\n\n"
        + (table(pytorch) if pytorch else "Not measured yet."),
        "## Final accuracies\n\nMean over seeds of the last three evaluations: of curves, which are bounded by steps "
        "and by processor time (where IST's end by steps, they have taken less of it than the others), and of what "
        "they were when the shortest of them ended. PyTorch's methods learn as ours do: "
        f"same initial values, batches and evaluation.\n\n{table(ends)}"
        + (f"\n\nAfter {scale.longer} times the processor time:\n\n{table(far_ends)}" if far_ends else ""),
        f"## Bytes and samples\n\nTo the highest common accuracy, J = {main[0].local_steps}; more in the .json.\n\n"
        + table(best),
        f"## Where the time goes\n\nMilliseconds of a local step.\n\n{table(time_split(main))}",
        "## Whole runs on the slow network\n\nWhat is composed, against runs with evaluations; the same seed.\n\n"
        + (table(runs) if runs else "Not measured yet."),
    ]
    if failed:
        reasons = "\n".join(f"* {name}: {reason}" for name, reason in failed.items())
        sections.append(f"## Cells that failed\n\n{reasons}")
    facts = {
        "details": every_detail,
        "against_pytorch": pytorch,
        "final_accuracies": ends,
        "final_accuracies_of_longer_curves": far_ends,
        "time_split": time_split(found),
        "whole_runs": runs,
        "failed": dict(failed),
    }
    rows = [headline(situation) for situation in found]
    title = "Time to accuracy on a slow network"
    reporting.report("time-to-accuracy", title, rows, "\n\n".join(sections), folder=folder, facts=facts)
    if rows := scaling(scale, record):
        draw_scaling(rows, folder / "scaling.png")
        notes = (
            f"{scale.tasks[0].title}, J = {scale.local_steps[0]}, {BATCH} examples a rank and step. Ranks share this "
            "host's cores, so with fewer ranks each is faster, and its network too: `equal ranks` are figures as if "
            "every rank were as fast as with the most ranks measured. Beyond those is the cost model alone, with that "
            "cluster as `istmpi measure` finds it; PyTorch's methods send what ours do. Dynamic averaging with a "
            "threshold of zero, so that it averages in every round; codistillation behind its burn-in; FedAvg with all "
            "ranks, rounds of one pass in which every rank sees all examples (its last batch counted as whole).\n\n"
            "![Samples a second](scaling.png)"
        )
        reporting.report("scaling", "Samples a second by the number of ranks", rows, notes, folder=folder)
