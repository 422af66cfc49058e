"""Spoken words in the layout of Speech Commands (Warden, arXiv 1804.03209):
WORD/SPEAKER_nohash_INDEX.wav."""

import io
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.data.archive import Archive
from istmpi.data.class_list import class_list
from istmpi.data.decoder import (
    BadFileError,
    Block,
    Decoder,
    Example,
    Notes,
    Request,
    decode_files,
    ensure_test_examples,
    find_common_folder,
    read_class_folders,
)
from istmpi.data.dense.split import build_material
from istmpi.data.writer import Material
from istmpi.errors import DataError
from istmpi.foreign import MEGABYTE, printable, reason
from istmpi.optional import optional
from istmpi.tasks import CLASSIFICATION
from istmpi.units import counted

ENDINGS = (".wav", ".flac", ".ogg", ".opus", ".mp3")
LISTS = {"testing_list.txt": "test", "validation_list.txt": "validation"}
RATES = 1_000, 768_000
"""The lowest and the highest samples a second."""
MOST_SAMPLES = 2**26
MOST_BYTES = 128 * MEGABYTE
OFFSET = "offset"
LEAST_OFFSET = 0.01
"""The least offset that is removed, in standard deviations of a clip; a smaller offset hardly
changes features."""
CANCELLED = 0.01
"""A clip is refused if the mean of its channels has less than this share of the channels' mean
power."""
LOUDEST = 1e9
"""The limit of a sample, of which full scale is 1."""


def read(archive: Archive, decoder: Decoder, *, classes: str | None = None) -> Material:
    """Read clips as log-mel spectrograms [1, 128, 32] float32, each normalised separately; the
    classes are words. ``classes``: names with commas, see `class_list`."""
    listed = class_list(classes)
    examples = _find_examples(archive, decoder)
    decoder.notes.reading[OFFSET] = "removed"
    decode = ClipDecoder(decoder.notes.reading)
    with use_one_thread():
        splits, names, bad = decoder.run(archive, examples, decode, MOST_BYTES, listed)
    return build_material(
        source=archive.source,
        task=CLASSIFICATION,
        splits=splits,
        classes=names,
        dtype=np.dtype(np.float32),
        groups=1,
        skipped=bad,
    )


def examples(path: Path, request: Request) -> Iterator[Block]:
    decode = ClipDecoder(request.reading)
    return decode_files(path, request, ENDINGS, decode, MOST_BYTES, use_one_thread)


def use_one_thread() -> AbstractContextManager:
    """Return a context in which BLAS has one thread; several threads would wait for each other."""
    return optional("threadpoolctl", "threadpoolctl", "spectrograms").threadpool_limits(
        1, user_api="blas"
    )


def _find_examples(archive: Archive, decoder: Decoder) -> list[Example]:
    lists = {}
    for name in archive.names:
        split = LISTS.get(name.rpartition("/")[2])
        if split:
            lists[name] = split
    listed = "test" in lists.values()
    examples = read_class_folders(archive, ENDINGS, decoder.notes, splits=not listed)
    # Speech Commands has a folder _background_noise_, which is no word.
    examples = [example for example in examples if not example.label.startswith("_")]
    if not examples:
        raise DataError(f"{archive.path} has no WORD/SPEAKER_nohash_INDEX.wav. Give that layout.")
    if listed:
        names = [example.name for example in examples]
        splits = _read_lists(archive, lists, names, decoder.notes)
        return [replace(example, split=splits.get(example.name, "train")) for example in examples]
    if not examples[0].split:
        raise DataError(
            f"{archive.path} has no splits. Give testing_list.txt with a path WORD/FILE per line, "
            "or folders train/ and test/; no speaker may be in both."
        )
    return ensure_test_examples(archive, examples, decoder.notes)


def _read_lists(
    archive: Archive, lists: dict[str, str], names: list[str], notes: Notes
) -> dict[str, str]:
    """Return the splits of the files ``names`` that lists name; ``lists``: each list's split."""
    common = find_common_folder(names, splits=False)
    paths = {name.removeprefix(common): name for name in names}
    splits: dict[str, str] = {}
    missing: list[str] = []
    for list_name, content in archive.read(lists):
        for line in content.decode("utf-8-sig", errors="surrogateescape").splitlines():
            # Lists are made with find, which writes ./ before each name.
            path = printable(line.strip().removeprefix("./"))
            if not path:
                continue
            if path not in paths:
                missing.append(f"{path} in {list_name}")
            elif splits.setdefault(paths[path], lists[list_name]) != lists[list_name]:
                raise DataError(
                    f"{archive.path}: {path} is in the lists of both splits. Remove it from one."
                )
    if missing and "test" not in splits.values():
        raise DataError(
            f"{archive.path}: its lists name no existing test file: {missing[0]} is missing. Write "
            "WORD/FILE on each line."
        )
    if missing:
        notes.leave_out(
            f"{counted(len(missing), 'line')} of lists without a file, such as {min(missing)}"
        )
    return splits


class ClipDecoder:
    """A function of a file's name and content that returns its `log_mel` ``[1, BANDS, FRAMES]``.

    ``reading``: the conventions of the data. Raises BadFileError for an unreadable clip; DataError
    for another rate than that of the first clip.
    """

    def __init__(self, reading: Mapping[str, Any]):
        self._soundfile = optional("soundfile", "soundfile", "recordings")
        self._removes_offset = reading.get(OFFSET) == "removed"
        self._first: tuple[str, int] | None = None

    def __call__(self, name: str, content: bytes) -> np.ndarray:
        sound, rate = self._read(content)
        if len(sound) == 0:
            raise BadFileError("no samples")
        # Not ">=": NaN fails every comparison.
        if not np.abs(sound).max() < LOUDEST:
            raise BadFileError("samples that are not finite, or far too large")
        self._first = self._first or (name, rate)
        first, first_rate = self._first
        # Windows of a second would have other frequencies.
        if rate != first_rate:
            raise DataError(
                f"{name} has {rate} Hz but {first} has {first_rate}; resample them to the same "
                "rate first."
            )
        clip = sound.mean(axis=1)
        # The mean of such channels is silence, and the word is lost.
        if clip.var(dtype=np.float64) < CANCELLED * sound.var(axis=0, dtype=np.float64).mean():
            raise BadFileError("channels that cancel each other: they are in opposite phase")
        if self._removes_offset:
            offset = clip.mean(dtype=np.float64)
            if abs(offset) > LEAST_OFFSET * clip.std(dtype=np.float64):
                clip = clip - np.float32(offset)
        return log_mel(clip, rate)[np.newaxis]

    def _read(self, content: bytes) -> tuple[np.ndarray, int]:
        """Return a file's samples ``[n, channels]`` float32, and their number in a second."""
        lowest, highest = RATES
        try:
            with self._soundfile.SoundFile(io.BytesIO(content)) as file:
                if not lowest <= file.samplerate <= highest:
                    raise BadFileError(
                        f"{file.samplerate:,} samples a second; they must be from {lowest:,} to "
                        f"{highest:,}"
                    )
                if file.frames * file.channels > MOST_SAMPLES:
                    raise BadFileError(
                        f"{file.frames:,} samples of {file.channels} channels are too many"
                    )
                return file.read(dtype="float32", always_2d=True), file.samplerate
        except (self._soundfile.SoundFileError, MemoryError, ValueError) as error:
            raise BadFileError(reason(error)) from error


BANDS = 128
FRAMES = 32
WINDOW_SECONDS = 0.128
HOP_SECONDS = 0.032
FLOOR_DB = -50.0
SMOOTHING_BANDS = 4.0
"""The deviation, in bands, of the Gaussian that smooths bands. A voice's harmonics are 5 to 12
bands apart."""
_SILENCE = 1e-10


def log_mel(clip: np.ndarray, rate: int) -> np.ndarray:
    """Return the log-mel spectrogram of a second of ``clip``, standardised: [BANDS, FRAMES]
    float32.

    The second is centred on the sound's energy. Power is in dB relative to the loudest point, at
    least FLOOR_DB. Smoothing over bands removes a voice's harmonics but not its formants. Silence
    gives zeros.
    """
    window, bank, positions = _make_tables(rate)
    half = len(window) // 2
    padded = np.zeros(positions[-1, -1] + 1, dtype=np.float32)
    clip = _cut_second(clip, rate)
    padded[half : half + len(clip)] = clip[: len(padded) - half]
    spectrum = np.fft.rfft(padded[positions] * window)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32) @ bank
    loudest = float(power.max())
    if loudest <= _SILENCE:
        return np.zeros((BANDS, FRAMES), dtype=np.float32)
    decibels = np.maximum(10 * np.log10(np.maximum(power / loudest, _SILENCE)), FLOOR_DB)
    # A spectrogram of a single level has no deviation to divide by.
    deviation = decibels.std() or 1
    return ((decibels - decibels.mean()) / deviation).T.astype(np.float32)


def _cut_second(clip: np.ndarray, rate: int) -> np.ndarray:
    """Return the second around the middle of a clip's energy."""
    energy = clip.astype(np.float64) ** 2
    # A silent clip has no energy to divide by; its middle does not matter.
    middle = int(energy @ np.arange(len(clip)) / max(energy.sum(), 1e-300))
    # With a second of silence on both sides, a second can be cut around any sample.
    return np.pad(clip, rate)[middle + rate - rate // 2 :][:rate]


@lru_cache(maxsize=8)
def _make_tables(rate: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a window ``[length]``, filters ``[length // 2 + 1, BANDS]``, and the sample numbers of
    all windows of a second ``[FRAMES, length]``."""
    length = round(WINDOW_SECONDS * rate)
    hop = round(HOP_SECONDS * rate)
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)).astype(np.float32)
    positions = hop * np.arange(FRAMES)[:, None] + np.arange(length)
    return window, _make_mel_filters(rate, length) @ _smooth_bands(), positions


def _make_mel_filters(rate: int, length: int) -> np.ndarray:
    """Return triangular filters [length // 2 + 1, BANDS]: equally spaced in mel, half overlapping,
    of unit area."""
    frequencies = np.fft.rfftfreq(length, 1 / rate)
    edges = _to_hertz(np.linspace(0, _to_mel(rate / 2), BANDS + 2))
    low = edges[:-2]
    centre = edges[1:-1]
    high = edges[2:]
    rising = (frequencies[:, None] - low) / (centre - low)
    falling = (high - frequencies[:, None]) / (high - centre)
    return (np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)).astype(np.float32)


def _smooth_bands() -> np.ndarray:
    """Return a matrix ``[BANDS, BANDS]`` that replaces each band with a mean of its neighbours."""
    bands = np.arange(BANDS)
    weights = np.exp(-0.5 * ((bands[:, None] - bands) / SMOOTHING_BANDS) ** 2)
    return (weights / weights.sum(axis=0)).astype(np.float32)


# Slaney's mel scale is linear up to 1 kHz (15 mel) and logarithmic above.
_KNEE_HERTZ = 1000.0
_KNEE_MEL = 15.0
_LOG_STEP = np.log(6.4) / 27


def _to_mel(hertz: float) -> float:
    if hertz < _KNEE_HERTZ:
        return hertz * _KNEE_MEL / _KNEE_HERTZ
    return _KNEE_MEL + np.log(hertz / _KNEE_HERTZ) / _LOG_STEP


def _to_hertz(mel: np.ndarray) -> np.ndarray:
    linear = mel * _KNEE_HERTZ / _KNEE_MEL
    return np.where(mel < _KNEE_MEL, linear, _KNEE_HERTZ * np.exp(_LOG_STEP * (mel - _KNEE_MEL)))
