"""The ranks' subnets side by side as the network that is scored, kept and used: evaluate.form."""

import numpy as np
import pytest
import torch
from batches import examples_of
from exported import open_network, run_onnx
from resuming import save
from small import trained

from istmpi import errors
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
from istmpi.engine.layout import part_shape
from istmpi.engine.partition import Partition
from istmpi.evaluation.moments import pack_moments, unpack_moments

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


def plain_logits(values, ranks, x):
    """The logits of a subnet without normalisations: its sums have a subnet's average share of units, over its own."""
    for name, outer in (("hidden1", 1), ("hidden2", 10), ("labels", 7)):
        weight, bias = values[f"{name}.linear.weight"].T, values[f"{name}.linear.bias"]
        factor = outer / ranks / len(weight) if outer > 1 else 1
        x = factor * x @ weight + bias
        x = x if name == "labels" else np.maximum(x, 0)
    return x


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_its_logits_are_the_mean_of_those_of_subnets_that_are_cut_out_by_hand(comm, shared_tmp, norm):
    settings = ALL_ROWS if norm == "batch" else {"model__bias": True, "model__output_norm": False, "model__norm": norm}
    training, progress = trained(comm, **ONCE, **settings, evaluate__form="blocks")
    save(training, shared_tmp / "network.h5", calibrated=True)
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
        cut["labels.linear.bias"] = whole.get("labels.linear.bias")
        logits = logits_of(cut, 2, x, sample) if norm == "batch" else plain_logits(cut, comm.size, x)
        mean += logits / comm.size
    assert (mean.argmax(1) == y).mean() == progress[-1].score.score
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(mean), torch.from_numpy(y))
    assert progress[-1].score.loss == pytest.approx(float(loss), rel=1e-9)
    raw = x * data.std + data.mean
    assert network(raw) * temperature == pytest.approx(mean, rel=1e-6, abs=1e-8)


@pytest.mark.ranks(only=[3])
def test_its_program_has_the_outputs_of_the_network(comm, shared_tmp):
    training, _ = trained(comm, **ONCE, evaluate__form="blocks", model__dtype="float32")
    path = save(training, shared_tmp / "network.h5", calibrated=True)
    comm.barrier()
    if comm.rank:
        return
    x = np.random.default_rng(0).random((5, 64), dtype=np.float32)
    expected = open_network(path)(x)
    (outputs,) = run_onnx(export(path, "onnx").path, x)
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


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("split, settings", [("train", {}), ("validation", {"data__validation": 0.3})])
def test_a_temperature_needs_no_message_after_the_form_was_chosen_until_the_next_round(comm, split, settings):
    training, _ = trained(comm, **ONCE, **settings)
    evaluator, found = training.evaluator, []
    evaluator.network = evaluator._blocks
    for _ in range(2):
        before = comm.traffic.bytes
        found.append((evaluator.fit_temperature(split), comm.traffic.bytes > before))
        evaluator.release()
    (temperature, sent), again = found
    assert not sent and again == (temperature, True)


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


def test_moments_of_all_subnets_come_to_all_ranks(comm):
    """A subnet lacks layer b, and no pass called layer c."""
    subnets = range(comm.size)
    moments = {number: (torch.arange(number + 1.0), torch.full((number + 1,), 2.0)) for number in subnets}
    units = {}
    for number in subnets:
        units |= {f"{number}/a": number + 1, f"{number}/b": 0, f"{number}/c": 2}
    own = comm.rank
    packed = pack_moments({f"{own}/a": moments[own], f"{own}/c": None}, units, torch.float32)
    found = unpack_moments(torch.from_numpy(comm.allreduce_sum(packed.numpy())), units)
    assert found.keys() == {f"{number}/{layer}" for number in subnets for layer in "ac"}
    for number in subnets:
        assert found[f"{number}/c"] is None
        assert all(map(torch.equal, found[f"{number}/a"], moments[number]))
