"""What one rank gets wrong, all ranks are told; what cannot work is refused before anything is trained."""

import re

import numpy as np
import pytest
from offset_files import write as write_less_an_offset
from replay_cases import TRANSFORMER
from small import own_run, small_run
from tokenizing import prepare_tokens

from istmpi.data.prepare import prepare
from istmpi.errors import ConfigError, DataError, UserError
from istmpi.training.loop import Training


@pytest.mark.both
def test_want_of_memory_is_agreed_on(comm):
    with pytest.raises(UserError, match="can't allocate memory|out of memory") as refused:
        Training(small_run(model__hidden=[2**46]), comm)
    assert refused.value.everywhere
    with pytest.raises(UserError, match="out of memory"):
        fail(comm, MemoryError, [comm.size - 1])


def fail(comm, kind, ranks):
    """Agreed work that ends with an error of this kind on some ranks."""
    with comm.agreed():
        if comm.rank in ranks:
            raise kind


@pytest.mark.both
@pytest.mark.ranks(also=1)
@pytest.mark.parametrize("failing", [[0], [-1], [0, -1]])
def test_the_error_of_one_rank_is_raised_on_all(comm, failing):
    ranks = {rank % comm.size for rank in failing}

    def work():
        with comm.agreed():
            if comm.rank in ranks:
                raise DataError(f"the file of {comm.rank} is damaged")

    with pytest.raises(DataError) as told:
        work()
    first = min(ranks)
    prefix = f"rank {first}: " if len(ranks) < comm.size else ""
    assert str(told.value) == f"{prefix}the file of {first} is damaged"
    assert told.value.everywhere
    assert told.value.exit_code == 2


@pytest.mark.ranks(min=2)
def test_a_rank_in_another_call_is_named(comm):
    if comm.rank == 1:
        comm.allgather(("another", "call"))
    else:
        with pytest.raises(UserError, match="rank 1 made another call than rank"):
            fail(comm, DataError, [])


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize(
    "key, first, second", [("model.hidden", [13, 11], [13, 12]), ("method.shares", None, [1, 1, 1])]
)
def test_different_settings_are_refused_with_setting_and_values(comm, key, first, second):
    last = comm.size - 1
    says = re.escape(f"{key}: {first} or ")
    with pytest.raises(ConfigError, match=f"rank {last}: the ranks have different settings .*{says}"):
        Training(small_run().override({key: second if comm.rank == last else first}), comm)


def write(path, features=5):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(40, features)).astype(np.float32), random.integers(0, 3, 40)
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)


def write_table(path, first):
    names = "a,b" if first else "b,a"
    table = path.with_suffix(".csv")
    table.write_text("\n".join([f"{names},kind", *(f"{n},{n * n % 7},{n % 2}" for n in range(60))]))
    prepare("csv", table, path)


def write_offset(path, first):
    """Values as an earlier istmpi prepared them, on rank 1 less an offset."""
    x = np.arange(400.0).reshape(200, 2)
    write_less_an_offset(path, x if first else x - [1.7e9, 0], np.arange(200) % 2)


OF_RANKS = {
    "columns": ("h5", write_table, "site-1.csv: feature 0 is 'b', but 'a' on rank 0"),
    "shapes": (
        "npz",
        lambda path, first: write(path, 6 - first),
        r"site-1.npz: shape = \(6,\), but \(5,\) on rank 0\.",
    ),
    "missing": ("npz", lambda path, first: write(path) if first else None, "data .*site-1.npz does not exist"),
    "tokenizers": ("h5", lambda path, first: prepare_tokens(path, f"<{first}>"), "tokenizer = .*, but .* on rank 0"),
    "offsets": ("h5", write_offset, "another float32 offset than on rank 0"),
}


@pytest.mark.ranks(only=[2])
@pytest.mark.parametrize("case", OF_RANKS)
def test_files_of_ranks_that_do_not_fit_together_are_refused(comm, shared_tmp, case):
    """The message names the rank and its file, and all ranks raise it."""
    ending, make, says = OF_RANKS[case]
    make(shared_tmp / f"site-{comm.rank}.{ending}", comm.rank == 0)
    comm.barrier()
    network = TRANSFORMER if case == "tokenizers" else {}
    source = {"data__source": str(shared_tmp / f"site-{{rank}}.{ending}"), "data__placement": "local"}
    with pytest.raises(DataError, match=f"rank 1: .*{says}") as refused:
        Training(own_run(**network | source).with_implied(), comm)
    assert "\n" not in str(refused.value)


def shorten(arrays):
    return {name: values[:37] for name, values in arrays.items() if name.endswith("train")}


def relabel(arrays):
    return {name: (values + 1) % 3 for name, values in arrays.items() if name.startswith("y")}


def change_features(arrays):
    return {name: values + (np.arange(40) == 3)[:, None] for name, values in arrays.items() if name.startswith("x")}


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize(
    "change, says",
    [
        (shorten, r"37 train examples, not 40 \(rank {last}\)"),
        (relabel, r"other train labels \(rank {last}\); other test labels \(rank {last}\)"),
        (change_features, r"other train features \(rank {last}\); other test features \(rank {last}\)"),
    ],
)
def test_other_files_of_the_same_name_are_refused(comm, shared_tmp, monkeypatch, change, says):
    """As when each node has a copy of its own and one is out of date."""
    last = comm.size - 1
    folder = shared_tmp / str(comm.rank)
    folder.mkdir()
    monkeypatch.chdir(folder)
    write("data.npz")
    if comm.rank == last:
        arrays = dict(np.load("data.npz"))
        np.savez("data.npz", **arrays | change(arrays))
    with pytest.raises(DataError, match=f"^data.npz differs between ranks: {says.format(last=last)}. "):
        Training(small_run(data__source="data.npz"), comm)
    Training(small_run(data__source=str(shared_tmp / "{rank}" / "data.npz")), comm)
