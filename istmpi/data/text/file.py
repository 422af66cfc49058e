"""Text in a prepared file: a stream of tokens for each split, and what turns them into text again.

/                       attributes as of other data, task "next-token", outputs (the vocabulary), without a shape;
                        train, test[, validation] (tokens), train_bytes, ... (of the text that they were made from),
                        end (the token behind every document), tokenizer (bytes of the dataset; 0: none)
/tokenizer              a tokenizer.json; absent where tokens are bytes
/SPLIT/tokens           (tokens) uint8, uint16 or uint32, the smallest that the vocabulary fits in
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from istmpi.data.dataset import Dataset
from istmpi.data.text.split import TextSplit
from istmpi.data.text.tokenizer import Bytes, Tokenizer, TokenizerFile
from istmpi.data.writer import FileWriter
from istmpi.tasks import NEXT_TOKEN

if TYPE_CHECKING:
    from istmpi.data.hdf5 import PreparedFile

TOKENS = "tokens"
"""The dataset of a split."""
_LOOKED_AT = 2**20
"""Tokens at the start of a stream that are compared with the vocabulary when a file is opened."""


def smallest_type(vocabulary: int) -> np.dtype:
    """The unsigned type that holds the tokens of a vocabulary."""
    return next(dtype for dtype in map(np.dtype, ("u1", "<u2", "<u4")) if vocabulary <= np.iinfo(dtype).max + 1)


@dataclass(frozen=True)
class TextHeader:
    """What a prepared file says of text; ``tokens`` and ``bytes`` are counts per split."""

    kind: str
    source: str
    tokenizer: Tokenizer
    tokens: Mapping[str, int]
    bytes: Mapping[str, int]
    skipped: int = 0


class TextWriter(FileWriter):
    """A context in which streams of tokens become a prepared file."""

    def __init__(self, target: str | os.PathLike, header: TextHeader, force: bool = False):
        of = header.tokenizer
        attributes = {"kind": header.kind, "source": header.source, "task": NEXT_TOKEN, "outputs": of.vocabulary}
        attributes |= {"skipped": header.skipped, "end": of.end, "tokenizer": len(of.json.encode())}
        attributes |= {f"{split}_bytes": count for split, count in header.bytes.items()}
        super().__init__(target, attributes, header.tokens, force)
        self._tokenizer = of
        self._dtype = smallest_type(of.vocabulary)

    def append(self, split: str, tokens: np.ndarray) -> None:
        """Write the next tokens ``[n]`` of a split."""
        self._append(split, {TOKENS: np.ascontiguousarray(tokens, self._dtype)})

    def _allocate(self) -> None:
        if json := self._tokenizer.json.encode():
            self._whole("tokenizer", np.frombuffer(json, np.uint8))
        for split, count in self._counts.items():
            self._dataset(f"{split}/{TOKENS}", (count,), self._dtype)


def read_text(file: PreparedFile) -> Dataset:
    """The data set of an open prepared file of text, in windows of a single token; DataError for what is damaged."""
    vocabulary, end = int(file.attribute("outputs")), int(file.attribute("end"))
    if not 0 <= end < vocabulary <= 2**32:
        raise file.error(f"has {vocabulary} tokens, of which {end} ends a document; prepare it again")
    dtype, splits, nbytes = smallest_type(vocabulary), {}, {}
    for split in file.splits:
        count, nbytes[split] = int(file.attribute(split)), int(file.attribute(f"{split}_bytes"))
        if count < 1 or nbytes[split] < 1:
            raise file.error(f"has {count} {split} tokens of {nbytes[split]} bytes; it needs some. Prepare it again")
        tokens = file.mapped(f"{split}/{TOKENS}", (count,), (dtype,))
        # A look at the first is cheap and finds what another program filled wrongly; all would be a full read.
        if (most := int(tokens[:_LOOKED_AT].max())) >= vocabulary:
            raise file.error(
                f"has token {most} in {split}/{TOKENS}, but a vocabulary of {vocabulary}; prepare it again"
            )
        splits[split] = TextSplit(tokens, guard=file.guard(f"{split}/{TOKENS}", tokens))
    source = file.text("source")
    return Dataset(
        splits,
        NEXT_TOKEN,
        (1,),
        vocabulary,
        None,
        source,
        file.text("kind"),
        bytes_per_token=nbytes["test"] / len(splits["test"].tokens),
        tokenizer=_tokenizer(file, vocabulary, end, source),
    )


def _tokenizer(file: PreparedFile, vocabulary: int, end: int, source: str) -> Tokenizer:
    if not (length := int(file.attribute("tokenizer"))):
        if (vocabulary, end) != (Bytes.vocabulary, Bytes.end):
            raise file.error(f"has {vocabulary} tokens and no tokenizer; prepare it again")
        return Bytes()
    json = file.mapped("tokenizer", (length,), (np.dtype("u1"),)).tobytes().decode("utf-8")
    return TokenizerFile(json, f"the tokenizer of {source}", (vocabulary, end))
