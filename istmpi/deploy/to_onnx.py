"""A chain of plain layers as an ONNX graph: ``input`` [batch, features] to ``output`` [batch, outputs].

The weights are never in memory all at once. Protocol buffers are merged when they are laid end to end, lists by
appending: so the graph is written first, and each tensor behind it as one more piece of the same graph. A message may
not reach 2 GiB; a larger network's tensors go into a second file that the graph refers to.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from istmpi.deploy.layers import Layer, Values, bytes_of, chunks, dtype_of, shape_of
from istmpi.errors import ConfigError
from istmpi.optional import optional

OPSET = 17
IR_VERSION = 8
"""The oldest that have all operators that are used here."""

LARGEST = 2**31 - 2**20
"""Bytes of tensors in one file; the rest of the 2 GiB is for the graph."""

_ALIGNMENT = 2**12
"""Tensors in a second file begin at a page, so that they can be mapped."""

# Fields of the messages, from onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9


def require_library() -> None:
    """Refuse, in one line, where the library is not installed."""
    optional("onnx", "onnx", "exports to ONNX", "export")


def needs_second_file(layers: Sequence[Layer]) -> bool:
    return sum(bytes_of(values) for layer in layers for values in layer.tensors.values()) > LARGEST


def write(
    layers: Sequence[Layer],
    metadata: Mapping[str, str],
    file: BinaryIO,
    beside: BinaryIO | None = None,
    name: str = "",
) -> None:
    """Write the model; its tensors into the file ``beside``, which has that ``name``, where there is one."""
    onnx = optional("onnx", "onnx", "exports to ONNX", "export")
    graph = _Graph(onnx, layers)
    if beside:
        graph.refer(beside, name)
    model = onnx.helper.make_model(graph.proto(), producer_name="istmpi", ir_version=IR_VERSION)
    model.opset_import[0].version = OPSET
    onnx.helper.set_model_props(model, dict(metadata))
    file.write(model.SerializeToString())
    if not beside:
        for key, values in graph.tensors.items():
            _append(file, graph.description(key, values), values)


class _Graph:
    """Nodes, one after the other, and the tensors that they use."""

    def __init__(self, onnx: Any, layers: Sequence[Layer]):
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._references: list[Any] = []
        self.tensors: dict[str, Values] = {}
        linear = [layer for layer in layers if layer.kind == "Linear"]
        self._features, self._outputs = linear[0].settings["in_features"], linear[-1].settings["out_features"]
        self._dtype = np.dtype(dtype_of(linear[0].tensors["weight"]))
        at = "input"
        for layer in layers:
            if layer.kind not in _NODES:
                raise ConfigError(f"a layer {layer.kind} cannot be exported to ONNX; use --to torch or safetensors.")
            at = _NODES[layer.kind](self, layer, at)
        self._nodes[-1].output[0] = "output"

    def node(self, operator: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """A node; returns the name of its output."""
        output = f"{name}.output"
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, [output], name=name, **attributes))
        return output

    def tensor(self, name: str, values: Values) -> str:
        self.tensors[name] = values
        return name

    def of_layer(self, layer: Layer, kind: str, default: float = 0.0) -> str:
        """A tensor of a layer, or as many of the default where the layer has none."""
        values = layer.tensors.get(kind)
        if values is None:
            values = np.full(layer.settings["num_features"], default, self._dtype)
        return self.tensor(f"{layer.name}.{kind}", values)

    def number(self, name: str, value: float) -> str:
        return self.tensor(name, np.array(value, self._dtype))

    def refer(self, beside: BinaryIO, file: str) -> None:
        """Write all tensors into another file and remember where they are."""
        for key, values in self.tensors.items():
            beside.write(b"\0" * (-beside.tell() % _ALIGNMENT))
            reference = self.description(key, values)
            place = {"location": file, "offset": beside.tell(), "length": bytes_of(values)}
            for field, value in place.items():
                reference.external_data.add(key=field, value=str(value))
            reference.data_location = self._onnx.TensorProto.EXTERNAL
            self._references.append(reference)
            for chunk in chunks(values):
                beside.write(chunk)

    def description(self, name: str, values: Values) -> Any:
        """A tensor without its values."""
        return self._onnx.TensorProto(name=name, dims=shape_of(values), data_type=self._type(dtype_of(values)))

    def proto(self) -> Any:
        def info(name: str, length: int) -> Any:
            return self._onnx.helper.make_tensor_value_info(name, self._type(self._dtype.name), ["batch", length])

        ends = [info("input", self._features)], [info("output", self._outputs)]
        return self._onnx.helper.make_graph(self._nodes, "istmpi", *ends, self._references)

    def _type(self, dtype: str) -> int:
        return self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _linear(graph: _Graph, layer: Layer, x: str) -> str:
    inputs = [x, *(graph.of_layer(layer, kind) for kind in layer.tensors)]
    return graph.node("Gemm", inputs, layer.name, transB=1)


def _batch_norm(graph: _Graph, layer: Layer, x: str) -> str:
    inputs = [graph.of_layer(layer, "weight", 1.0), graph.of_layer(layer, "bias", 0.0)]
    inputs += [graph.of_layer(layer, "running_mean"), graph.of_layer(layer, "running_var")]
    return graph.node("BatchNormalization", [x, *inputs], layer.name, epsilon=layer.settings["eps"])


def _layer_norm(graph: _Graph, layer: Layer, x: str) -> str:
    inputs = [x, graph.of_layer(layer, "weight"), graph.of_layer(layer, "bias")]
    return graph.node("LayerNormalization", inputs, layer.name, axis=-1, epsilon=layer.settings["eps"])


def _silu(graph: _Graph, layer: Layer, x: str) -> str:
    gate = graph.node("Sigmoid", [x], f"{layer.name}.gate")
    return graph.node("Mul", [x, gate], layer.name)


def _gelu(graph: _Graph, layer: Layer, x: str) -> str:
    """x (1 + erf(x / sqrt 2)) / 2; as an operator of its own it is younger than our opset."""
    name = layer.name
    scaled = graph.node("Mul", [x, graph.number(f"{name}.root", math.sqrt(0.5))], f"{name}.scaled")
    error = graph.node("Erf", [scaled], f"{name}.erf")
    gate = graph.node("Add", [error, graph.number(f"{name}.one", 1.0)], f"{name}.gate")
    twice = graph.node("Mul", [x, gate], f"{name}.twice")
    return graph.node("Mul", [twice, graph.number(f"{name}.half", 0.5)], name)


def _activation(operator: str, **attributes: float) -> Callable[[_Graph, Layer, str], str]:
    return lambda graph, layer, x: graph.node(operator, [x], layer.name, **attributes)


_NODES: dict[str, Callable[[_Graph, Layer, str], str]] = {
    "Linear": _linear,
    "BatchNorm1d": _batch_norm,
    "LayerNorm": _layer_norm,
    "ReLU": _activation("Relu"),
    "LeakyReLU": _activation("LeakyRelu", alpha=0.01),
    "Tanh": _activation("Tanh"),
    "SiLU": _silu,
    "GELU": _gelu,
}


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
