"""An ONNX model as files, its tensors in memory only some rows at a time.

Protocol buffers are merged when they are laid end to end, lists by appending: so the graph is written first, and each
tensor behind it as one more piece of the same graph. A message may not reach 2 GiB; a larger network's tensors go into
a second file that the graph refers to.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from istmpi.deploy.layers import Values, bytes_of, chunks, dtype_of, shape_of
from istmpi.optional import optional

LARGEST = 2**31 - 2**20
"""Bytes of tensors in one file; the rest of the 2 GiB is for the graph."""

_ALIGNMENT = 2**12
"""Tensors in a second file begin at a page, so that they can be mapped."""

SMALL = 1024
"""Bytes of a tensor that stays in the first file: whoever infers shapes looks for the lengths of axes there."""

# Fields of the messages, from onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9


def library() -> Any:
    """The module onnx; a DataError in one line where it is not installed."""
    return optional("onnx", "onnx", "exports to ONNX", "export")


def tensor_type(dtype: str) -> int:
    """ONNX's number for a type of NumPy's."""
    return library().helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def files(
    model: Any, tensors: Mapping[str, Values], metadata: Mapping[str, str], name: str
) -> dict[str, Callable[[BinaryIO], None]]:
    """The files of a model whose tensors are given beside it, each with what writes it; ``name`` is the first one's."""
    library().helper.set_model_props(model, dict(metadata))
    if sum(map(bytes_of, tensors.values())) <= LARGEST:
        return {name: lambda file: _write_all(model, tensors, file)}
    small = {key: values for key, values in tensors.items() if bytes_of(values) <= SMALL}
    large = {key: values for key, values in tensors.items() if key not in small}
    beside, place = f"{name}.data", 0
    for key, values in large.items():
        place += -place % _ALIGNMENT
        reference = _description(key, values)
        for field, value in {"location": beside, "offset": place, "length": bytes_of(values)}.items():
            reference.external_data.add(key=field, value=str(value))
        reference.data_location = library().TensorProto.EXTERNAL
        model.graph.initializer.append(reference)
        place += bytes_of(values)
    return {name: lambda file: _write_all(model, small, file), beside: lambda file: _write_data(large, file)}


def _write_all(model: Any, tensors: Mapping[str, Values], file: BinaryIO) -> None:
    file.write(model.SerializeToString())
    for key, values in tensors.items():
        _append(file, _description(key, values), values)


def _write_data(tensors: Mapping[str, Values], file: BinaryIO) -> None:
    for values in tensors.values():
        file.write(b"\0" * (-file.tell() % _ALIGNMENT))
        for chunk in chunks(values):
            file.write(chunk)


def _description(name: str, values: Values) -> Any:
    """A tensor without its values."""
    return library().TensorProto(name=name, dims=shape_of(values), data_type=tensor_type(dtype_of(values)))


def _append(file: BinaryIO, description: Any, values: Values) -> None:
    """One more initializer of the graph of a model that has been written so far."""
    count = bytes_of(values)
    tensor = description.SerializeToString() + _field(_RAW_DATA, count)
    initializer = _field(_INITIALIZER, len(tensor) + count) + tensor
    file.write(_field(_GRAPH, len(initializer) + count) + initializer)
    for chunk in chunks(values):
        file.write(chunk)


def _field(number: int, length: int) -> bytes:
    """What stands before the bytes of a field with a length."""
    return bytes([*_varint(number << 3 | 2), *_varint(length)])


def _varint(value: int) -> Iterator[int]:
    """Seven bits a byte, the lowest first; all bytes but the last have their highest bit set."""
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value
