"""Training on text: against a naive oracle, whatever the ranks; the perplexity of the full network."""

import numpy as np
import pytest
import torch
from small import assert_trained, initial_weights, own_run, whole
from text_oracle import train
from tokenizing import make_tokenizer
from torch.nn import functional

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.data.prepare import prepare
from istmpi.deploy.scoring import evaluate
from istmpi.errors import DataError
from istmpi.training.loop import Training

DECODER = {"layers": 2, "embed": 12, "heads": [7, 5], "head_dim": 4, "hidden": [9, 6]}
ADAM = {"optimizer__name": "adamw", "optimizer__lr": 0.01, "method__optimizer_state": "carry"}


@pytest.fixture
def text(comm, shared_tmp):
    """A prepared file of some documents in which one word follows another."""
    if comm.rank == 0:
        words = ["alpha", "beta", "gamma", "delta", "epsilon"]
        for number in range(10):
            said = " ".join(words[(number + 2 * place) % 5] for place in range(60))
            (shared_tmp / f"{number}.txt").write_text(said, encoding="utf-8")
        prepare("text", shared_tmp, shared_tmp.parent / "text.h5", force=True)
    comm.barrier()
    return str(shared_tmp.parent / "text.h5")


@pytest.fixture
def tokenized(comm, shared_tmp):
    """Prepared text in tokens of two tokenizers with vocabularies of one size."""
    if comm.rank == 0:
        (shared_tmp / "text").mkdir()
        for number in range(10):
            (shared_tmp / "text" / f"{number}.txt").write_text("units of a layer\n" * (number + 3), encoding="utf-8")
        for number, end in enumerate(("<|endoftext|>", "</s>")):
            tokenizer = make_tokenizer(shared_tmp / f"{number}.json", end)
            prepare("text", shared_tmp / "text", shared_tmp / f"{number}.h5", tokenizer=str(tokenizer))
    comm.barrier()
    return shared_tmp


def settings(text, **changed):
    model = {f"model__{name}": value for name, value in DECODER.items()}
    common = {
        "data__source": text,
        "data__length": 12,
        "train__rounds": 3,
        "train__batch": 4,
        "model__dtype": "float64",
    }
    return {"model__name": "transformer", **model, **common, **ADAM, **changed}


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
    initial = initial_weights(training)
    progress = list(training.rounds())
    expected, state, losses = train({**DECODER, **model}, lengths, run, training.dataset, initial, comm.size)
    for place, kind in enumerate(("exp_avg", "exp_avg_sq")):
        expected |= {f"{name}/{kind}": averages[place] for name, averages in state.items()}
    assert_trained(training, progress, expected, losses)


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


def test_a_network_has_the_tokenizer_of_its_text_and_takes_no_other(comm, tokenized):
    training = Training(own_run(**settings(str(tokenized / "0.h5"), train__rounds=1, data__length=10)), comm)
    *_, last = training.rounds()
    path = tokenized / "network.h5"
    commit(path, *training.state(True), "direct", comm)
    with open_checkpoint(path) as checkpoint:
        tokenizer = checkpoint.tokenizer
        text = "units of another layer, Ünits".encode()
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.vocabulary == checkpoint.header.data.outputs
    again = evaluate(path, comm).score
    assert again.loss == pytest.approx(last.score.loss, abs=1e-9)
    assert again.bits_per_byte == pytest.approx(last.score.bits_per_byte)
    with pytest.raises(DataError, match=r"has tokens of tokenizer \w+; the network takes those of tokenizer"):
        evaluate(path, comm, str(tokenized / "1.h5"))
    comm.barrier()
