"""Multilayer perceptron of any depth and widths. Copy this file to add a model.

The paper's form (arXiv 1910.02120, section 4) is the default: Linear without bias, batch normalisation, ReLU; and a
normalisation without scale and shift on the logits. Every hidden layer is a unit group of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from istmpi.engine.axes import Parameter, Pattern
from istmpi.errors import ConfigError, did_you_mean
from istmpi.models.architecture import BatchNormalisation, Chain
from istmpi.models.operators import Operator
from istmpi.names import ACTIVATIONS, NORMS
from istmpi.tasks import TASKS

if TYPE_CHECKING:
    from torch import nn


class MLP(Chain):
    """features -> hidden1 -> hidden2 -> ... -> labels."""

    def __init__(
        self,
        features: int,
        hidden: Sequence[int],
        labels: int,
        norm: str = "batch",
        activation: str = "relu",
        dropout: float = 0.0,
        bias: bool = False,
        output_norm: bool = False,
        dtype: str = "float32",
    ):
        if norm not in NORMS:
            raise ConfigError(f"model.norm = {norm!r} is not known{did_you_mean(norm, NORMS)}")
        if activation not in ACTIVATIONS:
            raise ConfigError(f"model.activation = {activation!r} is not known{did_you_mean(activation, ACTIVATIONS)}")
        self.groups = tuple(f"hidden{number}" for number in range(1, len(hidden) + 1))
        self.stages = (*self.groups, "labels")
        self.lengths = {"features": features, **dict(zip(self.groups, hidden, strict=True)), "labels": labels}
        over_the_batch = self.groups * (norm == "batch") + ("labels",) * output_norm
        self.batch_norms = {name: BatchNormalisation(self.lengths[name]) for name in over_the_batch}
        normalised = self.groups * (norm != "none") + ("labels",) * output_norm
        self.normalised = tuple(map(Pattern.parse, normalised))
        self.stochastic = dropout > 0
        self._norm, self._activation, self._dropout = norm, activation, dropout
        self._bias, self._output_norm = bias, output_norm
        self._inputs = dict(zip(self.stages, ("features", *self.groups), strict=True))
        self.sums = {
            name: (inputs,)
            for name, inputs in self._inputs.items()
            if inputs in self.groups and name not in self.batch_norms
        }
        self.operators = tuple(self._product(name, inputs) for name, inputs in self._inputs.items())
        self.parameters = {}
        for name, inputs in self._inputs.items():
            bound = self.lengths[inputs] ** -0.5
            self.parameters[f"{name}.linear.weight"] = Parameter(Pattern.parse(f"{name} {inputs}"), dtype, bound)
            if bias:
                self.parameters[f"{name}.linear.bias"] = Parameter(Pattern.parse(name), dtype, bound)
            if name in self.groups and norm != "none":
                self.parameters[f"{name}.norm.weight"] = Parameter(Pattern.parse(name), dtype, centre=1.0)
                self.parameters[f"{name}.norm.bias"] = Parameter(Pattern.parse(name), dtype)

    @classmethod
    def from_settings(cls, features: int, labels: int, task: str, settings) -> MLP:
        default_norm = settings.norm == "batch" and TASKS[task].one_class
        return cls(
            features,
            settings.hidden,
            labels,
            norm=settings.norm,
            activation=settings.activation,
            dropout=settings.dropout,
            bias=settings.bias,
            output_norm=default_norm if settings.output_norm is None else settings.output_norm,
            dtype=settings.dtype,
        )

    @staticmethod
    def _product(name: str, inputs: str) -> Operator:
        of_input = inputs == "features"
        shape, layer = Pattern.parse(f"1 {inputs} {name}"), f"{name}.linear"
        return Operator(shape, layer, "Linear", f"{layer}.weight", 0, 1 if of_input else 2, of_input)

    def stage(self, name: str, lengths: Mapping[str, int]) -> nn.Sequential:
        import torch
        from torch import nn

        from istmpi.models.linear import Linear
        from istmpi.models.norms import BatchNorm

        dtype = getattr(torch, self.parameters[f"{name}.linear.weight"].dtype)
        inputs, outputs = lengths[self._inputs[name]], lengths[name]
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["linear"] = Linear(inputs, outputs, bias=self._bias, dtype=dtype)
        if name in self.groups:
            if self._norm == "batch":
                layers["norm"] = BatchNorm(outputs, affine=True, dtype=dtype)
            elif self._norm == "layer":
                layers["norm"] = nn.LayerNorm(outputs, dtype=dtype)
            layers["activation"] = getattr(nn, ACTIVATIONS[self._activation])()
            if self._dropout:
                layers["dropout"] = nn.Dropout(self._dropout)
        elif self._output_norm:
            layers["norm"] = BatchNorm(outputs, affine=False, dtype=dtype)
        return nn.Sequential(layers)
