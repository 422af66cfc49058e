"""Text as a stream of tokens; an example is a window of it. Training moves the windows at
random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from istmpi import rng
from istmpi.data.batch import Batch
from istmpi.data.dataset import Dataset, Split, checksum_of
from istmpi.data.text.tokenizer import Bytes, TokenizerFile
from istmpi.errors import ConfigError, DataError
from istmpi.tasks import TASKS

if TYPE_CHECKING:
    from istmpi.data.hdf5 import Opened, PreparedFile

WINDOW = 128
SAMPLES, SAMPLE_TOKENS = 1024, 4096


@dataclass(eq=False)
class TextSplit(Split):
    """The documents of a split as one stream of tokens.

    Inputs of example i are the ``length`` tokens from ``i * length`` on; targets are the tokens one
    place later.
    """

    tokens: np.ndarray
    """``[n]`` of uint8, uint16 or uint32."""
    length: int = 1
    guard: Callable[[np.ndarray, int], None] | None = None
    """Verifies windows before they are read; called with the windows' starts and their length."""

    def __post_init__(self) -> None:
        self.tokens = self.tokens.view(np.ndarray)
        assert self.tokens.ndim == 1 and self.length > 0, (self.tokens.shape, self.length)

    def batch(self, indices: np.ndarray, key: int | None = None) -> Batch:
        """Return inputs and targets ``[b, length]`` int64; ``key`` moves each window by 0 to length
        - 1 tokens."""
        import torch

        starts = np.asarray(indices, np.int64) * self.length
        if key is not None:
            drawn = rng.bits(rng.key(key, "window"), 0, len(starts)) % np.uint64(self.length)
            starts = np.minimum(starts + drawn.astype(np.int64), len(self.tokens) - self.length - 1)
        if self.guard is not None:
            self.guard(starts, self.length + 1)
        windows = np.lib.stride_tricks.sliding_window_view(self.tokens, self.length + 1)[starts]
        inputs, targets = (
            torch.from_numpy(part.astype(np.int64)) for part in (windows[:, :-1], windows[:, 1:])
        )
        return Batch((inputs,), targets, len(starts))

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def hold_out(self, fraction: float, seed: int) -> tuple[TextSplit, TextSplit]:
        """Return the beginning and end of the stream; ``seed`` has no effect. ConfigError if a part
        has no window."""
        cut = len(self.tokens) - round(len(self.tokens) * fraction)
        guard = self.guard and (lambda starts, length: self.guard(starts + cut, length))
        train = replace(self, tokens=self.tokens[:cut])
        validation = replace(self, tokens=self.tokens[cut:], guard=guard)
        if min(len(train), len(validation)) < 1:
            raise ConfigError(
                f"data.validation = {fraction} of {len(self.tokens):,} tokens leaves {len(train)} windows of "
                f"{self.length:,} for training and {len(validation)} for validation; both need at least one "
                "window. Give another fraction, or lower data.length."
            )
        return train, validation

    @cached_property
    def labels_checksum(self) -> int:
        return 0

    @cached_property
    def features_checksum(self) -> int:
        starts, count = np.arange(0, len(self.tokens), SAMPLE_TOKENS), len(self.tokens)
        if count > SAMPLES * SAMPLE_TOKENS:
            drawn = rng.bits(rng.key("fingerprint"), 0, SAMPLES) % np.uint64(
                count - SAMPLE_TOKENS + 1
            )
            starts = np.sort(drawn).astype(np.int64)
        return checksum_of(
            starts, lambda part: (self.tokens[at : at + SAMPLE_TOKENS].astype("<u4") for at in part)
        )


def windowed(data: Dataset, length: int) -> Dataset:
    if not TASKS[data.task].of_tokens:
        return data
    splits = {name: replace(split, length=length) for name, split in data.splits.items()}
    for name, split in splits.items():
        if not len(split):
            raise DataError(
                f"{data.source}: the {name} documents have {len(split.tokens):,} tokens, but a window of "
                f"{length:,} needs {length + 1:,}, including the target. Prepare more text, or lower "
                "data.length."
            )
    return replace(data, splits=splits, shape=(length,))


def open_text(file: PreparedFile) -> Opened:
    parts = {split: file.guarded(f"{split}/tokens") for split in file.splits}
    splits = {split: TextSplit(tokens, guard=guard) for split, (tokens, guard) in parts.items()}
    tokenizer = Bytes()
    if file.has("tokenizer"):
        json, sizes = (
            file.mapped("tokenizer").tobytes().decode("utf-8"),
            (file.outputs, int(file.attribute("end"))),
        )
        tokenizer = TokenizerFile(json, f"the tokenizer of {file.text('source')}", sizes)
    a_token = int(file.attribute("test_bytes")) / len(splits["test"].tokens)
    return splits, {"shape": (1,), "bytes_per_token": a_token, "tokenizer": tokenizer}
