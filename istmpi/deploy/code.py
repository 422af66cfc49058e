"""The code of a network of one's own, which a checkpoint does not have and which nobody runs without being told to."""

from istmpi.checkpoint.reader import Checkpoint
from istmpi.errors import ConfigError, DataError
from istmpi.models.architecture import Architecture
from istmpi.names import SHIPPED, is_own


def runnable(checkpoint: Checkpoint, model: str | None) -> Architecture:
    """A checkpoint's network, ready to be built: with the class ``model`` where it is one of the user's own.

    Raises DataError where the class is needed and not given, ConfigError where it makes another network.
    """
    network, header = checkpoint.architecture, checkpoint.header
    if not is_own(header.run.model.name) and model is not None:
        raise ConfigError(f"--model {model}: the network in {checkpoint.path} is istmpi's own; leave --model out.")
    model = model or SHIPPED.get(network.name)
    if model is None:
        raise DataError(
            f"{checkpoint.path} has the weights of a network of your own, {network.name}, and not its code, which is "
            f"run only when you name it: give --model FILE.py:Class."
        )
    from istmpi.models.user import user_network

    data = header.data
    arguments = header.run.model.arguments_for(data.task)
    return network.with_code(user_network(model, header.shape, data.outputs, arguments, data.task))


def changed_source(network: Architecture) -> str:
    """What to tell of a network whose class is not, to the last byte, what it was trained with; empty for others."""
    if network.has_its_source:
        return ""
    return f"the source of {network.name} has changed since it was trained; its parameters are as they were"
