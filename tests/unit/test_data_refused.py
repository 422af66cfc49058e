"""What `istmpi prepare` does not take: one table of files, and of what is said of them in one line, by name."""

import gzip
import io
import pickle
from functools import partial

import numpy as np
import pytest
from data_files import MAKERS, make_cifar, make_idx, write_files
from PIL import Image
from tokenizing import make_tokenizer

from istmpi.data.pickles import read_pickle
from istmpi.data.prepare import prepare
from istmpi.errors import DataError

SOURCES = {
    **MAKERS,
    "idx.gz": partial(make_idx, zipped=True),
    "cifar": partial(make_cifar, classes=10, binary=False),
    "cifar.bin": partial(make_cifar, classes=10, binary=True),
}
KINDS = {"idx.gz": "idx", "cifar": "images", "cifar.bin": "images"}


def swapped(old, new):
    return lambda content: content.replace(old, new)


def pictures(*names):
    file = io.BytesIO()
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(file, "PNG")
    return dict.fromkeys(names, file.getvalue())


def tables(**labels):
    rows = {split: [f"{n},{label}" for n, label in enumerate(text.split() * 3)] for split, text in labels.items()}
    return {f"{split}.csv": "\n".join(["a,b", *lines]).encode() for split, lines in rows.items()}


def with_lists(train, table=b"3 5 4\n0 1:1\n0 2:1\n0 3:1\n"):
    return {"a_data.txt": table, "a_trSplit.txt": train, "a_tstSplit.txt": b"2\n"}


def with_batch(**changes):
    changes = {name.encode(): value for name, value in changes.items()}
    return {"data_batch_3": lambda content: pickle.dumps(read_pickle(content, object) | changes, protocol=2)}


class Evil:
    def __reduce__(self):
        return (open, ("owned", "w"))


BLANK = b"%d 5 4\n0 1:1\n\n0 2:1\n\n0 3:1\n"
LABELS = "train-labels-idx1-ubyte"

CHANGED = [
    ("idx", {"train-images-idx3-ubyte": lambda old: old[:-1]}, "train-images-idx3-ubyte has fewer bytes than the"),
    ("idx", {LABELS: lambda old: b"\0\0\x0d\1" + old[4:]}, f"{LABELS} is not an idx file"),
    ("idx", {LABELS: lambda old: old + b"more"}, f"{LABELS} has more bytes than the"),
    ("idx", {LABELS: lambda old: old[:7] + b"\x13" + old[8:-1]}, f"{LABELS} has 19 labels"),
    ("idx", {LABELS: None}, f"has no {LABELS}"),
    ("idx.gz", {f"{LABELS}.gz": lambda old: old[:-8] + bytes(4) + old[-4:]}, "cannot be read: CRC check failed"),
    ("cifar.bin", {"data_batch_3.bin": lambda old: old[:-7]}, "data_batch_3.bin is"),
    ("cifar", {"data_batch_3": lambda old: old[:-7]}, "data_batch_3 is"),
    ("cifar", with_batch(data=np.zeros((4, 3072), np.float32)), "data_batch_3.*pixels .* of float32 and 4 labels are"),
    ("cifar", with_batch(labels=[0.5, 1, 2, 3]), "its labels must be whole numbers from 0 to 9"),
    ("cifar", with_batch(labels=[0, 1, 2]), r"pixels \(4, 3072\) of uint8 and 3 labels are not CIFAR's"),
    ("cifar", with_batch(data=Evil()), "data_batch_3 is not one of CIFAR's pickles: it asks for .*open"),
    ("xc", {"train.txt": swapped(b"3 5 4", b"4 5 4")}, "train.txt, line 4.*states 4 rows"),
    ("xc", {"train.txt": swapped(b"3 5 4", b"3 5")}, "train.txt, line 1.*is not a header"),
    ("xc", {"train.txt": swapped(b"3 5 4", b"9" * 5000 + b" 5 4")}, "line 1.*its header is 999"),
    ("xc", {"train.txt": swapped(b" 0:1", b" 5:1")}, "line 3.*feature 5 is out of range"),
    ("xc", {"train.txt": swapped(b"1,0", b"1,4")}, "line 4.*label 4 is out of range"),
    ("xc", {"train.txt": swapped(b"1,0", b"1_0,0")}, "line 4.*'1_0' is not a label number"),
    ("xc", {"train.txt": swapped(b" 2:2.5", " ٢:2.5".encode())}, "line 4.*is not a feature number"),
    ("xc", {"train.txt": swapped(b" 2:2.5", b" 2 2.5")}, "line 4.*has no colon"),
    ("xc", {"train.txt": swapped(b" 2:2.5", b" 2:")}, "line 4.*no number"),
    ("xc", {"train.txt": swapped(b" 2:2.5", b" 2:1e39")}, "line 4.*finite"),
    ("xc", {"train.txt": b""}, "train.txt, line 1.*empty"),
    ("xc", {"train.txt": b"1 5 4\n0\n"}, "train.txt, line 2.*no train row"),
    ("xc", {"test.txt": swapped(b"1 5 4", b"1 6 4")}, "test.txt, line 1.*6 features"),
    ("xc", {"train.txt": b"1 5 4\n0 1:1\n"}, "test.txt, line 2: .*occurs in training"),
    ("speech", {"validation_list.txt": b"no/eve_nohash_0.wav\n"}, "no/eve_nohash_0.wav is in the lists of both splits"),
    ("speech", {"testing_list.txt": b"eve_nohash_0.wav\n"}, "no existing test file: eve_nohash_0.wav in testing_list"),
    ("speech", {"testing_list.txt": None}, "in has no splits. Give testing_list.txt"),
]
"""Good files of a kind, of which some are changed, or removed."""

ALONE = [
    ("xc", with_lists(b"1\n11\n"), "line 2: there is no row 11"),
    ("xc", with_lists(b"0\n"), "line 1"),
    ("xc", with_lists(b""), "line 1"),
    ("xc", with_lists(b"1\n" + b"9" * 5000), "a_trSplit.txt, line 2: there is no row 9,999"),
    ("xc", with_lists(b"1\n2\n"), "a_data.txt has 1 row that two lists name, such as row 2"),
    ("xc", with_lists(b"1\n3\n", BLANK % 4), "a_data.txt, line 6: the header states.*ends after 3, and 2 blank lines"),
    ("xc", with_lists(b"1\n3\n", BLANK % 6), "a_data.txt, line 6: the header states"),
    ("csv", tables(train="<=50K >50K", test="<=50K. >50K."), "no training example has the test label <=50K."),
    ("csv", tables(train="0 1", test="no yes"), "has the test label no; training has 0, 1."),
    ("csv", tables(train="0 1", test="-1 -1"), "no training example has the test label -1"),
    ("csv", {"train.csv": b"1,\x002,a\n"}, "train.csv is not a table: line contains NUL.*plain UTF-8"),
    ("csv", tables(train="0 1", test="0.0 1.0"), "are whole numbers, such as 0, but the label 0.0 of another split"),
    ("images", pictures("cat/test/0.png", "dog/train/0.png"), "cat/test/0.png has a folder test/, but a split"),
    ("images", pictures("train/cat/val/0.png", "test/cat/0.png"), "train/cat/val/0.png has a folder val/"),
    ("images", pictures("Train/cat/0.png", "more/cat/0.png"), "more/cat/0.png is in neither"),
    ("images", pictures("Train/cat/0.png", "Test/0.png"), "Test/0.png is not in a class folder; it must be Test/CLASS"),
    ("images", pictures("seg_train/a/cat/0.png", "seg_test/a/cat/0.png"), "seg_test, seg_train are named like"),
    ("images", pictures("Training Set/a/0.png", "Test Set/a/0.png"), "folders Test Set, Training Set are named like"),
    ("images", pictures("images/0.png", "images/1.png"), "in has one class, images. Put the files of each class into"),
    (
        "images",
        pictures("train/a/0.png", "val/a/0.png", "val/b/0.png"),
        "val/b/0.png is of class b, which train/ lacks",
    ),
    ("images", pictures("train/a/0.png", "train/b/0.png"), "has no test examples"),
    ("images", pictures("train/n/images/0.png", "val/images/0.png"), "is of class images, which .*annotations"),
    ("text", {"a.txt": b"one\0two"}, "1 of 1 documents cannot be read.*a.txt .it has a byte 0, which is reserved"),
    ("text", {"a.txt": b""}, "has no text: every file is empty"),
    ("text", {"a.jsonl": b'{"text": "x"}\n{"txt": "y"}'}, "a.jsonl, line 2 has no text under 'text'; it has txt"),
    ("text", {"a.jsonl": b'{"text": "x"}\n{"text": null}'}, "a.jsonl, line 2: its text is null, not text"),
    ("text", {"a.jsonl": b'{"text": "\xff"}'}, "a.jsonl, line 1 is not JSON"),
    ("text", {"a.jsonl": b"[" * 100_000}, "a.jsonl, line 1 is not JSON"),
    ("text", {"a.gz": gzip.compress(b"text" * 99)[:-9]}, "in: a.gz cannot be read: Compressed file ended before"),
    ("text", {"train/a": b"x", "test/b": b"y", "README": b"z"}, "has train/ and test/, but README is in neither"),
    ("text", {"train/a": b"x", "test/b": b""}, "has no test documents"),
]
"""All files of a source."""


def require_refused(tmp_path, kind, source, message, **options):
    with pytest.raises(DataError, match=message) as refused:
        prepare(kind, source, tmp_path / "data.h5", **options)
    assert "\n" not in str(refused.value) and not (tmp_path / "data.h5").exists()


@pytest.mark.parametrize("kind, changes, message", CHANGED)
def test_a_source_with_a_bad_file_is_refused(tmp_path, monkeypatch, kind, changes, message):
    monkeypatch.chdir(tmp_path)
    folder = SOURCES[kind](tmp_path / "in")
    for name, content in changes.items():
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content((folder / name).read_bytes()) if callable(content) else content)
    require_refused(tmp_path, KINDS.get(kind, kind), folder, message)
    assert not (tmp_path / "owned").exists(), "no code of a pickle runs"


@pytest.mark.parametrize("kind, files, message", ALONE)
def test_files_that_do_not_fit_together_are_refused(tmp_path, kind, files, message):
    require_refused(tmp_path, kind, write_files(tmp_path / "in", files), message)


@pytest.mark.parametrize(
    "files, tokenizer, message",
    [
        ({"a.txt": b"caf\xe9"}, "tokenizer.json", "1 of 1 documents cannot.*it is not UTF-8, as this tokeni"),
        ({"a.jsonl": b'{"text": "\\ud800"}'}, "tokenizer.json", "a.jsonl, line 1 .it is not UTF-8"),
        ({"a.txt": b"x"}, "wordpiece", "tokenizer wordpiece is not bytes or a file"),
        ({"a.txt": b"{}"}, "in/a.txt", "a.txt is not a tokenizer: .*Give a tokenizer"),
    ],
)
def test_text_that_a_tokenizer_does_not_take_and_what_is_no_tokenizer_are_refused(
    tmp_path, monkeypatch, files, tokenizer, message
):
    monkeypatch.chdir(tmp_path)
    make_tokenizer(tmp_path / "tokenizer.json")
    require_refused(tmp_path, "text", write_files(tmp_path / "in", files), message, tokenizer=tokenizer)
