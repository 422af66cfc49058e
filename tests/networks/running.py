"""Examines and trains a network of this folder, as `istmpi model` and `train` do, on random data of its shape."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from istmpi.config import Run
from istmpi.cost import round_bytes
from istmpi.data.graph.prepare import build_material, connect
from istmpi.data.graph.split import Graph
from istmpi.data.prepare import prepare
from istmpi.data.writer import write
from istmpi.errors import ConfigError
from istmpi.network.arguments import user_network
from istmpi.network.user import UserNetwork
from istmpi.simulated import simulate
from istmpi.tasks import CLASSIFICATION, NEXT_TOKEN, NODE_CLASSES
from istmpi.training.loop import Training
from tests.networks.table import NODES, OUTPUTS, TOKENS, Row

HERE = Path(__file__).parent
EXAMPLES = 24
SETTINGS = {
    "method.name": "ist",
    "method.local_steps": 2,
    "optimizer.lr": 0.05,
    "train.rounds": 1,
    "train.batch": 4,
    "train.seed": 3,
    "train.threads": 1,
    "train.device": "cpu",
    "evaluate.every": 1,
}


def place(row: Row) -> str:
    """The network as --model has it."""
    module, _, name = row.network.partition(".")
    return f"{HERE / module}.py:{name}"


def network(row: Row) -> UserNetwork:
    """The network as istmpi sees it."""
    task = {TOKENS: NEXT_TOKEN, NODES: NODE_CLASSES}.get(row.shape, CLASSIFICATION)
    return user_network(place(row), row.shape, row.outputs, {}, task)


def data(row: Row, folder: Path) -> Path:
    """A file of random examples of the row's shape, made once in a folder."""
    path = folder / f"{'x'.join(map(str, row.shape))}.{'h5' if row.shape in (TOKENS, NODES) else 'npz'}"
    if path.exists():
        return path
    random = np.random.default_rng(0)
    if row.shape == TOKENS:
        text = folder / "text"
        text.mkdir()
        for number in range(10):
            (text / f"{number}.txt").write_text(f"this is text {number} of ten, and no more is in it. " * 4)
        prepare("text", text, path)
    elif row.shape == NODES:
        neighbours, _, _ = connect(*random.integers(0, EXAMPLES, (2, 60)), EXAMPLES, False, "made")
        x = random.normal(size=(EXAMPLES, *row.shape)).astype(np.float32)
        labels, clusters = np.arange(EXAMPLES) % OUTPUTS, np.sort(np.arange(EXAMPLES) % 4).astype(np.int32)
        nodes = {"train": np.arange(0, EXAMPLES, 2), "test": np.arange(1, EXAMPLES, 2)}
        classes = tuple(map(str, range(OUTPUTS)))
        write("graph", build_material("made", OUTPUTS, classes, nodes, Graph(x, neighbours, labels, clusters)), path)
    else:
        x = random.normal(size=(EXAMPLES, *row.shape)).astype(np.float32)
        y = np.arange(EXAMPLES) % OUTPUTS
        np.savez(path, x_train=x[:16], y_train=y[:16], x_test=x[16:], y_test=y[16:])
    return path


@dataclass(frozen=True)
class Trained:
    """A run on simulated ranks."""

    refused: str
    """The words by which it was refused before it began; empty where it was not."""
    stopped: str = ""
    """The words by which it ended later."""
    losses: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    """Losses of the full network on other examples, after each round."""
    initial: Mapping[str, np.ndarray] | None = None
    """What its store held when it began."""
    counted: tuple[int, ...] = ()
    """Bytes that all ranks sent so far, after each round, without evaluations."""
    planned: tuple[int, ...] = ()
    """The same by the plan of its deals."""


def train(row: Row, folder: Path, ranks: int = 2, **settings: object) -> Trained:
    """Train a network by IST, with what the row needs."""
    changed = {
        "model.name": place(row),
        "model.dtype": row.dtype,
        "data.source": str(data(row, folder)),
        **row.settings,
    }
    changed |= {"data.length": row.shape[0]} if row.shape == TOKENS else {}
    changed |= {"train.batch": 1} if row.shape == NODES else {}
    began, initial = [], {}

    def program(communicator):
        training = Training(run, communicator)
        began.append(True)
        held = communicator.allgather({name: values.numpy().copy() for name, values in training.store.tensors.items()})
        initial.update({name: np.concatenate([one[name] for one in held]) for name in held[0]})
        plan = [sum(round_bytes(training.run, training.architecture, ranks, n)) for n in range(run.train.rounds)]
        rounds = zip(training.rounds(), accumulate(plan))
        return [(progress.loss, progress.score.loss, progress.bytes, planned) for progress, planned in rounds]

    try:
        run = Run().override(SETTINGS | changed | {name.replace("__", "."): value for name, value in settings.items()})
        losses, scores, counted, planned = zip(*simulate(program, ranks).require()[0])
    except ConfigError as error:
        return Trained("" if began else str(error), str(error) if began else "")
    except Exception as error:  # a network of somebody else's, in a place where nobody expects it
        return Trained("" if began else repr(error), repr(error) if began else "")
    return Trained("", "", losses, scores, initial, counted, planned)
