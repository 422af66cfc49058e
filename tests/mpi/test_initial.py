"""A run that begins with another's weights: the same score before its first round, on any ranks and with any method."""

import pytest
from small import Listening, small_run

from istmpi.errors import ConfigError
from istmpi.training.loop import Training
from istmpi.training.run import load_initial_weights, run_training

pytestmark = pytest.mark.ranks(only=[1, 3])
DEEP = {"model__norm": "none", "model__bias": True}


def test_a_run_begins_where_another_ended(comm, shared_tmp):
    first = small_run(**DEEP, output__folder=str(shared_tmp / "first"), train__rounds=3)
    score = run_training(first, comm).last.score
    file = str(shared_tmp / "first/network.h5")
    for method in ("ist", "local-sgd"):
        training = Training(small_run(**DEEP, method__name=method, train__init=file, train__seed=8), comm)
        assert load_initial_weights(training)[0].endswith("6 of 6 parameters fit, 1,119 of 1,119 weights.")
        again = training.evaluate()
        assert (again.score, again.loss) == (score.score, pytest.approx(score.loss, rel=1e-6))
    watch = Listening()
    second = small_run(**DEEP, output__folder=str(shared_tmp / "second"), train__rounds=1, train__init=file)
    run_training(second, comm, watch)
    if comm.rank == 0:
        assert watch.said == [f"initial weights from {file}: 6 of 6 parameters fit, 1,119 of 1,119 weights."]
        (shared_tmp / "first/network.h5").unlink()
    comm.barrier()
    more = second.override({"train.rounds": 2})
    assert run_training(more, comm, resume="auto").last.round == 2  # what goes on does not read it


def test_a_file_that_fits_nothing_ends_the_run_before_it_begins(comm, shared_tmp):
    wide = small_run(output__folder=str(shared_tmp / "wide"), train__rounds=1)
    run_training(wide, comm)
    run = small_run(
        model__hidden=[3, 5], train__init=str(shared_tmp / "wide/network.h5"), output__folder=str(shared_tmp / "narrow")
    )
    with pytest.raises(ConfigError, match="no parameter in it fits the network: wrong shape, ignored: hidden1"):
        run_training(run, comm)
    assert not (shared_tmp / "narrow").exists()
