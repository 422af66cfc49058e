"""Seconds and bytes of a local step of our methods and of PyTorch's, in turns within one job; run under mpirun.

    benchmarks/cluster --hosts 4 --rate 500mbit -- python benchmarks/speeds.py turns --out speeds.json \
        --data speech.h5 --hidden 4096 --contestants local-sgd,pytorch-local-sgd,ist

A turn is a few rounds of every contestant, one after the other and in every turn another one first, each round from one
barrier to the moment at which the slowest rank is done. Where a whole round would outlast ``--turn-seconds``, rounds
have fewer local steps; what is sent at a round's end is recorded apart from its local steps, so that J steps follow
from both. ``flops`` and ``model`` measure instead what `benchmarks/time_to_accuracy.py` needs to know of the machine:
FLOP/s of a rank while all ranks compute, and the cost model's cluster. Where ranks have interfaces of their own, it is
an error if fewer bytes went over them than the program counted.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from peers import DDP, LocalSGD, Peer, Wire, connect, disconnect, ring_bytes
from settings import add_settings, run_of
from time_analysis import step_seconds
from time_plan import AS_MEASURED, EVERY_STEP, METHODS, OF_A_SUBNET, hidden_of, settings_of

from istmpi.cli.main import main
from istmpi.comm import Communicator, world
from istmpi.config import Run
from istmpi.data.sources import open_dataset
from istmpi.models import architecture
from istmpi.training.loop import Training
from istmpi.training.measure import measure

PEERS: dict[str, type[Peer]] = {"pytorch-ddp": DDP, "pytorch-local-sgd": LocalSGD}
MOST_ROUNDS = 5
"""Of one contestant in a turn."""
FEWEST_STEPS = 4
"""Of a round, for its first step finds memory and caches as another contestant left them."""
LINE = 0.8
"""Of the line rate, in the estimate of how long a round will take."""
WORKING_SET = 7
"""Times the weights: what two contestants and their buffers may need on a rank."""


class Ours:
    """A method of istmpi as ``istmpi train`` runs it."""

    def __init__(self, run: Run, communicator: Communicator):
        self._training, self._round = Training(run, communicator), 0
        self.steps = self._training.method.steps(0)

    def round(self) -> None:
        outcome = self._training.method.run(self._round)
        assert isinstance(outcome, float), "nobody asked it to stop"
        self._round += 1

    def meet(self) -> None:
        """Wait for the other ranks."""
        self._training.communicator.barrier()

    @property
    def phases(self) -> dict[str, float]:
        return dict(self._training.clock.seconds)

    @property
    def bytes(self) -> int:
        return self._training.communicator.traffic.bytes


class Theirs:
    """A peer of PyTorch's."""

    def __init__(self, kind: type[Peer], run: Run):
        self.steps = run.method.local_steps
        self._peer = kind(run, open_dataset(run.data.source))

    def round(self) -> None:
        self._peer.train(self.steps)

    def meet(self) -> None:
        """Wait for the other ranks, asleep as gloo does: MPI's barrier would take the cores of those at work."""
        dist.barrier()

    @property
    def phases(self) -> dict[str, float]:
        return dict(self._peer.seconds)

    @property
    def bytes(self) -> int:
        """This rank's part of the rings so far."""
        ranks = dist.get_world_size()
        return self._peer.averages(self._peer.steps, self._peer.run) * ring_bytes(self._peer.network, ranks) // ranks


def turns(options: argparse.Namespace, run: Run, communicator: Communicator) -> dict:
    """Rounds of every contestant in turns: for each its rounds as ``one_round`` gives them, turn by turn."""
    ranks = communicator.size
    data = open_dataset(run.data.source)
    network = architecture(data.features, data.outputs, data.task, run.model)
    weights = sum(int(parameter.size(network.lengths)) for parameter in network.parameters.values())
    compute = 6 * run.train.batch * weights / options.flops
    average = 2 * (ranks - 1) / ranks * 4 * weights / (LINE * options.rate / 8)

    def make(name: str) -> Ours | Theirs:
        steps = run.method.local_steps
        if name in EVERY_STEP:
            steps = _between(1, options.turn_seconds / (compute + average), steps)
        elif name not in OF_A_SUBNET:
            steps = _between(FEWEST_STEPS, (options.turn_seconds - average) / compute, steps)
        wanted = run.override({"method.local_steps": steps})
        if name in PEERS:
            return Theirs(PEERS[name], wanted)
        hidden = hidden_of(name, run.model.hidden, ranks)
        return Ours(wanted.override({**settings_of(name), "model.hidden": hidden}), world())

    def warm(name: str) -> Ours | Theirs:
        """With memory, connections and DDP's buckets."""
        contestant = make(name)
        one_round(contestant, communicator)
        return contestant

    keep = communicator.broadcast_from_root(WORKING_SET * 4 * weights * ranks < _available_memory())
    kept = {name: warm(name) for name in options.contestants} if keep else {}
    found: dict[str, list] = {name: [] for name in options.contestants}
    start, done = time.perf_counter(), 0
    while done < options.turns and not communicator.broadcast_from_root(
        done and time.perf_counter() - start > options.seconds
    ):
        for name in options.contestants[done % len(found) :] + options.contestants[: done % len(found)]:
            contestant = kept.get(name) or warm(name)
            rounds = []
            while len(rounds) < MOST_ROUNDS and sum(one["seconds"] for one in rounds) < options.turn_seconds / 2:
                rounds.append(one_round(contestant, communicator))
            found[name].append(rounds)
            del contestant
        done += 1
        if communicator.rank == 0:
            shown = (
                f"{name} {step_seconds(found[name][-1], run.method.local_steps, name in AS_MEASURED):.3f}"
                for name in found
            )
            print(f"turn {done}, s a step: {', '.join(shown)}", flush=True)
    return {"contestants": found, "kept": keep, "weights": weights}


def one_round(contestant: Ours | Theirs, communicator: Communicator) -> dict:
    """A round's seconds, those of its phases as the mean over ranks, and its bytes: counted, and by the interfaces."""
    phases, counted = contestant.phases, contestant.bytes
    communicator.barrier()
    wire, start = Wire.now(), time.perf_counter()
    contestant.round()
    seconds = time.perf_counter() - start
    contestant.meet()
    after = Wire.now()
    spent = {name: total - phases.get(name, 0.0) for name, total in contestant.phases.items()}
    over_wire = after.sent - wire.sent if wire and after else None
    reports = communicator.allgather((seconds, spent, contestant.bytes - counted, over_wire))
    everyones_seconds, everyones_phases, sent, wires = zip(*reports)
    record = {
        "seconds": max(everyones_seconds),
        "steps": contestant.steps,
        "phases": {name: sum(one[name] for one in everyones_phases) / len(reports) for name in spent},
        "bytes": sum(sent),
        "wire": sum(wires) if over_wire is not None else None,
    }
    assert record["wire"] is None or record["wire"] >= record["bytes"], f"bytes that no interface has seen: {record}"
    return record


def flops(options: argparse.Namespace, run: Run, communicator: Communicator) -> dict:
    """FLOP/s of a rank in a layer's three products while all ranks compute: each rank's, and their mean."""
    width = run.model.hidden[0]
    x, gradient = torch.ones(run.train.batch, width), torch.ones(run.train.batch, width)
    weight = torch.ones(width, width)

    def products() -> None:
        x @ weight.T, gradient.T @ x, gradient @ weight  # noqa: B018

    products()
    communicator.barrier()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < options.seconds:
        products()
        count += 1
    mine = count * 6 * run.train.batch * width**2 / (time.perf_counter() - start)
    per_rank = communicator.allgather(mine)
    return {"flops": sum(per_rank) / len(per_rank), "each": per_rank}


def model(options: argparse.Namespace, run: Run, communicator: Communicator) -> dict:
    """The cost model's cluster, as ``istmpi measure`` finds it at these shapes."""
    data = open_dataset(run.data.source)
    network = architecture(data.features, data.outputs, data.task, run.model)
    cluster = measure(run, network, communicator)
    path = Path(options.out).with_suffix(".cluster")
    if communicator.rank == 0:
        cluster.save(path)
    return {"cluster": json.loads(path.read_text(encoding="utf-8"))} if communicator.rank == 0 else {}


def _between(least: int, wanted: float, most: int) -> int:
    return max(least, min(int(wanted), most))


def _available_memory() -> int:
    """Bytes that all ranks of this machine may still take."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 0


WORK: dict[str, Callable] = {"turns": turns, "flops": flops, "model": model}


def benchmark() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=WORK)
    parser.add_argument("--out", required=True)
    add_settings(parser)
    parser.add_argument("--contestants", type=lambda names: names.split(","), default=[*METHODS, *PEERS])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--turn-seconds", type=float, default=15.0, help="of one contestant (15)")
    parser.add_argument("--seconds", type=float, default=300.0, help="no turn begins after that (300)")
    parser.add_argument("--flops", type=float, default=25e9, help="of a rank, to plan rounds with")
    parser.add_argument("--rate", type=float, default=1e9, help="bits a second, to plan rounds with")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = run_of(options, {"train.threads": 1, "evaluate.every": 10**6})
    communicator = world()
    connected = any(name in PEERS for name in options.contestants)
    if connected:
        connect(communicator.size, communicator.rank)
    record = WORK[options.work](options, run, communicator)
    if communicator.rank == 0:
        record |= {"ranks": communicator.size, "network_is": os.environ.get("ISTMPI_NETWORK", "shared memory")}
        Path(options.out).write_text(json.dumps(record) + "\n", encoding="utf-8")
    communicator.barrier()
    if connected:
        disconnect()


if __name__ == "__main__":
    main(benchmark)
