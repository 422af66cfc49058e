"""Spoken words in the layout of Speech Commands: WORD/SPEAKER_nohash_INDEX.wav.

Warden, "Speech Commands: a dataset for limited-vocabulary speech recognition", arXiv 1804.03209.
"""

import hashlib
import io
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from istmpi.data.prepare.archive import Archive
from istmpi.data.prepare.files import BadFileError, Decoder, Example
from istmpi.data.prepare.material import Material
from istmpi.data.prepare.melspectrogram import BANDS, FRAMES, log_mel
from istmpi.errors import DataError
from istmpi.foreign import MEGABYTE, reason
from istmpi.optional import optional

ENDING = ".wav"
LISTS = {"testing_list.txt": "test", "validation_list.txt": "validation"}
TEST_PERCENT = 10
RATES = 1_000, 768_000
"""Samples a second of what can be sound."""
MOST_SAMPLES = 2**26
"""Of a file, over all channels: more than an hour at 16 kHz."""
MOST_BYTES = 128 * MEGABYTE
"""Of a file."""
LOUDEST = 1e9
"""The power of louder samples would not be finite."""


def read(archive: Archive, decoder: Decoder) -> Material:
    """Log-mel spectrograms [1, 128, 32] float32, each clip normalised on its own; the classes are the words.

    Without a testing list, a tenth of the speakers (by a hash of the name) are for testing. All clips must have one
    sample rate: a band would mean another pitch at another rate. Folders such as _background_noise_ are ignored.
    """
    if (lists := _listed(archive)) is None:
        decoder.split = "by speakers, a tenth of them for testing (Speech Commands' rule)"
    examples = _examples(archive, lists)
    with one_thread():
        return decoder.run(archive, examples, clip_decoder(), (1, BANDS, FRAMES), np.dtype(np.float32), 1, MOST_BYTES)


def one_thread() -> AbstractContextManager:
    """A spectrogram is milliseconds of small matrix products: threads that wait for each other multiply the time."""
    return optional("threadpoolctl", "threadpoolctl", "spectrograms").threadpool_limits(1, user_api="blas")


def _examples(archive: Archive, listed: dict[str, str] | None) -> list[Example]:
    """Every wav file with its word and its split, as listed or by its speaker."""
    examples = []
    for name in archive.names:
        folder, _, file = name.rpartition("/")
        word = folder.rpartition("/")[2]
        if word and not word.startswith("_") and file.lower().endswith(ENDING):
            split = hashed_split(file) if listed is None else listed.get(f"{word}/{file}", "train")
            examples.append(Example(name, word, split))
    if not examples:
        raise DataError(f"{archive.path} has no WORD/SPEAKER_nohash_INDEX.wav. Give that layout.")
    return examples


def _listed(archive: Archive) -> dict[str, str] | None:
    """The split of each WORD/FILE that a list names; None where there is no testing list."""
    lists = {name: LISTS[base] for name in archive.names if (base := name.rpartition("/")[2]) in LISTS}
    if "test" not in lists.values():
        return None
    splits = {}
    for name, content in archive.read(lists):
        for line in content.decode("utf-8", errors="replace").split():
            splits[line] = lists[name]
    return splits


def hashed_split(file: str) -> str:
    """Speech Commands' own rule: a speaker stays in one split for ever, however many recordings are added."""
    speaker = file.rpartition("_nohash_")[0] or file
    number = int(hashlib.sha1(speaker.encode()).hexdigest(), 16) % 2**27
    return "test" if number * 100 < TEST_PERCENT * (2**27 - 1) else "train"


def clip_decoder() -> Callable[[str, bytes], np.ndarray]:
    """From the name and the content of a wav file to its features ``[BANDS, FRAMES]``; all must have one rate."""
    soundfile = optional("soundfile", "soundfile", "wav files")
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
        return log_mel(sound.mean(axis=1), rate)

    return decode
