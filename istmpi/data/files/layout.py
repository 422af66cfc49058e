"""Class folders: the split and the class of a file, by the folders that it lies in."""

from collections.abc import Collection
from dataclasses import replace
from sys import intern

from istmpi.data.dataset import WORDS
from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import Example
from istmpi.data.files.notes import Notes
from istmpi.errors import DataError

_MEANING = {word: split for split, words in WORDS.items() for word in words}


def split_of(name: str) -> str:
    """Return the split that a name stands for, in any letter case; an empty text where it is none."""
    return _MEANING.get(name.lower(), "")


def common_folder(names: Collection[str], splits: bool = True) -> str:
    """Return the folder above all class folders, or with ``splits`` above train/ and such: "", or a path with a "/".

    A file beside the only folder of its level is ignored.
    """
    paths, above = [name.split("/")[:-1] for name in names], []
    while True:
        below = [path[len(above) :] for path in paths if len(path) > len(above)]
        outermost = {path[0] for path in below}
        if len(outermost) != 1 or (splits and split_of(*outermost)) or max(map(len, below)) == 1:
            return "".join(f"{folder}/" for folder in above)
        above += outermost


def class_folders(archive: Archive, endings: tuple[str, ...], notes: Notes, splits: bool = True) -> list[Example]:
    """Return the files with these endings, whose folders name their classes, as in torchvision's ImageFolder.

    A path is SPLIT/CLASS/..., or CLASS/... below the folder that all files share, with an empty split. Without
    ``splits`` only the second is allowed. Files in no class folder are skipped.
    """
    names = [name for name in archive.names if name.lower().endswith(endings)]
    common = common_folder(names, splits)
    paths = {name: name.removeprefix(common).split("/")[:-1] for name in names if name.startswith(common)}
    paths = {name: path for name, path in paths.items() if path}
    deep = {path[0] for path in paths.values() if len(path) > 1}
    in_splits = splits and (any(map(split_of, deep)) or all(split_of(path[0]) for path in paths.values()))
    examples = []
    for name, path in paths.items():
        outer, split, folders = path[0], split_of(path[0]) if in_splits else "", path[1:] if in_splits else path
        if in_splits and split and not folders:
            raise DataError(f"{archive.path}: {name} is in no class folder; it must be {outer}/CLASS/FILE.")
        if in_splits and not split:
            raise DataError(
                f"{archive.path} has train/ or test/ but {name} is in neither. Move it there, or take it away."
            )
        inner = folders[1:] if in_splits else folders
        if named := [folder for folder in inner if len(folders) > 1 and split_of(folder)]:
            raise DataError(
                f"{archive.path}: {name} has a folder {named[0]}/, but a split is {named[0]}/CLASS/FILE, outside of "
                f"all classes{'' if splits else ', and there is none where a list names its files'}. Move or rename it."
            )
        examples.append(Example(name, intern(folders[0]), split))
    if common and not in_splits:
        notes.assume(f"classes are the folders in {common}")
    return examples


def checked_splits(archive: Archive, examples: list[Example], notes: Notes) -> list[Example]:
    """Return the examples; those for validation become test examples where there are none."""
    if {example.split for example in examples} == {"train", "validation"}:
        notes.assume("examples for validation are for testing: there are no others")
        examples = [replace(e, split="test" if e.split == "validation" else e.split) for e in examples]
    trained = {example.label for example in examples if example.split == "train"}
    unknown = next((example for example in examples if example.label not in trained), None)
    if trained and unknown:
        raise DataError(
            f"{archive.path}: {unknown.name} is of class {unknown.label}, of which train/ has none. Lay it out as "
            f"SPLIT/CLASS/FILE, or take it away; lists of labels, as Tiny ImageNet's val_annotations.txt, are not read."
        )
    return examples
