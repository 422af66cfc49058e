"""The continuation of a prompt, token by token."""

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
from istmpi.foreign import MEGABYTE, content, reading
from istmpi.outputs import take_last

PROMPT_BYTES = 64 * MEGABYTE
_INPUT = "-"

Predictor = Callable[[Sequence[int]], np.ndarray]
"""A function from tokens to the logits of the next token."""


def read_prompt(source: str, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a file, or of standard input for ``-``.

    An empty text gives the token that ends a document. Raises DataError for text that cannot be
    read or encoded.
    """
    name = "standard input" if source == _INPUT else source
    cure = "Give a prompt as a text file."
    with reading(f"{name} cannot be continued", cure, OSError, ValueError, NoTextError):
        if source == _INPUT:
            text = sys.stdin.buffer.read()
        else:
            text = content(Path(source), PROMPT_BYTES)
        return tokenizer.encode(text).tolist() or [tokenizer.end]


def continue_prompt(
    predict: Predictor,
    prompt: Sequence[int],
    window: int,
    end: int,
    count: int,
    temperature: float,
    seed: int,
) -> Iterator[int]:
    """Yield at most ``count`` tokens that follow a prompt, up to the ``end`` of its document.

    Each token is drawn by logits / temperature; temperature 0 takes the likeliest token. The draw
    depends only on the seed and the token's number. Text longer than the window is cut to its later
    half. Raises DataError for outputs that are not finite.
    """
    context = list(prompt)[-window:]
    stream = rng.key(seed, "generation")
    for number in range(count):
        if len(context) > window:
            context = context[-max(window // 2, 1) :]
        logits = predict(context).astype(np.float64)
        if not np.isfinite(logits).all():
            raise DataError(
                f"the network's outputs are not finite after {number} new tokens. Train it again."
            )
        token = int(logits.argmax())
        if temperature > 0:
            # Without the largest logit, no exponential is too large for a float.
            odds = np.exp((logits - logits[token]) / temperature).cumsum()
            draw = rng.uniform(stream, number, 1)[0] * odds[-1]
            token = int(np.searchsorted(odds, draw, side="right"))
        if token == end:
            return
        yield token
        context.append(token)


def make_predictor(network: nn.Module, window: int) -> Predictor:
    """Return a function from up to ``window`` tokens to the next token's logits.

    It uses the cache of ``forward``, if that has one.
    """
    cache: list = []
    cached_tokens: list[int] = []

    def cached(tokens: Sequence[int]) -> torch.Tensor:
        # The cache holds the tokens of the last call; a cut text begins anew.
        done = len(cached_tokens)
        if not done < len(tokens) or list(tokens[:done]) != cached_tokens:
            cache.clear()
            cached_tokens.clear()
        new = list(tokens[len(cached_tokens) :])
        cached_tokens.extend(new)
        return take_last(network(torch.tensor([new]), cache=cache))[0, -1]

    def whole(tokens: Sequence[int]) -> torch.Tensor:
        # Tokens behind the last one do not change its logits, so any may fill the window.
        padded = torch.zeros((1, window), dtype=torch.int64)
        padded[0, : len(tokens)] = torch.tensor(tokens)
        return take_last(network(padded))[0, len(tokens) - 1]

    has_cache = "cache" in inspect.signature(network.forward).parameters
    compute = cached if has_cache else whole

    @torch.no_grad()
    def logits(tokens: Sequence[int]) -> np.ndarray:
        return compute(tokens).numpy()

    return logits


def texts(tokens: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the text of tokens piece by piece, as they come.

    Bytes that are not UTF-8 are replaced.
    """
    if not tokenizer.json:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            yield decoder.decode(tokenizer.decode([token]))
        yield decoder.decode(b"", final=True)
        return
    # The text of a token depends on those before it, so the last ones are decoded again with the
    # new ones.
    last: list[int] = []
    new: list[int] = []
    for token in tokens:
        new.append(token)
        text = _decode_new(last, new, tokenizer)
        if text and not text.endswith("\ufffd"):  # a character of several tokens, perhaps
            yield text
            last = new
            new = []
    yield _decode_new(last, new, tokenizer)


def _decode_new(last: Sequence[int], new: Sequence[int], tokenizer: Tokenizer) -> str:
    """Return the text of new tokens behind the last ones."""
    before = tokenizer.decode(last).decode("utf-8", "replace")
    text = tokenizer.decode([*last, *new]).decode("utf-8", "replace")
    return text[len(before) :]
