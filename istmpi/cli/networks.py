"""From a run to its network, without reading data where the command line tells what they would."""

from dataclasses import dataclass

from istmpi.cli import quantities
from istmpi.config import Run
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
