"""Transfers against the naive version: whole tensors, ``np.ix_`` and a mean over the holders."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transfers import (
    DTYPES,
    GROUPS,
    KINDS,
    LENGTHS,
    PATTERNS,
    all_parts,
    any_values,
    assert_same_bits,
    belong_together,
    bits,
    blanks,
    index,
    layout,
    move,
    normal,
    parameters,
)

from istmpi.engine.axes import Parameter, Pattern
from istmpi.engine.layout import Owners
from istmpi.engine.partition import Partition
from istmpi.engine.transfer import Transfer

# ---- equal copies: bit for bit


@pytest.mark.parametrize("ranks, staging_bytes", [(1, 2**28), (2, 1), (3, 2**28), (5, 1000)])
def test_a_transfer_delivers_what_the_source_has_and_touches_nothing_else(ranks, staging_bytes):
    """Every third pair of layouts, or fifth, every dtype, 0 to 3 dealt axes, also with rows above the staging limit."""
    whole = any_values(parameters(), LENGTHS)
    texts = PATTERNS if staging_bytes > 1 else PATTERNS[4:8]
    for kinds in [*product(KINDS, KINDS)][:: 3 if ranks == 3 else 5]:
        dtypes = DTYPES[sum(map(KINDS.index, kinds)) % len(DTYPES)], "bfloat16"
        names = parameters(texts, dtypes[: 1 if ranks == 5 else 2])
        source, target = (layout(kind, ranks) for kind in kinds)
        # A mean of NaNs may have other bits, all else arrives as it left.
        whole_here = {
            name: finite(whole[name]) if has_copies(parameter, source) else whole[name]
            for name, parameter in names.items()
        }
        values, before = all_parts(whole_here, names, source), blanks(names, target)
        moved = move(names, source, target, values, before, staging_bytes)
        for name, parameter in names.items():
            there = np.zeros(parameter.pattern.shape(LENGTHS), dtype=bool)
            for rank in range(ranks):
                there[index(source, parameter, rank)] = True
            for rank in range(ranks):
                part = index(target, parameter, rank)
                expected = np.where(there[part], bits(whole_here[name])[part], bits(before[rank][name]))
                np.testing.assert_array_equal(bits(moved.tensors[rank][name]), expected, err_msg=f"{kinds} {name}")


def has_copies(parameter, layout):
    return any(layout.copies(piece.pattern.names) > 1 for piece in parameter.pieces(layout.units))


def finite(tensor):
    if not tensor.is_floating_point():
        return tensor
    return torch.where(tensor.isfinite() & (tensor != 0), tensor, torch.ones_like(tensor))


def held_by_any(deal, parameter):
    """Which elements any rank has in a deal, written down with ``np.ix_``."""
    held = np.zeros(parameter.pattern.shape(LENGTHS), dtype=bool)
    for rank in range(deal.ranks):
        held[index(deal, parameter, rank)] = True
    return held


def beside_dealt(deal, parameter):
    """Which elements of a parameter lie in segments that a deal does not deal out, on every axis."""
    marks = np.ones(parameter.pattern.shape(LENGTHS), dtype=bool)
    for at, axis in enumerate(parameter.pattern.axes):
        whole = np.concatenate(
            [np.full(segment.length(LENGTHS), segment.names.isdisjoint(deal.units)) for segment in axis.segments]
        )
        marks &= whole.reshape([-1 if place == at else 1 for place in range(marks.ndim)])
    return marks


@given(
    ranks=st.integers(1, 5),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS), st.sampled_from(KINDS[1:])),
    texts=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=4, unique=True),
    staging_bytes=st.sampled_from([1, 50, 400, 2**28]),
)
def test_only_what_no_rank_has_in_a_third_layout_is_moved(ranks, kinds, texts, staging_bytes):
    names = parameters(texts, ("float32",))
    source, target, third = (layout(kind, ranks) for kind in kinds)
    assume(belong_together(source, target, third))
    whole, other = any_values(names, LENGTHS, 1), any_values(names, LENGTHS, 2)
    values, before = all_parts(whole, names, source), all_parts(other, names, target)
    moved = move(names, source, target, values, before, staging_bytes, third)
    sent = np.zeros(ranks, dtype=int)
    for name, parameter in names.items():
        dealt = parameter.pattern.dealt(third.units)
        wanted = ~held_by_any(third, parameter) if dealt else np.ones(parameter.pattern.shape(LENGTHS), dtype=bool)
        wanted |= beside_dealt(third, parameter)
        there = held_by_any(source, parameter) & wanted
        for rank in range(ranks):
            part = index(target, parameter, rank)
            expected = np.where(there[part], bits(whole[name])[part], bits(other[name])[part])
            if not has_copies(parameter, source):  # the mean of equal NaNs is another NaN
                np.testing.assert_array_equal(bits(moved.tensors[rank][name]), expected, err_msg=name)
            for peer in range(ranks):
                theirs = np.zeros_like(there)
                theirs[index(source, parameter, peer)] = True
                sent[peer] += 4 * int((theirs & wanted)[part].sum()) * (peer != rank)
    assert moved.bytes == sent.tolist()


@given(
    ranks=st.integers(1, 5),
    kinds=st.tuples(st.sampled_from(KINDS[1:]), st.sampled_from(KINDS[1:])),
    texts=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=4, unique=True),
    staging_bytes=st.sampled_from([50, 2**28]),
)
def test_weights_that_stay_with_their_holders_are_where_a_push_and_a_pull_would_bring_them(
    ranks, kinds, texts, staging_bytes
):
    """To the next holders straight from the last ones; home, and from home, only what nobody has before or after."""
    now, then = (layout(kind, ranks) for kind in kinds)
    groups = [group for group in GROUPS if group in now.units and group in then.units]
    now, then = (Partition(LENGTHS, {group: deal.units[group] for group in groups}, ranks) for deal in (now, then))
    names = parameters(texts, ("float32",))
    names = {name: parameter for name, parameter in names.items() if parameter.pattern.dealt(now.units)}
    owners = Owners(LENGTHS, ranks)
    random = torch.Generator().manual_seed(3)
    stored, trained, nothing = (normal(names, layout, random) for layout in (owners, now, then))
    pushed = move(names, now, owners, trained, stored).tensors
    pulled = move(names, owners, then, pushed, nothing).tensors
    home = move(names, now, owners, trained, stored, staging_bytes, exclude=then).tensors
    straight = move(names, now, then, trained, nothing, staging_bytes, shared=False).tensors
    arrived = move(names, owners, then, home, straight, staging_bytes, exclude=now).tensors
    assert_same_bits(arrived, pulled, names)
    assert_same_bits(move(names, then, owners, arrived, home, shared=False).tensors, pushed, names)


# ---- different copies: the mean


@given(
    ranks=st.integers(1, 5),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    texts=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=4, unique=True),
    dtypes=st.lists(st.sampled_from(["float64", "float32", "bfloat16"]), min_size=1, max_size=2, unique=True),
    staging_bytes=st.sampled_from([1, 50, 400, 2**28]),
    seed=st.integers(0, 99),
)
def test_every_element_becomes_the_mean_over_its_holders(ranks, kinds, texts, dtypes, staging_bytes, seed):
    names = parameters(texts, dtypes)
    source, target = (layout(kind, ranks) for kind in kinds)
    assume(belong_together(source, target))
    random = torch.Generator().manual_seed(seed)
    values, before = normal(names, source, random), normal(names, target, random)
    moved = move(names, source, target, values, before, staging_bytes)
    for name, parameter in names.items():
        total = np.zeros(parameter.pattern.shape(LENGTHS))
        count = np.zeros_like(total)
        for rank in range(ranks):
            total[index(source, parameter, rank)] += values[rank][name].double().numpy()
            count[index(source, parameter, rank)] += 1
        tolerance = {"float64": 1e-14, "float32": 1e-6, "bfloat16": 2e-2}[parameter.dtype]
        for rank in range(ranks):
            part = index(target, parameter, rank)
            kept = before[rank][name].double().numpy()
            expected = np.where(count[part] > 0, total[part] / np.maximum(count[part], 1), kept)
            received = moved.tensors[rank][name].double().numpy()
            np.testing.assert_allclose(received, expected, atol=tolerance, rtol=0, err_msg=name)
            np.testing.assert_array_equal(received[count[part] == 0], kept[count[part] == 0])


def test_the_mean_is_the_same_for_every_receiver():
    """All ranks add in the same order, or copies would drift apart."""
    names, whole = parameters(["labels features"], ["float32"]), layout("none", 4)
    moved = move(names, whole, whole, normal(names, whole, torch.Generator().manual_seed(0)), blanks(names, whole))
    assert_same_bits(moved.tensors[1:], moved.tensors[:1] * 3, names)


@pytest.mark.parametrize("kinds, limit", [(("owners", "all 0"), 1), (("none", "owners"), 500)])
def test_the_staging_limit_is_kept(kinds, limit):
    """No message is larger than a rank's share of the limit, or than one slab where a single one is larger."""
    names = parameters(dtypes=("float32",))
    source, target = (layout(kind, 3) for kind in kinds)
    whole = {name: finite(tensor) for name, tensor in any_values(names, LENGTHS).items()}
    values, before = all_parts(whole, names, source), blanks(names, target)
    at_once = move(names, source, target, values, before)
    in_rounds = move(names, source, target, values, before, staging_bytes=limit)
    assert at_once.calls == [1, 1, 1]
    assert len(set(in_rounds.calls)) == 1, "all ranks take part in as many rounds"
    assert in_rounds.bytes == at_once.bytes
    plans = [Transfer(names, source, target, rank) for rank in range(3)]
    blocks = [block for plan in plans for message in plan.sends for block in message]
    assert in_rounds.largest_message <= max(limit // 3, max(block.nbytes // max(block.shape) for block in blocks))
    assert in_rounds.calls[0] > 1
    assert_same_bits(in_rounds.tensors, at_once.tensors, names)


def test_long_rows_and_large_blocks_take_their_own_ways():
    """Rows of 512 elements and more are written one by one; gathers of more than 1 MiB are done in chunks."""
    lengths = {**LENGTHS, "hidden": 700, "stream": 1100}
    names = {"w": Parameter(Pattern.parse("hidden stream")), "c": Parameter(Pattern.parse("hidden (2 stream) 2"))}
    owners, deal = layout("owners", 2, lengths), layout("all 0", 2, lengths)
    whole = any_values(names, lengths)
    stored = all_parts(whole, names, owners)
    subnets = move(names, owners, deal, stored, blanks(names, deal))
    assert_same_bits(subnets.tensors, all_parts(whole, names, deal), names)
    assert_same_bits(move(names, deal, owners, subnets.tensors, stored).tensors, stored, names)
