"""The names of networks in a run.

A name is a word, or for a user's network FILE.py:Class or package.module:Class.
"""

from typing import Any

NETWORKS = {
    "gat": "istmpi.models.graphs:GAT",
    "gcn": "istmpi.models.graphs:GCN",
    "moe": "istmpi.models.moe:MoE",
    "resnet": "istmpi.models.resnet:ResNet",
    "sage": "istmpi.models.graphs:SAGE",
    "transformer": "istmpi.models.transformer:Transformer",
    "vgg": "istmpi.models.vgg:VGG",
    "xc": "istmpi.models.xc:XC",
}
"""Networks that ship as plain modules.

Their settings, widths and axes are found as for a user's network.
"""

SHIPPED = {"mlp": "istmpi.models.mlp:MLP", **NETWORKS}
"""The networks that ship; mlp has a section of its own (`istmpi.config.learner.Model`)."""

WRITTEN_TABLES = ("gcn", "mlp", "sage", "xc")
"""The networks whose tables are written by hand (`istmpi.models.tables`), not found."""

NARROW = "narrow"
"""The control of a comparison: a network as wide as ist's subnets, under `NARROW_METHOD`."""
NARROW_METHOD = "local-sgd"


def find_method_name(name: str) -> str:
    """Return the method of a comparison's run, which may be `NARROW`."""
    if name == NARROW:
        return NARROW_METHOD
    return name


ACTIVATIONS = {
    "relu": "ReLU",
    "leaky-relu": "LeakyReLU",
    "gelu": "GELU",
    "silu": "SiLU",
    "tanh": "Tanh",
}
NORMS = ("batch", "layer", "none")


def is_own(name: Any) -> bool:
    """Return True for a user's network, in the form FILE.py:Class or package.module:Class."""
    return isinstance(name, str) and ":" in name


def is_module(name: Any) -> bool:
    """Return True if a network is a plain torch.nn.Module: the user's own, or one of `NETWORKS`."""
    return isinstance(name, str) and (is_own(name) or name in NETWORKS)


def has_table(name: str) -> bool:
    """Return True if a network's table is written by hand."""
    return name in WRITTEN_TABLES


def find_place(name: str) -> str:
    """Return the module and class of a network: a shipped one's, or the name itself."""
    return SHIPPED.get(name, name)


def find_class_name(name: Any) -> str:
    """Return the class in a network's name, without the file or package.

    It is empty unless the network `is_module`.
    """
    if not is_module(name):
        return ""
    _, _, class_name = find_place(name).rpartition(":")
    return class_name
