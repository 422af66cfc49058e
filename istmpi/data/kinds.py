"""The kinds of data, each a folder with the same parts; to add one, name it here and as the ``inputs`` of its tasks.

prepare     read(archive, decoder, **options) -> Material       others' files
file        a Material, which says its datasets; open_*(file) -> Dataset
split       a Split: batches, labels, validation, fingerprints
predict     new examples for a trained network
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from istmpi.data.dense.file import open_examples
from istmpi.data.graph.file import open_graph
from istmpi.data.sparse.file import open_rows
from istmpi.data.text.file import open_text

if TYPE_CHECKING:
    from istmpi.data.dataset import Dataset
    from istmpi.data.hdf5 import PreparedFile

OPEN: dict[str, Callable[[PreparedFile], Dataset]] = {
    "numbers": open_examples,
    "text": open_text,
    "sparse rows": open_rows,
    "a graph": open_graph,
}

KINDS = {
    "speech": "dense.speech",
    "images": "images.prepare",
    "idx": "dense.idx",
    "arrays": "dense.arrays",
    "csv": "dense.tables",
    "text": "text.prepare",
    "xc": "sparse.prepare",
    "graph": "graph.prepare",
}
"""The modules that read the kinds of `istmpi prepare`, each imported when it is needed."""
