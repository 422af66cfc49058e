"""Speed of two checkouts in turns: encoding, one rank's plan of a round, from Enter to the first step.

    python -m benchmarks.scale.turns --before ../main --turns 11 codec plan

Each figure is measured in a process of its own, before and after one after the other; the ratio is the median over turns.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

VALUES, RANKS, UNITS, LAYERS = 2_000_000, 512, 1_000_000, 4


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The least processor time of some repeats."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def codec() -> dict[str, float]:
    """Nanoseconds a value: flat values, as in means; and half of the rows and columns of a matrix, as between ranks."""
    import torch

    from istmpi.comm.codec import CODECS
    from istmpi.engine.blocks import Block
    from istmpi.engine.wire import BlockCodec

    random = np.random.default_rng(0)
    flat = random.standard_normal(VALUES, dtype=np.float32)
    tensors = {"w": torch.from_numpy(random.standard_normal((2000, 2000), dtype=np.float32))}
    half = [np.sort(random.permutation(2000)[:1000]) for _ in range(2)]
    found = {}
    for form, coder in CODECS.items():
        block = Block("w", tuple(half), (1000, 1000), 4, False, (), form, 4000 if form == "int8" else 0)
        out, coded = np.empty(block.sent_nbytes, np.uint8), coder.encode(flat, 1)

        def encode(block: Block = block, out: np.ndarray = out) -> BlockCodec:
            coding = BlockCodec(7, [[], [block]], tensors)
            coding.encode(block, 0, 1, out)
            return coding

        found[f"{form}, encode, ns"] = seconds(lambda coder=coder: coder.encode(flat, 1)) / VALUES * 1e9
        found[f"{form}, decode, ns"] = (
            seconds(lambda coder=coder, coded=coded: coder.decode(coded, VALUES)) / VALUES * 1e9
        )
        found[f"{form}, block, pack and encode, ns"] = seconds(encode) / block.elements * 1e9
        coding = encode()
        decoded = seconds(lambda block=block, out=out, coding=coding: coding.decode(block, 1, out))
        found[f"{form}, block, decode, ns"] = decoded / block.elements * 1e9
    return found


def plan() -> dict[str, float]:
    """Seconds and MB of the plan of one round on one of 512 ranks: an mlp with a million units."""
    from istmpi.engine.axes import Parameter, Pattern
    from istmpi.engine.layout import Owners
    from istmpi.engine.partition import Partition
    from istmpi.engine.route import Route
    from istmpi.engine.transfer import Transfer

    groups = [f"hidden{layer}" for layer in range(1, LAYERS + 1)]
    lengths = {"features": 784, "classes": 10, **dict.fromkeys(groups, UNITS // LAYERS)}
    axes = [f"{rows} {columns}" for columns, rows in zip(["features", *groups], [*groups, "classes"], strict=True)]
    parameters = {axis: Parameter(Pattern.parse(axis)) for axis in [*axes, *groups, *(f"{name} 1" for name in groups)]}
    deals = {}

    def deal(round: int) -> Partition:
        if round not in deals:
            deals[round] = Partition.draw(lengths, groups, RANKS, 0, round)
        return deals[round]

    route = Route(Owners(lengths, RANKS), deal, groups, stays=True)
    before, memory = [deal(0), deal(1)][0], resident()
    drawn = seconds(lambda: (deals.pop(2, None), deal(2), deal(2).digest), 1)

    def planned() -> list[Transfer]:
        legs = [*route.into(parameters, 1, before), *route.out_of(parameters, 1)]
        return [Transfer.of(leg, RANKS // 3) for leg in legs]

    transfers = seconds(planned, 1)
    return {"deal, s": drawn, "transfers, s": transfers, "plan, s": drawn + transfers, "plan, MB": resident() - memory}


def enter() -> dict[str, float]:
    """Seconds of 4 ranks on the digits: from Enter to the end of the first of two rounds of one local step."""
    words = "mpirun -n 4 istmpi train --rounds 1 --local-steps 1 --no-save --quiet".split()
    start = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {"Enter to the end of one step, s": time.perf_counter() - start}


def resident() -> float:
    """The highest resident memory of this process so far, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024e-6


MEASURES = {measure.__name__: measure for measure in (codec, plan, enter)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="+", choices=MEASURES)
    parser.add_argument(
        "--before", type=Path, help="the checkout to compare with; this process measures itself without it"
    )
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    for figure in options.figures:
        if options.before is None:
            print(json.dumps(MEASURES[figure]()))
            continue
        turns = []
        for _ in range(options.turns):
            pair = []
            for tree in (options.before.resolve(), Path.cwd()):
                words = [sys.executable, __file__, figure]
                environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
                done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
                pair.append(json.loads(done.stdout))
            turns.append(pair)
        for name in turns[0][0]:
            before, after = (median(turn[which][name] for turn in turns) for which in (0, 1))
            ratio = median(after[name] / max(before[name], 1e-9) for before, after in turns)
            print(f"| {name} | {before:.3g} | {after:.3g} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
