"""What a network that was trained on text knows of its tokens, and which other text it takes."""

import pytest
from small import own_run
from tokenizing import make_tokenizer

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.data.prepare import prepare
from istmpi.deploy.scoring import evaluate
from istmpi.errors import DataError
from istmpi.training.loop import Training

DECODER = {
    "model__name": "transformer",
    "model__layers": 1,
    "model__embed": 8,
    "model__heads": [4],
    "model__head_dim": 2,
    "model__hidden": [8],
    "data__length": 10,
    "train__rounds": 1,
}


@pytest.fixture
def files(comm, shared_tmp):
    """Prepared text in tokens of two tokenizers with vocabularies of one size, and in bytes."""
    if comm.rank == 0:
        (shared_tmp / "text").mkdir()
        for number in range(10):
            (shared_tmp / "text" / f"{number}.txt").write_text("units of a layer\n" * (number + 3), encoding="utf-8")
        for number, end in enumerate(("<|endoftext|>", "</s>")):
            tokenizer = make_tokenizer(shared_tmp / f"{number}.json", end)
            prepare("text", shared_tmp / "text", shared_tmp / f"{number}.h5", tokenizer=str(tokenizer))
        prepare("text", shared_tmp / "text", shared_tmp / "bytes.h5")
    comm.barrier()
    return shared_tmp


def saved(comm, files, source):
    training = Training(own_run(**DECODER, data__source=str(files / source)), comm)
    *_, last = training.rounds()
    commit(files / "network.h5", *training.state(True), "direct", comm)
    return files / "network.h5", last.score


@pytest.mark.parametrize("source", ["0.h5", "bytes.h5"])
def test_a_network_has_the_tokenizer_of_its_text(comm, files, source):
    path, score = saved(comm, files, source)
    with open_checkpoint(path) as checkpoint:
        tokenizer = checkpoint.tokenizer
        text = "units of another layer, Ünits".encode()
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.vocabulary == checkpoint.header.data.outputs
    again = evaluate(path, comm).score
    assert again.loss == pytest.approx(score.loss, abs=1e-9) and again.bits_per_byte == score.bits_per_byte


def test_text_in_other_tokens_is_refused(comm, files):
    path, _ = saved(comm, files, "0.h5")
    with pytest.raises(
        DataError, match=r"has tokens of tokenizer \w+; the network takes those of tokenizer"
    ) as refused:
        evaluate(path, comm, str(files / "1.h5"))
    assert "\n" not in str(refused.value)
