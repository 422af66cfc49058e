"""Data sets, and each rank's deterministic stream of batches.

A stream has a number, usually the rank's. No module here sends messages.
"""

from istmpi.data import dense, graph, images, sparse, text
from istmpi.data.kind import Kind

_ALL = (
    dense.SPEECH,
    images.IMAGES,
    dense.IDX,
    dense.ARRAYS,
    dense.CSV,
    text.TEXT,
    sparse.XC,
    graph.GRAPH,
)
KINDS = {kind.name: kind for kind in _ALL}
OTHER = Kind("other")
"""The kind of data without a reader here, such as digits: rows of numbers."""
