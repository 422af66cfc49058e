"""The networks that can be trained, by the name that a run file gives them."""

from istmpi.errors import ConfigError, did_you_mean
from istmpi.models.architecture import Chain
from istmpi.models.mlp import MLP
from istmpi.names import NETWORKS
from istmpi.tasks import TASKS

MODELS: dict[str, type[Chain]] = {"mlp": MLP}


def architecture(features: int, labels: int, task: str, settings: object) -> Chain:
    """The network of istmpi's own that a run's model section describes, for so many features and labels."""
    name = settings.name
    if name not in MODELS:
        own = ". A network of your own is FILE.py:Class or package.module:Class." if "." in name else ""
        raise ConfigError(f"model.name = {name!r} is not known{own or did_you_mean(name, [*MODELS, *NETWORKS])}")
    if advice := TASKS[task].network:
        raise ConfigError(f"model.name = {name!r} {advice}")
    return MODELS[name].from_settings(features, labels, task, settings)
