"""The inputs of a sample batch, from which the form of a network's inputs is read."""

from collections.abc import Mapping
from typing import Any

from istmpi.code import calling, import_user_module
from istmpi.errors import ConfigError, did_you_mean
from istmpi.trees import Named, list_tensors


def load_example(name: str) -> tuple[Any, ...]:
    """Return the inputs that FILE.py:NAME is, or returns if it is a function without arguments.

    Raises ConfigError if there is no such name, or if it has no tensor.
    """
    option = f"--example {name}"
    module, inner = import_user_module("--example", name, "first_inputs")
    if not hasattr(module, inner):
        names = [word for word in vars(module) if not word.startswith("__")]
        raise ConfigError(f"{option}: it has no {inner}{did_you_mean(inner, names)}")
    example = getattr(module, inner)
    if callable(example):
        with calling(option):
            example = example()
    return read_inputs(example)


def read_inputs(example: Any) -> tuple[Any, ...]:
    """Return a sample batch's inputs as a tuple. Raises ConfigError if it has no tensor."""
    inputs: tuple[Any, ...] = (example,)
    if isinstance(example, Mapping):
        inputs = (Named(example),)
    # A named tuple is a single input; only a plain tuple has several.
    elif type(example) is tuple:
        inputs = example
    if any(tensor.is_meta for tensor in list_tensors(inputs)):
        raise ConfigError(
            "example has a tensor on the device meta, without values. Give tensors with values."
        )
    if next(list_tensors(inputs), None) is None:
        raise ConfigError(
            f"example = {type(example).__name__}: give the inputs of a batch, tensors or trees of "
            "them."
        )
    return inputs
