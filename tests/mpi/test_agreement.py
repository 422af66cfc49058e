"""What one rank gets wrong, all ranks are told; what cannot work is refused before anything is trained."""

import numpy as np
import pytest
from small import small_run

from istmpi.data.prepare import prepare
from istmpi.errors import ConfigError, DataError, UserError
from istmpi.training.loop import Training


@pytest.mark.both
def test_want_of_memory_is_agreed_on(comm):
    """On any rank: one message, for all know of it."""
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
    "key, first, second, says",
    [
        ("model.hidden", [13, 11], [13, 12], r"model.hidden: \[13, 11\] or \[13, 12\]"),
        ("train.seed", 1, 2, "train.seed: 1 or 2"),
        ("optimizer.lr", 0.1, 0.2, r"optimizer.lr: 0.1 or 0.2"),
        ("method.name", "ist", "local-sgd", "method.name: ist or local-sgd"),
        ("method.shares", None, [1, 1, 1, 1, 1], "method.shares: None or "),
    ],
)
def test_different_settings_are_refused_with_setting_and_values(comm, key, first, second, says):
    last = comm.size - 1
    value = second if comm.rank == last else first
    if key == "method.shares" and value:
        value = value[: comm.size]
    with pytest.raises(ConfigError, match=f"rank {last}: the ranks have different settings .*{says}"):
        Training(small_run().override({key: value}), comm)


@pytest.mark.ranks(min=2)
def test_tables_of_other_columns_are_refused(comm, shared_tmp):
    names = ("b", "a") if comm.rank == 1 else ("a", "b")
    table = shared_tmp / f"site-{comm.rank}.csv"
    table.write_text("\n".join([f"{','.join(names)},kind", *(f"{n},{n * n % 7},{n % 2}" for n in range(60))]))
    prepare("csv", table, table.with_suffix(".h5"))
    comm.barrier()
    run = small_run(data__source=str(shared_tmp / "site-{rank}.h5"), data__placement="local")
    with pytest.raises(DataError, match="rank 1: .*site-1.csv: feature 0 is 'b', but 'a' on rank 0"):
        Training(run, comm)
    comm.barrier()


@pytest.mark.ranks(min=2)
def test_files_that_give_different_networks_are_refused(comm, shared_tmp):
    features = 5 + (comm.rank == 1)
    write(shared_tmp / f"data-{comm.rank}.npz", features=features)
    comm.barrier()
    with pytest.raises(DataError, match=r"rank 1: .*data-1.npz: shape = \(6,\), but \(5,\) on rank 0\."):
        Training(small_run(data__source=str(shared_tmp / "data-{rank}.npz")), comm)
    comm.barrier()


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize(
    "changed, says",
    [
        ({"train": -3}, r"37 train examples, not 40 \(rank {last}\)"),
        ({"test": +2}, r"42 test examples, not 40 \(rank {last}\)"),
        ({"train": 0, "test": 0}, r"other train labels \(rank {last}\); other test labels \(rank {last}\)"),
        ({"x_train": 3, "x_test": 3}, r"other train features \(rank {last}\); other test features \(rank {last}\)"),
    ],
)
def test_other_files_of_the_same_name_are_refused(comm, shared_tmp, monkeypatch, changed, says):
    """As when each node has a copy of its own and one is out of date."""
    last = comm.size - 1
    folder = shared_tmp / str(comm.rank)
    folder.mkdir()
    monkeypatch.chdir(folder)
    write("data.npz")
    if comm.rank == last:
        with np.load("data.npz") as file:
            arrays = dict(file)
        for split, more in changed.items():
            if split.startswith("x_"):
                arrays[split][more, 0] += 1
                continue
            rows = np.arange(len(arrays[f"y_{split}"]) + more) % len(arrays[f"y_{split}"])
            arrays[f"x_{split}"] = arrays[f"x_{split}"][rows]
            arrays[f"y_{split}"] = (arrays[f"y_{split}"][rows] + (more == 0)) % 3
        np.savez("data.npz", **arrays)
    with pytest.raises(DataError, match=f"^data.npz differs between ranks: {says.format(last=last)}. "):
        Training(small_run(data__source="data.npz"), comm)
    Training(small_run(data__source=str(shared_tmp / "{rank}" / "data.npz")), comm)


@pytest.mark.ranks(min=2)
def test_a_file_that_one_rank_misses_is_named_on_all(comm, shared_tmp):
    if comm.rank != 1:
        write(shared_tmp / f"data-{comm.rank}.npz")
    comm.barrier()
    with pytest.raises(DataError, match="rank 1: data .*data-1.npz does not exist"):
        Training(small_run(data__source=str(shared_tmp / "data-{rank}.npz")), comm)
    comm.barrier()


def test_more_ranks_than_units_are_refused_by_name(comm):
    def set_up(width):
        return Training(small_run(model__hidden=[13, width]), comm)

    set_up(comm.size)
    if comm.size > 1:
        with pytest.raises(ConfigError, match=f"^hidden2 has {comm.size - 1} units, but the run has {comm.size} ranks"):
            set_up(comm.size - 1)


def write(path, features=5, rows=40):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(rows, features)).astype(np.float32), random.integers(0, 3, rows)
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
