"""The runs of `tests/mpi/test_replay.py`: methods, networks and kinds of data, each by its settings.
A value of `FILES` as a setting stands for a file that `files` writes.
"""

import json

import graphs
import sparse_rows
from own_runs import CONVOLUTIONAL, DEEP, RESNET
from small import SETTINGS

from istmpi.data.prepare import prepare

MOMENTUM = {"optimizer__momentum": 0.9, "optimizer__lr": 0.03}
SINGLE = {"model__dtype": "float32"}
ADAM = {"optimizer__name": "adamw", "optimizer__lr": 0.01, "model__bias": True}
FILES = TEXT, ROWS, GRAPH, SHARES = "the text", "the sparse rows", "the graph", "the shares"
ROUNDS = SETTINGS["train.rounds"]

MLP = {
    "ist": {},
    "ist in single precision": {"model__dtype": "float32", "model__hidden": [64, 32]},
    "ist, a tenth redealt": {"method__redeal": 0.1},
    "ist, never redealt": {"method__redeal": 0.0, "evaluate__form": "merged"},
    "ist, adam carried": {**ADAM, "method__optimizer_state": "carry"},
    "ist, a finish": {"method__finish": "local-sgd:50%", **MOMENTUM},
    "ist, an outer step": {"method__outer_momentum": 0.6, "method__outer_lr": 0.8},
    "ist, dropout": {"model__dropout": 0.3},
    "ist, bias": {"model__bias": True},
    "ist, layer normalisation": {"model__norm": "layer"},
    "ist, no normalisation": {"model__norm": "none", "model__bias": True, "model__activation": "tanh"},
    "ist, outputs not normalised": {"model__output_norm": False, "model__activation": "gelu"},
    "ist, uneven shares": {"method__shares": [3.0, 1.0, 2.0, 0.5]},
    "ist, uneven shares, no normalisation": {"method__shares": [3.0, 1.0, 2.0, 0.5], "model__norm": "none"},
    "ist, one group dealt": {"method__partition": ["hidden1"]},
    "ist, warm-up and weight decay": {"optimizer__warm_up": 7, "optimizer__weight_decay": 0.1},
    "ist, autocast": {"train__autocast": True, "model__dtype": "float32"},
    "local-sgd": {"method__name": "local-sgd"},
    "local-sgd, momentum carried": {"method__name": "local-sgd", "method__optimizer_state": "carry", **MOMENTUM},
    "data-parallel": {"method__name": "data-parallel", "model__bias": True},
    "data-parallel in single precision": {"method__name": "data-parallel", "model__dtype": "float32", **MOMENTUM},
    "diloco": {"method__name": "diloco", **ADAM},
    "fedavg": {"method__name": "fedavg", "method__fraction": 0.5, "train__batch": 100, "data__placement": "sharded"},
    "dynamic-averaging": {"method__name": "dynamic-averaging", "method__threshold": 1e-4},
    "codistillation": {"method__name": "codistillation", "method__burn_in": 1},
    # What else a round can be.
    "ist, delay of 1": {"method__delay": 1, "method__local_steps": 4, "method__redeal": 0.5},
    "ist, delay of 3": {"method__delay": 3, "method__local_steps": 4, "method__redeal": 0.5, **MOMENTUM},
    **{
        f"{method}, {wire} on the wire": {"method__name": method, "method__wire": wire, "model__dtype": "float32"}
        for method in ("ist", "local-sgd", "data-parallel")
        for wire in ("bfloat16", "int8")
    },
    "ist, shared weights every second round": {"method__partition": ["hidden1"], "method__share_every": 2},
    "ist, shares of a file": {"method__shares": SHARES},
    "ist, patience": {"data__validation": 0.2, "evaluate__every": 1, "train__patience": 1, "optimizer__lr": 1e-30},
    "streaming-diloco": {"method__name": "streaming-diloco", "method__local_steps": 6, "method__fragments": 2},
    "sparse-loco": {"method__name": "sparse-loco"},
    "diloco, adam reset": {"method__name": "diloco", **ADAM, "method__optimizer_state": "reset"},
    "local-sgd, adam kept": {"method__name": "local-sgd", **ADAM, "method__optimizer_state": "keep"},
    "downpour": {"method__name": "downpour", "method__staleness": 2},
    "joint": {"method__name": "joint", **MOMENTUM},
    "easgd": {"method__name": "easgd", **MOMENTUM},
    "joint, int8": {"method__name": "joint", "method__local_steps": 1, "method__wire": "int8", **SINGLE},
    "admm": {"method__name": "admm"},
}
"""Of the mlp."""

DECODER = {"layers": 2, "embed": 12, "heads": [7, 5], "head_dim": 4, "hidden": [9, 6]}
TRANSFORMER = {
    "model__name": "transformer",
    **{f"model__{name}": value for name, value in DECODER.items()},
    "data__source": TEXT,
    "data__length": 12,
    "train__batch": 4,
    "optimizer__name": "adamw",
    "optimizer__lr": 0.01,
    "method__optimizer_state": "carry",
}
XC = {"model__name": "xc", "model__hidden": [9, 7], "data__source": ROWS, "train__batch": 3, "optimizer__lr": 0.05}
GCN = {"model__name": "gcn", "model__hidden": [13, 11], "data__source": GRAPH, "train__batch": 1}
SAMPLED = {"data__graph": "neighbours", "data__fanout": [2, 2, 1], "train__batch": 4}
GROWING = {"train__resolution": [[0.5, 4], [0.5, 8]], "train__rounds": 4}

OTHERS = {
    "a convolutional network": CONVOLUTIONAL,
    "resnet, growing images": RESNET | GROWING,
    "resnet by channels": RESNET,
    "resnet by blocks": DEEP,
    "a transformer": TRANSFORMER,
    "a transformer, a tenth redealt": TRANSFORMER | {"method__redeal": 0.1},
    "xc": XC,
    "xc, momentum, in blocks": XC | {"optimizer__momentum": 0.9, "model__label_block": 5},
    "gcn": GCN,
    "gcn in clusters": GCN | {"data__graph": "clusters", "train__batch": 2, "method__redeal": 0.3},
    "gcn on neighbours": GCN | SAMPLED,
    "sage on neighbours": GCN | SAMPLED | {"model__name": "sage"},
}
"""Of other networks, which do not take the mlp's settings."""


def files(folder, ranks):
    """Write the files that cases name; ``{name: path}``."""
    words = ["alpha", "beta", "gamma", "delta", "epsilon"]
    documents = folder / "documents"
    documents.mkdir()
    for number in range(10):
        text = " ".join(words[(number + 2 * place) % 5] for place in range(60))
        (documents / f"{number}.txt").write_text(text, encoding="utf-8")
    prepare("text", documents, folder / "text.h5")
    sparse_rows.write(folder / "rows.h5")
    graphs.write(folder / "graph.h5")
    shares = [[1 / ranks] * ranks, [(rank + 1) / (ranks * (ranks + 1) / 2) for rank in range(ranks)]]
    lines = [
        {"round": number + 1, "ranks": ranks} | {f"rank{r}_share": share for r, share in enumerate(shares[number // 2])}
        for number in range(ROUNDS)
    ]
    (folder / "shares.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = {TEXT: "text.h5", ROWS: "rows.h5", GRAPH: "graph.h5", SHARES: "shares.jsonl"}
    return {name: str(folder / file) for name, file in names.items()}
