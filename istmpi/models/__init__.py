"""The networks that can be trained. A `Table` describes a network; a plain torch.nn.Module computes
it.

A width is an integer of the constructor that sets a layer's number of units (neurons, heads). A
leaf is a layer that can compute with some of its weight's rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from istmpi.models.tables import Facts, require_table
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import require_known, user_network
from istmpi.tasks import CLASSIFICATION


class ModelSettings(Protocol):
    """The section ``model`` of a run."""

    @property
    def name(self) -> str:
        """The network's name."""

    @property
    def dtype(self) -> str:
        """The type of weights and computation."""

    def arguments_for(self, task: str) -> Mapping[str, Any]:
        """Return the arguments of the network's constructor."""


def architecture(features: int, outputs: int, task: str, settings: ModelSettings) -> Architecture:
    """Return a run's network, whose table must be written by hand, without importing torch.

    Raises ConfigError for an unknown name or a wrong setting.
    """
    require_known(settings.name)
    code = user_network(settings.name, (features,), outputs, settings.arguments_for(task), task)
    table = require_table(code.name, Facts(code.inputs, outputs), code.settings)
    return Architecture(code.name, table, settings.dtype, code)


def mlp_network(
    features: int,
    hidden: Sequence[int],
    outputs: int,
    *,
    dtype: str = "float32",
    output_norm: bool = False,
    **settings: Any,
) -> Architecture:
    """Return an mlp that classifies, without importing torch. ``settings``: its other arguments."""
    arguments = {"hidden": tuple(hidden), "output_norm": output_norm, **settings}
    code = user_network("mlp", (features,), outputs, arguments, CLASSIFICATION)
    table = require_table("mlp", Facts(code.inputs, outputs), code.settings)
    return Architecture("mlp", table, dtype, code)
