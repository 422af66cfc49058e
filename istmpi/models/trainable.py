"""The refusal, by name and before all other checks, of networks that cannot be trained."""

from torch import nn

from istmpi.errors import ConfigError
from istmpi.models.user import UserNetwork


def require_trainable(network: UserNetwork, module: nn.Module) -> None:
    """ConfigError for parameters or buffers that istmpi cannot train or keep."""
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    if not parameters:
        raise ConfigError(f"{network.name}: it has no parameters to train.")
    for name, values in {**parameters, **buffers}.items():
        if values.is_meta:
            raise ConfigError(
                f"{network.name}: its {'buffer' if name in buffers else 'parameter'} {name} is on the device meta, "
                f"where it has no values. Make it without a device."
            )
    for name, parameter in parameters.items():
        problem = ""
        if not parameter.numel():
            problem = f"has no elements ({' x '.join(map(str, parameter.shape))}). Give its widths at least 1"
        elif not parameter.requires_grad:
            problem = "is frozen (requires_grad=False), which istmpi cannot keep. Register it as a buffer"
        elif parameter.ndim == 0:
            problem = "is a single number without an axis. Give it one, as torch.ones(1)"
        elif not parameter.is_floating_point():
            problem = f"is of {parameter.dtype}; istmpi trains real floating-point numbers alone"
        elif "/" in name:
            problem = "has a / in its name, which checkpoints need. Rename it"
        if problem:
            raise ConfigError(f"{network.name}: its parameter {name} {problem}.")
