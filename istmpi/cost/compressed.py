"""Bytes of networks that travel in parts or in few bits."""

from collections.abc import Mapping

from istmpi.comm import ring
from istmpi.config import Run
from istmpi.engine.axes import Parameter
from istmpi.engine.fragments import departures
from istmpi.engine.packed_sizes import float4_bytes, top_k_bytes
from istmpi.methods import spec_of

PACKING, PICKING = 60, 65
"""Copies of a network that take as long as to bring it to 4 bits and back, and to pick and pack its largest values."""


def fragments(run: Run, parameters: Mapping[str, Parameter], lengths: Mapping[str, int], ranks: int) -> list[list[int]]:
    """Return the bytes of a round's fragments: ``[departure][rank]``."""
    settings, sent = run.method, []
    for departure in departures(parameters, settings.fragments, settings.local_steps, steps_behind(run)):
        sizes = {name: parameters[name].size(lengths) for name in departure.names}
        if settings.differences == "full":
            sent.append(ring.sent_bytes(sizes, parameters[departure.names[0]].itemsize, ranks))
        else:
            sent.append(ring.sent_of(sum(sizes.values()), ranks, float4_bytes))
    return sent


def totals(run: Run, parameters: Mapping[str, Parameter], lengths: Mapping[str, int], ranks: int) -> list[int]:
    """Return the bytes of all ranks in each departure, for any number of them."""
    settings, sent = run.method, []
    for departure in departures(parameters, settings.fragments, settings.local_steps, steps_behind(run)):
        elements = sum(parameters[name].size(lengths) for name in departure.names)
        if settings.differences == "full":
            nbytes = elements * parameters[departure.names[0]].itemsize
        else:
            nbytes = ring.once_round_of(elements, ranks, float4_bytes)
        sent.append(2 * (ranks - 1) * nbytes)
    return sent


def steps_behind(run: Run) -> int:
    return spec_of(run.method.name).delay(run)


def largest(run: Run, parameters: Mapping[str, Parameter], lengths: Mapping[str, int]) -> int:
    settings = run.method
    sizes = tuple(parameter.size(lengths) for parameter in parameters.values())
    itemsize = next(iter(parameters.values())).itemsize
    return top_k_bytes(settings.top, sizes, None if settings.top_values == "2bit" else itemsize)
