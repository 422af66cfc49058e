"""Names of slots: text that knows its parts, there and back."""

import pickle

import pytest

from istmpi.engine.slots import Slot, kinds_of, named, parameter_of, weights_among

NAMES = ["w", Slot("w", "velocity"), Slot("w", "start"), "hidden1.bias", Slot("hidden1.bias", "velocity")]


def test_a_slot_is_the_text_that_names_it():
    slot = Slot("w", "velocity")
    assert slot == "w/velocity" and {slot: 1}["w/velocity"] == 1
    assert (slot.parameter, slot.kind) == ("w", "velocity")
    assert sorted(NAMES) == sorted(map(str, NAMES))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", [lambda name: named(str.__str__(name)), lambda name: pickle.loads(pickle.dumps(name))])
def test_a_name_comes_back_as_what_it_was(name, way):
    again = way(name)
    assert (again, type(again), parameter_of(again)) == (name, type(name), parameter_of(name))
    assert getattr(again, "kind", None) == getattr(name, "kind", None)


def test_names_are_told_apart():
    assert weights_among(NAMES) == ["w", "hidden1.bias"]
    assert kinds_of(NAMES) == ("velocity", "start")
    assert {parameter_of(name) for name in NAMES} == {"w", "hidden1.bias"}
