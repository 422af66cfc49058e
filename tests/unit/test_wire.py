"""Transfers in fewer bits: nearly what was sent arrives, alike on all ranks, and comes to rest."""

import numpy as np
import pytest
import torch
from transfers import LENGTHS, blank, layout, on_ranks, parameters

from istmpi.comm.codec import Wire
from istmpi.cost import pair_bytes
from istmpi.engine.axes import Parameter, Pattern
from istmpi.engine.layout import part_shape
from istmpi.engine.slots import Slot
from istmpi.engine.transfer import Transfer

WIRE_LENGTHS = {**LENGTHS, "hidden": 40, "features": 60}
WIRED = ("labels features", "labels", "hidden features", "labels hidden", "mid hidden stream", "mid (hidden 4)")
WIRED += ("features + mid hidden + 50",)


def wired(kind, source, target, ranks, staging_bytes=2**28, exclude=None):
    """What arrives on every rank and what it sent, of normal values that differ between ranks."""
    names = {**parameters(WIRED, ("float32",)), **parameters(WIRED[:3], ("float64", "int64"))}
    names[Slot("hidden features float32", "exp_avg_sq")] = Parameter(Pattern.parse("hidden features"))

    def work(communicator):
        rank = communicator.rank
        draw = np.random.default_rng(rank)
        mine = {
            name: torch.from_numpy(draw.normal(size=part_shape(source, one, rank)) * 100).to(getattr(torch, one.dtype))
            for name, one in names.items()
        }
        wire = None if kind == "float32" else Wire(kind, 3)
        transfer = Transfer(names, source, target, rank, staging_bytes, exclude=exclude, wire=wire)
        received = blank(names, target, rank)
        transfer.run(mine, received, communicator)
        planned = [sum(block.sent_nbytes for block in message) for message in transfer.sends]
        assert communicator.traffic.bytes == transfer.bytes_sent == sum(planned) - planned[rank]
        assert planned == pair_bytes(names, source, target, exclude, kind)[rank].tolist()
        return received, mine

    received, mine = zip(*on_ranks(ranks, work))
    return received, mine


WIRE_CASES = [("owners", "all 0", None), ("all 0", "owners", "all 1"), ("all 0", "all 1", None)]
WIRE_CASES += [("some", "owners", None), ("none", "owners", None)]


@pytest.mark.parametrize("kind, ranks", [("int8", 1), ("bfloat16", 3), ("int8", 3)])
@pytest.mark.parametrize("source, target, exclude", WIRE_CASES)
def test_in_fewer_bits_all_arrives_nearly_as_it_left_however_messages_are_cut(kind, source, target, exclude, ranks):
    layouts = [layout(name, ranks, WIRE_LENGTHS) for name in (source, target)]
    without = layout(exclude, ranks, WIRE_LENGTHS) if exclude else None
    exact, mine = wired("float32", *layouts, ranks, exclude=without)
    coded, _ = wired(kind, *layouts, ranks, exclude=without)
    cut, _ = wired(kind, *layouts, ranks, ranks * 300, without)
    for one, other in zip(coded, cut):
        assert all(torch.allclose(one[name], other[name], rtol=0, atol=0) for name in one)
    changed = False
    for one, other in zip(exact, coded):
        for name in one:
            if one[name].dtype != torch.float32:
                assert torch.equal(one[name], other[name])
                continue
            few = kind == "int8" and one[name].dim() > 1 and not isinstance(name, Slot)
            largest = max(rank[name].abs().max().item() for rank in mine if rank[name].numel())
            step = largest * (2 / 127 if few else 2**-7)
            assert (one[name] - other[name]).abs().max() <= step if one[name].numel() else True
            changed |= not torch.equal(one[name], other[name])
    assert changed or ranks == 1


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_what_stays_on_its_rank_is_exact_unless_the_mean_is_taken(kind):
    owners, deal, nobody = (layout(name, 3, WIRE_LENGTHS) for name in ("owners", "all 0", "none"))
    received, mine = wired(kind, owners, deal, 3)
    name = "hidden features float32"
    for rank in range(3):
        held = deal.positions(Pattern.parse("hidden").axes[0], 0, rank)
        rows = owners.rows(WIRE_LENGTHS["hidden"], rank)
        own = [place for place, unit in enumerate(held) if unit in rows]
        assert own and torch.equal(
            received[rank][name][own], mine[rank][name][[held[place] - rows[0] for place in own]]
        )
    means, _ = wired(kind, nobody, nobody, 3)
    exact, _ = wired("float32", nobody, nobody, 3)
    assert all(torch.equal(mean[name], means[0][name]) for mean in means), "a rank's own copy is rounded, too"
    assert not torch.equal(means[0][name], exact[0][name])
