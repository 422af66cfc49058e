"""Run a trained network on files."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from istmpi.cli.options import (
    YesOrNo,
    calibrate_on,
    flag,
    force,
    list_rows,
    own_class,
    real,
    subnet,
    text,
    whole,
)
from istmpi.cli.output import note
from istmpi.comm import find_rank
from istmpi.data import KINDS
from istmpi.data.dataset import SPLITS
from istmpi.errors import ConfigError
from istmpi.tasks import GRAPH, PREDICT_OPTIONS, SPARSE_ROWS, TASKS, Task

if TYPE_CHECKING:
    from istmpi.checkpoint.format import DataSummary
    from istmpi.config import Run
    from istmpi.data.decoder import Block, Notes
    from istmpi.data.text.tokenizer import Tokenizer
    from istmpi.deploy.network import CalibratedNetwork
    from istmpi.deploy.opening import NetworkFile


@click.command(
    "predict",
    help=f"""Run the network in CKPT on the examples of INPUT; needs no MPI.

\b
INPUT is one of
{list_rows([kind.input for kind in KINDS.values() if kind.input])}
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
@real(
    "--exit-threshold",
    "T",
    "Classes: leave at the first exit with a normalised entropy of at most T, and print the exit "
    "and its FLOPs.",
    0,
    1,
)
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
@subnet
def command(**values: Any) -> None:
    if find_rank() > 0:
        return  # one process does it, however many were started

    from istmpi.files import require_free

    request = _Request(**values)
    if request.out:
        require_free(Path(request.out), request.force)
    _answer(request)


def predict_file(checkpoint: Path, source: str, out: Path, model: str | None) -> None:
    """Write what the network in a checkpoint answers for ``source`` into a file, as the command
    does without options; ``model`` is the class of a user's network."""
    from istmpi.deploy.opening import NetworkFile

    _answer(_Request(path=NetworkFile(checkpoint), source=source, out=str(out), model=model))


def _answer(request: _Request) -> None:
    from istmpi.data.decoder import Notes

    trained = _load(request)
    _require_fitting(request, trained)
    if trained.network.note:
        note(f"{trained.network.note}.")
    notes = Notes()
    _write(_predict(request, trained, notes), request.out)
    for remark in (*notes.assumed, *notes.left_out):
        note(f"{remark}.")


@dataclass(frozen=True)
class _Request:
    """The arguments and options of the command."""

    path: NetworkFile
    source: str
    form: str = "csv"
    all_outputs: bool = False
    top: int | None = None
    tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    as_json: bool = False
    out: str | None = None
    force: bool = False
    split: str = "test"
    label: str | None = None
    header: bool | None = None
    delimiter: str | None = None
    resize: bool = False
    calibrate_on: str | None = None
    model: str | None = None
    exit_threshold: float | None = None


def _require_fitting(request: _Request, trained: _Trained) -> None:
    """Raise ConfigError for options that do not go with the network."""
    if request.exit_threshold is not None:
        from istmpi.deploy.exits import require_exits

        require_exits(trained.network)
    values = {
        "--top": request.top,
        "--tokens": request.tokens,
        "--temperature": request.temperature,
        "--seed": request.seed,
        # A flag that is not given is False; None means that here.
        "--json": request.as_json or None,
        "--label": request.label,
        "--header": request.header,
        "--delimiter": request.delimiter,
        "--resize": request.resize or None,
        "--outputs": request.all_outputs or None,
    }
    for option in _list_refused(trained):
        if values[option] is not None:
            raise ConfigError(
                f"{option} does not go with {request.path}, a {trained.data.task} network. Leave "
                "it out."
            )


def _predict(request: _Request, trained: _Trained, notes: Notes) -> Iterable[str]:
    """Return the output in pieces; ``notes`` gets remarks about the input."""
    if trained.tokenizer:
        return _generate(request, trained, trained.tokenizer)
    if trained.task.inputs == SPARSE_ROWS:
        return _rank_labels(request, trained)
    if trained.task.inputs == GRAPH:
        return _predict_nodes(request, trained)
    return _predict_examples(request, trained, notes)


@dataclass(frozen=True)
class _Trained:
    """A network, and what a checkpoint says of it; the file is closed."""

    network: CalibratedNetwork
    run: Run
    data: DataSummary
    classes: Sequence[str] | None
    output_names: Sequence[str] | None
    tokenizer: Tokenizer | None
    reading: Mapping[str, Any]

    @property
    def task(self) -> type[Task]:
        return TASKS[self.data.task]


def _load(request: _Request) -> _Trained:
    from istmpi.deploy.network import CalibratedNetwork

    with request.path.open(request.model) as checkpoint:
        calibrate_on = request.path.choose_calibration(checkpoint, request.calibrate_on)
        return _Trained(
            network=CalibratedNetwork(checkpoint, calibrate_on, request.model),
            run=checkpoint.header.run,
            data=checkpoint.header.data,
            classes=checkpoint.classes,
            output_names=checkpoint.output_names,
            tokenizer=checkpoint.tokenizer,
            reading=checkpoint.reading,
        )


def _list_refused(trained: _Trained) -> list[str]:
    """Return the options that do not go with a network."""
    return [option for option in PREDICT_OPTIONS if option not in trained.task.predict_options]


def _note_skipped(name: str, reason: str) -> None:
    note(f"{name} is skipped: it cannot be read ({reason}).")


def _generate(request: _Request, trained: _Trained, tokenizer: Tokenizer) -> Iterable[str]:
    """Return the text that continues a prompt, in pieces as it comes; as JSON in one piece."""
    from istmpi.deploy.generation import continue_prompt, make_predictor, read_prompt, texts

    prompt = read_prompt(request.source, tokenizer)
    window = trained.data.shape[0]
    tokens = continue_prompt(
        make_predictor(trained.network.module, window),
        prompt,
        window,
        tokenizer.end,
        # Defaults are set here: click's would look as if the user had given them.
        200 if request.tokens is None else request.tokens,
        1.0 if request.temperature is None else request.temperature,
        request.seed or 0,
    )
    if not request.as_json:
        return chain(texts(tokens, tokenizer), "\n")
    drawn = list(tokens)
    answer = {
        "prompt_tokens": len(prompt),
        "tokens": drawn,
        "text": "".join(texts(drawn, tokenizer)),
    }
    return [json.dumps(answer, ensure_ascii=False), "\n"]


def _rank_labels(request: _Request, trained: _Trained) -> Iterable[str]:
    """Return a line for each sparse row: its likeliest labels."""
    from istmpi.data.sparse.predict import read_rows
    from istmpi.deploy.prediction import write_ranked_lines

    data = trained.data
    rows = read_rows(
        request.source,
        data.shape[0],
        request.split,
        trained.reading,
        lambda message: note(f"{message}."),
    )
    return write_ranked_lines(trained.network, rows, data.outputs, request.top or 5, request.form)


def _predict_nodes(request: _Request, trained: _Trained) -> Iterable[str]:
    """Return a line for each node of a graph."""
    from istmpi.deploy.prediction import write_node_lines

    data = trained.data
    return write_node_lines(
        trained.network,
        request.source,
        data.shape[0],
        trained.classes,
        data.outputs,
        request.all_outputs,
        request.form,
    )


def _predict_examples(request: _Request, trained: _Trained, notes: Notes) -> Iterable[str]:
    """Return a line for each example."""
    from istmpi.deploy.exits import COLUMNS, predict_early
    from istmpi.deploy.prediction import lines, predict

    blocks = _read_examples(request, trained, notes)
    predictions = predict(trained.network, blocks)
    added: Sequence[str] = ()
    if request.exit_threshold is not None:
        predictions = predict_early(trained.network, blocks, request.exit_threshold)
        added = COLUMNS
    limit = None
    if "--top" in trained.task.predict_options:
        limit = request.top or 0
    return lines(
        predictions,
        trained.classes,
        trained.data.outputs,
        request.all_outputs,
        request.form,
        named=trained.output_names,
        top=limit,
        added=added,
    )


def _read_examples(request: _Request, trained: _Trained, notes: Notes) -> Iterable[Block]:
    from istmpi.data.dense.predict import read_inputs
    from istmpi.deploy.fitting import choose_test_split

    return read_inputs(
        request.source,
        trained.data.kind,
        trained.data.shape,
        label=request.label,
        header=request.header,
        delimiter=request.delimiter,
        split=request.split,
        resize=request.resize,
        notes=notes,
        reading=trained.reading,
        test=choose_test_split(trained.run),
        skipped=_note_skipped,
    )


def _write(pieces: Iterable[str], out: str | None) -> None:
    """Write the pieces into a file, complete or not at all, or to standard output."""
    from istmpi.files import appearing

    if not out:
        _print(pieces)
        return
    with appearing(Path(out)) as file:
        for piece in pieces:
            file.write(piece.encode())


def _print(text: Iterable[str]) -> None:
    """Print in UTF-8, as in output files. A reader that leaves early, such as head, is no error."""
    # The stream of a program that runs this command keeps its encoding.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        for piece in text:
            sys.stdout.write(piece)
            sys.stdout.flush()
    except BrokenPipeError:
        # Python writes what is left at its end, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
