"""Columns divided among ranks: against a masked network in one process, and nothing of a column leaves its rank."""

import loops
import numpy as np
import pytest
import torch
from exported import predicted, raw, run_onnx
from joint_oracle import OPTIMIZERS, PLAIN, Mlp, Oracle
from resuming import resumed, save
from small import assert_same_bits, on_root, small_run, trained, whole
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from istmpi.comm import Communicator
from istmpi.comm.ledger import EVALUATION
from istmpi.cost import cost, round_bytes
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset
from istmpi.deploy.export import export
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError, DataError
from istmpi.evaluation.planned_bytes import plan_evaluations
from istmpi.training.loop import Training

pytestmark = pytest.mark.ranks(only=[3])

FEATURES = 11
EVEN = PLAIN | {"data__columns": "even", "method__local_steps": 1}


def make_arrays(columns=slice(None), order=slice(None)):
    """A table of three classes; of some columns, or with training rows in another order."""
    random = np.random.default_rng(7)
    x = (random.normal(size=(120, FEATURES)) * random.uniform(0.1, 9, FEATURES) + 3).astype(np.float32)
    y = (x / x.std(0) @ random.normal(size=(FEATURES, 3))).argmax(1)
    x = x[:, columns]
    return {"x_train": x[:90][order], "y_train": y[:90][order], "x_test": x[90:], "y_test": y[90:]}


def write(path, columns=slice(None), **changes):
    """A prepared table, whose columns have the names a to k."""
    arrays = make_arrays(columns, **changes)
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    names = [*"abcdefghijk"[columns], "label"]
    form = ["%.9g"] * (len(names) - 1) + ["%d"]
    for split in ("train", "test"):
        rows = np.column_stack([arrays[f"x_{split}"], arrays[f"y_{split}"]])
        np.savetxt(folder / f"{split}.csv", rows, form, ",", header=",".join(names), comments="")
    prepare("csv", folder, path, force=True)


@pytest.fixture
def table(comm, shared_tmp):
    on_root(comm, lambda: write(shared_tmp / "whole.h5"))
    return str(shared_tmp / "whole.h5")


def parts(comm):
    return [slice(part[0], part[-1] + 1) for part in np.array_split(np.arange(FEATURES), comm.size)]


@pytest.fixture
def own(comm, shared_tmp):
    """Settings of a run with a file for each rank, which has only the rank's columns."""
    write(shared_tmp / f"site{comm.rank}.h5", columns=parts(comm)[comm.rank])
    return {"data__source": str(shared_tmp / "site{rank}.h5"), "data__columns": "own"}


class Masked(Mlp):
    """A network with one hidden layer, of which each unit reads the columns of its rank alone."""

    def forward(self, x):
        weights = self.weights
        x = functional.linear(x, weights["hidden1/linear/weight"] * self.mask, weights["hidden1/linear/bias"])
        return functional.linear(x.relu(), weights["labels/linear/weight"], weights["labels/linear/bias"])


def make_oracle(comm, training):
    mask = torch.zeros(13, FEATURES, dtype=torch.float64)
    for units, columns in zip(Oracle(training, comm.size).deal.units["hidden1"], parts(comm), strict=True):
        mask[units, columns] = 1
    oracle = Oracle(training, 1)
    oracle.subnets = [Masked(training.run, oracle.subnets[0].weights)]
    oracle.subnets[0].mask = mask
    oracle.train_in_one_piece()
    return oracle.subnets[0]


@pytest.mark.both
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "sgd"])
def test_ranks_train_the_whole_network_whose_first_layer_is_masked(comm, shared_tmp, table, optimizer):
    """Its score is that of every later evaluation and prediction from the whole table."""
    settings = EVEN | OPTIMIZERS[optimizer] | {"model__hidden": [13], "train__rounds": 9, "data__source": table}
    training, progress = trained(comm, **settings)
    network = make_oracle(comm, training)
    found = whole(training)
    for name, values in network.weights.items():
        mask = network.mask.numpy() if name == "hidden1/linear/weight" else 1.0
        expected = values.detach().numpy() * mask
        np.testing.assert_allclose(found[name.replace("/", ".")] * mask, expected, rtol=0, atol=1e-12, err_msg=name)
    x, y = (torch.from_numpy(values) for values in Oracle(training, 1).test)
    loss = functional.cross_entropy(network(x.double()), y).item()
    assert progress[-1].score.loss == pytest.approx(loss, abs=1e-12)
    path = save(training, shared_tmp / "network.h5")
    assert evaluate(path, comm).score == evaluate(path, comm, source=table).score == progress[-1].score
    outputs = torch.from_numpy(predicted(path, raw(table))) * training.header(True).temperature
    assert float(functional.cross_entropy(outputs, y)) == pytest.approx(loss, abs=1e-9)


def test_an_exported_program_takes_the_whole_table(comm, shared_tmp, table):
    pytest.importorskip("onnxscript")
    path = save(trained(comm, **EVEN, data__source=table, model__dtype="float32")[0], shared_tmp / "network.h5")
    if comm.rank == 0:
        (outputs,) = run_onnx(export(path, "onnx").path, raw(table))
        np.testing.assert_allclose(outputs, predicted(path, raw(table)), atol=1e-4)


SEVERAL = {"method__name": "joint", "method__local_steps": 3, "optimizer__momentum": 0.9, "train__rounds": 4}


@pytest.mark.parametrize("steps, labels_on", [(1, 2), (3, None)])
def test_own_files_give_the_bits_of_one_table(comm, shared_tmp, table, own, steps, labels_on):
    """Also after a stop, and from an evaluation of these files; the cost model counts the bytes."""
    settings = SEVERAL | {"method__local_steps": steps, "data__labels_on": labels_on}
    training, progress = trained(comm, **settings, data__source=table, data__columns="even")
    apart, others = trained(comm, **settings, **own)
    assert_same_bits(whole(apart), whole(training))
    assert [one.loss for one in others] == [one.loss for one in progress]
    planned = [round_bytes(apart.run, apart.architecture, comm.size, number) for number in range(4)]
    assert apart.tally.counts.bytes == sum(map(sum, planned))
    assert others[-1].score == progress[-1].score
    path = save(trained(comm, **settings | own | {"train__rounds": 2})[0], shared_tmp / "halves.h5")
    halves, _ = resumed(comm, path, **settings, **own)
    assert_same_bits(whole(halves), whole(training))
    path = save(halves, shared_tmp / "whole-run.h5")
    assert evaluate(path, comm).score == evaluate(path, comm, source=table).score == progress[-1].score
    with pytest.raises(DataError, match="are in the files of 3 ranks, but there are 1 here"):
        evaluate(path, Communicator(comm.mpi.Split(comm.rank)))
    write(shared_tmp / f"site{comm.rank}.h5", columns=parts(comm)[comm.rank - 1])
    exchanged = Training(small_run(**settings, **own), comm)
    with pytest.raises(ConfigError, match="data: columns = .* in the checkpoint"):
        exchanged.resume(path)


def test_no_rank_reads_a_column_or_a_label_of_another(comm, table):
    """Values that are not numbers in place of these columns, and wrong labels, change nothing."""
    settings = EVEN | {"data__source": table, "data__labels_on": 1}
    training, _ = trained(comm, **settings)
    data = open_dataset(table)
    for split in data.splits.values():
        hidden = np.ones(FEATURES, bool)
        hidden[parts(comm)[comm.rank]] = False
        split.x = np.where(hidden, np.float32("nan"), split.x)
        if comm.rank != 1:
            split.y = np.full_like(split.y, -9)
    other = Training(small_run(**settings), comm, data=data)
    list(other.rounds())
    assert_same_bits(whole(other), whole(training))


@pytest.mark.both
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_labels_on_one_rank_give_the_bits_of_labels_on_all(comm, shared_tmp, kind):
    """The gradient of the sum's outputs is counted, and the scores are those of the rank with labels."""
    path = shared_tmp / "whole.npz"
    arrays = make_arrays()
    if kind == "numbers":
        arrays |= {f"y_{split}": arrays[f"x_{split}"][:, 3:5] for split in ("train", "test")}
    on_root(comm, lambda: np.savez(path, **arrays))
    settings = EVEN | {"data__source": str(path), "model__dtype": "float32", "optimizer__lr": 0.01}
    training, progress = trained(comm, **settings)
    other = Training(small_run(**settings, data__labels_on=2), comm)
    for number, expected in enumerate(progress):
        before = comm.traffic.bytes
        assert other.method.run(number) == expected.loss
        counted = comm.allgather(comm.traffic.bytes - before)
        assert counted == round_bytes(other.run, other.architecture, comm.size, number)
    assert float(cost(other.run, other.architecture, comm.size).round_bytes) == sum(counted)
    assert_same_bits(whole(other), whole(training))
    other.arrange(3)
    assert other.evaluator.score(details=True) == progress[-1].score


def test_bytes_of_evaluations_are_planned_if_one_rank_has_the_labels(comm, table):
    settings = EVEN | {"data__source": table, "data__labels_on": 1, "evaluate__every": 2}
    training, _ = trained(comm, **settings)
    planned = plan_evaluations(training.evaluator.planned)
    assert planned.sent == planned.least == sum(comm.allgather(comm.ledger.sent[EVALUATION].bytes))


TABLE = {"data__columns": "even", "method__name": "joint"}
LABELLED = TABLE | {"method__local_steps": 1, "data__labels_on": 0}
REFUSED = {
    "data.columns = 'even' does not go with ist": {"data__columns": "even", "method__name": "ist"},
    "needs a table, .* but digits is of kind digits": TABLE | {"data__source": "digits"},
    "needs a file for each rank": TABLE | {"data__columns": "own"},
    "data.labels_on = 0 is for data.columns": {"data__labels_on": 0, "method__name": "joint"},
    "data.labels_on = 12 must be a rank, 0 to 2": LABELLED | {"data__labels_on": 12},
    "needs method.local_steps = 1, not 3": LABELLED | {"method__local_steps": 3},
    "does not go with data.validation": LABELLED | {"data__validation": 0.2},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_go_with_columns_is_refused(comm, table, message):
    with pytest.raises((ConfigError, DataError), match=message):
        trained(comm, **{"data__source": table, **REFUSED[message]})


def test_each_rank_needs_a_column(comm, shared_tmp):
    on_root(comm, lambda: write(shared_tmp / "narrow.h5", columns=slice(2)))
    with pytest.raises(ConfigError, match="has 2 columns for 3 ranks"):
        trained(comm, **TABLE, data__source=str(shared_tmp / "narrow.h5"))


OTHER_ROWS = {
    "other train labels .rank 2.. Give all ranks the same rows, in the same order": {"order": slice(None, None, -1)},
    "89 train examples, not 90 .rank 2.": {"order": slice(89)},
}


@pytest.mark.parametrize("message", OTHER_ROWS)
def test_other_rows_are_refused(comm, shared_tmp, own, message):
    if comm.rank == 2:
        write(shared_tmp / "site2.h5", columns=parts(comm)[2], **OTHER_ROWS[message])
    with pytest.raises(DataError, match=message):
        trained(comm, **SEVERAL, **own)


def test_a_loop_of_ones_own_does_not_divide_columns(comm, shared_tmp):
    round = next(loops.begin_rounds(loops.make_job(comm, method="joint"), 1, shared_tmp / "run"))
    examples = TensorDataset(torch.full((24, 1, 8, 8), float(comm.rank)))
    with pytest.raises(DataError, match="Give all ranks the same data set: they add up outputs"):
        next(round.take(DataLoader(examples, batch_size=8, shuffle=True)))
