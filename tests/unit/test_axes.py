"""Patterns of named axes against brute force over every position."""

import pickle
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from istmpi.engine.axes import Parameter, Pattern, narrow
from istmpi.engine.slots import Slot, list_kinds, named, select_weights, strip_slot
from istmpi.errors import ConfigError

LENGTHS = {"hidden": 6, "features": 5, "heads": 4, "channels": 3, "blocks": 4, "out": 3, "mid": 4}

PATTERNS = {
    "hidden features": (6, 5),
    "(3 heads 64) features": (768, 5),
    "(blocks[1] out) features": (3, 5),
    "mid channels 3 3": (4, 3, 3, 3),
    "hidden hidden": (6, 6),
    "1": (1,),
    " ( 2   hidden )  7 ": (12, 7),
    "10 hidden + 6": (10, 12),
    "out (channels 49) + features": (3, 152),
    "2 + (hidden 3) + heads + 1 mid": (25, 4),
    "(blocks[1] out) + (blocks[1] 2) features + hidden": (5, 11),
}


def brute(factors, lengths, units):
    """Positions along an axis, by trying each combination of the factors' coordinates."""
    sizes = [
        factor.literal if factor.name is None else 1 if factor.unit is not None else lengths[factor.name]
        for factor in factors
    ]
    held = []
    for number, coordinates in enumerate(product(*map(range, sizes))):
        fits = True
        for factor, coordinate in zip(factors, coordinates):
            if factor.name in units:
                wanted = coordinate if factor.unit is None else factor.unit
                fits = fits and wanted in set(units[factor.name])
        if fits:
            held.append(number)
    return held


@pytest.mark.parametrize("text", PATTERNS)
def test_a_pattern_has_its_shape_and_prints_as_it_is_read(text):
    pattern = Pattern.parse(text)
    assert pattern.shape(LENGTHS) == PATTERNS[text]
    assert str(pattern) == " ".join(text.replace("( ", "(").replace(" )", ")").split())
    assert Pattern.parse(str(pattern)) == pattern
    assert [len(axis.segments) for axis in pattern.axes] == [str(axis).count(" + ") + 1 for axis in pattern.axes]


@given(text=st.sampled_from(sorted(PATTERNS)), data=st.data())
def test_positions_are_those_of_brute_force(text, data):
    """A subnet that is built at the narrowed lengths fits what its rank holds, also whole blocks that are absent."""
    names = data.draw(st.sets(st.sampled_from(sorted(LENGTHS))))
    units = {
        name: np.array(sorted(data.draw(st.sets(st.integers(0, LENGTHS[name] - 1)))), dtype=np.int64) for name in names
    }
    pattern = Pattern.parse(text)
    lengths = narrow(LENGTHS, {"it": Parameter(pattern)}, units)
    assert pattern.shape(lengths) == tuple(len(axis.positions(LENGTHS, units)) for axis in pattern.axes)
    for axis in pattern.axes:
        positions = axis.positions(LENGTHS, units)
        held, start = [], 0
        for segment in axis.segments:
            held += [start + position for position in brute(segment.factors, LENGTHS, units)]
            start += segment.length(LENGTHS)
        assert list(positions) == held and axis.length(LENGTHS) == start


@pytest.mark.parametrize(
    "text, says",
    [
        ("hidden1 (features", "a bracket is not closed"),
        ("hidden1 features)", "brackets must match"),
        ("((a b) c)", "without nesting"),
        ("a ()", "or empty pairs"),
        ("a -3", "cannot read '-3'"),
        ("blocks[x] a", "cannot read '[x] a'"),
        ("a + + b", "a + must stand between"),
        ("(a + b)", "a + must stand between"),
    ],
)
def test_a_pattern_that_cannot_be_read_is_refused_with_its_text(text, says):
    with pytest.raises(ConfigError) as refused:
        Pattern.parse(text)
    assert says in str(refused.value) and repr(text) in str(refused.value)


def test_an_axis_without_a_length_is_named():
    with pytest.raises(ConfigError, match="axis wings has no length; lengths are given for hidden"):
        Pattern.parse("wings").shape({"hidden": 3})


# ---- names of slots: text that knows its parts, there and back


NAMES = ["w", Slot("w", "velocity"), Slot("w", "start"), "hidden1.bias", Slot("hidden1.bias", "velocity")]


@pytest.mark.parametrize("name", NAMES)
def test_a_slot_is_the_text_that_names_it_and_comes_back_as_what_it_was(name):
    assert {name: 1}[str.__str__(name)] == 1
    for again in (named(str.__str__(name)), pickle.loads(pickle.dumps(name))):
        assert (again, type(again), strip_slot(again)) == (name, type(name), strip_slot(name))
        assert getattr(again, "kind", None) == getattr(name, "kind", None)
    assert (select_weights(NAMES), list_kinds(NAMES)) == (["w", "hidden1.bias"], ("velocity", "start"))
