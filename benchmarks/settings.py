"""The options that every program has which trains on its own: a run's settings as the benchmarks vary them."""

import argparse

from istmpi.config import Run


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options that `run_of` reads."""
    parser.add_argument("--data", required=True)
    parser.add_argument("--hidden", required=True, help="widths, with commas")
    parser.add_argument("--local-steps", type=int, default=20, help="between two transfers (20)")
    parser.add_argument("--batch", type=int, default=128, help="of each rank (128)")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)


def run_of(options: argparse.Namespace, settings: dict[str, object] | None = None) -> Run:
    """The run that the options describe, with further settings."""
    return Run().override(
        {
            "data.source": options.data,
            "model.hidden": [int(width) for width in options.hidden.split(",")],
            "method.local_steps": options.local_steps,
            "train.batch": options.batch,
            "train.seed": options.seed,
            "optimizer.lr": options.lr,
            **(settings or {}),
        }
    )
