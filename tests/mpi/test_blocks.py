"""The ranks' subnets side by side as the network that is scored, kept and used: evaluate.form."""

import numpy as np
import pytest
import torch
from batches import examples_of
from small import trained

from istmpi import errors
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
from istmpi.engine.layout import part_shape
from istmpi.engine.partition import Partition

ONCE = {"method__redeal": 0.0, "train__rounds": 3, "model__hidden": [10, 7]}
ALL_ROWS = {"evaluate__calibration_examples": 1437}


def normalised(h, by):
    return (h - by.mean(0)) / np.sqrt(by.var(0) + 1e-5)


def logits_of(values, hidden, x, sample):
    """The logits of a plain subnet whose normalisations have their moments from a sample."""
    for name in [f"hidden{number}" for number in range(1, 1 + hidden)]:
        weight = values[f"{name}.linear.weight"].T
        scale, shift = values[f"{name}.norm.weight"], values[f"{name}.norm.bias"]
        x, sample = (np.maximum(normalised(h @ weight, sample @ weight) * scale + shift, 0) for h in (x, sample))
    weight = values["labels.linear.weight"].T
    return normalised(x @ weight, sample @ weight)


def test_its_logits_are_the_mean_of_those_of_subnets_that_are_cut_out_by_hand(comm, shared_tmp):
    training, progress = trained(comm, **ONCE, **ALL_ROWS, evaluate__form="blocks")
    commit(shared_tmp / "network.h5", *training.state(calibrated=True), "direct", comm)
    with open_checkpoint(shared_tmp / "network.h5") as checkpoint:
        whole = {str(name): tensor.rows() for name, tensor in checkpoint.tensors.items()}
        network, temperature = CalibratedNetwork(checkpoint), checkpoint.header.temperature
    data, lengths = training.dataset, {"hidden1": 10, "hidden2": 7}
    deal = Partition.draw(lengths, [*lengths], comm.size, training.run.train.seed, 2, redeal=0.0)
    (x, y), (sample, _) = (examples_of(split, np.arange(len(split))) for split in (data.test, data.train))
    x, sample = x.reshape(len(x), -1), sample.reshape(len(sample), -1)
    mean = np.zeros((len(x), 10))
    for rank in range(comm.size):
        first, second = (deal.units[name][rank] for name in lengths)
        cut = {name: values[first] for name, values in whole.items() if name.startswith("hidden1")}
        cut |= {name: values[second] for name, values in whole.items() if name.startswith("hidden2")}
        cut["hidden2.linear.weight"] = cut["hidden2.linear.weight"][:, first]
        cut["labels.linear.weight"] = whole["labels.linear.weight"][:, second]
        mean += logits_of(cut, 2, x, sample) / comm.size
    assert (mean.argmax(1) == y).mean() == progress[-1].score.score
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(mean), torch.from_numpy(y))
    assert progress[-1].score.loss == pytest.approx(float(loss), rel=1e-9)
    raw = x * data.std + data.mean
    assert network(raw) * temperature == pytest.approx(mean, rel=1e-6, abs=1e-8)


@pytest.mark.ranks(min=2)
def test_sums_over_units_have_the_factor_of_training_where_subnets_differ_in_width(comm, shared_tmp):
    """A narrower subnet's sums are multiplied as in training: by its average share of units, over its own."""
    settings = {"model__norm": "none", "model__bias": True, "model__output_norm": False}
    training, progress = trained(comm, **ONCE, **settings, evaluate__form="blocks")
    commit(shared_tmp / "network.h5", *training.state(calibrated=True), "direct", comm)
    comm.barrier()
    with open_checkpoint(shared_tmp / "network.h5") as checkpoint:
        whole = {str(name): tensor.rows() for name, tensor in checkpoint.tensors.items()}
        network, temperature = CalibratedNetwork(checkpoint), checkpoint.header.temperature
    data, lengths = training.dataset, {"hidden1": 10, "hidden2": 7}
    deal = Partition.draw(lengths, [*lengths], comm.size, training.run.train.seed, 2, redeal=0.0)
    x, y = examples_of(data.test, np.arange(len(data.test)))
    x = x.reshape(len(x), -1)
    mean = np.zeros((len(x), 10))
    for rank in range(comm.size):
        first, second = (deal.units[name][rank] for name in lengths)
        h = np.maximum(x @ whole["hidden1.linear.weight"][first].T + whole["hidden1.linear.bias"][first], 0)
        h *= 10 / comm.size / len(first)
        inner = whole["hidden2.linear.weight"][second][:, first]
        h = np.maximum(h @ inner.T + whole["hidden2.linear.bias"][second], 0) * (7 / comm.size / len(second))
        mean += (h @ whole["labels.linear.weight"][:, second].T + whole["labels.linear.bias"]) / comm.size
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(mean), torch.from_numpy(y))
    assert progress[-1].score.loss == pytest.approx(float(loss), rel=1e-9)
    assert network(x * data.std + data.mean) * temperature == pytest.approx(mean, rel=1e-6, abs=1e-8)


@pytest.mark.ranks(only=[3])
def test_its_program_has_the_outputs_of_the_network(comm, shared_tmp):
    runtime = pytest.importorskip("onnxruntime")
    training, _ = trained(comm, **ONCE, evaluate__form="blocks", model__dtype="float32")
    path = shared_tmp / "network.h5"
    commit(path, *training.state(calibrated=True), "direct", comm)
    comm.barrier()
    if comm.rank:
        return
    x = np.random.default_rng(0).random((5, 64), dtype=np.float32)
    with open_checkpoint(path) as checkpoint:
        expected = CalibratedNetwork(checkpoint)(x)
    export(path, "onnx")
    (outputs,) = runtime.InferenceSession(path.with_suffix(".onnx")).run(None, {"input": x})
    assert outputs == pytest.approx(expected, rel=1e-4, abs=1e-5)
    program = export(path, "torch").path
    assert program == path.with_suffix(".pt2")
    outputs = torch.export.load(program).module()(torch.from_numpy(x))
    assert outputs.numpy() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    with pytest.raises(errors.ConfigError, match="its network is 3 subnets side by side .* Use --to onnx"):
        export(path, "safetensors")


def test_best_is_whichever_scores_better_on_the_validation_split(comm):
    """By default it is taken where units are dealt once."""
    scores = {}
    for form in ("merged", "blocks", "best", None):
        training, progress = trained(comm, **ONCE, data__validation=0.3, evaluate__form=form)
        training.arrange(2)
        scores[form] = training.evaluator.score("validation").score, progress[-1].score
    better = max("merged", "blocks", key=lambda form: scores[form][0])
    assert scores["best"] == scores[None] == scores[better]
    assert scores["best"][1].form == better


@pytest.mark.parametrize("settings", [{"method__name": "local-sgd", "evaluate__form": "blocks"}, {}], ids=str)
def test_a_method_that_deals_nothing_or_anew_has_its_whole_network(comm, settings):
    score, merged = (trained(comm, **settings | form)[1][-1].score for form in ({}, {"evaluate__form": "merged"}))
    assert score == merged and score.form == "merged"


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_the_weights_that_a_rank_holds_need_not_move(comm, wire):
    """The owners have the same values, so scores are equal bit for bit; afterwards only outputs and moments travel."""
    training, _ = trained(comm, **ONCE, evaluate__form="blocks", method__wire=wire, model__dtype="float32")
    scores = []
    sent = []
    for values_of in (None, lambda number: {}):
        training.arrange(2, values_of)
        before = comm.traffic.bytes
        scores.append(training.evaluator.score())
        sent.append(sum(comm.allgather(comm.traffic.bytes - before)))
    assert scores[0] == scores[1]
    deal, parameters = training.method.holders(2), training.architecture.parameters.values()
    numbers = sum(np.prod(part_shape(deal, parameter, rank)) for parameter in parameters for rank in range(comm.size))
    of_subnets = training.architecture.itemsize * numbers
    with_weights = sent[1] - sent[0]
    # A rank owns some rows of its own subnet, which do not travel.
    assert of_subnets / 2 < with_weights < of_subnets
