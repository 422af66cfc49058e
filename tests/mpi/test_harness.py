"""The harness where nothing goes wrong; tests/launch/test_harness.py has the rest."""

import pytest


@pytest.mark.real
@pytest.mark.ranks(min=2)
def test_no_two_ranks_clean_the_same_root(comm, tmp_path_factory):
    """The root whose old folders pytest removes holds those of one rank."""
    roots = comm.allgather(str(tmp_path_factory.getbasetemp().parent))
    assert len(set(roots)) == comm.size
