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
from istmpi.exits import outputs_of
from istmpi.foreign import MEGABYTE, content, reading

PROMPT_BYTES = 64 * MEGABYTE
_INPUT = "-"

Following = Callable[[Sequence[int]], np.ndarray]


def prompt_of(source: str, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a file, or of standard input for ``-``; for an empty text, the token
    that ends a document.

    Raises DataError for text that cannot be read or encoded.
    """
    name = "standard input" if source == _INPUT else source
    with reading(
        f"{name} cannot be continued",
        "Give a prompt as a text file.",
        OSError,
        ValueError,
        NoTextError,
    ):
        text = sys.stdin.buffer.read() if source == _INPUT else content(Path(source), PROMPT_BYTES)
        return tokenizer.encode(text).tolist() or [tokenizer.end]


def continuation(
    following: Following,
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
    context, stream = list(prompt)[-window:], rng.key(seed, "generation")
    for number in range(count):
        if len(context) > window:
            context = context[-max(window // 2, 1) :]
        logits = following(context).astype(np.float64)
        if not np.isfinite(logits).all():
            raise DataError(
                f"the network's outputs are not finite after {number} new tokens. Train it again."
            )
        token = int(logits.argmax())
        if temperature > 0:
            odds = np.exp((logits - logits[token]) / temperature).cumsum()
            token = int(
                np.searchsorted(odds, rng.uniform(stream, number, 1)[0] * odds[-1], side="right")
            )
        if token == end:
            return
        yield token
        context.append(token)


def following(network: nn.Module, window: int) -> Following:
    """Return a function from up to ``window`` tokens to the next token's logits, with ``forward``'s
    cache, if any."""
    cache: list = []
    seen: list[int] = []

    def cached(tokens: Sequence[int]) -> torch.Tensor:
        if not len(seen) < len(tokens) or list(tokens[: len(seen)]) != seen:
            cache.clear()
            seen.clear()
        new = list(tokens[len(seen) :])
        seen.extend(new)
        return outputs_of(network(torch.tensor([new]), cache=cache))[-1][0, -1]

    def whole(tokens: Sequence[int]) -> torch.Tensor:
        filled = torch.zeros((1, window), dtype=torch.int64)
        filled[0, : len(tokens)] = torch.tensor(tokens)
        return outputs_of(network(filled))[-1][0, len(tokens) - 1]

    logits_of = cached if "cache" in inspect.signature(network.forward).parameters else whole

    @torch.no_grad()
    def logits(tokens: Sequence[int]) -> np.ndarray:
        return logits_of(tokens).numpy()

    return logits


def texts(tokens: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the text of tokens piece by piece, as they come. Bytes that are not UTF-8 are
    replaced."""
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
        text = _behind(last, new, tokenizer)
        if text and not text.endswith("\ufffd"):  # a character of several tokens, perhaps
            yield text
            last, new = new, []
    yield _behind(last, new, tokenizer)


def _behind(last: Sequence[int], new: Sequence[int], tokenizer: Tokenizer) -> str:
    before, text = (
        tokenizer.decode(tokens).decode("utf-8", "replace") for tokens in (last, [*last, *new])
    )
    return text[len(before) :]
