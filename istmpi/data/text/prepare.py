"""Prepares documents, which are files of text or lines of .jsonl files, as one stream of tokens."""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from istmpi.data.archive import Archive, Stream, store
from istmpi.data.dataset import SPLITS
from istmpi.data.decoder import Decoder, Notes, recognise_split
from istmpi.data.holdout import ONE_IN_FIVE, draw_test
from istmpi.data.text.tokenizer import BYTES, NoTextError, Tokenizer, open_tokenizer
from istmpi.data.writer import Material
from istmpi.errors import DataError
from istmpi.foreign import printable, reason
from istmpi.tasks import NEXT_TOKEN
from istmpi.units import counted

LINES = (".jsonl", ".jsonl.gz")
CUT = 0.9
"""The share of a single document that is for training; the end is for testing."""
LEAST_TESTED = 0.1
MOST_TESTED = 0.4
"""A drawn test split with a share of the tokens outside these bounds is noted."""


def read(
    archive: Archive, decoder: Decoder, *, tokenizer: str = BYTES, key: str = "text"
) -> Material:
    """Read documents (files, or lines of .jsonl with the text at ``key``), and put an end token
    after each document."""
    documents = _Documents(decoder, open_tokenizer(tokenizer))
    splits = find_splits(archive, decoder.notes)
    numbers = {name: number for number, name in enumerate(archive.names)}
    bad: dict[str, str] = {}
    for done, stream in enumerate(archive.streams(archive.names), start=1):
        # Pieces, and not whole texts: a document may be larger than memory.
        for document, content in _split_documents(stream, key):
            try:
                documents.add(numbers[stream.name], content)
            except NoTextError as error:
                bad[document] = str(error)
        decoder.progress("reading", done, len(archive.names))
    if documents.empty:
        decoder.notes.leave_out(counted(documents.empty, "empty document"))
    decoder.require_few(archive, bad, len(documents) + len(bad), "documents")
    if not len(documents):
        raise DataError(
            f"{archive.path} has no text: every file is empty. Give a file, a folder or a .tar "
            "with text."
        )
    corpus = documents.divide(archive, splits)
    return documents.build_material(archive, corpus, sorted(bad))


def find_splits(archive: Archive, notes: Notes) -> list[str]:
    """Return the split of every file; empty texts if the names show no splits.

    The first part of the paths that differs decides: a folder's name, or a word in a file's name.
    Without test files, validation becomes test. Raises DataError for a file outside the splits'
    folders.
    """
    paths = [name.split("/") for name in archive.names]
    # A folder that all files share says nothing.
    depth = len(os.path.commonprefix([path[:-1] for path in paths]))
    splits = [_recognise_folder(path, depth) for path in paths]
    if not _are_splits(splits):
        splits = [_recognise_file(path, depth) for path in paths]
        if not _are_splits(splits):
            return [""] * len(splits)
        if "" in splits:
            name = archive.names[splits.index("")]
            notes.assume(f"file names are not splits: {name} names none")
            return [""] * len(splits)
    if "" in splits:
        name = archive.names[splits.index("")]
        raise DataError(
            f"{archive.path} has train/ and test/, but {name} is in neither. Move it into one or "
            "remove it."
        )
    if "test" not in splits:
        notes.assume("validation documents are used for testing: there are no others")
    return [split if "test" in splits or split == "train" else "test" for split in splits]


def _are_splits(splits: Collection[str]) -> bool:
    return "train" in splits and ("test" in splits or "validation" in splits)


def _recognise_folder(path: list[str], depth: int) -> str:
    """Return the split that the folder ``path[depth]`` means; "" for a file or another name."""
    if len(path) == depth + 1:
        return ""
    return recognise_split(path[depth])


def _recognise_file(path: list[str], depth: int) -> str:
    """Return the split that a word of the file ``path[depth]`` means; "" for a folder, for several
    splits or none."""
    if len(path) > depth + 1:
        return ""
    splits = {recognise_split(word) for word in re.split("[^A-Za-z]+", path[depth])} - {""}
    if len(splits) != 1:
        return ""
    return splits.pop()


def _split_documents(stream: Stream, key: str) -> Iterator[tuple[str, Iterable[bytes]]]:
    """Yield the names and the texts of a file's documents: of the whole file, or of its lines."""
    if not stream.name.lower().endswith(LINES):
        yield stream.name, stream.pieces()
        return
    for number, line in enumerate(stream.lines(), start=1):
        where = f"{stream.name}, line {number}"
        if not line.strip():
            yield where, []
            continue
        try:
            tree = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{where} is not JSON ({reason(error)}). Correct it, or rename the file to .txt."
            ) from None
        keys = list(tree) if isinstance(tree, dict) else []
        if key not in keys:
            shown = printable(", ".join(keys[:8])) or "no keys"
            raise DataError(
                f"{where} has no text under {key!r}; it has {shown}. Give its key with --key."
            )
        if not isinstance(tree[key], str):
            raise DataError(
                f"{where}: its {key} is {json.dumps(tree[key])[:40]}, not text. Remove the line, "
                "or give another --key."
            )
        # Half of a UTF-16 pair is not valid UTF-8; a tokenizer that needs UTF-8 refuses these
        # bytes.
        yield where, [tree[key].encode("utf-8", errors="surrogatepass")]


@dataclass(frozen=True)
class _Part:
    """The documents of a split, as runs of the tokens in a temporary file."""

    starts: np.ndarray
    counts: np.ndarray
    """The number of tokens of each run."""
    nbytes: int
    """The bytes of the text."""


class _Documents:
    """The tokens of documents in a temporary file, and the position of each document."""

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer):
        self._decoder = decoder
        self._tokenizer = tokenizer
        self.empty = 0
        """The number of documents without text, which are left out."""
        self._end = 0
        self._file = array("q")
        self._start = array("q")
        self._bytes = array("q")
        self._scratch = decoder.open_scratch()
        self._dtype = choose_type(tokenizer.vocabulary)

    def __len__(self) -> int:
        return len(self._start)

    def add(self, file: int, pieces: Iterable[bytes]) -> None:
        """Add a document of a file. If the document is not text, raises NoTextError and adds
        nothing."""
        start = self._end
        nbytes = 0

        # The tokenizer takes the pieces; their bytes are counted on the way.
        def measure() -> Iterator[bytes]:
            nonlocal nbytes
            for piece in pieces:
                nbytes += len(piece)
                yield piece

        try:
            for tokens in self._tokenizer.read_tokens(measure()):
                self._store(tokens)
        except NoTextError:
            # The next document overwrites the tokens of this one.
            self._end = start
            raise
        if not nbytes:
            self.empty += 1
            return
        self._store(np.array([self._tokenizer.end]))
        self._file.append(file)
        self._start.append(start)
        self._bytes.append(nbytes)

    def _store(self, tokens: np.ndarray) -> None:
        content = np.ascontiguousarray(tokens, self._dtype)
        store(self._scratch, content.data, self._end * self._dtype.itemsize, self._decoder.folder)
        self._end += len(tokens)

    def divide(self, archive: Archive, splits: list[str]) -> dict[str, _Part]:
        """Return the documents of each split; ``splits``: the split of each file, or empty texts.

        Raises DataError if train or test has none.
        """
        if not any(splits) and len(self) == 1:
            self._decoder.split = "the end of the only document is used for testing"
            return self._cut_document()
        # By the names of files, so that their order in a tar file does not matter.
        order = np.argsort(self._file, kind="stable")
        if any(splits):
            file_splits = np.array([SPLITS.index(split) for split in splits])
            split_numbers = file_splits[np.array(self._file)[order]]
        else:
            self._decoder.split = f"documents: {ONE_IN_FIVE}"
            split_numbers = draw_test(len(self)).astype(np.int64)
        starts = np.array(self._start)[order]
        # Documents follow each other in the scratch file without gaps.
        counts = np.diff(np.array(self._start), append=self._end)[order]
        nbytes = np.array(self._bytes)[order]
        parts = {}
        for number, split in enumerate(SPLITS):
            rows = split_numbers == number
            if rows.any():
                parts[split] = _Part(starts[rows], counts[rows], int(nbytes[rows].sum()))
            elif split != "validation":
                raise DataError(
                    f"{archive.path} has no {split} documents; a data set needs at least one."
                )
        if not any(splits):
            self._note_uneven(parts["test"].counts.sum() / self._end)
        return parts

    def _note_uneven(self, tested: float) -> None:
        """Note a drawn test split with an unusual share of the tokens: ``tested``."""
        if LEAST_TESTED <= tested <= MOST_TESTED:
            return
        self._decoder.notes.assume(
            f"documents differ in length: the drawn test documents have {tested:.0%} of the "
            "tokens; folders train/ and test/ give another split"
        )

    def _cut_document(self) -> dict[str, _Part]:
        """Return the beginning and the end of the only document."""
        cut = max(int(self._end * CUT), 1)
        nbytes = self._bytes[0]
        # The bytes of a token are not known: each part gets its share of them.
        tested = max(round(nbytes * (self._end - cut) / self._end), 1)
        train = _Part(np.array([0]), np.array([cut]), max(nbytes - tested, 1))
        test = _Part(np.array([cut]), np.array([self._end - cut]), tested)
        return {"train": train, "test": test}

    def build_material(
        self, archive: Archive, parts: dict[str, _Part], skipped: list[str]
    ) -> Material:
        tokenizer = self._tokenizer.json.encode()
        vocabulary = self._tokenizer.vocabulary
        attributes = {"end": self._tokenizer.end, "tokenizer": len(tokenizer)}
        datasets: dict[str, Any] = {}
        counts = {}
        facts: dict[str, Any] = {"vocabulary": vocabulary}
        for split, part in parts.items():
            tokens = _Tokens(self._scratch, self._dtype, part.starts, part.counts)
            datasets[f"{split}/tokens"] = tokens
            counts[split] = tokens.shape[0]
            attributes[f"{split}_bytes"] = part.nbytes
            if len(self) > 1:
                facts[f"{split} documents"] = len(part.starts)
        if tokenizer:
            datasets["tokenizer"] = np.frombuffer(tokenizer, np.uint8)
        return Material(
            source=archive.source,
            task=NEXT_TOKEN,
            shape=(),
            outputs=vocabulary,
            classes=None,
            counts=counts,
            attributes=attributes,
            datasets=datasets,
            skipped=skipped,
            facts=facts,
        )


class _Tokens:
    """An array of joined runs of tokens in a scratch file; a slice is read from the file."""

    def __init__(self, scratch: int, dtype: np.dtype, starts: np.ndarray, counts: np.ndarray):
        self._scratch = scratch
        self._starts = starts
        self._ends = np.cumsum(counts)
        self.dtype = dtype
        self.shape = (int(self._ends[-1]),)

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Read the tokens from ``rows.start`` to ``rows.stop`` of the joined runs."""
        tokens = np.empty(rows.stop - rows.start, self.dtype)
        done = rows.start
        # The writer reads in blocks that do not begin with a document.
        run = int(np.searchsorted(self._ends, done, side="right"))
        while done < rows.stop:
            end = min(int(self._ends[run]), rows.stop)
            run_start = int(self._ends[run - 1]) if run else 0
            place = int(self._starts[run]) + done - run_start
            part = tokens[done - rows.start : end - rows.start]
            os.preadv(self._scratch, [part.data], place * self.dtype.itemsize)
            done = end
            run += 1
        return tokens


def choose_type(vocabulary: int) -> np.dtype:
    """Return the smallest type that holds all tokens below ``vocabulary``."""
    if vocabulary <= 2**8:
        return np.dtype("u1")
    return np.dtype("<u2") if vocabulary <= 2**16 else np.dtype("<u4")
