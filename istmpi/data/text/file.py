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

_LOOKED_AT = 2**20


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
    vocabulary, end = file.outputs, int(file.attribute("end"))
    if not 0 <= end < vocabulary <= 2**32:
        raise file.error(f"has {vocabulary} tokens, of which {end} ends a document; prepare it again")
    dtype, splits, nbytes = smallest_type(vocabulary), {}, {}
    for split in file.splits:
        path, count, nbytes[split] = f"{split}/tokens", int(file.attribute(split)), file.attribute(f"{split}_bytes")
        if count < 1 or nbytes[split] < 1:
            raise file.error(f"has {count} {split} tokens of {nbytes[split]} bytes; it needs some. Prepare it again")
        tokens = file.mapped(path, (count,), (dtype,))
        # A look at the first is cheap and finds what another program filled wrongly; all would be a full read.
        if (largest := int(tokens[:_LOOKED_AT].max())) >= vocabulary:
            raise file.error(f"has token {largest} in {path}, but a vocabulary of {vocabulary}; prepare it again")
        splits[split] = TextSplit(tokens, guard=file.guard(path, tokens))
    source, tokenizer = file.text("source"), Bytes()
    if length := int(file.attribute("tokenizer")):
        json = file.mapped("tokenizer", (length,), (np.dtype("u1"),)).tobytes().decode("utf-8")
        tokenizer = TokenizerFile(json, f"the tokenizer of {source}", (vocabulary, end))
    elif (vocabulary, end) != (Bytes.vocabulary, Bytes.end):
        raise file.error(f"has {vocabulary} tokens and no tokenizer; prepare it again")
    a_token = int(nbytes["test"]) / len(splits["test"].tokens)
    more = {"bytes_per_token": a_token, "tokenizer": tokenizer}
    return Dataset(splits, NEXT_TOKEN, (1,), vocabulary, None, source, file.text("kind"), **more)
