"""The narrow network: a control that shows what a network with the widths of one subnet reaches."""

from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.data.sources import open_for_training
from istmpi.errors import ConfigError
from istmpi.methods.limits import with_method
from istmpi.names import NARROW, NARROW_METHOD
from istmpi.training.same_network import build_network


def narrow_run(run: Run, communicator: Communicator) -> Run:
    """Return a run of local SGD with a rank's part of each width that ist would deal out.
    Collective.

    A width is rounded down, but is at least 1. Raises ConfigError if ist would deal out none.
    """
    ist = with_method(run, "ist")
    with communicator.agreed():
        ist = ist.with_implied()
        data = open_for_training(ist.data, communicator.rank, ist.train.seed)
    network = build_network(ist, data, communicator)
    code = network.code
    lengths = {}
    spec = find_method_spec(ist.method.name)
    subnets = spec.cut(ist, communicator.size).parts
    for name in spec.groups(ist, network):
        if name in code.widths:
            lengths[name] = max(network.lengths[name] // subnets, 1)
    with communicator.agreed():
        if not lengths:
            raise ConfigError(
                f"--methods {NARROW}: {ist.model.name} has no width that ist would deal out. "
                "Leave it out."
            )
    changed = {}
    for argument, value in code.settings_at(lengths).items():
        if value != code.settings[argument]:
            changed[f"model.{argument}"] = value
    return with_method(run, NARROW_METHOD).override(changed)
