"""Runs that cannot be are refused in one line on every rank, before anything is trained."""

import own_data
import pytest
from networks import __file__ as FILE
from own_runs import CONVOLUTIONAL, OWN_WEIGHTS
from replay_cases import FILES, GCN, GRAPH, TRANSFORMER, XC, files
from small import own_run, small_run

from istmpi.errors import ConfigError, DataError
from istmpi.training.loop import Training

FEDAVG, STREAMING, TAUGHT = ({"method__name": name} for name in ("fedavg", "streaming-diloco", "codistillation"))
LOCAL = {"data__placement": "local", "data__source": "file-{rank}.npz"}
NO_SHARE = "must be a method and its share of the rounds, such as 'local-sgd:10%'."
LIKELIHOOD = {"evaluate__form": "likelihood"}
SUBNETS = TRANSFORMER | LIKELIHOOD
SAMPLED = {"data__graph": "neighbours", "data__fanout": [2], "train__batch": 4}
TOP = {"method__partition": ["hidden1"], "method__shared_wire": "top-k", "method__top": 900}


def own(name, **settings):
    return {"model__name": f"{FILE}:{name}", **settings}


REFUSED = [
    # settings that are not known, or do not go together
    ({"method__partition": ["hiden1"]}, "hiden1"),
    ({"model__name": "mpl"}, "did you mean mlp?"),
    ({"optimizer__warm_up": 13}, "optimizer.warm_up = 13 is more than the 12 local steps of the run"),
    ({"data__placement": "local"}, "put {rank} into data.source"),
    ({"train__patience": 2}, "train.patience = 2 needs a validation split, and digits has none"),
    ({"checkpoint__best": True}, "checkpoint.best = true needs a validation split"),
    ({"data__validation": 0.9999}, "both parts need at least one"),
    ({"method__optimizer_state": "keep"}, "= 'keep' goes with local-sgd and diloco, not with ist. Use reset or carry"),
    ({"evaluate__form": "blocks", **LOCAL}, "evaluate.form = 'blocks' needs a data.placement other than 'local'"),
    ({"method__redeal": 0.0, **LIKELIHOOD}, "'likelihood' needs text, but this is classification. Use another form"),
    (SUBNETS | {"method__redeal": 0.5}, "evaluate.form = 'likelihood' needs method.redeal = 0, but it is 0.5"),
    (SUBNETS | {"method__name": "local-sgd"}, "needs subnets, but local-sgd deals out no units"),
    (SUBNETS | {"method__partition": []}, "needs subnets, but ist deals out no units"),
    (SUBNETS | {"method__redeal": 0.0, "method__finish": "sparse-loco:50%"}, "but sparse-loco deals out no units"),
    (SUBNETS | {"method__redeal": 0.0, "method__name": "joint"}, "'likelihood' does not go with joint"),
    # a finish
    *[({"method__finish": f"local-sgd:{share}%"}, NO_SHARE) for share in ("0", "100", "nan")],
    # federated averaging
    ({"method__finish": "fedavg:10%"}, "'fedavg:10%' does not go with fedavg"),
    ({**FEDAVG, "train__batch": 1436}, "train.batch = 1436 leaves fedavg a last batch of one example (of 1437)"),
    ({**FEDAVG, "train__batch": 1436, "model__norm": "layer", "model__output_norm": True}, "too few for model.output"),
    # an early exchange, and values in fewer bits
    ({"method__delay": 3, "method__local_steps": 3}, "method.delay = 3 of ist must be below method.local_steps = 3."),
    ({**STREAMING, "method__delay": 3, "method__local_steps": 3}, "method.delay = 3 of streaming-diloco must be below"),
    ({"method__delay": 1, "method__outer_momentum": 0.5}, "method.delay = 1 of ist does not go with an outer step"),
    ({"method__delay": 1, "method__partition": []}, "= 1 of ist does not go with a network without dealt units"),
    ({**OWN_WEIGHTS, "method__delay": 1, "method__partition": ["wide"]}, "method.delay does not go with last (wide +"),
    ({**TAUGHT, "method__wire": "int8", "model__dtype": "float32"}, "wire = 'int8' does not go with codistillation"),
    ({**TOP, "method__outer_lr": 0.5}, "shared_wire = 'top-k' does not go with an outer step"),
    # shares
    ({"method__shares": [1.0] * 9}, "shares has 9 numbers, but the run has"),
    ({"method__shares": [1, 2, 1], "method__name": "local-sgd"}, "local-sgd, which deals out no units"),
    ({"method__shares": "auto", "method__partition": []}, "ist, which deals out no units"),
    ({"method__shares": "nowhere.jsonl"}, "method.shares = 'nowhere.jsonl' does not exist"),
    # a user's network, or data
    (own("OtherOutputs"), "its forward returns"),
    (own("Failing", model__hidden=8), "its forward fails on examples of shape 2 x 64"),
    (own("Steps", model__hiden=8), "unknown setting model.hiden; did you mean model.hidden"),
    (own("Stepz"), "has no class Stepz; did you mean Steps"),
    (own("Attention"), "examples of shape 2 x 1 x 8 x 8"),
    (own("Plain", train__batch=1), "train.batch = 1 with the batch normalisation hidden1.norm"),
    (own("Fixed"), "no width that can be dealt out (its constructor has no integers)."),
    ({"model__name": "nowhere.py:Net"}, "nowhere.py does not exist"),
    (own("Steps", model__hidden=2), "hidden has 2 units, but the run has"),
    (own("Steps", model__hidden=28), "9 is odd"),
    (own("Faulty", model__what="logarithm"), "forward gives nan for the first training"),
    (own("PooledToo", method__partition=["hidden"]), "hidden cannot be dealt out: exchanging"),
    (CONVOLUTIONAL | {"method__partition": ["chanels1"]}, "chanels1 is not a unit group of this model; did you mean"),
    ({"data__source": f"{own_data.FILE}:uncounted"}, "uncounted has an unknown number of classes, and mlp needs it"),
    ({"data__source": f"{own_data.FILE}:uneven"}, "1436 train examples, not 1437 (rank 1)"),
    ({**TAUGHT, "train__logit_adjustment": 1.0, "data__placement": "by-label"}, "codistillation"),
    ({**TAUGHT, "data__source": f"{own_data.FILE}:numbers"}, "codistillation' needs predictions of classes"),
    # graphs and sparse rows
    (GCN | {"train__batch": 2}, "whole graph"),
    (GCN | {"data__graph": "clusters", "train__batch": 6}, "5 clusters"),
    (GCN | SAMPLED, "3 layers"),
    (GCN | {"data__placement": "by-label"}, "by-label"),
    (GCN | {"data__placement": "sharded"}, "is a whole graph"),
    (GCN | {"model__hidden": [7, 1]}, "hidden2"),
    ({"model__name": "mlp", "model__norm": "none", "data__source": GRAPH}, "--model gcn"),
    ({"model__name": "xc", "data__source": GRAPH}, "sparse rows"),
    (XC | {"data__placement": "by-label"}, "by-label"),
    (XC | {"method__name": "codistillation"}, "codistillation"),
    (XC | {"model__hiden": [4]}, "hidden"),
    (XC | {"model__norm": "bath"}, "norm"),
    (XC | {"data__length": 5}, "length"),
]


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("settings, message", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(comm, shared_tmp, settings, message):
    if settings.get("data__source") in FILES:
        written = comm.broadcast_from_root(files(shared_tmp, comm.size) if comm.rank == 0 else None)
        settings = settings | {"data__source": written[settings["data__source"]]}
    make = own_run if "model__name" in settings else small_run
    with pytest.raises((ConfigError, DataError)) as refused:
        Training(make(**settings), comm)
    said = str(refused.value)
    assert message in said and "\n" not in said
    assert comm.allgather(said) == [said] * comm.size
