"""From a run to its network, without reading data where the command line tells what they would."""

from dataclasses import dataclass

from istmpi.cli import quantities
from istmpi.config import Run, is_own
from istmpi.errors import ConfigError
from istmpi.models import architecture
from istmpi.models.architecture import Architecture


@dataclass(frozen=True)
class Described:
    """A run with its network, and the number of training examples where data were read."""

    run: Run
    architecture: Architecture
    features: int
    """Of an example."""
    examples: int | None


def described(run: Run, layers: str | None, shape: tuple[int, int] | None = None) -> Described:
    """The network of a run: of ``layers`` (1000-4000-200), of a shape (features, labels), or else of its data."""
    if is_own(run.model.name):
        raise ConfigError(
            f"model.name = {run.model.name}: what a network of your own costs cannot be planned yet, only what an mlp "
            f"does. istmpi model {run.model.name} tells its parameters, istmpi train trains it."
        )
    run = run.with_implied()
    task, examples = "classification", None
    if layers is not None:
        features, *hidden, labels = quantities.widths("--layers", layers)
        run, shape = run.override({"model.hidden": hidden}), (features, labels)
    if shape is None:
        from istmpi.data.sources import open_dataset

        data = open_dataset(run.data.source, 0)
        shape, task, examples = (data.features, data.outputs), data.task, len(data.train)
    return Described(run, architecture(*shape, task, run.model), shape[0], examples)
