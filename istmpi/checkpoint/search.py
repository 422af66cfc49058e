"""Finds the checkpoint to resume from in the folders of all hosts, and brings rows to ranks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h5py

from istmpi.checkpoint.fetching import fetch
from istmpi.checkpoint.folder import list_checkpoints
from istmpi.checkpoint.parts import Copy, is_round_of_parts, list_parts
from istmpi.checkpoint.reader import open_checkpoint, open_file
from istmpi.comm import Communicator
from istmpi.errors import DataError
from istmpi.hdf5 import CHECKSUM, LOCKING, name_damage
from istmpi.units import list_first

Note = Callable[[str], None]

_SLOT = 2**12
"""Bytes of the message of what a rank's folder has: enough for about ten checkpoints."""


@dataclass(frozen=True)
class _Holding:
    """The files of a checkpoint in a rank's folder: the whole file, or some parts."""

    name: str
    """The path in the folder, the same on all hosts."""
    seal: int | None
    """The checksum of attributes and checksums, which all parts share; None in files of version
    1."""
    position: tuple[int, int]
    ranks: int
    files: Mapping[int, Path]
    """This rank's file of each part; the whole file has all parts."""
    whole: bool


class _IncompleteError(DataError):
    """A part of a checkpoint is valid on no host."""


class _Save:
    """A checkpoint, and what each rank has of it."""

    def __init__(self, holdings: Sequence[_Holding | None]):
        """``holdings``: one of each rank."""
        self.holdings = holdings
        first = next(filter(None, holdings))
        self.name = first.name
        self.seal = first.seal
        self.position = first.position
        self.ranks = first.ranks

    @property
    def on_all_ranks(self) -> bool:
        return all(holding is not None and holding.whole for holding in self.holdings)

    def list_holders(self, part: int) -> list[int]:
        """Return the ranks that have a part, first the rank of the same number, to send little."""
        holders = []
        for rank, holding in enumerate(self.holdings):
            if holding is not None and part in holding.files:
                holders.append(rank)
        return sorted(holders, key=lambda rank: (rank != part, rank))


def find_newest_valid(
    folder: Path, communicator: Communicator, note: Note, room: Path | None = None
) -> Copy | None:
    """Return the valid checkpoint of the latest round of which the ranks together have all rows.
    Collective.

    Each rank looks in its ``folder``, which may be on its own disk. Rows that a rank lacks are
    copied to it, into the folder ``room`` (by default ``folder``). Returns None if there are no
    checkpoints. Raises DataError on every rank if none of them is valid. Rank 0 calls ``note`` with
    a message about each invalid checkpoint.
    """
    saves, problems = _gather_saves(list_checkpoints(folder), folder, communicator)
    tell = _choose_note(communicator, note)
    for problem in problems:
        tell(f"{problem} Skipped.")
    lacking = ""
    for save in saves:
        try:
            return _bring(save, folder, room or folder, communicator, tell)
        except DataError as error:
            tell(f"{error} Skipped.")
            if isinstance(error, _IncompleteError):
                lacking = lacking or f" {error}"
    if not saves and not problems:
        return None
    cure = "Remove its checkpoints, or give another --out."
    if lacking:
        cure = f"Bring it to this folder of any host. {cure}"
    with communicator.agreed():
        raise DataError(f"{folder}: no checkpoint in it is valid.{lacking} {cure}")


def reach(path: Path, communicator: Communicator, note: Note, room: Path) -> Copy:
    """Return a checkpoint that is named, a file or a folder of parts, as `find_newest_valid` does.
    Collective.

    Raises DataError on every rank if it is damaged, or if no host has some of its rows.
    """
    saves, problems = _gather_saves([path], path.parent, communicator)
    # All ranks have the same list.
    if not saves:
        error = DataError(problems[0])
        error.everywhere = True
        raise error
    return _bring(saves[0], path.parent, room, communicator, _choose_note(communicator, note))


def _choose_note(communicator: Communicator, note: Note) -> Note:
    if communicator.rank == 0:
        return note
    return lambda message: None


def _gather_saves(
    paths: Sequence[Path], folder: Path, communicator: Communicator
) -> tuple[list[_Save], list[str]]:
    """Return the checkpoints that any rank has among its ``paths``, the latest first, and why files
    cannot be read. Collective."""
    problems_here: list[str] = []
    holdings_here: list[_Holding] = []
    for path in paths:
        holdings_here += _look(path, folder, problems_here.append)
    per_rank = communicator.allgather((holdings_here, problems_here), _SLOT)
    by_save: dict[tuple[str, int | None], list[_Holding | None]] = {}
    problems: list[str] = []
    for rank, (holdings, of_rank) in enumerate(per_rank):
        for holding in holdings:
            key = (holding.name, holding.seal)
            by_save.setdefault(key, [None] * communicator.size)[rank] = holding
        # Ranks that share a disk find the same.
        problems += [problem for problem in of_rank if problem not in problems]
    saves = [_Save(holdings) for holdings in by_save.values()]
    saves.sort(key=lambda save: save.position, reverse=True)
    return saves, problems


def _look(path: Path, folder: Path, tell: Note) -> Iterator[_Holding]:
    """Yield the whole file at a path, or the parts of each save in a round's folder; tell why files
    cannot be read."""
    name = str(path.relative_to(folder))
    if not is_round_of_parts(path):
        try:
            yield _look_at_whole(path, name)
        except DataError as error:
            tell(str(error))
        return
    by_seal: dict[int | None, _Holding] = {}
    for part, file in list_parts(path):
        try:
            holding = _look_at_part(file, part, name)
        except DataError as error:
            tell(str(error))
            continue
        earlier = by_seal.setdefault(holding.seal, holding)
        by_seal[holding.seal] = replace(holding, files={**earlier.files, part: file})
    yield from by_seal.values()


def _look_at_whole(path: Path, name: str) -> _Holding:
    with open_checkpoint(path) as checkpoint:
        header = checkpoint.header
        seal = _read_number(checkpoint.file, CHECKSUM)
    return _Holding(
        name=name,
        seal=seal,
        position=header.position,
        ranks=header.ranks,
        files=dict.fromkeys(range(header.ranks), path),
        whole=True,
    )


def _look_at_part(path: Path, part: int, name: str) -> _Holding:
    # Attributes alone: a shared folder may have very many parts.
    with name_damage(path), h5py.File(path, "r", locking=LOCKING) as file:
        numbers = [int(file.attrs[key]) for key in ("round", "local_step", "ranks")]
        round, local_step, ranks = numbers
        seal = _read_number(file, CHECKSUM)
    return _Holding(
        name=name,
        seal=seal,
        position=(round, local_step),
        ranks=ranks,
        files={part: path},
        whole=False,
    )


def _read_number(file: h5py.File, name: str) -> int | None:
    number = file.attrs.get(name)
    if number is None:
        return None
    return int(number)


def _bring(save: _Save, folder: Path, room: Path, communicator: Communicator, tell: Note) -> Copy:
    """Verify a checkpoint, and let each rank have a file with the rows that it reads. Collective.

    Raises DataError on every rank if the checkpoint is damaged, or lacks rows.
    """
    path = folder / save.name
    if save.on_all_ranks:
        require_valid(path, communicator)
        return Copy(path, path)
    with communicator.agreed():
        if save.seal is None:
            raise DataError(
                f"{path}: not every rank sees it, and it is of format version 1, which cannot be "
                "sent. Copy it to each host."
            )
    sources = _choose_sources(save, path, communicator, tell)
    holding = save.holdings[communicator.rank]
    files: list[Path | None] = [None] * save.ranks
    if holding:
        files = [holding.files.get(part) for part in range(save.ranks)]
    round, _ = save.position
    copy = fetch(room / f"round-{round:08d}.h5", files, sources, communicator)
    return Copy(path, copy)


def _choose_sources(save: _Save, path: Path, communicator: Communicator, tell: Note) -> list[int]:
    """Return the rank that reads each part: the first one whose file is valid. Collective.

    Raises a DataError that names the parts of which no rank has a valid file.
    """
    candidates = {part: save.list_holders(part) for part in range(save.ranks)}
    sources: dict[int, int] = {}
    while True:
        lacking = [part for part, ranks in candidates.items() if not ranks]
        if lacking:
            names = list_first([f"rank-{part}.h5" for part in lacking])
            with communicator.agreed():
                raise _IncompleteError(f"{path}: no host has a valid {names}.")
        tried = {part: ranks[0] for part, ranks in candidates.items() if part not in sources}
        if not tried:
            return [sources[part] for part in range(save.ranks)]
        holding = save.holdings[communicator.rank]
        problems = {}
        for part, rank in tried.items():
            if holding and rank == communicator.rank:
                problems[part] = _find_damage(holding.files[part], part)
        for of_rank in communicator.allgather(problems):
            for part, problem in of_rank.items():
                if problem:
                    tell(f"rank {tried[part]}: {problem}")
                    candidates[part].pop(0)
                else:
                    sources[part] = tried[part]


def _find_damage(path: Path, part: int) -> str:
    """Return why a file's rows of a part cannot be used; empty if they can."""
    try:
        with open_file(path) as checkpoint:
            for error in checkpoint.part_errors(part):
                return f"{path} is damaged: {error}."
    except DataError as error:
        return str(error)
    return ""


def require_valid(path: Path, communicator: Communicator) -> None:
    """Verify a checkpoint, a part on each rank. Raises DataError on every rank if it is damaged.
    Collective."""
    with communicator.agreed(), open_checkpoint(path) as checkpoint:
        checkpoint.require_valid(communicator.rank, communicator.size)
