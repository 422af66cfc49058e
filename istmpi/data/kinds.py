"""The table of the kinds of data: nobody else asks what kind a prepared file has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from istmpi.data.dense.file import open_examples
from istmpi.data.graph.file import open_graph
from istmpi.data.sparse.file import open_rows
from istmpi.data.text.file import open_text
from istmpi.tasks import (
    CLASSIFICATION,
    DENSE_LABELS,
    MULTI_LABEL,
    NEXT_TOKEN,
    NODE_CLASSES,
    NODE_LABELS,
    REGRESSION,
)

if TYPE_CHECKING:
    from istmpi.data.dataset import Dataset
    from istmpi.data.hdf5 import PreparedFile

OPEN: dict[str, Callable[[PreparedFile], Dataset]] = {
    CLASSIFICATION: open_examples,
    REGRESSION: open_examples,
    NEXT_TOKEN: open_text,
    MULTI_LABEL: open_rows,
    DENSE_LABELS: open_examples,
    NODE_CLASSES: open_graph,
    NODE_LABELS: open_graph,
}
"""The reader of an open prepared file, by its task."""
