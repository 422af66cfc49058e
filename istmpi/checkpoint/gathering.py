"""Makes one file of a checkpoint's parts, without MPI."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from istmpi.checkpoint.fetching import Reader
from istmpi.checkpoint.folder import list_checkpoints
from istmpi.checkpoint.parts import find_part, find_saver, is_round_of_parts, list_parts
from istmpi.checkpoint.reader import open_file
from istmpi.checkpoint.writers import Rows
from istmpi.errors import DataError
from istmpi.files import name_at_last, temporary, writing
from istmpi.hdf5 import CHECKSUM
from istmpi.units import list_first


def gather(places: Sequence[Path], out: Path) -> int:
    """Write the file of the latest checkpoint whose parts are all in ``places``; return its round.

    A place is a part, the folder of a round, or a run's folder. The file has the bytes that all
    ranks together would have written. Raises DataError if a part is missing or damaged, OutputError
    if the file cannot be written.
    """
    files, ranks, round = _find_parts(places)
    for part, path in files.items():
        with open_file(path) as checkpoint:
            for error in checkpoint.part_errors(part):
                raise DataError(f"{path} is damaged: {error}.")
    beside = temporary(out)
    try:
        with writing(out):
            _join(files, ranks, beside)
            name_at_last(beside, out)
    finally:
        beside.unlink(missing_ok=True)
    return round


def _find_parts(places: Sequence[Path]) -> tuple[dict[int, Path], int, int]:
    """Return the parts of the latest complete checkpoint by rank, its number of ranks, and its
    round."""
    saves: dict[tuple[int, int, int], dict[int, Path]] = {}
    for path in _list_files(places):
        part = find_part(path)
        if part is None:
            continue
        with open_file(path) as checkpoint:
            header = checkpoint.header
            key = (header.round, header.ranks, int(checkpoint.file.attrs[CHECKSUM]))
        saves.setdefault(key, {}).setdefault(part, path)
    if not saves:
        raise DataError(
            f"{list_first(places)}: no parts of a checkpoint are there. Their folder must keep its "
            "name, such as round-00000010."
        )
    problems = []
    for key in sorted(saves, reverse=True):
        round, ranks, _ = key
        files = saves[key]
        lacking = [part for part in range(ranks) if part not in files]
        if not lacking:
            return {part: files[part] for part in range(ranks)}, ranks, round
        problems.append(f"round {round} lacks the part of rank {list_first(lacking)} of {ranks}")
    raise DataError(
        f"no checkpoint is complete: {'; '.join(problems)}. Give the folders of all hosts."
    )


def _list_files(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_file():
            yield place
        elif place.is_dir():
            rounds = [place]
            if not is_round_of_parts(place):
                rounds = list_checkpoints(place)
            for round in rounds:
                yield from (path for _, path in list_parts(round))
        else:
            raise DataError(f"{place} does not exist.")


def _join(files: Mapping[int, Path], ranks: int, out: Path) -> None:
    """Copy each part's rows to their places in a new file."""
    readers = {part: Reader(path) for part, path in files.items()}
    layout = readers[0].layout
    layout.begin(out)
    rows = Rows(out)
    for name, extent in layout.extents.items():
        for block in range(extent.blocks):
            part = find_saver(ranks, block, extent.blocks)
            of_block = extent.find_rows(block)
            rows.write_all(readers[part].read(name, of_block), extent.locate(of_block).start)
    for reader in readers.values():
        reader.require_success()
    rows.close()
