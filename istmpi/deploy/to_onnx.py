"""A chain of plain layers as an ONNX graph: ``input`` [batch, features] to ``output`` [batch, outputs].

Made from the layers and not from a module in memory, so that it takes a network that is larger than memory.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from istmpi.deploy.layers import Layer, Values, dtype_of
from istmpi.deploy.onnx_file import library, tensor_type
from istmpi.errors import ConfigError

OPSET = 17
IR_VERSION = 8
"""The oldest that have all operators that are used here."""


def chain(layers: Sequence[Layer]) -> tuple[Any, dict[str, Values]]:
    """The model without its tensors, and the tensors by their names in it."""
    graph = _Graph(library(), layers)
    model = library().helper.make_model(graph.proto(), producer_name="istmpi", ir_version=IR_VERSION)
    model.opset_import[0].version = OPSET
    return model, graph.tensors


class _Graph:
    """Nodes, one after the other, and the tensors that they use."""

    def __init__(self, onnx: Any, layers: Sequence[Layer]):
        self._onnx = onnx
        self._nodes: list[Any] = []
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

    def proto(self) -> Any:
        def info(name: str, length: int) -> Any:
            return self._onnx.helper.make_tensor_value_info(name, tensor_type(self._dtype.name), ["batch", length])

        ends = [info("input", self._features)], [info("output", self._outputs)]
        return self._onnx.helper.make_graph(self._nodes, "istmpi", *ends)


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
