"""Training on text: against a naive oracle, whatever the ranks; the perplexity of the full network."""

import numpy as np
import pytest
import torch
from replay_cases import DECODER, TEXT, TRANSFORMER, files
from resuming import save
from small import assert_trains, on_root, own_run, whole
from text_oracle import train
from tokenizing import prepare_tokens
from torch.nn import functional

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.deploy.scoring import evaluate
from istmpi.errors import DataError
from istmpi.training.loop import Training


@pytest.fixture
def text(comm, shared_tmp):
    """A prepared file of some documents in which one word follows another."""
    return comm.broadcast_from_root(files(shared_tmp, comm.size)[TEXT] if comm.rank == 0 else None)


def settings(text, **changed):
    return TRANSFORMER | {"data__source": text, "train__rounds": 2} | changed


@pytest.mark.parametrize(
    "model, changed",
    [
        ({"queries": 1}, {"optimizer__clip": 0.5, "optimizer__weight_decay": 0.1}),
        ({"queries": 2, "tied": False, "norm": "layer", "positions": "learnt", "feed_forward": "gelu"}, {}),
    ],
    ids=["tied, clipped", "grouped queries"],
)
def test_it_trains_as_the_oracle_does(comm, text, model, changed):
    """Heads hop with all their rows of query, key, value and output, and with AdamW's averages of them."""
    run = own_run(**settings(text, **changed, **{f"model__{name}": value for name, value in model.items()}))
    training = Training(run, comm)
    lengths = {f"{group}{n}": width for group in ("heads", "hidden") for n, width in enumerate(DECODER[group], 1)}
    assert training.method.spec.groups(training.run, training.architecture) == tuple(lengths)
    network = DECODER | model
    assert_trains(training, lambda initial: train(network, lengths, run, training.dataset, initial, comm.size))


def test_the_perplexity_is_that_of_every_token_of_the_windows(comm, text):
    """By the plain class, a window at a time; whatever the batch and the ranks."""
    training = Training(own_run(**settings(text, evaluate__batch=3)), comm)
    score = training.evaluate()
    network = training.architecture.plain().double().eval()
    weights = {name: torch.from_numpy(values) for name, values in whole(training).items() if "/" not in name}
    network.load_state_dict(weights, strict=False)
    test, losses = training.dataset.test, []
    with torch.no_grad():
        for layer in network.layers:
            for product in (layer.attention.output, layer.feed_forward.down):
                product.weight /= comm.size
        for number in range(len(test)):
            batch = test.batch(np.array([number]))
            losses += functional.cross_entropy(network(batch.inputs[0])[0], batch.targets[0], reduction="none").tolist()
    assert score.loss == pytest.approx(np.mean(losses), rel=1e-9)
    assert score.score == pytest.approx(np.exp(np.mean(losses)), rel=1e-9)
    bytes_per_token = training.dataset.bytes_per_token  # a token is a byte, and one more ends each document
    assert bytes_per_token == pytest.approx(1, rel=0.01) and bytes_per_token < 1
    assert score.bits_per_byte == pytest.approx(np.mean(losses) / np.log(2) / bytes_per_token, rel=1e-9)
    few = Training(own_run(**settings(text, evaluate__examples=2)), comm).evaluate()
    assert few.examples == 2 and score.examples == len(test)


def test_a_network_has_the_tokenizer_of_its_text_and_takes_no_other(comm, shared_tmp):
    for name, end in (("mine", "<|endoftext|>"), ("other", "</s>")):
        on_root(comm, lambda: prepare_tokens(shared_tmp / f"{name}.h5", end))  # noqa: B023
    training = Training(own_run(**settings(str(shared_tmp / "mine.h5"), train__rounds=1, data__length=10)), comm)
    *_, last = training.rounds()
    path = save(training, shared_tmp / "network.h5", calibrated=True)
    with open_checkpoint(path) as checkpoint:
        tokenizer = checkpoint.tokenizer
        text = "units of another layer, Ünits".encode()
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.vocabulary == checkpoint.header.data.outputs
    again = evaluate(path, comm).score
    assert again.loss == pytest.approx(last.score.loss, abs=1e-9)
    assert again.bits_per_byte == pytest.approx(last.score.bits_per_byte)
    with pytest.raises(DataError, match=r"has tokens of tokenizer \w+; the network takes those of tokenizer"):
        evaluate(path, comm, str(shared_tmp / "other.h5"))
