"""The training rows that each stream may draw from.

    shared      every stream draws from all rows
    sharded     disjoint random shards that cover all rows; their sizes differ by at most one
    by-label    disjoint and covering, but each class is spread unevenly: its shares are drawn from a symmetric
                Dirichlet distribution with parameter alpha (Hsu et al. 2019, arXiv 1909.06335)
    local       every stream has a file of its own and draws from all of it

Every stream computes its own rows, without a word from the others.
"""

import numpy as np

from istmpi import rng
from istmpi.errors import ConfigError, DataError, did_you_mean

PLACEMENTS = ("shared", "sharded", "by-label", "local")


def place(placement: str, labels: np.ndarray, stream: int, streams: int, seed: int, alpha: float = 1.0) -> np.ndarray:
    """Return the rows that ``stream`` of ``streams`` may draw: ascending [m] int64, m > 0; the same on every machine.

    ``labels`` are those of the training split. ConfigError for a placement that does not fit the task, DataError where
    a stream would be left without rows.
    """
    assert 0 <= stream < streams, (stream, streams)
    if placement not in PLACEMENTS:
        raise ConfigError(f"data placement {placement!r} does not exist{did_you_mean(placement, PLACEMENTS)}")
    if placement == "sharded":
        rows = _sharded(len(labels), stream, streams, seed)
    elif placement == "by-label":
        rows = _by_label(labels, streams, seed, alpha)[stream]
    else:
        rows = np.arange(len(labels))
    if len(rows) == 0:
        cure = "raise alpha, change the seed or use fewer ranks" if placement == "by-label" else "use fewer ranks"
        raise DataError(
            f"rank {stream} of {streams} gets no training example of {len(labels)} with {placement} placement; {cure}."
        )
    return rows


def _sharded(length: int, stream: int, streams: int, seed: int) -> np.ndarray:
    order = rng.permutation(length, rng.key(seed, "placement", "sharded"))
    return np.sort(order[stream::streams])


def _by_label(labels: np.ndarray, streams: int, seed: int, alpha: float) -> list[np.ndarray]:
    if labels.ndim != 1:
        raise ConfigError("by-label placement needs classes, but this is a regression task. Use sharded placement.")
    if not alpha > 0:
        raise ConfigError(f"alpha is {alpha}; by-label placement needs a number above 0, such as 0.5.")
    shards: list[list[np.ndarray]] = [[] for _ in range(streams)]
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        rows = rows[rng.permutation(len(rows), rng.key(seed, "placement", "rows", int(label)))]
        shares = _dirichlet(alpha, streams, rng.key(seed, "placement", "shares", int(label)))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        for shard, part in zip(shards, np.split(rows, cuts), strict=True):
            shard.append(part)
    return [np.sort(np.concatenate(shard)) for shard in shards]


def _dirichlet(alpha: float, streams: int, key: int) -> np.ndarray:
    """Return shares that sum to one.

    RandomState's streams are guaranteed for ever, those of newer generators only within a version of NumPy.
    """
    state = np.random.RandomState(key & 0xFFFFFFFF)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = state.dirichlet(np.full(streams, alpha))
    if not np.isfinite(shares).all():
        # A tiny alpha underflows to 0 / 0; its limit is that one stream takes the whole class.
        shares = np.eye(streams)[state.randint(streams)]
    return shares
