"""The validation split on which settings are chosen: training data alone, some of them prepared as the test split."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path

LIST = "testing_list.txt"
ONE_IN = 25
"""Of the training images, those that are for validation."""


def make_validation_data(kind: str, raw: Path, path: Path, options: Sequence[str] = ()) -> None:
    """Prepare what is left of a raw archive without its test data; nothing where the file is there.

    ``options`` are more words for ``istmpi prepare``.
    """
    if path.exists():
        return
    archive = path.with_suffix(".tar")
    with tarfile.open(raw) as source, tarfile.open(archive, "w") as target:
        REMAKE[kind](source, target)
    subprocess.run(["istmpi", "prepare", kind, archive, path, *options], check=True)
    archive.unlink()


def another_speaker(source: tarfile.TarFile, target: tarfile.TarFile) -> None:
    """Speech without what its testing list names; the new list has all of the first speaker by name."""
    members = {member.name: member for member in source.getmembers() if member.isfile()}
    listing = next(name for name in members if name.endswith(LIST))
    tested = source.extractfile(listing).read().decode().split()
    kept = {name: wav_of(name) for name in sorted(members) if name.endswith(".wav") and wav_of(name) not in tested}
    first = min(map(speaker, kept))
    for name in kept:
        target.addfile(members[name], source.extractfile(name))
    content = "\n".join(wav for name, wav in kept.items() if speaker(name) == first).encode()
    entry = tarfile.TarInfo(listing)
    entry.size = len(content)
    target.addfile(entry, io.BytesIO(content))


def wav_of(name: str) -> str:
    """WORD/FILE, as lists have it."""
    return "/".join(name.split("/")[-2:])


def speaker(name: str) -> str:
    """Whose recording WORD/SPEAKER_nohash_INDEX.wav is."""
    return name.rpartition("/")[2].partition("_nohash_")[0]


def some_images(source: tarfile.TarFile, target: tarfile.TarFile) -> None:
    """Images without those for testing; in their place one in so many of the others."""
    members = [member for member in source.getmembers() if member.isfile() and "/train/" in member.name]
    for number, member in enumerate(sorted(members, key=attrgetter("name"))):
        content = source.extractfile(member)
        if number % ONE_IN == 0:
            member.name = member.name.replace("/train/", "/test/")
        target.addfile(member, content)


def some_rows(source: tarfile.TarFile, target: tarfile.TarFile) -> None:
    """Sparse rows for training, the last tenth of them for testing."""
    member = next(member for member in source.getmembers() if member.name.endswith("train.txt"))
    header, *lines = source.extractfile(member).read().decode().splitlines()
    _, features, labels = header.split()
    cut = len(lines) * 9 // 10
    for name, part in (("train", lines[:cut]), ("test", lines[cut:])):
        content = "\n".join([f"{len(part)} {features} {labels}", *part, ""]).encode()
        entry = tarfile.TarInfo(f"{name}.txt")
        entry.size = len(content)
        target.addfile(entry, io.BytesIO(content))


REMAKE: dict[str, Callable[[tarfile.TarFile, tarfile.TarFile], None]] = {
    "speech": another_speaker,
    "images": some_images,
    "xc": some_rows,
}
