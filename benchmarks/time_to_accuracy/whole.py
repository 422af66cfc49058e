"""Seconds and bytes of whole commands on a slow network with latency: loading, rounds, evaluation and saving.

    sudo -E env PATH="$PATH" python -m benchmarks.time_to_accuracy.whole --cells FOLDER --hosts 4 \\
        --rates 10mbit,50mbit --round-trips 1ms,25ms,100ms
    python -m benchmarks.time_to_accuracy.whole --cells FOLDER --report

A cell is `istmpi train` with its defaults, one rank on each emulated host, from its start to network.h5. Bytes are
counted by istmpi, by purpose, and by the hosts' interfaces. Cells that are there are not measured again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import reporting
from benchmarks.emulated import Cluster, Delays, alone, obstacle
from benchmarks.reporting import keep_cell, restore_cells, store_cells
from istmpi.comm.ledger import estimate_line_bytes

NAME = "whole-command"
PREDICTED = {"evaluation": "evaluations", "saving": "saving"}
COMMON = ["digits", "--rounds", "8", "--local-steps", "20", "--batch", "32"]
WIDTH = 1024
METHODS = {
    "ist, a tenth redealt": ["--redeal", "0.1"],
    "ist, never redealt": ["--redeal", "0"],
    "local SGD": ["--method", "local-sgd"],
    "SparseLoCo": ["--method", "sparse-loco"],
    "joint": ["--method", "joint"],
    "joint, J = 1": ["--method", "joint", "--local-steps", "1", "--rounds", "160"],
    "narrow, local SGD": ["--method", "local-sgd"],
    "narrow, SparseLoCo": ["--method", "sparse-loco"],
}


def list_words(method: str, hosts: int) -> list[str]:
    """Return the words of `istmpi train` for a method; a narrow network has a subnet's widths."""
    width = WIDTH
    if method.startswith("narrow"):
        width //= hosts
    return [*COMMON, "--hidden", f"{width},{width}", *METHODS[method]]


def measure_cluster(cluster: Cluster, file: Path) -> None:
    """Let `istmpi measure` write the cluster's figures to a file, unless it is there."""
    if not file.exists():
        words = ["measure", "digits", "--batch", "32", "--hidden", f"{WIDTH},{WIDTH}", "--out", str(file)]
        code = cluster.run([sys.executable, "-m", "istmpi", *words])
        assert code == 0, f"the measurement failed with exit code {code}"


def predict(words: list[str], hosts: int, cluster: Path) -> dict:
    """Return the bytes and the seconds of rounds, evaluations and saving that `--dry-run` predicts for a measured
    cluster; two figures of bytes if scores choose the form of the network."""
    plan = ["--dry-run", "--ranks", str(hosts), "--cluster", str(cluster), "--json"]
    command = [sys.executable, "-m", "istmpi", "train", *words, *plan]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    both = {name: [found[key].get("least", found[key]["sent"]), found[key]["sent"]] for name, key in PREDICTED.items()}
    return {"rounds": found["sent_bytes"], "seconds": found["seconds"], **both}


def measure(cluster: Cluster, words: list[str]) -> dict:
    """Run the command on the cluster; return its seconds and bytes."""
    folder = Path(tempfile.mkdtemp(prefix="whole-"))
    before = cluster.counters()
    segments = cluster.segments()
    start = time.perf_counter()
    code = cluster.run([sys.executable, "-m", "istmpi", "train", *words, "--out", str(folder / "run")])
    seconds = time.perf_counter() - start
    after = cluster.counters()
    sent, again = (now - then for now, then in zip(cluster.segments(), segments, strict=True))
    assert code == 0, f"the command failed with exit code {code}"
    summary = json.loads((folder / "run/summary.json").read_text(encoding="utf-8"))
    shutil.rmtree(folder)
    phases = summary["seconds"]
    return {
        "seconds": seconds,
        "rounds": summary["last"]["seconds"],
        "evaluate": phases.get("evaluate", 0.0),
        "save": phases.get("save", 0.0),
        "sent": summary["sent"],
        "again": again / sent,
        "resent": summary.get("resent_bytes"),
        "interfaces": sum(after[host][0] - before[host][0] for host in after),
        "score": summary["last"]["score"]["score"],
    }


def beside(measured: float, predicted: float | list | None, digits: int = 2, unit: float = 1.0) -> str:
    """Write a measured figure, with the predicted one in brackets if there is one; of several the nearest."""
    if isinstance(predicted, list):
        predicted = min(predicted, key=lambda figure: abs(figure - measured), default=None)
    return f"{measured / unit:.{digits}f}" + ("" if predicted is None else f" ({predicted / unit:.{digits}f})")


def write_report(folder: Path, results: Path) -> None:
    files = sorted(folder.glob(f"{NAME}-*.json"))
    store_cells(NAME, files, results)
    lines = []
    for file in files:
        record = json.loads(file.read_text(encoding="utf-8"))
        sent = record["sent"]
        counted, calls = (sum(purpose[name] for purpose in sent.values()) for name in ("bytes", "calls"))
        on_the_line = estimate_line_bytes(counted, calls, record["hosts"])
        predicted = record["predicted"]
        seconds = predicted.get("seconds", {})
        again = record.get("again")
        resent = record.get("resent")
        lines.append(
            {
                "P": record["hosts"],
                "Mbit/s": record["rate"].removesuffix("mbit"),
                "ms": record["round trip"].removesuffix("ms"),
                "method": record["method"],
                "s, whole command": f"{record['seconds']:.1f}",
                "s, rounds": beside(record["rounds"], seconds.get("rounds"), digits=1),
                "s, evaluating": beside(record["evaluate"], seconds.get("evaluations")),
                "s, saving": beside(record["save"], seconds.get("saving")),
                "MB, rounds": f"{sent['rounds']['bytes'] / 1e6:.2f}",
                "MB, evaluation": beside(sent["evaluation"]["bytes"], predicted["evaluation"], 3, unit=1e6),
                "MB, saving": beside(sent["saving"]["bytes"], predicted["saving"], 3, unit=1e6),
                "MB, loading": f"{sent['start']['bytes'] / 1e6:.2f}",
                "interfaces / counted": f"{record['interfaces'] / counted:.2f}",
                "interfaces / said": f"{record['interfaces'] / on_the_line:.2f}",
                "with resends": "" if resent is None else f"{record['interfaces'] / (on_the_line + resent):.3f}",
                "sent again": "" if again is None else f"{again:.1%}",
                "calls": "+".join(str(sent[name]["calls"]) for name in ("start", "rounds", "evaluation", "saving")),
                "commit": record["commit"],
            }
        )
    order = list(METHODS)
    lines.sort(key=lambda line: (line["P"], int(line["Mbit/s"]), int(line["ms"]), order.index(line["method"])))
    command = f"istmpi train {' '.join(COMMON)} --hidden {WIDTH},{WIDTH}"
    notes = (
        f"`{command}` with the words of each method. A narrow network has the P-th part of the units. One run each. "
        "All hosts share two cores, so loading takes seconds longer than on machines of their own. The whole command "
        "is from mpirun's start to its end. Calls: collective calls that rank 0 waited for in loading, rounds, "
        "evaluation and saving. In brackets: what `--dry-run --cluster FILE` predicts, where it does, with a file of "
        "`istmpi measure` on the same line. Interfaces / counted: bytes that the hosts' interfaces sent, with headers, "
        "the messages of MPI itself and what TCP sent again, by those that istmpi counted. Interfaces / said: by those "
        "that it says are on the line (`line_bytes`); with resends: plus those sent again (`resent_bytes`). Sent "
        "again: of TCP's segments. Scores choose the form of a network that is never redealt: the nearer of two "
        "predicted numbers is shown."
    )
    title = "Whole commands on slow networks with latency"
    reporting.report(NAME, title, lines, notes, folder=results, lines="emulated, TCP")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, required=True, help="the folder of the cells")
    parser.add_argument("--hosts", type=int, default=4, help="emulated hosts (4)")
    parser.add_argument("--rates", default="10mbit,50mbit", help="line rates, in tc's words")
    parser.add_argument("--round-trips", default="1ms,25ms,100ms", help="latencies there and back")
    parser.add_argument("--methods", default=";".join(METHODS), help="rows, with a ; between two")
    parser.add_argument("--results", type=Path, default=reporting.RESULTS, help="where the report goes")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    options.cells.mkdir(parents=True, exist_ok=True)
    restore_cells(NAME, options.cells, options.results)
    if options.report:
        write_report(options.cells, options.results)
        return
    why_not = obstacle()
    if why_not:
        parser.error(why_not)
    cluster = Cluster(NAME)
    with alone(NAME):
        for rate in options.rates.split(","):
            for trip in options.round_trips.split(","):
                cluster.up(options.hosts, rate, Delays(round_trip=float(trip.removesuffix("ms")) / 1000))
                print(cluster.describe(), flush=True)
                file = options.cells / f"cluster-P{options.hosts}-{rate}-{trip}.json"
                measure_cluster(cluster, file)
                for method in options.methods.split(";"):
                    name = f"{NAME}-P{options.hosts}-{rate}-{trip}-{method.replace(', ', '-').replace(' ', '-')}"
                    path = options.cells / f"{name}.json"
                    if path.exists():
                        continue
                    start = time.perf_counter()
                    words = list_words(method, options.hosts)
                    found = measure(cluster, words) | {
                        "hosts": options.hosts,
                        "rate": rate,
                        "round trip": trip,
                        "method": method,
                        "predicted": predict(words, options.hosts, file),
                    }
                    keep_cell(path, name, start, found)
                    print(f"{name}: {found['seconds']:.1f} s", flush=True)
        cluster.down()


if __name__ == "__main__":
    main()
