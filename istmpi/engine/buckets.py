"""The messages in which whole parameters are gathered: parameters that travel together. Pure."""

from collections.abc import Hashable, Iterator, Mapping

_BUCKET = 2**24
"""The most bytes of whole tensors that are gathered together."""


def divide_into_buckets(sizes: Mapping[str, tuple[Hashable, int]]) -> Iterator[list[str]]:
    """Yield names whose whole tensors have one dtype, and together at most `_BUCKET` bytes unless
    one is larger. A large tensor goes alone, so that small ones stay together. ``sizes``: the dtype
    and the bytes of each tensor."""
    filling: dict[Hashable, list[str]] = {}
    filled: dict[Hashable, int] = {}
    for name, (dtype, nbytes) in sizes.items():
        bucket = filling.setdefault(dtype, [])
        before = filled.setdefault(dtype, 0)
        if not bucket or before + nbytes <= _BUCKET:
            bucket.append(name)
            filled[dtype] += nbytes
        elif nbytes > before:
            yield [name]
        else:
            yield bucket
            filling[dtype] = [name]
            filled[dtype] = nbytes
    yield from filling.values()
