"""Networks that multiply in their own way, trained by IST against functions of their weights, whatever the ranks."""

import pytest
from functions_oracle import CASES, score, train
from small import assert_trains, on_root, own_run

from istmpi.training.loop import Training
from tests.networks.running import data, place
from tests.networks.table import ROWS

PRECISION = 1e-9
ROW = {row.network: row for row in ROWS}


@pytest.mark.ranks(only=[5])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_trains_as_functions_of_its_weights_do(comm, shared_tmp, case):
    row = ROW[case.network]
    on_root(comm, lambda: data(row, shared_tmp))
    settings = {f"model__{name}": length for name, length in case.lengths.items() if name[-1] not in "12"}
    numbered = [length for name, length in case.lengths.items() if name[-1] in "12"]
    settings |= {"model__hidden": numbered} if numbered else {}
    partition = {"method__partition": list(case.lengths), "train__rounds": 2, "train__batch": 4}
    run = own_run(**settings, **partition, **{"model__name": place(row), "data__source": str(data(row, shared_tmp))})
    training = Training(run, comm)
    progress, expected = assert_trains(training, lambda initial: train(case, run, initial, comm.size), PRECISION)
    assert progress[-1].score.loss == pytest.approx(score(case, run, expected, comm.size), abs=PRECISION)
