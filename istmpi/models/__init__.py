"""The networks that can be trained, by the name that a run file gives them."""

from istmpi.errors import ConfigError, did_you_mean
from istmpi.models.architecture import Chain
from istmpi.models.mlp import MLP
from istmpi.names import NETWORKS
from istmpi.tasks import GRAPH_TASKS, MULTI_LABEL, NEXT_TOKEN

MODELS: dict[str, type[Chain]] = {"mlp": MLP}


def architecture(features: int, labels: int, task: str, settings: object) -> Chain:
    """The network of istmpi's own that a run's model section describes, for so many features and labels."""
    name = settings.name
    if name not in MODELS:
        own = ". A network of your own is FILE.py:Class or package.module:Class." if "." in name else ""
        raise ConfigError(f"model.name = {name!r} is not known{own or did_you_mean(name, [*MODELS, *NETWORKS])}")
    if task == NEXT_TOKEN:
        raise ConfigError(f"model.name = {name!r} takes numbers, and these data are text. Use --model transformer.")
    if task == MULTI_LABEL:
        raise ConfigError(f"model.name = {name!r} takes all numbers of a row; these are sparse rows. Use --model xc.")
    if task in GRAPH_TASKS:
        raise ConfigError(
            f"model.name = {name!r} takes examples by themselves; this is a graph. Use --model gcn or sage."
        )
    return MODELS[name].from_settings(features, labels, task, settings)
