"""The table of `benchmarks/controls.py`, from whichever cells are there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median

import reporting
from controls_plan import (
    LOCAL_STEPS,
    METHODS,
    PLACEMENTS,
    RANKS,
    VALIDATION_STEPS,
    chosen,
    control_cell,
    control_cells,
    on_validation,
    rate_cell,
    rate_cells,
    speed_cell,
    speed_cells,
    tasks,
)
from reporting import table
from time_analysis import averaged, final, mean_curve, step_seconds, steps_to
from time_found import NAMES, Records
from time_plan import BATCH, FULL, NEVER, OF_A_SUBNET, Task, hidden_of, settings_of

from istmpi.config import Run
from istmpi.cost import Cost, cost
from istmpi.models import mlp_network

TITLES = {
    **NAMES,
    NEVER: "IST, never redealt",
    "narrow-local-sgd": "narrow network, local SGD",
    "narrow-diloco": "narrow network, DiLoCo",
}
DATA = {"shared": "alike", "sharded": "an eighth each"}
REACHED = {"speech2": (0.92, 0.9), "cifar": (0.455, 0.435)}
"""The accuracies of time_to_accuracy.py's table that seconds are given for."""


def rows(record: Records) -> list[dict]:
    """Every method's accuracy, bytes and seconds, with both placements of the data."""
    found = []
    for task in tasks():
        for placement in PLACEMENTS:
            curves = {method: curves_of(record, task, method, placement) for method in METHODS}
            curves = {method: every for method, every in curves.items() if every}
            least = min((final(every).steps for every in curves.values()), default=0)
            for method, every in curves.items():
                found.append(row(record, task, method, placement, every, least))
    return found


def curves_of(record: Records, task: Task, method: str, placement: str) -> list[list[dict]]:
    """Points by step, one curve a seed."""
    lr = chosen(record, task, method)
    cells = (control_cell(task, method, placement, lr, seed) for seed in FULL.seeds if lr)
    return [one["points"] for one in map(record, cells) if one]


def row(record: Records, task: Task, method: str, placement: str, curves: list[list[dict]], least: int) -> dict:
    """One method in one situation; ``least`` are steps that all methods have taken in it."""
    end, early = final(curves), final([[point for point in curve if point["step"] <= least] for curve in curves])
    seconds, counts = seconds_a_step(record, task, method), counted(task, method)
    line = averaged(mean_curve(curves))
    targets = (reached(accuracy, steps_to(line, accuracy), seconds) for accuracy in REACHED[task.name])
    return {
        "network": named(task, method),
        "data": DATA[placement],
        "method": TITLES[method],
        "learning rate": chosen(record, task, method),
        "seeds": end.seeds,
        "steps": end.steps,
        "accuracy": f"{end.mean:.4f}",
        "least and most": f"{end.least:.4f} .. {end.most:.4f}",
        "at equal steps": f"{early.mean:.4f} ({early.steps})",
        "GFLOP a step and rank": float(counts.flops("products")) / RANKS / 1e9,
        "MB sent": float(counts.sent_bytes(0, end.steps // LOCAL_STEPS)) / 1e6,
        "ms a step": "-" if seconds is None else 1e3 * seconds,
        "reached": "; ".join(targets),
    }


def shape(task: Task, method: str) -> list[int]:
    """The widths of the network that a method trains, from the features to the labels."""
    features, *hidden, labels = task.widths
    return [features, *hidden_of(method, hidden, RANKS), labels]


def named(task: Task, method: str) -> str:
    """The data and the network that a method trains."""
    return f"{task.kind} {'-'.join(map(str, shape(task, method)))}"


def counted(task: Task, method: str) -> Cost:
    """A method's bytes and FLOPs, which the programs' counters equal."""
    features, *hidden, labels = shape(task, method)
    run = Run().override({"method.local_steps": LOCAL_STEPS, "train.batch": BATCH, **settings_of(method)})
    return cost(run, mlp_network(features, hidden, labels, output_norm=True), RANKS)


def seconds_a_step(record: Records, task: Task, method: str) -> float | None:
    """On the slow network, the median over turns; none where it was not measured."""
    speed = record(speed_cell(task))
    turns = speed["contestants"].get(method) if speed else None
    return median(step_seconds(rounds, LOCAL_STEPS, as_measured=False) for rounds in turns) if turns else None


def reached(accuracy: float, steps: float | None, seconds: float | None) -> str:
    """When an accuracy is reached."""
    if steps is None:
        return f"{accuracy} never"
    took = "" if seconds is None else f", {steps * seconds:.3g} s"
    return f"{accuracy} in {steps:.0f} steps{took}"


def tried(record: Records) -> list[dict]:
    """Accuracy on the validation split by learning rate."""
    found = []
    for task in tasks():
        for method in OF_A_SUBNET:
            scores = on_validation(record, task, method)
            if scores:
                shown = (f"{lr:g}: {score:.4f}" for lr, score in scores.items())
                best = chosen(record, task, method)
                taken = "-" if best is None else f"{best:g}"
                about = {"network": named(task, method), "method": TITLES[method]}
                found.append({**about, "tried": ", ".join(shown), "taken": taken})
    return found


def with_rates_of(earlier: dict, record: Records) -> Records:
    """Records in which the learning rates that were not tried are those that an earlier report has tried."""
    about = {"commit": earlier["commit"], "date": earlier["date"]}
    found = {}
    for task in tasks():
        for method in OF_A_SUBNET:
            of_method = (row for row in earlier["rates"] if row["method"] == TITLES[method])
            (row,) = (row for row in of_method if row["network"] == named(task, method))
            for each in row["tried"].split(", "):
                lr, score = map(float, each.split(": "))
                points = [{"step": 0}, {"step": VALIDATION_STEPS, "accuracy": score}]
                found[rate_cell(task, method, lr).name] = about | {"points": points}
    return lambda cell: record(cell) or found.get(cell.name)


def with_rows_of(earlier: dict, found: list[dict], seconds: Mapping[tuple[str, str], float | None]) -> list[dict]:
    """The rows of an earlier report, and in place of those that were measured once more the new ones.

    An earlier row that had none gets the seconds of a step that were measured now, by its network and method.
    """

    def of(row: dict) -> tuple:
        return row["network"], row["data"], row["method"]

    new = {of(row): row for row in found}
    kept = (with_seconds(row, seconds.get((row["network"], row["method"]))) for row in earlier["rows"])
    return [new.pop(of(row), row) for row in kept] + list(new.values())


def with_seconds(row: dict, seconds: float | None) -> dict:
    """A row of an earlier report with the seconds of a step, where it had none."""
    if seconds is None or row["ms a step"] != "-":
        return row
    targets = (target.removesuffix(" steps").split(" in ") for target in row["reached"].split("; "))
    shown = (reached(float(at[0]), float(at[1]), seconds) if len(at) > 1 else at[0] for at in targets)
    return {**row, "ms a step": 1e3 * seconds, "reached": "; ".join(shown)}


def controls(record: Records, folder: Path, earlier: dict | None = None) -> None:
    """Write controls.md and .json into a folder; from an earlier report take over what was not measured here."""
    found = rows(record)
    kept = origin = ""
    if earlier:
        measured = len(found)
        seconds = {
            (named(task, method), TITLES[method]): seconds_a_step(record, task, method)
            for task in tasks()
            for method in METHODS
        }
        found = with_rows_of(earlier, found, seconds)
        origin = earlier.get("origin") or f"{earlier['commit']}, {earlier['date']}"
        kept = f" {len(found) - measured} rows' accuracies and the learning rates are of {origin}."
    rates = tried(record)
    if not found:
        print("no curve is there yet: there is nothing to report")
        return
    notes = (
        f"P = {RANKS}, J = {LOCAL_STEPS}, {BATCH} examples a rank and step. `alike`: every rank draws from all "
        "training data; `an eighth each`: the ranks' data are disjoint, drawn at random. The narrow network has a "
        "subnet's shape, so that its local steps have as many FLOPs as IST's; every rank has all of it. `never "
        "redealt`: every rank trains its subnet alone from the first pull on, which is all that is sent; the whole "
        "network is what is evaluated. Accuracy: of the test split, the mean over seeds of the last three evaluations; "
        "at equal steps: when the shortest curve of these data ended. MB: sent by all ranks in all these steps, "
        "evaluation left out. Milliseconds: on the emulated slow network of time-to-accuracy, in turns within one job. "
        "Reached: on the mean curve over seeds, each point averaged with its neighbours. Curves come from P ranks in "
        f"one process, as there. {provenance(record)}{kept}\n\n## Learning rates\n\nThree for each method, one seed, "
        f"{VALIDATION_STEPS} steps, data alike. Taken is the one that is most accurate on a validation split (the mean "
        "of the last three evaluations; of equals the nearest to the one of time-to-accuracy). That split is made of "
        "training data: one speaker of five, or one image in 25; the test split has no part in it. Local SGD on the "
        "whole network has the rate of time-to-accuracy.\n\n" + (table(rates) if rates else "Not measured yet.")
    )
    reporting.report(
        "controls", "Is the exchange needed?", found, notes, folder=folder, facts={"rates": rates, "origin": origin}
    )


def provenance(record: Records) -> str:
    """How many cells are there, and of which commits and days."""
    planned = [*speed_cells(), *rate_cells(), *control_cells(record)]
    there = [one for one in map(record, planned) if one]
    commits, dates = (sorted({one[key] for one in there}) for key in ("commit", "date"))
    return f"{len(there)} of {len(planned)} cells, measured at {', '.join(commits)} on {', '.join(dates)}."
