"""Local SGD (arXiv 1805.09767): J local steps on every rank's whole network, then the mean of the weights."""

from istmpi.config import Run
from istmpi.methods.ist import IST
from istmpi.models.architecture import Architecture


class LocalSGD(IST):
    """IST with nothing dealt out: the pull gathers the network, the push takes the mean over its P holders."""

    @classmethod
    def groups(cls, run: Run, architecture: Architecture) -> tuple[str, ...]:
        return ()
