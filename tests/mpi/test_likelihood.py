"""Subnets weighted by how likely they find the text so far: against plain loops, on ranks and in one process."""

import numpy as np
import pytest
import torch
from exported import open_network, run_onnx
from replay_cases import DECODER
from resuming import save
from small import on_root, own_run

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.data.prepare import prepare
from istmpi.deploy.export import export
from istmpi.deploy.generation import make_predictor
from istmpi.deploy.network import CalibratedNetwork
from istmpi.deploy.scoring import evaluate
from istmpi.evaluation.likelihood import Mixture
from istmpi.training.loop import Training

EXPERTS = {
    "model__name": "transformer",
    **{f"model__{name}": value for name, value in DECODER.items()},
    "model__dtype": "float64",
    "data__length": 12,
    "method__redeal": 0.0,
    "method__local_steps": 5,
    "optimizer__name": "adamw",
    "optimizer__lr": 0.01,
    "evaluate__form": "likelihood",
    "train__batch": 4,
    "train__rounds": 2,
}
EVERYTHING = {"method__partition": ["embed", "heads1", "heads2", "hidden1", "hidden2"]}
"""Groups without which a subnet shares nothing with others."""
ONE_LAYER = {"model__layers": 1, "model__heads": [5], "model__hidden": [6]}
"""Most of what an export takes is for each layer."""


def write_text(folder, name, words, sizes=range(40, 60, 2)):
    """Prepare documents of a few words; their numbers of words are ``sizes``."""
    (folder / name).mkdir()
    for number, size in enumerate(sizes):
        text = " ".join(words[(number * place + place) % len(words)] for place in range(size))
        (folder / name / f"{number}.txt").write_text(text, encoding="utf-8")
    prepare("text", folder / name, folder / f"{name}.h5")


def write_common_text(comm, folder):
    """A text that all ranks have."""
    on_root(comm, lambda: write_text(folder, "text", ["alpha", "beta", "gamma", "delta"]))


def train(comm, folder, source="text.h5", **settings):
    """A run after its last round, its last score, and the file of its network."""
    run = own_run(**{**EXPERTS, "data__source": str(folder / source), "train__threads": 1, **settings})
    training = Training(run.override({"train.device": "cpu", "evaluate.every": 1000, "train.seed": 5}), comm)
    *_, last = training.rounds()
    save(training, folder / "network.h5", calibrated=True)
    comm.barrier()
    return training, last.score, folder / "network.h5"


def answer_naively(subnets, tokens):
    """Probabilities of each next token of one text, by loops over subnets and places."""
    told = [np.exp(subnet(tokens[None])[0].log_softmax(-1).detach().numpy()) for subnet in subnets]
    answers = []
    for place in range(len(tokens)):
        likelihoods = []
        for probabilities in told:
            likelihood = 1.0
            for before in range(place):
                likelihood *= probabilities[before, tokens[before + 1]]
            likelihoods.append(likelihood)
        weights = np.array(likelihoods) / sum(likelihoods)
        answers.append(sum(w * probabilities[place] for w, probabilities in zip(weights, told)))
    return np.array(answers)


def windows(split):
    batch = split.batch(np.arange(len(split)))
    return batch.inputs[0], batch.targets


@pytest.mark.both
def test_ranks_and_one_process_answer_as_plain_loops_do(comm, shared_tmp):
    """The nats of a text are those of the mean of the subnets' probabilities of it, which needs no weights."""
    write_common_text(comm, shared_tmp)
    training, score, path = train(comm, shared_tmp)
    assert score.form == "likelihood"
    network = open_network(path)
    module, tokens = network.module, windows(training.dataset.test)[0]
    subnets = [*module.subnets.values()]
    assert len(subnets) == comm.size
    training.arrange(training.rounds_done - 1)
    training.evaluator.calibrate()
    on_ranks = training.evaluator.network(tokens)
    with torch.no_grad():
        alone = module(tokens)
    np.testing.assert_allclose(on_ranks, alone, rtol=0, atol=1e-12)
    for text, answer in zip(tokens[:5], alone):
        np.testing.assert_allclose(answer.exp(), answer_naively(subnets, text), rtol=0, atol=1e-12)
    inputs, targets = windows(training.dataset.test)
    nats = []
    for subnet in subnets:
        found = subnet(inputs).log_softmax(-1).detach().gather(-1, targets[..., None])
        nats.append(found.sum((1, 2)).numpy())
    assert score.loss == pytest.approx(-np.log(np.exp(nats).mean(0)).mean() / inputs.shape[1], abs=1e-12)
    assert evaluate(path, comm).score.loss == pytest.approx(score.loss, abs=1e-12)
    np.testing.assert_allclose(make_predictor(module, 12)(tokens[0, :5].tolist()), alone[0, 4], rtol=0, atol=1e-12)


@pytest.mark.both
def test_subnets_travel_to_local_texts(comm, shared_tmp):
    """Ranks have texts of different length; the run's loss is the mean of what one process finds on them."""
    words = [chr(ord("a") + comm.rank) * 3, chr(ord("k") + comm.rank) * 2]
    write_text(shared_tmp, f"own-{comm.rank}", words, range(40, 60 + 10 * comm.rank, 2))
    comm.barrier()
    settings = EVERYTHING | {"data__placement": "local", "evaluate__batch": 7, "model__embed": 4 * comm.size}
    _, score, path = train(comm, shared_tmp, "own-{rank}.h5", **settings)
    scores = [evaluate(path, comm, str(shared_tmp / f"own-{rank}.h5")).score for rank in range(comm.size)]
    examples = [each.examples for each in scores]
    assert score.form == "likelihood" and score.examples == sum(examples)
    assert len({*examples}) == comm.size
    assert score.loss == pytest.approx(np.average([each.loss for each in scores], weights=examples), abs=1e-12)


@pytest.mark.ranks(only=[3])
def test_an_evaluator_scores_the_same_deal_in_one_form_after_another(comm, shared_tmp):
    write_common_text(comm, shared_tmp)
    _, mean, _ = train(comm, shared_tmp, evaluate__form="blocks")
    training, mixture, _ = train(comm, shared_tmp)
    assert mean.loss != mixture.loss
    for form, expected in [("likelihood", mixture), ("blocks", mean), ("likelihood", mixture)]:
        training.evaluator.arrange(training.method.holders(training.rounds_done - 1), form)
        assert training.evaluator.score() == expected


def fixed(logits):
    class Fixed(torch.nn.Module):
        def forward(self, tokens):
            return logits.expand(*tokens.shape, -1)

    return Fixed()


def mix(*subnets):
    mixture = Mixture.__new__(Mixture)
    torch.nn.Module.__init__(mixture)
    mixture.subnets = torch.nn.ModuleDict({str(number): subnet for number, subnet in enumerate(subnets)})
    return mixture


@pytest.mark.ranks(only=[1])
def test_equal_subnets_answer_as_one_and_a_better_one_takes_over(comm):
    good, bad = torch.tensor([3.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 3.0])
    tokens = torch.zeros((1, 2000), dtype=torch.int64)
    alone = good.log_softmax(-1)
    assert torch.allclose(mix(fixed(good), fixed(good))(tokens), alone, atol=1e-6)
    answers = mix(fixed(bad), fixed(good), fixed(bad))(tokens)[0]
    mean = (good.softmax(-1) + 2 * bad.softmax(-1)) / 3
    assert torch.allclose(answers[0].exp(), mean), "no token is known yet"
    assert torch.allclose(answers[-1], alone, atol=1e-6)
    assert torch.allclose(mix(fixed(good * 60), fixed(bad * 60))(tokens)[0, -1], (good * 60).log_softmax(-1))


@pytest.mark.ranks(only=[1])
def test_a_token_that_all_subnets_exclude_leaves_the_weights_as_they_were(comm):
    """Without a least probability, 0 / 0 would be the weight from that token on."""
    first, second = torch.tensor([2.0, 0.0, -torch.inf]), torch.tensor([0.0, 1.0, -torch.inf])
    mixture = mix(fixed(first), fixed(second))
    before, after = (mixture(torch.tensor([tokens]))[0, -1] for tokens in ([0, 1, 0], [0, 1, 0, 2]))
    assert torch.allclose(before.exp().sum(), torch.tensor(1.0)) and torch.allclose(before, after)


@pytest.mark.ranks(only=[2])
def test_its_program_has_the_answer_of_the_mixture(comm, shared_tmp):
    write_common_text(comm, shared_tmp)
    training, _, path = train(comm, shared_tmp, model__dtype="float32", **ONE_LAYER)
    tokens = windows(training.dataset.test)[0]
    if comm.rank:
        return
    with open_checkpoint(path) as checkpoint:
        module = CalibratedNetwork(checkpoint).module
    (outputs,) = run_onnx(export(path, "onnx").path, tokens.numpy())
    with torch.no_grad():
        np.testing.assert_allclose(outputs, module(tokens), rtol=1e-4, atol=1e-4)
