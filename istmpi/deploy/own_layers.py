"""A checkpoint's network of one's own under the names of its own state: ``Class(...).load_state_dict`` takes it."""

import numpy as np

from istmpi.checkpoint.reader import Checkpoint
from istmpi.checkpoint.state import Moments
from istmpi.deploy.layers import Layer, Scaled, Values
from istmpi.errors import ConfigError
from istmpi.models.inferred import InferredNetwork


def own_layers(checkpoint: Checkpoint, moments: Moments, network: InferredNetwork) -> list[Layer]:
    """The modules that have a state, with the calibration as running statistics.

    What the full network multiplies a product by is folded into its weight; ConfigError where another layer has that
    weight, too. What examples are normalised with is no part of such a network.
    """
    module = network.plain()
    name_of = {id(parameter): name for name, parameter in module.named_parameters()}
    layers, factors = [], {}
    for path, layer in module.named_modules():
        tensors: dict[str, Values] = {}
        for key, parameter in layer.named_parameters(recurse=False):
            name = name_of[id(parameter)]
            factor = network.factor(path, network.lengths, checkpoint.header.scale) if key == "weight" else 1.0
            if factors.setdefault(name, factor) != factor:
                raise ConfigError(
                    f"{checkpoint.path}: {path} and another layer share a weight that the full network multiplies by "
                    f"different factors; such a network cannot be exported."
                )
            tensors[key] = checkpoint.tensors[name] if factor == 1 else Scaled(checkpoint.tensors[name], factor)
        skipped = layer._non_persistent_buffers_set
        tensors |= {key: values.numpy() for key, values in layer.named_buffers(recurse=False) if key not in skipped}
        if path in moments:
            mean, variance = (values.numpy() for values in moments[path])
            tensors |= {"running_mean": mean, "running_var": variance, "num_batches_tracked": np.array(0)}
        if tensors:
            layers.append(Layer(path, type(layer).__name__, {}, tensors))
    return layers
