"""Text: documents become streams of tokens, and these become windows; nothing of them is lost, moved or made up."""

import gzip
import json
import re
import sys
import zlib
from dataclasses import replace
from itertools import product

import h5py
import numpy as np
import pytest
from damage import damaged, data_contents, flip
from data_files import TEXTS, make_arrays, make_text, write_files
from hypothesis import given
from hypothesis import strategies as st
from tokenizing import make_tokenizer

from istmpi import rng
from istmpi.data import writer
from istmpi.data.hdf5 import open_prepared
from istmpi.data.holdout import draw_test
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset
from istmpi.data.text import split as windows
from istmpi.data.text import tokenizer as tokenizers
from istmpi.data.text.prepare import choose_type
from istmpi.data.text.split import TextSplit
from istmpi.data.text.tokenizer import Bytes, open_tokenizer
from istmpi.errors import DataError

TRAIN = [TEXTS["train/a.txt"], b"a line", b"another\nline", TEXTS["train/deep/b.md"]]


def prepared(folder, source, **options):
    return open_prepared(prepare("text", source, folder / "data.h5", force=True, **options).target)


def stream(data, split="train"):
    return data.splits[split].tokens.tolist()


def with_ends(documents, end=0):
    return [token for document in documents for token in [*document, end]]


@pytest.mark.parametrize("block", [1, 7, 2**20])
def test_a_stream_is_the_documents_in_the_order_of_names_each_with_its_end(tmp_path, monkeypatch, block):
    """No block of a preparation shows."""
    monkeypatch.setattr(writer, "BLOCK", block)
    data = prepared(tmp_path, make_text(tmp_path / "input"))
    assert stream(data) == with_ends(TRAIN)
    assert stream(data, "test") == with_ends([TEXTS["test/d.rst"]])
    assert stream(data, "validation") == with_ends([b"packed words"])
    assert (data.task, data.kind, data.outputs, data.classes) == ("next-token", "text", 256, None)
    assert data.bytes_per_token == len(TEXTS["test/d.rst"]) / (len(TEXTS["test/d.rst"]) + 1)
    with h5py.File(tmp_path / "data.h5") as file:
        assert file["train/tokens"].dtype == np.uint8 and file.attrs["train_bytes"] == sum(map(len, TRAIN))


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "files"])
def test_without_splits_one_document_in_five_is_for_testing(tmp_path, form):
    documents = [b"document %d" % number * (number % 3 + 1) for number in range(23)]
    lines = "".join(json.dumps({"body": text.decode()}) + "\n" for text in documents).encode()
    sources = {
        "jsonl": {"d.jsonl": lines},
        "jsonl.gz": {"d.jsonl.gz": gzip.compress(lines)},
        "files": {f"{number:03d}.txt": text for number, text in enumerate(documents)},
    }
    options = {} if form == "files" else {"key": "body"}
    data, test = prepared(tmp_path, write_files(tmp_path / "input", sources[form]), **options), draw_test(23)
    for split, chosen in (("train", ~test), ("test", test)):
        assert stream(data, split) == with_ends(text for text, of in zip(documents, chosen) if of)


def test_a_drawn_test_split_of_an_unusual_length_is_noted(tmp_path, istmpi_command):
    source = write_files(tmp_path / "input", {"a.txt": b"x" * 920, "b.txt": b"x" * 80})
    code, out, err = istmpi_command("prepare", "text", source, tmp_path / "data.h5")
    assert code == 0 and re.search(
        r"the drawn test documents have (92|8)% of the tokens", " ".join((out + err).split())
    )


def test_a_single_document_is_cut(tmp_path, istmpi_command):
    text = b"x" * 60 + b"y" * 39
    source = write_files(tmp_path, {"a.txt.gz": gzip.compress(text)}) / "a.txt.gz"
    data = prepared(tmp_path, source)
    assert stream(data) + stream(data, "test") == with_ends([text])
    assert len(data.train.tokens) == 90 and data.bytes_per_token == pytest.approx(0.99, abs=0.1)
    code, out, err = istmpi_command("prepare", "text", source, tmp_path / "again.h5")
    assert (code, err) == (0, "") and "90 tokens" in out and "vocabulary  256" in out


@given(st.binary(max_size=300).map(lambda text: text.replace(b"\0", b"")), st.integers(1, 40))
def test_any_bytes_come_back(text, size):
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    tokens = np.concatenate([np.zeros(0, np.uint8), *Bytes().read_tokens(pieces)])
    assert tokens.tolist() == list(text) and Bytes().decode([*tokens, 0]) == text
    np.testing.assert_array_equal(Bytes().encode(text), tokens)


@pytest.mark.parametrize("end", ["<|endoftext|>", "</s>", None])
def test_a_tokenizer_file_makes_the_tokens_that_its_library_does(tmp_path, end):
    path = make_tokenizer(tmp_path / "tokenizer.json", end)
    import tokenizers as library

    original = library.Tokenizer.from_file(str(path))
    original.no_truncation()
    original.no_padding()
    data = prepared(tmp_path, make_text(tmp_path / "input"), tokenizer=str(path))
    size = original.get_vocab_size()
    last = size if end is None else original.token_to_id(end)
    assert (data.outputs, data.tokenizer.end) == (size + (end is None), last)
    assert stream(data) == with_ends((original.encode(text.decode()).ids for text in TRAIN), last)
    assert data.train.tokens.dtype == np.uint16
    assert data.tokenizer.decode(stream(data)) == b"".join(TRAIN)
    assert data.tokenizer.json == path.read_text() and str(data.tokenizer) != str(Bytes())
    test = TEXTS["test/d.rst"]
    assert data.bytes_per_token == len(test) / (len(original.encode(test.decode()).ids) + 1)
    named = data.tokenizer.encode(b"<s>struck</s> out")
    assert data.tokenizer.end not in named and data.tokenizer.decode(named) == b"<s>struck</s> out"


@pytest.mark.parametrize("number", [2**32 - 1, 2**24, 2**24 - 1])
def test_a_token_with_a_number_that_no_network_has_outputs_for_is_refused(tmp_path, number):
    path = make_tokenizer(tmp_path / "tokenizer.json", None)
    tree = json.loads(path.read_text())
    tree["model"]["vocab"][next(iter(tree["model"]["vocab"]))] = number
    path.write_text(json.dumps(tree))
    if number < 2**24:
        assert choose_type(open_tokenizer(str(path)).vocabulary) == np.uint32
        return
    with pytest.raises(DataError, match=f"its largest token is {number:,}; at most 16,777,215"):
        prepared(tmp_path, make_text(tmp_path / "input"), tokenizer=str(path))


def test_a_long_document_is_encoded_in_lines_however_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizers, "PIECE", 50)
    tokenizer = open_tokenizer(str(make_tokenizer(tmp_path / "tokenizer.json")))
    text = ("Ünits travel home.\n" * 9 + "x" * 120 + "\n\nend").encode()
    whole = tokenizer.encode(text).tolist()
    assert tokenizer.decode(whole) == text
    for size in (1, 7, 64):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert np.concatenate(list(tokenizer.read_tokens(pieces))).tolist() == whole
    two_lines = "Ünits travel home.\n" * 2
    assert whole[: len(tokenizer.encode(two_lines.encode()))] == tokenizer.encode(two_lines.encode()).tolist()


def test_training_reads_the_data_without_the_library(tmp_path, monkeypatch):
    prepare("text", make_text(tmp_path / "input"), tmp_path / "data.h5", tokenizer=str(make_tokenizer(tmp_path / "t")))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    data = open_dataset(str(tmp_path / "data.h5"), length=1)
    data.train.batch(np.arange(2), 1)
    with pytest.raises(DataError, match=r"tokenizers.*pip install 'istmpi\[data\]'"):
        data.tokenizer.encode(b"text")


def test_a_damaged_block_is_noticed_when_a_window_reaches_into_it(tmp_path, istmpi_command):
    generator = np.random.default_rng(0)
    train, test = (generator.integers(1, 256, size, np.uint8).tobytes() for size in (200_000, 2000))
    source = write_files(tmp_path / "input", {"train/a": train, "test/a": test})
    path = prepare("text", source, tmp_path / "data.h5").target
    with h5py.File(path) as file:
        assert len(file["checksums/train/tokens"]) == 4
    flip(path, "train/tokens", 100_000)
    split = open_dataset(str(path), length=1000).train
    assert split.batch(np.arange(99)).inputs[0].flatten().tolist() == [*train[:99_000]]
    split.batch(np.arange(150, 200))
    message = "is damaged: train/tokens, rows 100000 to 149999: the checksum differs"
    for row in (99, 130):
        with pytest.raises(DataError, match=message):
            open_dataset(str(path), length=1000).train.batch(np.array([0, row]))
    with pytest.raises(DataError, match=message):  # in the middle of a window of four blocks
        replace(open_prepared(path).train, length=199_999).batch(np.array([0]))
    code, out, _ = istmpi_command("data", "verify", path)
    assert code == 2 and "train/tokens, rows 100000 to 149999" in out


@pytest.mark.parametrize("tokenizer", [False, True])
def test_whatever_is_done_to_a_file_is_refused_or_leaves_it_what_it_was(tmp_path, tokenizer):
    options = {"tokenizer": str(make_tokenizer(tmp_path / "tokenizer.json"))} if tokenizer else {}
    prepare("text", make_text(tmp_path / "input"), tmp_path / "data.h5", **options)

    def contents(path):
        data = open_prepared(path)
        return *data_contents(path), data.bytes_per_token, data.tokenizer.json, data.tokenizer.end

    damaged(tmp_path / "data.h5", tmp_path, contents, 7, 100)


def test_a_bad_document_leaves_no_trace_in_the_stream(tmp_path):
    texts = {"train/a": b"first", "train/b": b"sec\0ond", "train/c": b"third", "test/d": b"fourth"}
    report = prepare("text", write_files(tmp_path / "input", texts), tmp_path / "data.h5", max_bad=0.3)
    assert report.skipped == ["train/b"]
    assert (report.facts["train documents"], report.facts["test documents"]) == (2, 1)
    assert stream(open_prepared(report.target)) == with_ends([b"first", b"third"])


@pytest.mark.parametrize("length", [9, 2**40])
def test_documents_shorter_than_a_window_are_refused_with_the_length_that_they_need(tmp_path, refusal, length):
    texts = {"train/a": b"x" * 50, "test/b": b"y" * 8}
    path = prepare("text", write_files(tmp_path / "input", texts), tmp_path / "data.h5").target
    assert len(open_dataset(str(path), length=8).test) == 1
    words = ["--model", "transformer", "--data", path, "--set", f"data.length={length}", "--dry-run"]
    said = f"documents have {9 if length == 9 else 51} tokens, but a window of {length:,} needs {length + 1:,}"
    assert said in refusal("train", *words)


@pytest.mark.parametrize(
    "source, setting, message",
    [
        ("text", "data.placement=by-label", "data.placement = 'by-label' is for classes"),
        ("text", "data.crop=2", "data.crop = 2 is for images"),
        ("arrays", "data.crop=2", "data.crop = 2 is for images [channels, height, width], but"),
        ("text", "train.resolution=[[1.0,8]]", "train.resolution is for images"),
        ("digits", "data.length=64", "data.length = 64 is for text, but digits is of kind digits"),
        ("digits", f"data.length={windows.WINDOW}", ""),
    ],
)
def test_settings_of_other_data_are_refused(tmp_path, istmpi_command, source, setting, message):
    """But no default of theirs."""
    words = ["--set", setting, "--dry-run", *["--model", "transformer", "--set", "model.layers=1"] * (source == "text")]
    if source == "text":
        source = prepare("text", write_files(tmp_path / "input", {"a": b"x" * 5000}), tmp_path / "data.h5").target
    elif source == "arrays":
        source = make_arrays(tmp_path / "input") / "data.npz"
    code, _, err = istmpi_command("train", "--data", source, *words)
    assert (code, len(err.splitlines())) == ((2, 1) if message else (0, 0)) and message in err


# ---- windows: a batch is a pure function of its key, and no token is lost


def cut_windows(tokens, length, indices, key):
    inputs, targets = [], []
    for place_in_batch, index in enumerate(indices):
        start = index * length
        if key is not None:
            start += int(rng.bits(rng.key(key, "window"), place_in_batch, 1)[0]) % length
            start = min(start, len(tokens) - length - 1)
        inputs.append(tokens[start : start + length])
        targets.append(tokens[start + 1 : start + length + 1])
    return inputs, targets


@given(
    count=st.integers(2, 60),
    length=st.integers(1, 9),
    key=st.none() | st.integers(0, 2**64 - 1),
    rows=st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
    dtype=st.sampled_from([np.uint8, np.uint16, np.uint32]),
)
def test_a_batch_is_that_of_the_naive_oracle(count, length, key, rows, dtype):
    length = min(length, count - 1)
    tokens = (np.arange(count) * 7 % 251).astype(dtype)
    split = TextSplit(tokens, length)
    rows = [row % len(split) for row in rows]
    batch = split.batch(np.array(rows), key)
    (inputs,), targets = batch.inputs, batch.targets
    assert (inputs.tolist(), targets.tolist()) == cut_windows(tokens.tolist(), length, rows, key)
    assert str(inputs.dtype) == str(targets.dtype) == "torch.int64" and batch.examples == len(rows)


def test_every_token_is_a_target_in_a_pass_and_the_first_is_not():
    for count, length in product((2, 10, 23), (1, 2, 7)):
        if count > length:
            split = TextSplit(np.arange(count, dtype=np.uint8), length)
            targets = split.batch(np.arange(len(split))).targets.flatten().tolist()
            assert targets == list(range(1, len(split) * length + 1)) and count - 1 - len(targets) < length


@pytest.mark.parametrize("count", [50, 2**23])
def test_the_fingerprint_is_of_the_tokens_alone(count):
    tokens = (np.arange(count) % 251).astype(np.uint8)
    expected = TextSplit(tokens, 5).features_checksum
    assert TextSplit(tokens.astype(np.uint32), 9).features_checksum == expected
    assert (zlib.crc32(tokens.astype("<u4")) == expected) == (count == 50)
    assert TextSplit(tokens[::-1].copy(), 5).features_checksum != expected
