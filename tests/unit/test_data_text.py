"""Text: documents become streams of tokens, and these become windows; nothing of them is lost, moved or made up."""

import gzip
import json
import re
import sys
from dataclasses import replace

import h5py
import numpy as np
import pytest
from damage import damaged, data_contents
from data_files import TEXTS, make_text, pack, write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizing import make_tokenizer

from istmpi.data import writer
from istmpi.data.hdf5 import open_prepared
from istmpi.data.holdout import draw_test
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset
from istmpi.data.text import split as windows
from istmpi.data.text import tokenizer as tokenizers
from istmpi.data.text.prepare import choose_type
from istmpi.data.text.tokenizer import Bytes, open_tokenizer
from istmpi.errors import DataError

TRAIN = [TEXTS["train/a.txt"], b"a line", b"another\nline", TEXTS["train/deep/b.md"]]


def prepared(folder, source, **options):
    return open_prepared(prepare("text", source, folder / "data.h5", force=True, **options).target)


def stream(data, split="train"):
    return data.splits[split].tokens.tolist()


def with_ends(documents, end=0):
    return [token for document in documents for token in [*document, end]]


def spread(count):
    """So many short documents, one a file, each another one."""
    return {f"{number:03d}.txt": b"document %d" % number * (number % 3 + 1) for number in range(count)}


# ---- from documents to streams


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


@pytest.mark.parametrize("form", ["files", "jsonl", "jsonl.gz", "tar", "tar.gz"])
def test_without_splits_one_document_in_five_is_for_testing(tmp_path, form):
    documents = list(spread(23).values())
    if form.startswith("jsonl"):
        lines = "".join(json.dumps({"body": text.decode()}) + "\n" for text in documents).encode()
        content = gzip.compress(lines) if form.endswith("gz") else lines
        source = write_files(tmp_path, {f"d.{form}": content}) / f"d.{form}"
    else:
        source = write_files(tmp_path / "input", spread(23))
        source = source if form == "files" else pack(source, tmp_path / f"input.{form}")
    data = prepared(tmp_path, source, **({"key": "body"} if form.startswith("jsonl") else {}))
    test = draw_test(23)
    for split, chosen in (("train", ~test), ("test", test)):
        assert stream(data, split) == with_ends(text for text, of in zip(documents, chosen) if of)


@pytest.mark.parametrize(
    "name, content", [("a.txt", b"x" * 60 + b"y" * 39), ("a.txt.gz", gzip.compress(b"z" * 99))], ids=["txt", "gz"]
)
def test_a_single_document_is_cut(tmp_path, istmpi_command, name, content):
    source = write_files(tmp_path, {name: content}) / name
    text = gzip.decompress(content) if name.endswith(".gz") else content
    data = prepared(tmp_path, source)
    assert stream(data) + stream(data, "test") == with_ends([text])
    assert len(data.train.tokens) == 90 and data.bytes_per_token == pytest.approx(0.99, abs=0.1)
    code, out, err = istmpi_command("prepare", "text", source, tmp_path / "again.h5")
    assert (code, err) == (0, "") and "90 tokens" in out and "vocabulary  256" in out


def test_files_named_after_splits_are_splits_where_there_are_no_others(tmp_path):
    texts = {"wiki/train.txt": b"one", "wiki/test.txt": b"two", "wiki/valid.txt": b"three"}
    data = prepared(tmp_path, write_files(tmp_path / "input", texts))
    assert [stream(data, split) for split in data.splits] == [with_ends([text]) for text in (b"one", b"two", b"three")]
    other = write_files(tmp_path / "program", {"train.py": b"one", "test.py": b"two", "model.py": b"three"})
    assert prepare("text", other, tmp_path / "data.h5", force=True).facts["train documents"] == 2


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300).map(lambda text: text.replace(b"\0", b"")), st.integers(1, 40))
def test_any_bytes_come_back(text, size):
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    tokens = np.concatenate([np.zeros(0, np.uint8), *Bytes().read_tokens(pieces)])
    assert tokens.tolist() == list(text) and Bytes().decode([*tokens, 0]) == text
    np.testing.assert_array_equal(Bytes().encode(text), tokens)


# ---- tokenizers of files


@pytest.mark.parametrize("end", ["<|endoftext|>", "</s>", None])
def test_a_tokenizer_file_makes_the_tokens_that_its_library_does(tmp_path, end):
    path = make_tokenizer(tmp_path / "tokenizer.json", end)
    import tokenizers as library

    original = library.Tokenizer.from_file(str(path))
    original.no_truncation()
    original.no_padding()
    folder = make_text(tmp_path / "input")
    data = prepared(tmp_path, folder, tokenizer=str(path))
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


def test_a_token_with_a_number_that_no_network_has_outputs_for_is_refused(tmp_path):
    path = make_tokenizer(tmp_path / "tokenizer.json", None)
    tree = json.loads(path.read_text())
    name = next(iter(tree["model"]["vocab"]))
    for number, most in ((2**32 - 1, False), (2**24, False), (2**24 - 1, True)):
        tree["model"]["vocab"][name] = number
        path.write_text(json.dumps(tree))
        if most:
            assert open_tokenizer(str(path)).vocabulary >= 2**24
            continue
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


def test_tokens_are_as_small_as_the_vocabulary_allows():
    for vocabulary, dtype in ((256, "u1"), (257, "u2"), (65536, "u2"), (65537, "u4")):
        assert choose_type(vocabulary) == np.dtype(dtype)


def test_training_reads_the_data_without_the_library(tmp_path, monkeypatch):
    prepare("text", make_text(tmp_path / "input"), tmp_path / "data.h5", tokenizer=str(make_tokenizer(tmp_path / "t")))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    data = open_dataset(str(tmp_path / "data.h5"), length=1)
    data.train.batch(np.arange(2), 1)
    with pytest.raises(DataError, match=r"tokenizers.*pip install 'istmpi\[data\]'"):
        data.tokenizer.encode(b"text")


# ---- damage


@pytest.fixture
def long(tmp_path):
    """A prepared file of four blocks to train on, and its training tokens."""
    generator = np.random.default_rng(0)
    texts = {f"{split}/a": generator.integers(1, 256, size, np.uint8).tobytes() for split, size in SIZES.items()}
    prepare("text", write_files(tmp_path / "input", texts), tmp_path / "data.h5")
    return tmp_path / "data.h5", [*texts["train/a"], 0]


SIZES = {"train": 200_000, "test": 2000}


def test_a_damaged_block_is_noticed_when_a_window_reaches_into_it(long, istmpi_command):
    path, tokens = long
    with h5py.File(path) as file:
        assert len(file["checksums/train/tokens"]) == 4
        offset = file["train/tokens"].id.get_offset()
    content = bytearray(path.read_bytes())
    content[offset + 100_000] ^= 1
    path.write_bytes(content)
    split = open_dataset(str(path), length=1000).train
    assert split.batch(np.arange(99)).inputs[0].flatten().tolist() == tokens[:99_000]
    split.batch(np.arange(150, 200))
    for row in (99, 100, 130):
        with pytest.raises(DataError, match="is damaged: train/tokens, rows 100000 to 149999: the checksum differs"):
            open_dataset(str(path), length=1000).train.batch(np.array([0, row]))
    with pytest.raises(DataError, match="rows 100000"):  # in the middle of a window of four blocks
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


# ---- bad input


@pytest.mark.parametrize(
    "texts, options, message",
    [
        ({"a.txt": b"one\0two"}, {}, "1 of 1 documents cannot be read.*a.txt .it has a byte 0, which is reserved"),
        ({"a.txt": b"caf\xe9"}, {"tokenizer": "FILE"}, "1 of 1 documents cannot.*it is not UTF-8, as this tokeni"),
        ({"a.txt": b"caf\xc3"}, {"tokenizer": "FILE"}, "1 of 1 documents cannot.*it is not UTF-8, as this tokeni"),
        ({"a.jsonl": b'{"text": "\\ud800"}'}, {"tokenizer": "FILE"}, "a.jsonl, line 1 .it is not UTF-8"),
        ({"a.txt": b""}, {}, "has no text: every file is empty"),
        ({"a.txt": b"x"}, {"tokenizer": "wordpiece"}, "tokenizer wordpiece is not bytes or a file"),
        ({"a.txt": b"x", "t.json": b"{}"}, {"tokenizer": "t.json"}, "t.json is not a tokenizer: .*Give a tokenizer"),
        ({"a.txt": b"x", "t.json": b"\xff"}, {"tokenizer": "t.json"}, "t.json is not a tokenizer: "),
        (
            {"a.jsonl": b'{"text": "x"}\n{"txt": "y", "id": 3}'},
            {},
            "a.jsonl, line 2 has no text under 'text'; it has txt",
        ),
        ({"a.jsonl": b'{"text": 5}'}, {}, "a.jsonl, line 1: its text is 5, not text"),
        ({"a.jsonl": b'{"text": "x"}\n{"text": null}'}, {}, "a.jsonl, line 2: its text is null, not text"),
        ({"a.jsonl": b'["x"]'}, {}, "a.jsonl, line 1 has no text under 'text'; it has no keys"),
        ({"a.jsonl": b'{"text": "x"'}, {}, "a.jsonl, line 1 is not JSON"),
        ({"a.jsonl": b'{"text": "\xff"}'}, {}, "a.jsonl, line 1 is not JSON"),
        ({"a.jsonl": b"[" * 100_000}, {}, "a.jsonl, line 1 is not JSON"),
        (
            {"a.txt.gz": gzip.compress(b"text" * 99)[:-9]},
            {},
            "input: a.txt.gz cannot be read: Compressed file ended before",
        ),
        ({"train/a": b"x", "test/b": b"y", "README": b"z"}, {}, "has train/ and test/, but README is in neither"),
        ({"train/a": b"x", "test/b": b""}, {}, "has no test documents"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path, istmpi_command, monkeypatch, texts, options, message):
    monkeypatch.chdir(tmp_path)
    if options.get("tokenizer") == "FILE":
        options = {"tokenizer": make_tokenizer(tmp_path / "tokenizer.json")}
    folder = write_files(tmp_path / "input", {name: text for name, text in texts.items() if name != "t.json"})
    write_files(tmp_path, {name: text for name, text in texts.items() if name == "t.json"})
    words = [word for option, value in options.items() for word in (f"--{option}", value)]
    code, out, err = istmpi_command("prepare", "text", folder, "data.h5", *words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert re.search(message, err), err
    assert not (tmp_path / "data.h5").exists()


def test_a_bad_document_leaves_no_trace_in_the_stream(tmp_path):
    texts = {"train/a": b"first", "train/b": b"sec\0ond", "train/c": b"third", "test/d": b"fourth"}
    report = prepare("text", write_files(tmp_path / "input", texts), tmp_path / "data.h5", max_bad=0.3)
    assert report.skipped == ["train/b"]
    assert (report.facts["train documents"], report.facts["test documents"]) == (2, 1)
    assert stream(open_prepared(report.target)) == with_ends([b"first", b"third"])


@pytest.mark.parametrize("ending, left", [(".tar", 7000), (".tar.gz", 400)])
def test_a_truncated_archive_is_refused_whatever_may_be_bad(tmp_path, ending, left):
    texts = {f"{number}.txt": np.random.default_rng(number).bytes(3000).replace(b"\0", b"") for number in range(4)}
    path = pack(write_files(tmp_path / "input", texts), tmp_path / f"input{ending}")
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(DataError, match=f"input{ending}.*cannot be read"):
        prepare("text", path, tmp_path / "data.h5", max_bad=1.0)


@pytest.mark.parametrize("length", [9, 12, 2**40])
def test_documents_shorter_than_a_window_are_refused_with_the_length_that_they_need(tmp_path, istmpi_command, length):
    texts = {"train/a": b"x" * 50, "test/b": b"y" * 8}
    path = prepare("text", write_files(tmp_path / "input", texts), tmp_path / "data.h5").target
    assert len(open_dataset(str(path), length=8).test) == 1
    words = ["--model", "transformer", "--data", path, "--set", f"data.length={length}", "--dry-run"]
    code, _, err = istmpi_command("train", *words)
    assert code == 2 and len(err.splitlines()) == 1
    assert re.search(
        f"the (test|train) documents have (9|51) tokens, but a window of {length:,} needs {length + 1:,}", err
    )


@pytest.mark.parametrize(
    "source, settings, message",
    [
        ("text", ["data.placement=by-label"], "data.placement = 'by-label' is for classes"),
        ("text", ["data.crop=2"], "data.crop = 2 is for images"),
        ("text", ["train.resolution=[[1.0,8]]"], "train.resolution is for images"),
        ("digits", ["data.length=64"], "data.length = 64 is for text, but digits is of kind digits"),
        ("text", ["data.length=0"], "data.length"),
    ],
)
def test_settings_of_other_data_are_refused(tmp_path, istmpi_command, source, settings, message):
    """But no default of theirs."""
    default = f"data.length={windows.WINDOW}"
    assert istmpi_command("train", "--data", "digits", "--set", default, "--dry-run")[0] == 0
    if source == "text":
        source = prepare("text", write_files(tmp_path / "input", {"a": b"x" * 5000}), tmp_path / "data.h5").target
    words = [word for setting in settings for word in ("--set", setting)]
    model = ["--model", "transformer", "--set", "model.layers=1"] if source != "digits" else []
    code, _, err = istmpi_command("train", "--data", source, *model, *words, "--dry-run")
    assert code == 2 and len(err.splitlines()) == 1 and message in err
