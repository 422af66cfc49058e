"""Keeps the tables that describe inspected networks in a cache folder of the user.

    $XDG_CACHE_HOME/istmpi/proofs/KEY.json        by default in ~/.cache

A table is used again only if source, arguments, example shapes and versions are the same. Files
that cannot be read, or that other users may change, are ignored. The folder may be deleted at any
time.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from istmpi import __version__, inspection, models
from istmpi import network as network_room
from istmpi.environment import find_cache
from istmpi.files import temporary
from istmpi.foreign import JSON_BYTES, content
from istmpi.network.table import Table, plain
from istmpi.network.user import UserNetwork
from istmpi.trees import map_tensors

KEPT = 200

ROOMS = (network_room, models, inspection)
"""The rooms whose code decides a table; a change of it makes kept tables invalid."""


def recall(network: UserNetwork) -> dict[str, Any] | None:
    """Return the kept table of a network, as `Table.tree`; None if no file for it can be read and
    trusted."""
    facts = _describe(network)
    # Whatever is wrong with a file of the cache, the network can be inspected again.
    try:
        path = _choose_path(facts)
        if path is None or not _is_private(path):
            return None
        kept = json.loads(content(path, JSON_BYTES))
        if kept["facts"] != facts:
            return None
        return Table.from_tree(kept["table"]).tree()
    except Exception:
        return None


def remember(network: UserNetwork, tree: Mapping[str, Any]) -> None:
    """Keep the table of a network, if the cache can be written."""
    facts = _describe(network)
    path = _choose_path(facts)
    if path is None:
        return
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Several jobs may write the same table; a reader finds a whole file or none.
        beside = temporary(path)
        try:
            with open(
                os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
            ) as file:
                json.dump({"facts": facts, "table": tree}, file)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
        kept = sorted(
            path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True
        )
        for old in kept[KEPT:]:
            old.unlink(missing_ok=True)


def _describe(network: UserNetwork) -> dict[str, Any] | None:
    # A class without a file may change while its name stays.
    if not network.source.hash:
        return None
    code = hashlib.sha256()
    for room in ROOMS:
        for file in sorted(Path(room.__path__[0]).glob("*.py")):
            code.update(file.read_bytes())
    arguments = {**network.facts, **network.settings}
    return {
        "class": network.kind.__qualname__,
        "source": network.source.hash,
        "libraries": dict(network.source.libraries),
        "arguments": json.loads(json.dumps(arguments, default=plain, skipkeys=True)),
        **{name: getattr(network, name) for name in ("outputs", "tokens", "sparse", "graph")},
        "inputs": list(network.inputs),
        "example": str(map_tensors(lambda x: (tuple(x.shape), x.dtype), network.example)),
        "dtype": str(torch.get_default_dtype()),
        "istmpi": f"{__version__} {code.hexdigest()}",
        "torch": torch.__version__,
    }


def _choose_path(facts: Mapping[str, Any] | None) -> Path | None:
    cache = find_cache()
    if facts is None or cache is None:
        return None
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return cache / "proofs" / f"{key[:32]}.json"


def _is_private(path: Path) -> bool:
    # Who can write a table decides which units are dealt out and with which factors.
    return all(
        status.st_uid == os.geteuid() and not status.st_mode & 0o022
        for status in (path.stat(), path.parent.stat())
    )
