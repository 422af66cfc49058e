"""Text as a stream of tokens; an example is a window of it. Training moves the windows at
random."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from istmpi import rng
from istmpi.data.batch import Batch
from istmpi.data.dataset import Dataset, Split, checksum_rows, draw_sample
from istmpi.data.text.tokenizer import Bytes, Tokenizer, TokenizerFile
from istmpi.errors import ConfigError, DataError

if TYPE_CHECKING:
    from istmpi.data.hdf5 import Guard, Opened, PreparedFile

WINDOW = 128
SAMPLES = 1024
SAMPLE_TOKENS = 4096


@dataclass(eq=False)
class TextSplit(Split):
    """The documents of a split as one stream of tokens.

    Inputs of example i are the ``length`` tokens from ``i * length`` on; targets are the tokens one
    place later.
    """

    tokens: np.ndarray
    """``[n]`` of uint8, uint16 or uint32."""
    length: int = 1
    guard: Guard | None = None
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
            # The last window has no token behind it to move to.
            starts = np.minimum(starts + drawn.astype(np.int64), len(self.tokens) - self.length - 1)
        if self.guard is not None:
            # One more token than inputs: the last target.
            self.guard(starts, self.length + 1)
        windows = np.lib.stride_tricks.sliding_window_view(self.tokens, self.length + 1)[starts]
        inputs = torch.from_numpy(windows[:, :-1].astype(np.int64))
        targets = torch.from_numpy(windows[:, 1:].astype(np.int64))
        return Batch((inputs,), targets, len(starts))

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def hold_out(self, fraction: float, seed: int) -> tuple[TextSplit, TextSplit]:
        """Return the beginning and end of the stream; ``seed`` has no effect. ConfigError if a part
        has no window."""
        # Windows overlap when they move, so random windows would share tokens with training.
        cut = len(self.tokens) - round(len(self.tokens) * fraction)
        train = replace(self, tokens=self.tokens[:cut])
        validation = replace(self, tokens=self.tokens[cut:], guard=_shift_guard(self.guard, cut))
        if min(len(train), len(validation)) < 1:
            raise ConfigError(
                f"data.validation = {fraction} of {len(self.tokens):,} tokens leaves {len(train)} "
                f"windows of {self.length:,} for training and {len(validation)} for validation; "
                "both need at least one window. Give another fraction, or lower data.length."
            )
        return train, validation

    @cached_property
    def labels_checksum(self) -> int:
        return 0

    @cached_property
    def features_checksum(self) -> int:
        count = len(self.tokens)
        starts = np.arange(0, count, SAMPLE_TOKENS)
        if count > SAMPLES * SAMPLE_TOKENS:
            starts = draw_sample(count - SAMPLE_TOKENS + 1, SAMPLES)

        def read(part: np.ndarray) -> Iterator[np.ndarray]:
            for start in part:
                # One type for all, so that a larger vocabulary does not change the checksum.
                yield self.tokens[start : start + SAMPLE_TOKENS].astype("<u4")

        return checksum_rows(starts, read)


def _shift_guard(guard: Guard | None, by: int) -> Guard | None:
    """Return a guard for the tokens from ``by`` on, of a ``guard`` for all tokens."""
    if guard is None:
        return None
    return lambda starts, length: guard(starts + by, length)


def cut_windows(data: Dataset, length: int) -> Dataset:
    if not isinstance(data.train, TextSplit):
        return data
    splits = {}
    for name, split in data.splits.items():
        assert isinstance(split, TextSplit), split
        windows = replace(split, length=length)
        if not len(windows):
            raise DataError(
                f"{data.source}: the {name} documents have {len(split.tokens):,} tokens, but a "
                f"window of {length:,} needs {length + 1:,}, including the target. Prepare more "
                "text, or lower data.length."
            )
        splits[name] = windows
    return replace(data, splits=splits, shape=(length,))


def open_text(file: PreparedFile) -> Opened:
    splits = {}
    for split in file.splits:
        tokens, guard = file.map_guarded(f"{split}/tokens")
        splits[split] = TextSplit(tokens, guard=guard)
    tokenizer: Tokenizer = Bytes()
    if file.has("tokenizer"):
        json = file.map("tokenizer").tobytes().decode("utf-8")
        sizes = (file.outputs, file.whole("end"))
        tokenizer = TokenizerFile(json, f"the tokenizer of {file.text('source')}", sizes)
    bytes_per_token = file.whole("test_bytes") / len(splits["test"].tokens)
    return splits, {"shape": (1,), "bytes_per_token": bytes_per_token, "tokenizer": tokenizer}
