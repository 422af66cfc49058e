"""The harness where nothing goes wrong; tests/launch/test_harness.py has the rest."""

import os

import pytest

pytestmark = pytest.mark.both


def test_all_ranks_are_here(comm):
    assert comm.size == int(os.environ.get("ISTMPI_TEST_RANKS", comm.size))
    assert comm.allgather(comm.rank) == list(range(comm.size))


def test_the_folder_is_shared(comm, shared_tmp):
    (shared_tmp / f"from-{comm.rank}").touch()
    comm.barrier()
    assert len(list(shared_tmp.iterdir())) == comm.size
    comm.barrier()


@pytest.mark.ranks(min=2, also=5)
def test_min_is_a_lower_limit(comm):
    assert comm.size >= 2


@pytest.mark.ranks(only=[2, 4])
def test_only_is_a_list(comm):
    assert comm.size in (2, 4)


@pytest.mark.real
@pytest.mark.ranks(min=2)
def test_no_two_ranks_clean_the_same_root(comm, tmp_path_factory):
    """The root whose old folders pytest removes holds those of one rank."""
    roots = comm.allgather(str(tmp_path_factory.getbasetemp().parent))
    assert len(set(roots)) == comm.size
