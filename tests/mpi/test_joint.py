"""Subnets that learn from the sum of their outputs: against plain PyTorch in one process, and scored as that sum."""

import loops
import numpy as np
import pytest
import torch
from added_network import FORMS, Added
from joint_oracle import OPTIMIZERS, PLAIN, Oracle
from perceptron import Perceptron
from resuming import resumed, save
from small import checkpoint_state, small_run, trained, whole
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import istmpi
from istmpi.comm import Communicator
from istmpi.cost import round_bytes
from istmpi.deploy.export import export
from istmpi.errors import ConfigError, DataError
from istmpi.program.whole import collect_state_dict
from istmpi.training.loop import Training
from istmpi.training.run import load_initial_weights

LABELLED = TensorDataset(torch.randn(48, 6, generator=loops.seeded(1)), torch.arange(48) % 3)


def assert_same_weights(found, subnet):
    for name, values in subnet.weights.items():
        np.testing.assert_allclose(found[name.replace("/", ".")], values.detach(), rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_round_of_one_step_trains_the_sum_itself(comm, optimizer):
    """Gradients, clipping and decay are those of one network whose output is the sum, whatever sigma is."""
    settings = PLAIN | OPTIMIZERS[optimizer] | {"method__local_steps": 1, "train__rounds": 9, "method__sigma": 1.7}
    training, _ = trained(comm, **settings)
    oracle = Oracle(training, comm.size)
    oracle.train_in_one_piece()
    assert_same_weights(training.method.subnet.network.state_dict(), oracle.subnets[comm.rank])


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_with_one_hidden_layer_the_sum_is_the_whole_network(comm, optimizer):
    """The sum of subnets begins as the whole network, and one step a round keeps it: with one output bias."""
    settings = PLAIN | OPTIMIZERS[optimizer] | {"model__hidden": [13], "method__local_steps": 1, "train__rounds": 9}
    training, _ = trained(comm, **settings)
    alone = Oracle(training, 1)
    alone.train_in_one_piece()
    assert_same_weights(whole(training), alone.subnets[0])


@pytest.mark.both
@pytest.mark.ranks(min=2)
@pytest.mark.parametrize(
    "optimizer, sigma, passes", [("momentum, decay", None, 1), ("adam", 1.0, 1), ("momentum, decay", None, 3)]
)
def test_between_two_sums_a_rank_follows_the_formula(comm, optimizer, sigma, passes):
    settings = PLAIN | OPTIMIZERS[optimizer] | {"method__local_steps": 6, "method__sigma": sigma}
    training, _ = trained(comm, **settings, method__passes=passes)
    oracle = Oracle(training, comm.size)
    oracle.train_on_stale_sums(sigma or comm.size)
    assert_same_weights(training.method.subnet.network.state_dict(), oracle.subnets[comm.rank])
    training.arrange(3)
    score = training.evaluator.score()
    x, y = map(torch.from_numpy, oracle.test)
    loss = functional.cross_entropy(oracle.sum(x.double()).detach(), y)
    assert score.form == "sum" and abs(score.loss - float(loss)) < 1e-12


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("wire, tolerance", [("bfloat16", 1e-2), ("int8", 3e-2)])
def test_rounded_outputs_train_nearly_the_same(comm, wire, tolerance):
    settings = PLAIN | {"method__local_steps": 5, "model__dtype": "float32"}
    exact, rounded = (trained(comm, **settings, **more)[0] for more in ({}, {"method__wire": wire}))
    for name, values in exact.method.subnet.network.state_dict().items():
        difference = (values - rounded.method.subnet.network.state_dict()[name]).abs().max()
        assert difference < tolerance and (difference > 0 or name == "labels.linear.bias")


def loss_of(round, batch):
    x, y = batch
    return functional.cross_entropy(round.outputs(round.module(x.double())), y)


def make_job(comm, network=Perceptron, more=None, **settings):
    settings = {"example": torch.randn(4, 6)} | loops.SETTINGS | settings
    return istmpi.Distributed(network, {"features": 6, "outputs": 3} | (more or {}), comm, **settings)


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("passes", [1, 3])
def test_a_loop_takes_one_loader_on_all_ranks_and_scores_the_sum(comm, shared_tmp, passes):
    """Ranks draw the same batches from a DataLoader, and a score's module and an export add up what they compute."""
    loader = DataLoader(LABELLED, batch_size=8, shuffle=True)
    job = make_job(comm, method="joint", lr=0.05, passes=passes, batch=8)
    taken = []
    for round in loops.begin_rounds(job, 2, shared_tmp / "run"):
        for batch in round.take(loader):
            taken.append(batch[1].tolist())
            round.step(loss_of(round, batch))
    assert len(taken) == 6 and comm.allgather(taken) == [taken] * 3
    assert taken == [batch for batch in taken[::passes] for _ in range(passes)] and len(set(map(tuple, taken))) > 1
    assert job.summary.last.examples == 48, "an example that all ranks use counts once"
    predicted = [round_bytes(job.run, job.training.architecture, 3, number) for number in range(2)]
    assert job.summary.last.bytes == sum(map(sum, predicted))
    x, labels = LABELLED.tensors
    outputs = comm.allreduce_sum(job.training.method.subnet.network(x.double()).detach().numpy())
    assert job.evaluate(loops.accuracy, loader) == pytest.approx((outputs.argmax(1) == labels.numpy()).mean())
    path = job.save(shared_tmp / "network.h5")
    if comm.rank == 0:
        program = torch.export.load(export(path, "torch", model=job.run.model.name).path).module()
        np.testing.assert_allclose(program(x.double()).detach(), outputs, rtol=0, atol=1e-12)
    with pytest.raises(ConfigError, match="the sum of 3 subnets, which a state dict"):
        job.state_dict()


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_a_scaler_changes_no_clip(comm, shared_tmp, local_steps):
    """Gradients are clipped once they have their size again."""
    loader = DataLoader(LABELLED, batch_size=8)
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        job = make_job(comm, method="joint", lr=0.05, clip=0.05, local_steps=local_steps)
        for round in loops.begin_rounds(job, 3, shared_tmp / f"run {scaler is None}"):
            for batch in round.take(loader):
                round.step(loss_of(round, batch), scaler)
        ends.append(job.training.method.subnet.network.state_dict())
    for name, values in ends[0].items():
        torch.testing.assert_close(values, ends[1][name], rtol=0, atol=1e-12)


@pytest.mark.ranks(only=[3])
def test_batches_of_a_loader_that_differ_later_are_found_out(comm, shared_tmp):
    batches = [(torch.full((4, 6), float(number * comm.rank)), torch.arange(4) % 3) for number in range(9)]
    rounds = loops.begin_rounds(make_job(comm, method="joint"), 3, shared_tmp / "run")
    round = next(rounds)
    for batch in round.take(batches):
        round.step(loss_of(round, batch))
    with pytest.raises(DataError, match="list gives ranks different batches"):
        next(rounds)


def answer_by_hand(form, subnets, x):
    """Yield the outputs of each subnet's values; what is only added counts once, with the values of rank 0."""
    network = Added(6, 3, form, hidden=3).double()
    for rank, values in enumerate(subnets):
        network.load_state_dict({name: values[name] * (rank == 0 or name not in FORMS[form][1]) for name in values})
        yield network(x).detach()


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize(
    "form, equal", [*((form, None) for form in FORMS if FORMS[form][1] is not None), ("gain", 0.0)]
)
def test_what_is_only_added_counts_once(comm, shared_tmp, form, equal):
    """The sum, its score and its export have it once, also when it is resumed with very large weights."""
    x = torch.randn(8, 6, generator=loops.seeded(2)).double() if equal is None else torch.full((8, 6), equal).double()
    x = torch.arange(5).view(5, 1) if form == "integers" else x
    for rounds in (2, 4):
        job = make_job(comm, Added, {"form": form}, method="joint", lr=0.01, local_steps=1, example=x)
        for round in loops.begin_rounds(job, rounds, shared_tmp / "run", resume="auto"):
            for _ in round.take([(x, None)]):
                expected = sum(answer_by_hand(form, comm.allgather(round.module.state_dict()), x))
                outputs = round.outputs(round.module(x))
                torch.testing.assert_close(outputs.detach(), expected, rtol=1e-12, atol=1e-12)
                round.step((outputs / outputs.detach().abs().max()).square().mean())
            fixed = {name for name, values in round.module.named_parameters() if not values.requires_grad}
            assert fixed == (FORMS[form][1] - {"frozen", "prior"} if comm.rank else set())
            round.module.last.weight.data.mul_(1000)
        assert round.number == rounds
    expected = sum(answer_by_hand(form, comm.allgather(round.module.state_dict()), x))
    job.evaluate(lambda network, x: torch.testing.assert_close(network(x), expected) or 0.0, [x])
    path = job.save(shared_tmp / "network.h5")
    if comm.rank == 0 and form in ("bias", "convolution", "added", "bend"):
        program = torch.export.load(export(path, "torch", model=job.run.model.name).path).module()
        torch.testing.assert_close(program(x).detach(), expected)


@pytest.mark.ranks(only=[3])
def test_a_second_pass_drops_the_same_units(comm, shared_tmp):
    """While weights stand still, what a rank assumes of a batch is its sum at the round's start."""
    job = make_job(comm, Added, {"form": "dropout"}, method="joint", lr=1e-30, passes=3)
    for round in loops.begin_rounds(job, 2, shared_tmp / "run"):
        sums = []
        for x, _ in round.take([(torch.ones(4, 6), None)]):
            sums.append(round.outputs(round.module(x.double())))
            round.step(sums[-1].square().mean())
        assert all(torch.allclose(later, sums[0], atol=1e-20) for later in sums) and sums[0].abs().sum() > 0


WRONG = {
    "local = True": lambda round, loader: next(round.take(loader, local=True)),
    "accumulate = 2": lambda round, loader: next(round.take(loader, accumulate=2)),
    "needs the outputs of all subnets": lambda round, loader: [
        round.step(round.module(x.double()).sum()) for x, _ in round.take(loader)
    ],
    "inputs=lambda": lambda round, loader: next(round.take([{"x": torch.zeros(2)}] * 3)),
    "a second time in a local step": lambda round, loader: [
        round.outputs(round.module(x.double())) + round.outputs(round.module(x.double())) for x, _ in round.take(loader)
    ],
    "other outputs than for the same batch": lambda round, loader: [
        round.outputs(round.module(torch.randn_like(x).double())) for x, _ in round.take(loader)
    ],
    "call round.take": lambda round, loader: [round.step(loss_of(round, next(iter(loader)))) for _ in round.steps()],
}


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("message", WRONG)
def test_wrong_use_in_a_loop_is_refused(comm, shared_tmp, message):
    loader = DataLoader(TensorDataset(torch.ones(24, 1, 8, 8), torch.arange(24) % 10), batch_size=8)
    round = next(loops.begin_rounds(loops.make_job(comm, method="joint"), 1, shared_tmp / "run"))
    with pytest.raises(ConfigError, match=message):
        WRONG[message](round, loader)


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("form", ["dict", "one number", "integers"])
def test_only_one_tensor_of_rows_that_differ_is_added_up(comm, shared_tmp, form):
    example = torch.zeros(4, 1).long() if form == "integers" else torch.ones(4, 6)
    job = make_job(comm, Added, {"form": form}, method="joint", example=example)
    message = f"its forward returns {form}, but .* adds up|shown.weight is added .* different"
    with pytest.raises(ConfigError, match=message):
        next(loops.begin_rounds(job, 1, shared_tmp / "run"))


REFUSED = {
    "data.placement = 'sharded' does not go with joint": {"data__placement": "sharded"},
    "method.finish = 'local-sgd:10%' does not go with joint": {"method__finish": "local-sgd:10%"},
    "method.shares = 'auto' does not go with joint": {"method__shares": "auto"},
    "model.scale = 'fitted' does not go with joint": {"model__scale": "fitted"},
    "method.passes = 3 does not divide method.local_steps = 4": {"method__passes": 3, "method__local_steps": 4},
    "evaluate.form = 'merged' does not go with joint": {"evaluate__form": "merged"},
    "evaluate.form = 'sum' does not go with ist": {"evaluate__form": "sum", "method__name": "ist"},
}


@pytest.mark.ranks(only=[1])
@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_added_up_is_refused(comm, message):
    with pytest.raises(ConfigError, match=message):
        trained(comm, **{"method__name": "joint", **REFUSED[message]})


@pytest.mark.ranks(only=[3])
def test_subnets_of_a_sum_keep_their_ranks_and_units(comm, shared_tmp):
    """A resumed run with other shares would be another sum."""
    training, _ = trained(comm, method__name="joint", train__rounds=1)
    path = save(training, shared_tmp / "saved.h5")
    with pytest.raises(ConfigError, match="which keep their units. Give the same shares"):
        resumed(comm, path, method__name="joint", method__shares=[3.0, 1.0, 2.0])
    alone = Communicator(comm.mpi.Split(comm.rank))
    with pytest.raises(ConfigError, match="is the sum of 3 subnets.* Resume on 3"):
        resumed(alone, path, method__name="joint")


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("names", ["ist joint", "joint ist", "joint local-sgd", "ist joint streamed"])
def test_a_sum_and_a_whole_network_score_the_same_from_the_same_weights(comm, shared_tmp, names):
    """Sums over units of the hidden layer have factor 1 in a sum of outputs."""
    first, second, *streamed = names.split()
    form = {"ist": "merged", "local-sgd": "merged", "joint": "sum"}
    settings = PLAIN | {"model__hidden": [13]}
    one, _ = trained(comm, **settings | {"method__name": first, "evaluate__form": form[first]})
    init = {"train__init": str(save(one, shared_tmp / "one.h5")), "optimizer__lr": 1e-30}
    two = Training(small_run(**settings | init | {"method__name": second, "evaluate__form": form[second]}), comm)
    if streamed:
        state = collect_state_dict(one)
        two.init = lambda: state.items()
    load_initial_weights(two)
    list(two.rounds())
    assert two.evaluator.score().loss == pytest.approx(one.evaluator.score().loss, abs=1e-6)


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("local_steps", [1, 2])
def test_a_rank_keeps_no_rows_beside_its_subnet(comm, local_steps):
    """Owners get theirs when the network is read; only a round that may be undone has a copy of its start."""
    training = Training(small_run(method__name="joint", method__local_steps=local_steps, model__bias=True), comm)
    for local_step in training.attempt():
        training.method.take(0, local_step)
        assert [*training.store.tensors] == ["labels.linear.bias"] and bool(training.method._start) == (local_steps > 1)
    checkpoint_state(training)
    assert [*training.store.tensors] == [*training.store.parameters]
