"""Units that several ranks hold (method.holders): each trains them on its own examples, and they take the mean."""

import numpy as np
import oracle
import pytest
from own_runs import BOTH, DEEP, NERF
from replaying import run_of
from resuming import assert_goes_on
from small import assert_trained, small_run, trained

from istmpi.config.methods import METHODS
from istmpi.cost import cost, round_bytes
from istmpi.errors import ConfigError
from istmpi.training.loop import Training

pytestmark = pytest.mark.ranks(only=[4])

ADAM = {"optimizer__name": "adam", "optimizer__lr": 0.01, "method__optimizer_state": "carry"}
CASES = {
    "plain": {},
    "layer norm, momentum carried": {"model__norm": "layer", "optimizer__momentum": 0.9, **ADAM},
    "a part redealt": {"method__redeal": 0.3},
    "one group dealt": {"method__partition": ["hidden1"], "model__norm": "layer"},
    "outer step": {"method__outer_lr": 0.7, "method__outer_momentum": 0.9},
    "int8": {"method__wire": "int8", "model__dtype": "float32"},
    "seldom shared": {"method__partition": ["hidden2"], "method__share_every": 2},
    "blocks": DEEP,
    "blocks and channels, adam carried": BOTH | ADAM,
    "joined": NERF,
}


def read(comm, folder, case, holders=2):
    run = run_of(CASES[case] | {"method__holders": holders}, comm.size, folder) if comm.rank == 0 else None
    return comm.broadcast_from_root(run)


@pytest.mark.parametrize("case, holders", [*((case, 2) for case in [*CASES][1:5]), ("plain", 4)])
def test_the_weights_are_those_of_the_naive_oracle(comm, case, holders):
    training, progress = trained(comm, **CASES[case], method__holders=holders)
    groups = METHODS["ist"].groups(training.run, training.architecture)
    assert_trained(training, progress, *oracle.train(training.run, training.architecture, comm.size, groups))


@pytest.mark.parametrize("case", CASES)
def test_predicted_bytes_are_the_counted_bytes(comm, shared_tmp, case):
    training = Training(read(comm, shared_tmp, case), comm)
    for number in range(2):
        before = comm.traffic.bytes
        training.method.run(number)
        counted = comm.allgather(comm.traffic.bytes - before)
        assert counted == round_bytes(training.run, training.architecture, comm.size, number)


@pytest.mark.parametrize("case", ["outer step", "seldom shared"])
def test_a_run_that_is_saved_and_stopped_goes_on_bit_for_bit(comm, shared_tmp, case):
    assert_goes_on(comm, read(comm, shared_tmp, case).override({"train.rounds": 4}), shared_tmp / "stopped.h5")


def test_clubs_of_ranks_have_the_same_units_and_every_unit_as_many_holders(comm):
    training = Training(small_run(model__hidden=[3, 2], method__holders=2), comm)
    deal = training.method.holders(0)
    for length, parts in ((deal.lengths[name], parts) for name, parts in deal.units.items()):
        assert all(np.array_equal(parts[rank], parts[rank // 2 * 2]) for rank in range(4))
        assert np.bincount(np.concatenate(parts), minlength=length).tolist() == [2] * length
    expected = cost(training.run, training.architecture, 4).sent_bytes(0, 50)
    drawn = sum(sum(round_bytes(training.run, training.architecture, 4, number)) for number in range(50))
    assert expected == pytest.approx(drawn, rel=0.02)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"method__holders": 3}, "method.holders = 3 does not divide 4 ranks. Give one of 1, 2, 4"),
        ({"model__hidden": [3, 8]}, "hidden1 has 3 units, but .* method.holders = 2"),
        ({"method__holders": 2, "method__shares": [1, 1, 1, 2]}, "method.shares does not go with method.holders = 2"),
        ({"method__holders": 2, "method__delay": 1}, "method.delay = 1 of ist does not go with method.holders = 2"),
    ],
)
def test_a_deal_without_whole_clubs_is_refused(comm, settings, words):
    with pytest.raises(ConfigError, match=words):
        Training(small_run(**settings), comm).method.build(0)
