"""Tokenizers: bytes as tokens, or the tokens of a tokenizer.json of Hugging Face's `tokenizers`."""

import codecs
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.errors import DataError
from istmpi.foreign import JSON_BYTES, content, is_file, reading, reason
from istmpi.optional import optional

BYTES = "bytes"
ENDS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end▁of▁sentence|>",
    "</s>",
    "<eos>",
    "[EOS]",
    "[SEP]",
)
PIECE = 2**20
"""The most characters that are encoded at a time."""
_AGAIN = "Give a tokenizer.json of the tokenizers library."


class NoTextError(Exception):
    """A document that a tokenizer cannot encode; the message is the reason."""


MOST_TOKENS = 2**24


class Tokenizer(ABC):
    """Turns text into tokens below ``vocabulary``, and back; the token ``end`` follows every
    document."""

    json: str = ""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """The number of tokens."""

    @property
    @abstractmethod
    def end(self) -> int:
        """The token after a document."""

    def __str__(self) -> str:
        if not self.json:
            return BYTES
        return f"tokenizer {zlib.crc32(self.json.encode()):08x}"

    @abstractmethod
    def read_tokens(self, pieces: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Yield a document's tokens without the end token. NoTextError if the document cannot be
        encoded."""

    @abstractmethod
    def decode(self, tokens: Iterable[int]) -> bytes:
        """Return the text of tokens; end tokens are ignored."""

    def encode(self, text: bytes) -> np.ndarray:
        return np.concatenate([np.zeros(0, np.uint8), *self.read_tokens([text])])


class Bytes(Tokenizer):
    """A tokenizer of bytes. Byte 0 is the end token, so no document may contain it."""

    vocabulary = 256
    end = 0

    def read_tokens(self, pieces: Iterable[bytes]) -> Iterator[np.ndarray]:
        for piece in pieces:
            if b"\0" in piece:
                raise NoTextError("it has a byte 0, which is reserved for the end of a document")
            yield np.frombuffer(piece, np.uint8)

    def decode(self, tokens: Iterable[int]) -> bytes:
        return bytes(token for token in tokens if token != self.end)


class TokenizerFile(Tokenizer):
    """The tokenizer of a tokenizer.json; texts must be UTF-8.

    The name of a special token in a text is encoded as text. A long document is encoded in pieces,
    cut between lines if possible. If the vocabulary has none of `ENDS`, an end token is added.
    """

    def __init__(self, json: str, source: str, sizes: tuple[int, int] | None = None):
        """``sizes``: the vocabulary and the end token, if known; the library is then not needed."""
        self.json = json
        self._source = source
        self._known = sizes

    @property
    def vocabulary(self) -> int:
        return self._sizes[0]

    @property
    def end(self) -> int:
        return self._sizes[1]

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        if self._known:
            return self._known
        tokens = self._library.get_vocab(with_added_tokens=True)
        if not tokens:
            raise DataError(f"{self._source} is not a tokenizer: it has no tokens. {_AGAIN}")
        count = max(tokens.values()) + 1
        # A damaged file may have any number, and a network of that many outputs no memory.
        if count > MOST_TOKENS:
            raise DataError(
                f"{self._source}: its largest token is {count - 1:,}; at most {MOST_TOKENS - 1:,} "
                f"are allowed. {_AGAIN}"
            )
        end = next((tokens[name] for name in ENDS if name in tokens), count)
        return max(count, end + 1), end

    @cached_property
    def _library(self) -> Any:
        tokenizers = optional("tokenizers", "tokenizers", "text in a tokenizer file's tokens")
        # The library raises only plain Exception.
        with reading(f"{self._source} is not a tokenizer", _AGAIN, Exception):
            tokenizer = tokenizers.Tokenizer.from_str(self.json)
            # A file may state lengths for another model.
            tokenizer.no_padding()
            tokenizer.no_truncation()
            tokenizer.encode_special_tokens = True
        return tokenizer

    def read_tokens(self, pieces: Iterable[bytes]) -> Iterator[np.ndarray]:
        # A character of several bytes may lie across two pieces.
        decoder = codecs.getincrementaldecoder("utf-8")()
        text = ""
        for piece in pieces:
            text += _decode(decoder, piece)
            while len(text) > PIECE:
                cut = text.rfind("\n", 0, PIECE) + 1 or PIECE
                yield self._encode_piece(text[:cut])
                text = text[cut:]
        yield self._encode_piece(text + _decode(decoder, b"", final=True))

    def _encode_piece(self, text: str) -> np.ndarray:
        library = self._library
        try:
            # Documents end with `end` alone.
            return np.array(library.encode(text, add_special_tokens=False).ids, np.uint32)
        except Exception as error:  # the library raises only plain Exception
            raise NoTextError(f"the tokenizer cannot encode it: {reason(error)}") from error

    def decode(self, tokens: Iterable[int]) -> bytes:
        kept = [int(token) for token in tokens if token != self.end]
        return self._library.decode(kept, skip_special_tokens=False).encode("utf-8")


def _decode(decoder: codecs.IncrementalDecoder, piece: bytes, final: bool = False) -> str:
    try:
        return decoder.decode(piece, final)
    except UnicodeDecodeError as error:
        raise NoTextError("it is not UTF-8, as this tokenizer needs") from error


def open_tokenizer(name: str) -> Tokenizer:
    if name == BYTES:
        return Bytes()
    if not is_file(Path(name)):
        raise DataError(
            f"tokenizer {name} is not {BYTES} or a file. Give the path of a tokenizer.json."
        )
    with reading(f"{name} is not a tokenizer", _AGAIN, OSError, ValueError):
        return TokenizerFile(content(Path(name), JSON_BYTES).decode("utf-8"), name)
