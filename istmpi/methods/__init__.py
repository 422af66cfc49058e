"""Every method of training, one file each; `istmpi.config.methods` describes them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from istmpi.config.spec import MethodSpec
    from istmpi.methods.base import Method


def load_class(spec: MethodSpec) -> type[Method]:
    """Return the class that runs the rounds of a described method."""
    module, _, name = spec.rounds.partition(".")
    # One method's module alone is imported: not every run has time for all of them.
    return getattr(importlib.import_module(f"istmpi.methods.{module}"), name)
