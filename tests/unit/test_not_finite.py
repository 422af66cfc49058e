"""Numbers that are not finite are an error wherever they come from, and no network that has some is saved."""

from contextlib import nullcontext

import networks
import numpy as np
import pytest
import torch
from resuming import save
from small import checkpoint_state, own_run, small_run

from istmpi.checkpoint.initial import begin_with
from istmpi.comm import world
from istmpi.deploy.scoring import evaluate
from istmpi.engine.store import ParameterStore
from istmpi.errors import DataError, DivergedError
from istmpi.evaluation.full import FullNetwork
from istmpi.models import mlp_network
from istmpi.outputs import LossOfOutputs
from istmpi.simulated import simulate
from istmpi.training.loop import Training
from istmpi.training.run import run_training

OVERFLOWING = {"model__norm": "none", "model__dtype": "float64"}


@pytest.mark.parametrize("value, shown", [(float("nan"), "nan"), (1e300, "inf")])
def test_weights_to_begin_with_must_be_finite(tmp_path, value, shown):
    """Also as what they become: 1e300 is infinite as float32."""
    network, path = mlp_network(6, (7, 5), 3, norm="none"), tmp_path / "theirs.pt"
    state = {"hidden1.linear.weight": torch.ones(7, 6, dtype=torch.float64)}
    state["hidden1.linear.weight"][5, 2] = value
    torch.save(state, path)
    for rank in range(3):
        store = ParameterStore(network.parameters, network.lengths, 3, rank)
        mine = 5 in store.owners.rows(7, rank)
        said = rf"train.init: .*: hidden1.linear.weight\[5, 2\] is {shown} as float32; weights must be finite."
        with pytest.raises(DataError, match=said) if mine else nullcontext():
            begin_with(path, network, store)


@pytest.fixture
def spoilt(tmp_path, monkeypatch):
    """A whole network.h5, of which one weight is not a number: as an earlier istmpi may have saved it."""
    training = Training(small_run(model__norm="layer"), world())
    training.store.tensors["hidden1.linear.weight"][0, 0] = np.nan
    monkeypatch.setattr(training, "_find_refusal", lambda may_save: None)
    monkeypatch.setattr(training.evaluator, "fit_temperature", lambda split: 1.0)
    save(training, tmp_path / "network.h5", calibrated=True)
    return tmp_path / "network.h5"


def test_outputs_that_are_not_finite_are_an_error(spoilt, refusal):
    said = "the outputs of its network are not finite (nan). Give another network"
    assert f"{spoilt}: {said}" in refusal("predict", spoilt, "digits")
    said = "the outputs of the full network are not finite on the test split of digits."
    assert f"{spoilt}: {said}" in refusal("evaluate", spoilt, "--json")
    with pytest.raises(DataError) as refused:
        evaluate(spoilt, world())
    assert refused.value.everywhere
    with pytest.raises(DataError, match="is nan; weights must be finite. Resume from an earlier checkpoint."):
        Training(small_run(model__norm="layer"), world()).resume(spoilt)


class Infinite(FullNetwork):
    def __call__(self, *inputs):
        return super().__call__(*inputs) * np.inf


@pytest.mark.parametrize("flops, infinite", [(0, 1), (2**32, 0)])
def test_outputs_that_are_not_finite_on_one_rank_are_an_error_on_all(monkeypatch, flops, infinite):
    """Whether ranks divide the examples, or rank 0 passes all of them."""
    monkeypatch.setattr("istmpi.cost.evaluation.FLOPS_OF_ONE", flops)

    def program(comm):
        settings = {"model__name": f"{networks.__file__}:Convolutional", "model__channels": [7, 5], "model__hidden": 6}
        training = Training(own_run(**settings), comm)
        if comm.rank == infinite:
            training.evaluator.network.__class__ = Infinite
        with pytest.raises(DivergedError) as diverged:
            training.evaluate()
        return diverged.value.everywhere

    assert simulate(program, 3).require() == [True] * 3


def test_a_full_network_that_overflows_ends_the_run_with_its_weights():
    training = Training(small_run(**OVERFLOWING, train__rounds=1), world())
    for tensor in training.store.tensors.values():
        tensor.fill_(1e200)
    with pytest.raises(DivergedError, match=r"^the outputs of the full network are not finite after 0 of 1 rounds; "):
        training.evaluate()
    checkpoint_state(training)


def test_a_network_that_is_not_finite_is_not_saved(tmp_path, monkeypatch):
    """And the learning rate is not blamed where the start was like that."""
    monkeypatch.setattr(
        ParameterStore, "initialise", lambda store, _: [t.fill_(np.nan) for t in store.tensors.values()]
    )
    run = small_run(**OVERFLOWING, output__folder=str(tmp_path / "run"))
    with pytest.raises(DivergedError) as diverged:
        run_training(run, world())
    message = str(diverged.value)
    assert message.startswith("the network was not finite after 0 of 4 rounds: hidden1.linear.weight[0, 0] is nan; ")
    assert "lr" not in message and not (tmp_path / "run" / "network.h5").exists()
    training = Training(run, world())
    with pytest.raises(DivergedError, match="is nan; not saved.") as refused:
        checkpoint_state(training)
    assert refused.value.everywhere


def test_a_loss_that_is_not_finite_before_any_step_is_not_of_the_learning_rate(monkeypatch):
    monkeypatch.setattr(LossOfOutputs, "__call__", lambda loss, outputs, targets: outputs[-1].sum() * np.inf)
    with pytest.raises(DivergedError) as diverged:
        list(Training(small_run(**OVERFLOWING), world()).rounds())
    assert "in round 1, local step 1; " in str(diverged.value) and "lr" not in str(diverged.value)
    assert "The first step failed: check the network's forward and the data." in str(diverged.value)
