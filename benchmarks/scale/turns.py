"""Speed of two checkouts in turns: encoding values for the wire, and one rank's plan of a round.

    python -m benchmarks.scale.turns ../main [TURNS]

Each turn measures each checkout in a process of its own; the ratio is the median over turns.
"""

import json
import os
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.scale.memory import status

VALUES, RANKS, UNITS, LAYERS = 2_000_000, 512, 1_000_000, 4


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The least processor time of some repeats."""
    return min(timeit.repeat(work, number=1, repeat=repeats, timer=time.process_time))


def codec() -> dict[str, float]:
    """Nanoseconds a value: flat ones, as in means, and half of a matrix's rows and columns, as between ranks."""
    import torch

    from istmpi.comm.codec import CODECS
    from istmpi.engine.blocks import Block
    from istmpi.engine.wire import BlockCodec

    coder, random = CODECS["int8"], np.random.default_rng(0)
    flat = random.standard_normal(VALUES, dtype=np.float32)
    index = tuple(np.sort(random.permutation(length)[: length // 2]) for length in (2000, 1000))
    block = Block("w", index, (1000, 500), 4, False, (), "int8", 2000)
    coding = BlockCodec(7, [[], [block]], {"w": torch.from_numpy(flat.reshape(2000, 1000))})
    coded, out = coder.encode(flat, 1), np.empty(block.sent_nbytes, np.uint8)
    return {
        "int8, encode, ns": seconds(lambda: coder.encode(flat, 1)) / VALUES * 1e9,
        "int8, decode, ns": seconds(lambda: coder.decode(coded, VALUES)) / VALUES * 1e9,
        "int8, block, pack and encode, ns": seconds(lambda: coding.encode(block, 0, 1, out)) / block.elements * 1e9,
        "int8, block, decode, ns": seconds(lambda: coding.decode(block, 1, out)) / block.elements * 1e9,
    }


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
    deals = [Partition.draw(lengths, groups, RANKS, 0, round) for round in range(3)]
    route, memory = Route(Owners(lengths, RANKS), deals.__getitem__, groups, stays=True), status("VmHWM")
    drawn = seconds(lambda: Partition.draw(lengths, groups, RANKS, 0, 3).digest, 1)
    legs = [*route.into(parameters, 1, deals[0]), *route.out_of(parameters, 1)]
    transfers = seconds(lambda: [Transfer.from_leg(leg, RANKS // 3) for leg in legs], 1)
    grown = status("VmHWM") - memory
    return {"deal, s": drawn, "transfers, s": transfers, "plan, s": drawn + transfers, "plan, MB": grown}


def measured(tree: Path) -> dict[str, float]:
    """The figures of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__], check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(json.dumps(codec() | plan()))
        sys.exit()
    trees = Path(sys.argv[1]).resolve(), Path.cwd()
    turns = [[measured(tree) for tree in trees] for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 9)]
    for name in turns[0][0]:
        before, after = (median(turn[which][name] for turn in turns) for which in (0, 1))
        ratio = median(after[name] / before[name] for before, after in turns)
        print(f"| {name} | {before:.3g} | {after:.3g} | {ratio:.2f} |")
