"""Rivals: methods that istmpi does not run. Their costs are counted for comparison only."""

from istmpi.errors import ConfigError, did_you_mean
from istmpi.methods import METHODS, MethodSpec

_ALL = (
    MethodSpec(
        "data-parallel-broadcast",
        "rank 0 collects all gradients and sends all weights, as the paper counts data parallel",
        ("server",),
        sends_every_step=True,
        owned_tensors=0,
    ),
    MethodSpec(
        "ist-push-pull",
        "all weights are flushed to their owners in every round",
        ("pull", "push"),
        deals=True,
    ),
)

RIVALS: dict[str, MethodSpec] = {spec.name: spec for spec in _ALL}


def counted(name: str) -> MethodSpec:
    methods = METHODS | RIVALS
    if name not in methods:
        raise ConfigError(f"method.name = {name!r} is not known{did_you_mean(name, methods)}")
    return methods[name]
