"""Text in a prepared file: a stream of tokens for each split, and the tokenizer that turns them into text again.

/                       attributes as of other data, task "next-token", outputs (the vocabulary), without a shape;
                        train, test[, validation] (tokens), train_bytes, ... (of the text that they were made from),
                        end (the token behind every document), tokenizer (bytes of the dataset; 0: none)
/tokenizer              a tokenizer.json; absent where tokens are bytes
/SPLIT/tokens           (tokens) uint8, uint16 or uint32, the smallest that the vocabulary fits in
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from istmpi.data.dataset import Dataset
from istmpi.data.text.split import TextSplit
from istmpi.data.text.tokenizer import Bytes, Tokenizer, TokenizerFile
from istmpi.data.writer import Material
from istmpi.tasks import NEXT_TOKEN

if TYPE_CHECKING:
    from istmpi.data.hdf5 import PreparedFile


def smallest_type(vocabulary: int) -> np.dtype:
    return next(dtype for dtype in map(np.dtype, ("u1", "<u2", "<u4")) if vocabulary <= np.iinfo(dtype).max + 1)


def material_of(
    source: str,
    tokenizer: Tokenizer,
    tokens: Mapping[str, Any],
    nbytes: Mapping[str, int],
    facts: Mapping[str, int],
    skipped: Sequence[str] = (),
) -> Material:
    """Return text on its way into a file: the ``tokens`` of each split, sliced as needed, of ``nbytes`` of text."""
    json, vocabulary = tokenizer.json.encode(), tokenizer.vocabulary
    attributes = {"end": tokenizer.end, "tokenizer": len(json)}
    attributes |= {f"{split}_bytes": count for split, count in nbytes.items()}
    datasets = {f"{split}/tokens": values for split, values in tokens.items()}
    if json:
        datasets["tokenizer"] = np.frombuffer(json, np.uint8)
    counts = {split: values.shape[0] for split, values in tokens.items()}
    of_text = "text", source, NEXT_TOKEN, (), vocabulary, None, counts, attributes, datasets
    return Material(*of_text, skipped, {"vocabulary": vocabulary, **facts})


def open_text(file: PreparedFile) -> Dataset:
    """Return the data set of an open prepared file, in windows of one token."""
    vocabulary, end, splits = file.outputs, int(file.attribute("end")), {}
    for split in file.splits:
        tokens = file.mapped(f"{split}/tokens")
        splits[split] = TextSplit(tokens, guard=file.guard(f"{split}/tokens", tokens))
    source, tokenizer = file.text("source"), Bytes()
    if file.has("tokenizer"):
        json = file.mapped("tokenizer").tobytes().decode("utf-8")
        tokenizer = TokenizerFile(json, f"the tokenizer of {source}", (vocabulary, end))
    a_token = int(file.attribute("test_bytes")) / len(splits["test"].tokens)
    more = {"bytes_per_token": a_token, "tokenizer": tokenizer}
    return Dataset(splits, NEXT_TOKEN, (1,), vocabulary, None, source, file.text("kind"), **more)
