"""Every setting that a run may have, with whose it is: read from the code, without building a network."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from istmpi.config.run import Run
from istmpi.config.sections import OWN_SETTINGS
from istmpi.methods import METHODS
from istmpi.models.arguments import arguments_of
from istmpi.names import NETWORKS
from istmpi.settings import help_of, kind_of_value, range_of, types_of


@dataclass(frozen=True)
class Setting:
    """A setting: its dotted name, its type with range and help, and its default."""

    name: str
    hint: Any
    default: Any
    owner: str = ""
    """The method or the network that alone has it; empty for all others."""

    @property
    def help(self) -> str:
        """A sentence, or some."""
        return help_of(self.hint)

    @property
    def kind(self) -> str:
        """What its values are, in words."""
        return kind_of_value(self.hint)

    @property
    def range(self) -> str:
        """Which values it may have, in words; empty for any of its kind."""
        if kind_of_value(self.hint) == "true or false":
            return ""
        said = range_of(self.hint)
        return f"above {said[4:-6]}" if said.startswith("in (") and said.endswith(", inf)") else said


def every_setting() -> Iterator[Setting]:
    """The settings of all sections in order, those of every method and of every network that ships among them."""
    default, hints = Run(), types_of(Run)
    owners = {f"method.{setting}": spec.name for spec in METHODS.values() for setting, *_ in spec.settings}
    of_mlp = {f"model.{name}" for name in types_of(type(default.model))} - {f"model.{name}" for name in OWN_SETTINGS}
    for section in dataclasses.fields(default):
        value = getattr(default, section.name)
        if not dataclasses.is_dataclass(value):
            yield Setting(section.name, hints[section.name], value)
            continue
        described = []
        for name, hint in types_of(type(value)).items():
            dotted = f"{section.name}.{name}"
            owner = "mlp" if dotted in of_mlp else owners.get(dotted, "")
            described.append(Setting(dotted, hint, getattr(value, name), owner))
        yield from sorted(described, key=lambda one: bool(one.owner))
        if section.name == "model":
            for network in NETWORKS:
                for name, hint, given in arguments_of(network):
                    yield Setting(f"model.{name}", hint, given, network)
