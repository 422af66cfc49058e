"""Spoken words in the layout of Speech Commands: WORD/SPEAKER_nohash_INDEX.wav.

Warden, "Speech Commands: a dataset for limited-vocabulary speech recognition", arXiv 1804.03209.
"""

import io
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from istmpi.data.dense.file import material_of
from istmpi.data.dense.melspectrogram import log_mel
from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import (
    BadFileError,
    Decoder,
    Example,
    Notes,
    checked_splits,
    class_folders,
    common_folder,
)
from istmpi.data.writer import Material
from istmpi.errors import DataError
from istmpi.foreign import MEGABYTE, printable, reason
from istmpi.optional import optional
from istmpi.tasks import CLASSIFICATION
from istmpi.units import counted

ENDINGS = (".wav", ".flac", ".ogg", ".opus", ".mp3")
LISTS = {"testing_list.txt": "test", "validation_list.txt": "validation"}
RATES = 1_000, 768_000
"""Samples a second."""
MOST_SAMPLES = 2**26
"""An hour at 16 kHz has 57.6 million."""
MOST_BYTES = 128 * MEGABYTE
OFFSET = "offset"
LEAST_OFFSET = 0.01
"""The least offset that is removed, in deviations of a clip. A smaller one hardly changes the features."""
CANCELLED = 0.01
"""The share of its channels' power below which their mean is no recording of theirs."""
LOUDEST = 1e9


def read(archive: Archive, decoder: Decoder) -> Material:
    """Log-mel spectrograms [1, 128, 32] float32, each clip normalised on its own; the classes are the words.

    All clips must have one sample rate, for a band is another pitch at another. Folders such as _background_noise_ are
    ignored.
    """
    examples, notes = _examples(archive, decoder), decoder.notes
    notes.reading[OFFSET] = "removed"
    with one_thread():
        splits, classes, bad = decoder.run(archive, examples, clip_decoder(notes.reading), MOST_BYTES)
    return material_of("speech", archive.source, CLASSIFICATION, splits, classes, np.dtype(np.float32), 1, bad)


def one_thread() -> AbstractContextManager:
    """Return a context of one thread: several wait for each other."""
    return optional("threadpoolctl", "threadpoolctl", "spectrograms").threadpool_limits(1, user_api="blas")


def _examples(archive: Archive, decoder: Decoder) -> list[Example]:
    lists = {name: LISTS[base] for name in archive.names if (base := name.rpartition("/")[2]) in LISTS}
    listed = "test" in lists.values()
    examples = class_folders(archive, ENDINGS, decoder.notes, splits=not listed)
    examples = [example for example in examples if not example.label.startswith("_")]
    if not examples:
        raise DataError(f"{archive.path} has no WORD/SPEAKER_nohash_INDEX.wav. Give that layout.")
    if listed:
        splits = _listed(archive, lists, [example.name for example in examples], decoder.notes)
        return [replace(example, split=splits.get(example.name, "train")) for example in examples]
    if not examples[0].split:
        raise DataError(
            f"{archive.path} has no splits. Give testing_list.txt, with a path WORD/FILE a line, or folders train/ and "
            f"test/; let no speaker be in both."
        )
    return checked_splits(archive, examples, decoder.notes)


def _listed(archive: Archive, lists: dict[str, str], names: list[str], notes: Notes) -> dict[str, str]:
    common = common_folder(names, splits=False)
    paths = {name.removeprefix(common): name for name in names}
    splits: dict[str, str] = {}
    missing: list[str] = []
    for list_name, content in archive.read(lists):
        for line in content.decode("utf-8-sig", errors="surrogateescape").splitlines():
            path = printable(line.strip().removeprefix("./"))
            if path not in paths:
                missing += [f"{path} in {list_name}"] * bool(path)
            elif splits.setdefault(paths[path], lists[list_name]) != lists[list_name]:
                raise DataError(f"{archive.path}: {path} is in the lists of both splits. Take it out of one.")
    if missing and "test" not in splits.values():
        raise DataError(
            f"{archive.path}: its lists name no file for testing: there is no {missing[0]}. A line must be WORD/FILE."
        )
    if missing:
        notes.leave_out(f"{counted(len(missing), 'line')} of lists without a file, such as {min(missing)}")
    return splits


def clip_decoder(reading: Mapping[str, Any]) -> Callable[[str, bytes], np.ndarray]:
    """Return a function from a recording's name and content to its features ``[1, BANDS, FRAMES]``."""
    soundfile = optional("soundfile", "soundfile", "recordings")
    first: tuple[str, int] | None = None

    def decode(name: str, content: bytes) -> np.ndarray:
        nonlocal first
        try:
            with soundfile.SoundFile(io.BytesIO(content)) as file:
                rate = file.samplerate
                if not RATES[0] <= rate <= RATES[1]:
                    raise BadFileError(f"{rate:,} samples a second; they must be from {RATES[0]:,} to {RATES[1]:,}")
                if file.frames * file.channels > MOST_SAMPLES:
                    raise BadFileError(f"{file.frames:,} samples of {file.channels} channels; that is too much")
                sound = file.read(dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, MemoryError, ValueError) as error:
            raise BadFileError(reason(error)) from error
        if len(sound) == 0:
            raise BadFileError("no samples")
        if not np.abs(sound).max() < LOUDEST:
            raise BadFileError("samples that are not finite, or far too large")
        first = first or (name, rate)
        if rate != first[1]:
            raise DataError(f"{name} has {rate} Hz but {first[0]} has {first[1]}; resample them to one rate first.")
        clip = sound.mean(axis=1)
        if clip.var(dtype=np.float64) < CANCELLED * sound.var(axis=0, dtype=np.float64).mean():
            raise BadFileError("channels that cancel each other: they are in opposite phase")
        offset = clip.mean(dtype=np.float64)
        if reading.get(OFFSET) == "removed" and abs(offset) > LEAST_OFFSET * clip.std(dtype=np.float64):
            clip = clip - np.float32(offset)
        return log_mel(clip, rate)[np.newaxis]

    return decode
