"""Transfers against the naive version: whole tensors, ``np.ix_`` and a mean over the holders."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from istmpi.comm.codec import Wire
from istmpi.cost import pair_bytes
from istmpi.engine.axes import Parameter, Pattern
from istmpi.engine.layout import Layout, Owners, part_shape
from istmpi.engine.partition import Partition
from istmpi.engine.slots import Slot
from istmpi.engine.transfer import Transfer
from istmpi.simulated import simulate

LENGTHS = {"labels": 3, "features": 6, "hidden": 9, "mid": 5, "stream": 7, "heads": 6, "blocks": 5, "out": 4}
GROUPS = ("hidden", "mid", "stream", "heads", "blocks")
PATTERNS = (
    "labels features",
    "labels",
    "hidden features",
    "hidden",
    "labels hidden",
    "mid hidden",
    "mid hidden stream",
    "hidden hidden",
    "hidden (2 features)",
    "mid (hidden 4)",
    "(3 heads 2) features",
    "(blocks[1] out) features",
    "mid stream 3 3",
    "labels hidden + 2",
    "hidden + 3",
    "(2 hidden) + mid features + (stream 2)",
    "2 + mid + 1 hidden + 4",
    "(blocks[1] 3) + (blocks[1] hidden) features + mid",
)
DTYPES = ("float64", "float32", "bfloat16", "float16", "int64")
BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def parameters(texts=PATTERNS, dtypes=DTYPES):
    return {f"{text} {dtype}": Parameter(Pattern.parse(text), dtype) for text, dtype in product(texts, dtypes)}


def layout(kind: str, ranks: int, lengths=LENGTHS) -> Layout:
    """``owners``, or a deal: ``all 3`` is round 3's, ``some``, ``none``, ``shares``."""
    if kind == "owners":
        return Owners(lengths, ranks)
    what, _, round = kind.partition(" ")
    groups = {"some": GROUPS[:2], "none": ()}.get(what, GROUPS)
    shares = [3.0, 1.0, 1.0, 2.0, 1.0][:ranks] if what == "shares" else None
    return Partition.draw(lengths, groups, ranks, 1, int(round or 0), shares)


KINDS = ("owners", "all 0", "all 1", "some", "none", "shares")


def bits(tensor):
    return tensor.view(BITS[tensor.element_size()]).numpy()


def any_values(names, lengths, seed=0):
    """Whole tensors of random bit patterns, with every NaN and infinity that a dtype has."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, parameter in names.items():
        values = random.integers(0, 256, (*parameter.pattern.shape(lengths), parameter.itemsize), dtype=np.uint8)
        tensors[name] = torch.from_numpy(values).view(getattr(torch, parameter.dtype)).squeeze(-1)
    return tensors


def index(layout: Layout, parameter: Parameter, rank: int):
    return np.ix_(
        *(np.asarray(layout.positions(axis, at, rank), dtype=int) for at, axis in enumerate(parameter.pattern.axes))
    )


def parts_of(whole, names, layout, rank):
    return {name: whole[name][index(layout, parameter, rank)].contiguous() for name, parameter in names.items()}


def on_ranks(ranks, work):
    """``[work(communicator) for each rank]``, all at the same time."""
    return simulate(work, ranks).require()


@dataclass
class Moved:
    tensors: list
    bytes: list
    calls: list
    largest_message: int


def move(names, source, target, values, before, staging_bytes=2**28, exclude=None, shared=True):
    """Run the transfer on all ranks: ``values[rank]`` are moved into copies of ``before[rank]``."""

    def work(communicator):
        rank, largest, alltoallv = communicator.rank, [0], communicator.alltoallv
        communicator.alltoallv = lambda send, receive: (largest.append(max(send[1])), alltoallv(send, receive))
        transfer = Transfer(names, source, target, rank, staging_bytes, exclude=exclude, shared=shared)
        received = {name: tensor.clone() for name, tensor in before[rank].items()}
        transfer.run(values[rank], received, communicator)
        assert communicator.traffic.bytes == transfer.bytes_sent
        return received, communicator.traffic.bytes, communicator.traffic.calls, max(largest)

    tensors, nbytes, calls, largest = zip(*on_ranks(source.ranks, work))
    return Moved(list(tensors), list(nbytes), list(calls), max(largest))


def blank(names, layout, rank):
    return {
        name: torch.full(part_shape(layout, parameter, rank), -1).to(getattr(torch, parameter.dtype))
        for name, parameter in names.items()
    }


# ---- equal copies: bit for bit


@pytest.mark.parametrize("ranks, staging_bytes", [(1, 2**28), (2, 1), (3, 2**28), (5, 1000)])
def test_a_transfer_delivers_what_the_source_has_and_touches_nothing_else(ranks, staging_bytes):
    """Every pair of layouts, or every fifth, every dtype, 0 to 3 dealt axes, also with rows above the staging limit."""
    whole = any_values(parameters(), LENGTHS)
    texts = PATTERNS if staging_bytes > 1 else PATTERNS[4:8]
    for kinds in [*product(KINDS, KINDS)][:: 5 if staging_bytes < 2**28 else 1]:
        dtypes = DTYPES[sum(map(KINDS.index, kinds)) % len(DTYPES)], "bfloat16"
        names = parameters(texts, dtypes[: 1 if ranks == 5 else 2])
        source, target = (layout(kind, ranks) for kind in kinds)
        # A mean of NaNs may have other bits, all else arrives as it left.
        whole_here = {
            name: finite(whole[name]) if has_copies(parameter, source) else whole[name]
            for name, parameter in names.items()
        }
        values = [parts_of(whole_here, names, source, rank) for rank in range(ranks)]
        before = [blank(names, target, rank) for rank in range(ranks)]
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


@pytest.mark.parametrize(
    "ranks, staging_bytes, kind",
    [
        *((1, 2**28, kind) for kind in ("all 0", "none")),
        *((2, 1000, kind) for kind in ("all 0", "some")),
        *((3, 2**28, kind) for kind in ("none", "shares")),
        *((5, 5000, kind) for kind in ("all 0", "shares")),
    ],
)
def test_push_after_pull_is_the_identity_bit_for_bit(ranks, kind, staging_bytes):
    names = parameters()
    whole = {name: finite(tensor) for name, tensor in any_values(names, LENGTHS).items()}
    owners, deal = layout("owners", ranks), layout(kind, ranks)
    stored = [parts_of(whole, names, owners, rank) for rank in range(ranks)]
    subnets = move(names, owners, deal, stored, [blank(names, deal, rank) for rank in range(ranks)], staging_bytes)
    back = move(names, deal, owners, subnets.tensors, stored, staging_bytes)
    for mine, expected in zip(back.tensors, stored):
        for name in names:
            np.testing.assert_array_equal(bits(mine[name]), bits(expected[name]), err_msg=name)
    # Every element that two ranks' subnets share was also really pulled: pushed into nothing it is all there again.
    empty = [blank(names, owners, rank) for rank in range(ranks)]
    once = move(names, deal, owners, subnets.tensors, empty, staging_bytes)
    for name in names:
        if names[name].pattern.dealt(getattr(deal, "units", ())) <= 1 and "[" not in name:
            for mine, expected in zip(once.tensors, stored):
                np.testing.assert_array_equal(bits(mine[name]), bits(expected[name]), err_msg=name)


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


@settings(max_examples=60)
@given(
    ranks=st.integers(1, 5),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS), st.sampled_from(KINDS[1:])),
    texts=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=4, unique=True),
    staging_bytes=st.sampled_from([1, 50, 400, 2**28]),
)
def test_only_what_no_rank_has_in_a_third_layout_is_moved(ranks, kinds, texts, staging_bytes):
    names = parameters(texts, ("float32",))
    source, target, third = (layout(kind, ranks) for kind in kinds)
    whole, other = any_values(names, LENGTHS, 1), any_values(names, LENGTHS, 2)
    values = [parts_of(whole, names, source, rank) for rank in range(ranks)]
    before = [parts_of(other, names, target, rank) for rank in range(ranks)]
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


@settings(max_examples=40)
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

    def normal(layout):
        return [
            {name: torch.randn(part_shape(layout, one, rank), generator=random) for name, one in names.items()}
            for rank in range(ranks)
        ]

    stored, trained, nothing = normal(owners), normal(now), normal(then)
    pushed = move(names, now, owners, trained, stored).tensors
    pulled = move(names, owners, then, pushed, nothing).tensors
    home = move(names, now, owners, trained, stored, staging_bytes, exclude=then).tensors
    straight = move(names, now, then, trained, nothing, staging_bytes, shared=False).tensors
    arrived = move(names, owners, then, home, straight, staging_bytes, exclude=now).tensors
    for mine, expected in zip(arrived, pulled, strict=True):
        for name in names:
            np.testing.assert_array_equal(bits(mine[name]), bits(expected[name]), err_msg=name)
    afterwards = move(names, then, owners, arrived, home, shared=False).tensors
    for mine, expected in zip(afterwards, pushed, strict=True):
        for name in names:
            np.testing.assert_array_equal(bits(mine[name]), bits(expected[name]), err_msg=name)


# ---- different copies: the mean


@settings(max_examples=60)
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
    random = torch.Generator().manual_seed(seed)

    def normal(layout, rank):
        return {
            name: torch.randn(part_shape(layout, parameter, rank), generator=random).to(getattr(torch, parameter.dtype))
            for name, parameter in names.items()
        }

    values = [normal(source, rank) for rank in range(ranks)]
    before = [normal(target, rank) for rank in range(ranks)]
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


def test_the_mean_of_equal_values_is_that_value():
    """Three copies of 0.1 add up to no multiple of 0.1, and 2**53 + 1 is no float64."""
    names = parameters(["labels"])
    source, target = layout("none", 3), layout("owners", 3)
    value = {dtype: torch.full((3,), 0.1, dtype=getattr(torch, dtype)) for dtype in DTYPES[:-1]}
    value["int64"] = torch.full((3,), 2**53 + 1)
    values = [{f"labels {dtype}": tensor for dtype, tensor in value.items()}] * 3
    moved = move(names, source, target, values, [blank(names, target, rank) for rank in range(3)])
    for rank, dtype in product(range(3), DTYPES):
        assert torch.equal(moved.tensors[rank][f"labels {dtype}"], value[dtype][:1]), dtype


def test_the_mean_is_the_same_for_every_receiver():
    """All ranks add in the same order, or copies would drift apart."""
    names = parameters(["labels features"], ["float32"])
    whole = layout("none", 4)
    values = [
        {name: torch.randn(3, 6, generator=torch.Generator().manual_seed(rank)) for name in names} for rank in range(4)
    ]
    moved = move(names, whole, whole, values, [blank(names, whole, rank) for rank in range(4)])
    for tensors in moved.tensors[1:]:
        for name in names:
            assert torch.equal(tensors[name], moved.tensors[0][name])


# ---- the plan


@pytest.mark.parametrize("limit", [1, 64, 500, 5000])
@pytest.mark.parametrize("kinds", [("owners", "all 0"), ("all 0", "owners"), ("none", "owners"), ("all 0", "all 1")])
def test_the_staging_limit_is_kept(kinds, limit):
    """No message is larger than a rank's share of the limit, or than one slab where a single one is larger."""
    names = parameters(dtypes=("float32",))
    source, target = (layout(kind, 3) for kind in kinds)
    whole = {name: finite(tensor) for name, tensor in any_values(names, LENGTHS).items()}
    values = [parts_of(whole, names, source, rank) for rank in range(3)]
    before = [blank(names, target, rank) for rank in range(3)]
    at_once = move(names, source, target, values, before)
    in_rounds = move(names, source, target, values, before, staging_bytes=limit)
    assert at_once.calls == [1, 1, 1]
    assert len(set(in_rounds.calls)) == 1, "all ranks take part in as many rounds"
    assert in_rounds.bytes == at_once.bytes
    plans = [Transfer(names, source, target, rank) for rank in range(3)]
    blocks = [block for plan in plans for message in plan.sends for block in message]
    largest_slab = max(block.nbytes // max(block.shape) for block in blocks)
    assert in_rounds.largest_message <= max(limit // 3, largest_slab)
    if limit < 5000:
        assert in_rounds.calls[0] > 1
    for one, other in zip(at_once.tensors, in_rounds.tensors):
        for name in names:
            np.testing.assert_array_equal(bits(one[name]), bits(other[name]))


def test_long_rows_and_large_blocks_take_their_own_ways():
    """Rows of 512 elements and more are written one by one; gathers of more than 1 MiB are done in chunks."""
    lengths = {**LENGTHS, "hidden": 700, "stream": 1100}
    names = {"w": Parameter(Pattern.parse("hidden stream")), "c": Parameter(Pattern.parse("hidden (2 stream) 2"))}
    owners, deal = layout("owners", 2, lengths), layout("all 0", 2, lengths)
    whole = any_values(names, lengths)
    stored = [parts_of(whole, names, owners, rank) for rank in range(2)]
    subnets = move(names, owners, deal, stored, [blank(names, deal, rank) for rank in range(2)])
    for rank, mine in enumerate(subnets.tensors):
        for name, expected in parts_of(whole, names, deal, rank).items():
            np.testing.assert_array_equal(bits(mine[name]), bits(expected))
    back = move(names, deal, owners, subnets.tensors, stored)
    for mine, expected in zip(back.tensors, stored):
        for name in names:
            np.testing.assert_array_equal(bits(mine[name]), bits(expected[name]))


# ---- in fewer bits

WIRE_LENGTHS = {**LENGTHS, "hidden": 40, "features": 60}
WIRED = ("labels features", "labels", "hidden features", "labels hidden", "mid hidden stream", "mid (hidden 4)")
WIRED += ("features + mid hidden + 50",)


def wired(kind, source, target, ranks, staging_bytes=2**28, exclude=None, key=3):
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
        wire = None if kind == "float32" else Wire(kind, key)
        transfer = Transfer(names, source, target, rank, staging_bytes, exclude=exclude, wire=wire)
        received = blank(names, target, rank)
        transfer.run(mine, received, communicator)
        planned = [sum(block.sent_nbytes for block in message) for message in transfer.sends]
        assert communicator.traffic.bytes == transfer.bytes_sent == sum(planned) - planned[rank]
        assert planned == pair_bytes(names, source, target, exclude, kind)[rank].tolist()
        return received, mine

    received, mine = zip(*on_ranks(ranks, work))
    return received, mine


WIRE_CASES = [
    ("owners", "all 0", None),
    ("all 0", "owners", "all 1"),
    ("all 0", "all 1", None),
    ("some", "owners", None),
    ("none", "owners", None),
]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@pytest.mark.parametrize("source, target, exclude", WIRE_CASES)
def test_in_fewer_bits_all_arrives_nearly_as_it_left_however_messages_are_cut(kind, source, target, exclude, ranks):
    layouts = [layout(name, ranks, WIRE_LENGTHS) for name in (source, target)]
    without = layout(exclude, ranks, WIRE_LENGTHS) if exclude else None
    exact, mine = wired("float32", *layouts, ranks, exclude=without)
    coded, _ = wired(kind, *layouts, ranks, exclude=without)
    for staging_bytes in (ranks * 300, ranks * 2000):
        cut, _ = wired(kind, *layouts, ranks, staging_bytes, without)
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
    # Of equal copies the mean is that very value as it arrives, on its owner, too.
    before, _ = wired("float32", owners, nobody, 3)
    names = {name: Parameter(Pattern.parse("hidden features"))}

    def there_and_back(communicator):
        home = torch.zeros(part_shape(owners, names[name], communicator.rank))
        for key in range(3):
            push = Transfer(names, nobody, owners, communicator.rank, wire=Wire(kind, key))
            whole = before[communicator.rank][name].clone()
            push.run({name: whole}, {name: home}, communicator)
            Transfer(names, owners, nobody, communicator.rank).run({name: home}, {name: whole}, communicator)
            before[communicator.rank][name] = whole
            yield whole.clone()

    first, second, third = zip(*on_ranks(3, lambda communicator: list(there_and_back(communicator))))
    assert all(torch.equal(one, first[0]) for one in first)
    assert not torch.equal(first[0], wired("float32", owners, nobody, 3)[0][0][name])


def test_a_transfer_repeats_bit_for_bit_and_other_keys_round_otherwise():
    layouts = [layout(name, 4, WIRE_LENGTHS) for name in ("all 0", "all 1")]
    one, same, other = (wired("int8", *layouts, 4, key=key)[0] for key in (1, 1, 2))
    name = "hidden features float32"
    assert all(torch.equal(a[name], b[name]) for a, b in zip(one, same))
    assert not all(torch.equal(a[name], b[name]) for a, b in zip(one, other))


def test_values_that_nobody_trains_come_to_rest():
    """Their scales are powers of two: those that hop in ever other company round no more once these have grown."""
    deals = [layout(f"all {round}", 4, WIRE_LENGTHS) for round in range(25)]
    names = {"weight": Parameter(Pattern.parse("hidden features"))}
    whole = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 60)).astype(np.float32))

    def hops(communicator):
        rank = communicator.rank
        mine = parts_of({"weight": whole}, names, deals[0], rank)
        for number, (here, there) in enumerate(zip(deals, deals[1:])):
            arriving = blank(names, there, rank)
            Transfer(names, here, there, rank, wire=Wire("int8", number)).run(mine, arriving, communicator)
            if number >= 15:
                kept = torch.zeros_like(whole)
                kept[index(here, names["weight"], rank)] = mine["weight"]
                yield kept
            mine = arriving

    rests = [sum(parts) for parts in zip(*on_ranks(4, lambda communicator: list(hops(communicator))))]
    assert all(torch.equal(rest, rests[0]) for rest in rests)
    assert (rests[0] - whole).abs().max() <= 2 * whole.abs().max() * 2 / 127
