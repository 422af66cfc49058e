"""Run a trained network on files."""

import json
import os
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import click

from istmpi.cli.options import (
    YesOrNo,
    calibrate_on,
    flag,
    force,
    listed,
    own_class,
    real,
    text,
    whole,
)
from istmpi.cli.output import note
from istmpi.comm import current_rank
from istmpi.data import KINDS
from istmpi.data.dataset import SPLITS
from istmpi.errors import ConfigError
from istmpi.tasks import TASKS


@click.command(
    "predict",
    help=f"""Run the network in CKPT on the examples of INPUT; needs no MPI.

\b
INPUT is one of
{listed([kind.input for kind in KINDS.values() if kind.input])}
  FILE.h5                    prepared data
  digits                     the built-in data

Features are computed as istmpi prepare computed them for the training data.
A sparse row gets its likeliest labels with their probabilities. Other examples with several labels get the labels
above 50%. A graph gets a line for every node.
A prompt is continued token by token until the network ends the document; text is printed as it is generated.
""",
)
@click.argument("path", metavar="CKPT")
@click.argument("source", metavar="INPUT")
@click.option(
    "--format", "form", type=click.Choice(("csv", "jsonl")), default="csv", show_default=True
)
@click.option(
    "--outputs", "all_outputs", is_flag=True, help="Print every output of the network as well."
)
@whole(
    "--top",
    "K",
    "Several labels: number to print for each example.  [default: xc 5, otherwise those above 50%]",
    1,
)
@whole("--tokens", "N", "text: largest number of new tokens.  [default: 200]", 1)
@real(
    "--temperature",
    "T",
    "text: divisor of the logits; 0 picks the likeliest token.  [default: 1]",
    0,
)
@whole("--seed", "N", "text: seed.  [default: 0]", 0)
@flag("--json", "text: print JSON for other programs.")
@text("--out", "FILE", "The file to write, atomically.  [default: standard output]")
@force
@click.option(
    "--split",
    type=click.Choice(SPLITS),
    default="test",
    show_default=True,
    help="The split, for data with splits.",
)
@text("--label", "COLUMN", "csv: skip this column, a name or a number counted from 0.")
@text("--header", "yes|no", "csv: line 1 is a header.  [default: as in training]", type=YesOrNo())
@text("--delimiter", "CHARACTER", "csv: delimiter, or tab.  [default: as in training]")
@flag("--resize", "images: resize the largest central square to the size of the training data.")
@calibrate_on
@own_class
def command(
    path: str,
    source: str,
    form: str,
    all_outputs: bool,
    top: int | None,
    tokens: int | None,
    temperature: float | None,
    seed: int | None,
    as_json: bool,
    out: str | None,
    force: bool,
    split: str,
    resize: bool,
    calibrate_on: str | None,
    model: str | None,
    **options: Any,
) -> None:
    if current_rank() > 0:
        return  # one process does it, however many were started

    from istmpi.checkpoint.reader import open_checkpoint
    from istmpi.data.decoder import Notes
    from istmpi.data.dense.predict import read_inputs
    from istmpi.data.holdout import TestSplit
    from istmpi.data.sparse.prepare import read_rows
    from istmpi.deploy.generation import continue_prompt, make_predictor, read_prompt, texts
    from istmpi.deploy.network import CalibratedNetwork
    from istmpi.deploy.prediction import lines, node_lines, predict, ranked_lines
    from istmpi.files import appearing, require_free

    if out:
        require_free(Path(out), force)
    with open_checkpoint(path) as checkpoint:
        network = CalibratedNetwork(checkpoint, calibrate_on, model)
        data, classes, tokenizer = checkpoint.header.data, checkpoint.classes, checkpoint.tokenizer
        named, reading = checkpoint.output_names, checkpoint.reading
        run = checkpoint.header.run
    notes = Notes()
    task = TASKS[data.task]
    several, ranks, of_nodes = task.several_labels, task.ranks_labels, task.of_nodes
    refused = {} if ranks or several else {"--top": top}
    if not tokenizer:
        refused |= {
            "--tokens": tokens,
            "--temperature": temperature,
            "--seed": seed,
            "--json": as_json or None,
        }
    if tokenizer or ranks or of_nodes:
        refused |= {f"--{name}": options[name] for name in ("label", "header", "delimiter")}
        refused |= {
            "--resize": resize or None,
            "--outputs": None if of_nodes else all_outputs or None,
        }
    for option, value in refused.items():
        if value is not None:
            raise ConfigError(
                f"{option} does not go with {path}, a {data.task} network. Leave it out."
            )
    if network.note:
        note(f"{network.note}.")
    if tokenizer:
        prompt, window = read_prompt(source, tokenizer), data.shape[0]
        drawing = (
            200 if tokens is None else tokens,
            1.0 if temperature is None else temperature,
            seed or 0,
        )
        drawn = continue_prompt(
            make_predictor(network.module, window), prompt, window, tokenizer.end, *drawing
        )
        text = chain(texts(drawn, tokenizer), "\n")
        if as_json:
            drawn = [*drawn]
            answer = {
                "prompt_tokens": len(prompt),
                "tokens": drawn,
                "text": "".join(texts(drawn, tokenizer)),
            }
            text = [json.dumps(answer, ensure_ascii=False), "\n"]
    elif ranks:
        rows = read_rows(source, data.shape[0], split, reading, lambda message: note(f"{message}."))
        text = ranked_lines(network, rows, data.outputs, top or 5, run.train.multi_label_loss, form)
    elif of_nodes:
        text = node_lines(network, source, data.shape[0], classes, data.outputs, all_outputs, form)
    else:
        options |= {"split": split, "resize": resize, "reading": reading, "notes": notes}
        options |= {"test": TestSplit(run.data.test, run.train.seed)}
        options["skipped"] = lambda name, reason: note(
            f"{name} is skipped: it cannot be read ({reason})."
        )
        blocks = read_inputs(source, data.kind, data.shape, **options)
        answers, limit = predict(network, blocks), top or 0 if several else None
        text = lines(answers, classes, data.outputs, all_outputs, form, named=named, top=limit)
    if not out:
        _print(text)
    else:
        with appearing(Path(out)) as file:
            for piece in text:
                file.write(piece.encode())
    for remark in (*notes.assumed, *notes.left_out):
        note(f"{remark}.")


def _print(text: Iterable[str]) -> None:
    """Print in UTF-8, as in output files. A reader that leaves early, such as head, is no error."""
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        for piece in text:
            sys.stdout.write(piece)
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
