"""A network of one's own on images: IST beside local SGD and beside one rank, after as many local steps of each rank.

    python benchmarks/own_network.py            # less than ten minutes on two quiet cores
    python benchmarks/own_network.py --tiny     # all of it in small, in a minute: only to see that it works

The network is examples/convnet.py, the data are CIFAR-10: of its images one in five (10,000 to learn from, 2,000 to
test on), made half as wide and as high, 16 x 16. All have the same rate, initial weights and batches of a rank.
``mpirun -n P istmpi train`` trains them one after the other (MPIRUN names another launcher).
"""

import argparse
import tempfile
from pathlib import Path

from reporting import HERE, RESULTS, report
from small_images import prepare, train

NETWORK = HERE.parent / "examples" / "convnet.py"
RANKS = 4
LOCAL_SGD = "local SGD"
ROWS: dict[str, tuple[int, dict[str, str]]] = {
    "one rank": (1, {"method.name": "local-sgd"}),
    LOCAL_SGD: (RANKS, {"method.name": "local-sgd"}),
    "IST": (RANKS, {}),
    "IST, a tenth redealt": (RANKS, {"method.redeal": "0.1"}),
    "IST, dense units alone": (RANKS, {"method.partition": '["hidden"]'}),
}
"""What is compared: the ranks, and the settings that differ."""
SETTINGS = {"method.local_steps": "20", "train.batch": "64", "evaluate.calibration_examples": "512"}
NOTES = (
    "Accuracy of the full network on the test images, after the last round; best: of all evaluations. A local step of "
    "a rank takes 64 images, so four ranks consume four times as many as one. MB are those that all ranks handed to "
    "MPI. Seconds are of training alone, all ranks on one host: they share its cores, and a byte costs next to nothing "
    "there. One learning rate for all, tuned for none."
)


def main() -> None:
    """Train every row and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, default=HERE.parent.parent / "shared" / "data" / "cifar10.tar")
    parser.add_argument("--rounds", type=int, default=50, help="of 20 local steps (50)")
    parser.add_argument("--one-in", type=int, default=5, help="images of which one is taken (5)")
    parser.add_argument("--channels", default="64,128", help="of the two convolutions (64,128)")
    parser.add_argument("--hidden", type=int, default=256, help="units of the dense layer (256)")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="3 rounds, one image in 100; writes into no results")
    options = parser.parse_args()
    if options.tiny:
        options.rounds, options.one_in, options.channels, options.hidden = 3, 100, "8,16", 16
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        some = slice(options.one_in - 1, None, options.one_in)
        prepare(options.raw, folder / "images.h5", 16, train=some, test=some)
        common = {
            **SETTINGS,
            "data.source": str(folder / "images.h5"),
            "model.name": f"{NETWORK}:ConvNet",
            "model.channels": f"[{options.channels}]",
            "model.hidden": str(options.hidden),
            "train.rounds": str(options.rounds),
            "train.seed": str(options.seed),
            "optimizer.lr": str(options.lr),
            "evaluate.every": str(max(options.rounds // 5, 1)),
        }
        done = {
            row: train(folder / str(number), ranks, common | settings)
            for number, (row, (ranks, settings)) in enumerate(ROWS.items())
        }
        for row, summary in done.items():
            last = summary["last"]
            rows.append(
                {
                    "method": row,
                    "ranks": summary["ranks"],
                    "local steps": last["local_steps"],
                    "accuracy": f"{last['score']['score']:.4f}",
                    "best": f"{summary['best']:.4f}",
                    "MB sent": f"{last['bytes'] / 1e6:.1f}",
                    "of local SGD's": f"{last['bytes'] / done[LOCAL_SGD]['last']['bytes']:.1%}",
                    "seconds": f"{last['seconds']:.0f}",
                }
            )
        title = f"A convolutional network of one's own on CIFAR-10 at 16 x 16, one image in {options.one_in}"
        results = folder / "results" if options.tiny else RESULTS
        report("own-network", title, rows, NOTES, folder=results)


if __name__ == "__main__":
    main()
