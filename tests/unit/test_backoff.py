"""A wait looks now and then whether there is still something to wait for."""

import time

import pytest

from istmpi.comm import Backoff


class Lost(Exception):
    pass


def test_what_a_look_raises_ends_the_wait_and_looks_lie_apart():
    looks = []

    def look():
        looks.append(time.perf_counter())
        if len(looks) == 3:
            raise Lost

    def wait():
        while True:
            backoff.wait_unless(False)
            polls.append(1)

    began, backoff, polls = time.perf_counter(), Backoff(look), []
    with pytest.raises(Lost):
        wait()
    apart = [after - before for before, after in zip([began, *looks], looks, strict=False)]
    assert min(apart) >= 0.04
    assert len(polls) > 3 * len(looks)


def test_a_wait_that_gets_on_does_not_look():
    def look():
        raise Lost

    backoff = Backoff(look)
    for _ in range(1000):
        backoff.wait_unless(True)
