"""Prepares documents, which are files of text or lines of .jsonl files, as one stream of tokens."""

import json
import os
import re
from array import array
from collections.abc import Collection, Iterable, Iterator

import numpy as np

from istmpi.data.archive import Archive, Stream, store
from istmpi.data.dataset import SPLITS
from istmpi.data.decoder import Decoder, Notes, split_of
from istmpi.data.holdout import ONE_IN_FIVE, held_out
from istmpi.data.text.tokenizer import BYTES, NoTextError, Tokenizer, open_tokenizer
from istmpi.data.writer import Material
from istmpi.errors import DataError
from istmpi.foreign import printable, reason
from istmpi.tasks import NEXT_TOKEN
from istmpi.units import counted

LINES = (".jsonl", ".jsonl.gz")
CUT = 0.9


def read(
    archive: Archive, decoder: Decoder, *, tokenizer: str = BYTES, key: str = "text"
) -> Material:
    """Read documents (files, or lines of .jsonl with the text at ``key``), and put an end token
    after each document."""
    documents = _Documents(decoder, open_tokenizer(tokenizer))
    splits, bad = splits_of(archive, decoder.notes), {}
    number_of = {name: number for number, name in enumerate(archive.names)}
    for done, stream in enumerate(archive.streams(archive.names), start=1):
        lines = stream.name.lower().endswith(LINES)
        for document, content in _texts(stream, key) if lines else [(stream.name, stream.pieces())]:
            try:
                documents.add(number_of[stream.name], content)
            except NoTextError as error:
                bad[document] = str(error)
        decoder.progress("reading", done, len(archive.names))
    if documents.empty:
        decoder.notes.leave_out(counted(documents.empty, "empty document"))
    decoder.refuse(archive, bad, len(documents) + len(bad), "documents")
    if not len(documents):
        raise DataError(
            f"{archive.path} has no text: every file is empty. Give a file, a folder or a .tar with text."
        )
    return documents.corpus(archive, splits, sorted(bad))


def splits_of(archive: Archive, notes: Notes) -> list[str]:
    """Return the split of every file; empty texts if the names show no splits.

    The first part of the paths that differs decides: a folder's name, or a word in a file's name.
    Without test files, validation becomes test. Raises DataError for a file outside the splits'
    folders.
    """
    paths = [name.split("/") for name in archive.names]
    depth = len(os.path.commonprefix([path[:-1] for path in paths]))
    parts = [path[depth] for path in paths]
    splits = [split_of(part) if len(path) > depth + 1 else "" for part, path in zip(parts, paths)]
    if not _are_splits(splits):
        splits = [
            _split_in(part) if len(path) == depth + 1 else "" for part, path in zip(parts, paths)
        ]
        if not _are_splits(splits) or "" in splits:
            if _are_splits(splits):
                notes.assume(
                    f"file names are not splits: {archive.names[splits.index('')]} names none"
                )
            return [""] * len(splits)
    if "" in splits:
        odd = archive.names[splits.index("")]
        raise DataError(
            f"{archive.path} has train/ and test/, but {odd} is in neither. Move it into one or remove it."
        )
    if "test" not in splits:
        notes.assume("validation documents are used for testing: there are no others")
    return [split if "test" in splits or split == "train" else "test" for split in splits]


def _are_splits(splits: Collection[str]) -> bool:
    return "train" in splits and ("test" in splits or "validation" in splits)


def _split_in(file: str) -> str:
    splits = {split_of(word) for word in re.split("[^A-Za-z]+", file)} - {""}
    return splits.pop() if len(splits) == 1 else ""


def _texts(stream: Stream, key: str) -> Iterator[tuple[str, Iterable[bytes]]]:
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
        if not isinstance(tree, dict) or key not in tree:
            keys = printable(", ".join(list(tree)[:8])) if isinstance(tree, dict) else ""
            raise DataError(
                f"{where} has no text under {key!r}; it has {keys or 'no keys'}. Give its key with --key."
            )
        if not isinstance(tree[key], str):
            raise DataError(
                f"{where}: its {key} is {json.dumps(tree[key])[:40]}, not text. Remove the line, or give another --key."
            )
        # Half of a UTF-16 pair is not valid UTF-8; a tokenizer that needs UTF-8 refuses these
        # bytes.
        yield where, [tree[key].encode("utf-8", errors="surrogatepass")]


class _Documents:
    """The tokens of documents in a temporary file, and the position of each document."""

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer):
        self._decoder, self._tokenizer = decoder, tokenizer
        self.empty = self._end = 0
        self._file, self._start, self._bytes = array("q"), array("q"), array("q")
        self._scratch, self._dtype = decoder.scratch(), smallest_type(tokenizer.vocabulary)

    def __len__(self) -> int:
        return len(self._start)

    def add(self, file: int, pieces: Iterable[bytes]) -> None:
        """Add a document of a file. If the document is not text, raises NoTextError and adds
        nothing."""
        start, nbytes = self._end, 0

        def measured() -> Iterator[bytes]:
            nonlocal nbytes
            for piece in pieces:
                nbytes += len(piece)
                yield piece

        try:
            for tokens in self._tokenizer.tokens_of(measured()):
                self._store(tokens)
        except NoTextError:
            self._end = start
            raise
        if nbytes:
            self._store(np.array([self._tokenizer.end]))
            for column, value in ((self._file, file), (self._start, start), (self._bytes, nbytes)):
                column.append(value)
        self.empty += not nbytes

    def _store(self, tokens: np.ndarray) -> None:
        content = np.ascontiguousarray(tokens, self._dtype)
        store(self._scratch, content, self._end * self._dtype.itemsize, self._decoder.folder)
        self._end += len(tokens)

    def corpus(self, archive: Archive, splits: list[str], skipped: list[str]) -> Material:
        order = np.argsort(self._file, kind="stable")
        starts, nbytes = np.array(self._start)[order], np.array(self._bytes)[order]
        tokens = np.diff(np.array(self._start), append=self._end)[order]
        if not any(splits) and len(self) == 1:
            self._decoder.split = "the end of the only document is used for testing"
            at, total, facts = max(int(self._end * CUT), 1), int(nbytes[0]), {}
            test = max(round(total * (self._end - at) / self._end), 1)
            runs = {"train": ([0], [at]), "test": ([at], [self._end - at])}
            sizes = {"train": max(total - test, 1), "test": test}
        else:
            if any(splits):
                number_of = np.array([SPLITS.index(split) for split in splits])[
                    np.array(self._file)[order]
                ]
            else:  # by the names, so that the order in a tar file does not matter
                self._decoder.split = f"of the documents {ONE_IN_FIVE}"
                number_of = held_out(len(self)).astype(np.int64)
            chosen = {
                split: number_of == number
                for number, split in enumerate(SPLITS)
                if number in number_of
            }
            for split in ("train", "test"):
                if split not in chosen:
                    raise DataError(
                        f"{archive.path} has no {split} documents; a data set needs at least one."
                    )
            runs = {split: (starts[rows], tokens[rows]) for split, rows in chosen.items()}
            sizes = {split: int(nbytes[rows].sum()) for split, rows in chosen.items()}
            facts = {f"{split} documents": int(rows.sum()) for split, rows in chosen.items()}
        of_split = {
            split: _Tokens(self._scratch, self._dtype, *map(np.array, run))
            for split, run in runs.items()
        }
        datasets = {f"{split}/tokens": tokens for split, tokens in of_split.items()}
        counts = {split: tokens.shape[0] for split, tokens in of_split.items()}
        tokenizer, vocabulary = self._tokenizer.json.encode(), self._tokenizer.vocabulary
        attributes = {"end": self._tokenizer.end, "tokenizer": len(tokenizer)}
        attributes |= {f"{split}_bytes": count for split, count in sizes.items()}
        if tokenizer:
            datasets["tokenizer"] = np.frombuffer(tokenizer, np.uint8)
        of_text = archive.source, NEXT_TOKEN, (), vocabulary, None, counts, attributes, datasets
        return Material(*of_text, skipped, {"vocabulary": vocabulary, **facts})


class _Tokens:
    """An array of joined runs of tokens in a scratch file; a slice is read from the file."""

    def __init__(self, scratch: int, dtype: np.dtype, starts: np.ndarray, counts: np.ndarray):
        self._scratch, self._starts, self._ends = scratch, starts, np.cumsum(counts)
        self.dtype, self.shape = dtype, (int(self._ends[-1]),)

    def __getitem__(self, rows: slice) -> np.ndarray:
        out, at = np.empty(rows.stop - rows.start, self.dtype), rows.start
        for run in range(int(np.searchsorted(self._ends, at, side="right")), len(self._ends)):
            if at == rows.stop:
                break
            end = min(int(self._ends[run]), rows.stop)
            place = int(self._starts[run]) + at - int(self._ends[run - 1] if run else 0)
            os.preadv(
                self._scratch,
                [out[at - rows.start : end - rows.start]],
                place * self.dtype.itemsize,
            )
            at = end
        return out


def smallest_type(vocabulary: int) -> np.dtype:
    return next(
        dtype
        for dtype in map(np.dtype, ("u1", "<u2", "<u4"))
        if vocabulary <= np.iinfo(dtype).max + 1
    )
