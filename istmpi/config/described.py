"""Lists every setting that a run may have, without building a network."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from istmpi.config.learner import OWN_SETTINGS, Model
from istmpi.config.methods import METHODS
from istmpi.config.run import Run
from istmpi.names import NETWORKS
from istmpi.network.arguments import read_arguments
from istmpi.settings import describe_kind, describe_range, find_help, find_types


@dataclass(frozen=True)
class Setting:
    name: str
    hint: Any
    default: Any
    owner: str = ""
    """The method or network that alone has this setting; empty for a setting of all runs."""

    @property
    def help(self) -> str:
        return find_help(self.hint)

    @property
    def kind(self) -> str:
        return describe_kind(self.hint)

    @property
    def range(self) -> str:
        if self.kind == "true or false":
            return ""
        return describe_range(self.hint)


def every_setting() -> Iterator[Setting]:
    """Yield the settings of all sections in order.

    They include those of every method and of every built-in network.
    """
    owners = _find_owners()
    for section, value in vars(Run()).items():
        kind: type = type(value)
        if not dataclasses.is_dataclass(kind):
            yield Setting(section, find_types(Run)[section], value)
            continue
        names = {name: f"{section}.{name}" for name in find_types(kind)}
        # Settings of all runs come first.
        for name in sorted(names, key=lambda name: names[name] in owners):
            hint = find_types(kind)[name]
            yield Setting(names[name], hint, getattr(value, name), owners.get(names[name], ""))
        # The section of mlp has its settings as fields; other networks' are found from their code.
        if section == "model":
            for network in NETWORKS:
                for name, hint, default in read_arguments(network):
                    yield Setting(f"model.{name}", hint, default, network)


def _find_owners() -> dict[str, str]:
    """Return the method or network that alone has a setting, by the setting's name."""
    owners = {}
    for spec in METHODS.values():
        for setting in spec.settings:
            owners[f"method.{setting}"] = spec.name
    for name in find_types(Model):
        if name not in OWN_SETTINGS:
            owners[f"model.{name}"] = "mlp"
    return owners
