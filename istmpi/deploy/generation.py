"""Text that goes on from a prompt, token by token."""

from __future__ import annotations

import codecs
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from istmpi import rng
from istmpi.data.text.tokenizer import NoTextError, Tokenizer
from istmpi.errors import DataError
from istmpi.exits import outputs_of
from istmpi.foreign import MEGABYTE, content, reading

PROMPT_BYTES = 64 * MEGABYTE
"""Of the largest prompt."""
_INPUT = "-"
"""The name of the standard input."""

Following = Callable[[Sequence[int]], np.ndarray]
"""The logits ``[vocabulary]`` of what follows some tokens."""


def prompt_of(source: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a file, or with ``-`` of the standard input; of an empty one the end of a document before.

    DataError for what cannot be read or encoded.
    """
    name = "the standard input" if source == _INPUT else source
    with reading(f"{name} cannot be continued", "Give a prompt, a file of text.", OSError, ValueError, NoTextError):
        text = sys.stdin.buffer.read() if source == _INPUT else content(Path(source), PROMPT_BYTES)
        return tokenizer.encode(text).tolist() or [tokenizer.end]


def continuation(
    following: Following, prompt: Sequence[int], window: int, end: int, count: int, temperature: float, seed: int
) -> Iterator[int]:
    """At most ``count`` tokens that follow a prompt; the ``end`` of its document ends it, and is not among them.

    Each is drawn with the odds that its logits, divided by the temperature, say; at 0 it is the likeliest. A draw is a
    function of the seed and of how many came before. Of a longer prompt the last ``window`` tokens count. Where text
    grows beyond the window the later half of it is kept, so that a cache serves for the tokens of half a window.
    """
    context, stream = list(prompt)[-window:], rng.key(seed, "generation")
    for number in range(count):
        if len(context) > window:
            context = context[-max(window // 2, 1) :]
        logits = following(context).astype(np.float64)
        if not np.isfinite(logits).all():
            raise DataError(f"the network's outputs are not finite behind {number} new tokens. Train it anew.")
        token = int(logits.argmax())
        if temperature > 0:
            odds = np.exp((logits - logits[token]) / temperature).cumsum()
            token = int(np.searchsorted(odds, rng.uniform(stream, number, 1)[0] * odds[-1], side="right"))
        if token == end:
            return
        yield token
        context.append(token)


def following(network: nn.Module, window: int) -> Following:
    """What follows some tokens, by a network for text: from its cache, where its ``forward`` takes one.

    Any other gets a whole window each time, filled up behind the tokens: what is there changes nothing before it.
    """
    return _Cached(network) if "cache" in inspect.signature(network.forward).parameters else _Whole(network, window)


class _Cached:
    """Goes on from a cache, which is begun anew where the tokens are not those of the last call and more."""

    def __init__(self, network: nn.Module):
        self._network = network
        self._cache: list = []
        self._seen: list[int] = []

    @torch.no_grad()
    def __call__(self, tokens: Sequence[int]) -> np.ndarray:
        seen = len(self._seen)
        if not seen < len(tokens) or list(tokens[:seen]) != self._seen:
            self._cache, seen = [], 0
        self._seen = list(tokens)
        return outputs_of(self._network(torch.tensor([tokens[seen:]]), cache=self._cache))[-1][0, -1].numpy()


class _Whole:
    """Reads a whole window each time."""

    def __init__(self, network: nn.Module, window: int):
        self._network, self._window = network, window

    @torch.no_grad()
    def __call__(self, tokens: Sequence[int]) -> np.ndarray:
        filled = torch.zeros((1, self._window), dtype=torch.int64)
        filled[0, : len(tokens)] = torch.tensor(tokens)
        return outputs_of(self._network(filled))[-1][0, len(tokens) - 1].numpy()


def texts(tokens: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """The text of tokens, piece by piece as they come; what is not UTF-8 is replaced."""
    if not tokenizer.json:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            yield decoder.decode(tokenizer.decode([token]))
        yield decoder.decode(b"", final=True)
        return
    # The text of a token depends on those before it: the last that were told are decoded again with those that are new.
    told: list[int] = []
    new: list[int] = []
    for token in tokens:
        new.append(token)
        text = _behind(told, new, tokenizer)
        if text and not text.endswith("\ufffd"):  # a character of several tokens, perhaps
            yield text
            told, new = new, []
    yield _behind(told, new, tokenizer)


def _behind(told: Sequence[int], new: Sequence[int], tokenizer: Tokenizer) -> str:
    before, text = (tokenizer.decode(tokens).decode("utf-8", "replace") for tokens in (told, [*told, *new]))
    return text[len(before) :]
