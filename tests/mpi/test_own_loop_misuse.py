"""A user's own loop, used wrongly: a clear line for each way."""

import math
import re
from itertools import repeat

import loops
import networks
import pytest
import torch
from loops import EXAMPLE, accuracy, begin_rounds, compute_loss, make_job, make_towers, rmsprop

import istmpi
from istmpi.errors import ConfigError, DataError, DivergedError


def boom(*_, **__):
    raise RuntimeError("boom")


def schedule_that(rate):
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


LOADER = [EXAMPLE] * 9
CALLS = {
    "a number": ({}, {"loader": 5}, "the iteration over the loader, int, fails: TypeError"),
    "iteration": ({}, {"loader": type("L", (), {"__iter__": boom})()}, "the iteration over the loader, L, fails: Runt"),
    "accumulate": ({}, {"accumulate": 0}, "round 1: accumulate = 0 must be a whole number of at least 1"),
    "ahead": ({}, {"ahead": "x"}, "round 1: ahead = 'x' must be a whole number of at least 0"),
    "schedule": ({"schedule": boom}, {}, "schedule fails: RuntimeError: boom. It is raised in"),
    "no schedule": ({"schedule": lambda optimizer: None}, {}, "schedule returns NoneType, not a torch.optim.lr_sche"),
    "step": ({"schedule": schedule_that(lambda step: step and boom())}, {}, "schedule: step fails: RuntimeError: boom"),
    "rate": ({"schedule": schedule_that(lambda step: math.nan)}, {}, "schedule gives the learning rate nan at"),
    "score": ({}, {"score": boom}, "the score fails: RuntimeError: boom. It is raised in"),
    "no score": ({}, {"score": 5}, "the score fails: TypeError: 'int' object is not callable"),
    "large score": ({}, {"score": lambda *_: 1e38}, "the score is 1e+38; a record holds at most 1e+30"),
    "name": ({}, {"name": 5}, "evaluate: name = 5 must be a str"),
    "direction": ({}, {"higher_is_better": "no"}, "evaluate: higher_is_better = 'no' must be a bool"),
    "to evaluate": ({}, {"evaluated": 5}, "the iteration over the loader, int, fails: TypeError"),
}


@pytest.mark.ranks(only=[1])
@pytest.mark.parametrize("case", CALLS)
def test_an_object_that_fails_in_a_program_is_named(comm, shared_tmp, case):
    """Whatever a loader, a schedule or a score does when istmpi calls it, one line names it and its method."""
    settings, given, message = CALLS[case]
    job = make_towers(comm, dtype="float32", **({"optimizer": rmsprop, **settings} if settings else {}))
    take = {name: given[name] for name in ("accumulate", "ahead") if name in given}
    evaluate = {name: given[name] for name in ("name", "higher_is_better") if name in given}

    def train():
        for round in begin_rounds(job, 2, shared_tmp / "run"):
            for _ in round.take(given.get("loader", LOADER), **take):
                round.step(round.module(*loops.pair(6)).square().mean())
            job.evaluate(given.get("score", lambda *_: 0.5), given.get("evaluated", LOADER), **evaluate)

    with pytest.raises((ConfigError, DataError), match=re.escape(message)) as refused:
        train()
    assert "\n" not in str(refused.value)


def run(comm, folder, body, **settings):
    job = make_job(comm, **settings)
    for round in begin_rounds(job, 2, folder):
        body(round, repeat((EXAMPLE, loops.ZEROS)), job)


def in_a_step(act):
    def body(round, batches, job):
        for batch in round.take(batches):
            act(round, batch, job)

    return body


def take(round, batches, job=None):
    for batch in round.take(batches):
        round.step(compute_loss(round.module, batch))


def take_twice(round, batch, job):
    for _ in range(2):
        round.step(compute_loss(round.module, batch))


def replace_a_weight(round, batch, job):
    round.step(compute_loss(round.module, batch))
    round.module.last.weight = torch.nn.Parameter(round.module.last.weight.detach().clone())


def step_outside(round, batch, job):
    round.step(compute_loss(networks.Convolutional(**loops.ARGUMENTS).double(), batch))


def step_detached(round, batch, job):
    round.step(compute_loss(round.module, batch).detach())


def leave(round, batches, job):
    for batch in round.take(batches):
        round.step(compute_loss(round.module, batch))
        break


def evaluate_uncalibrated(round, batches, job):
    take(round, batches)
    job.evaluate(accuracy, [])


def keep_the_module(round, batches, job):
    module = round.module
    take(round, batches)
    module(torch.zeros(2, 1, 8, 8, dtype=torch.float64))


BODIES = [
    (in_a_step(lambda *_: None), "round 1: local step 1 was not taken. Call round.step"),
    (in_a_step(take_twice), "round 1: local step 1 was taken twice; take the next batch first."),
    (in_a_step(lambda round, batch, job: round.step(round.module(batch[0].double()))), "round 1: the loss is (8, 10);"),
    (in_a_step(step_detached), "round 1: the loss has no gradient"),
    (in_a_step(step_outside), "round 1: no parameter of round.module got a gradient. Compute the"),
    (in_a_step(replace_a_weight), "round 1: parameter last.weight of round.module was replaced"),
    (in_a_step(lambda round, *_: round.optimizer.step(lambda: 0.0)), "round.optimizer.step takes no closure"),
    (in_a_step(lambda round, batch, job: job.evaluate(accuracy, [])), "evaluate is called inside a round"),
    (in_a_step(lambda round, batch, job: take(round, [batch])), "round.take is called inside a loop over its local"),
    (in_a_step(lambda round, batch, job: [*job.rounds(2)]), "rounds is called inside a loop over rounds. End this"),
    (leave, "round 1: the loop ended after 1 of 3 local steps. Take all of them"),
    (lambda round, *_: take(round, []), "the loader, list, has no batch on rank"),
    (evaluate_uncalibrated, "the network has batch normalisations, whose moments are unknown"),
    (keep_the_module, "round 1: its module and optimizer are used after its end"),
]


@pytest.mark.ranks(only=[2])
@pytest.mark.parametrize("body, message", BODIES)
def test_a_loop_that_goes_wrong_is_told_so(comm, shared_tmp, body, message):
    with pytest.raises((ConfigError, DataError), match=re.escape(message)):
        run(comm, shared_tmp / "run", body)


CURES = [({"optimizer": rmsprop}, "Lower the learning rate"), ({}, r"Lower optimizer\.lr")]


@pytest.mark.parametrize("settings, cure", CURES)
def test_a_loss_that_is_not_finite_names_no_setting_of_a_programs_optimizer(comm, shared_tmp, settings, cure):
    def body(round, batches, job):
        for number, batch in enumerate(round.take(batches)):
            nan = number and comm.rank == comm.size - 1
            round.step(compute_loss(round.module, batch) * (math.nan if nan else 1))

    with pytest.raises(DivergedError, match=f"the loss is no longer finite in round 1, local step 2.*{cure}"):
        run(comm, shared_tmp / "run", body, **settings)


def test_a_buffer_that_the_loop_changes_is_refused(comm, shared_tmp):
    job = istmpi.Distributed(networks.FrozenTrunk, {}, comm, example=torch.randn(6, 5), **loops.SETTINGS)
    rounds = iter(begin_rounds(job, 1, shared_tmp / "run"))  # a loop that nobody refers to is left
    round = next(rounds)

    def take():
        for _ in round.steps():
            round.step(round.module(torch.randn(4, 5).double()).mean())
            round.module.trunk.weight.add_(1)

    with pytest.raises(ConfigError, match="round 1: buffer trunk.weight of round.module was changed"):
        take()


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("every", [0, 1])
def test_a_call_of_some_ranks_alone_is_refused(comm, shared_tmp, every):
    def body(round, batches, job):
        take(round, batches)
        if comm.rank == 0:
            job.state_dict()

    with pytest.raises(ConfigError, match="rank 0 called state_dict while rank 1 called round 2. Every rank must"):
        run(comm, shared_tmp / "run", body, checkpoint_every=every)
    with pytest.raises(ConfigError, match="rank 0 called another while rank 2 called end"):
        istmpi.program.arguments.require_same([(0.5,), (0.7,), "end"])


def test_errors_name_arguments_of_python(comm, shared_tmp):
    (shared_tmp / "run").mkdir(exist_ok=True)
    (shared_tmp / "run" / "file").touch()
    job = make_job(comm)
    with pytest.raises(ConfigError, match="^(rank 0: )?folder = .*: the folder is not empty"):
        next(iter(begin_rounds(job, 1, shared_tmp / "run")))
    with pytest.raises(ConfigError, match='another method, such as method="local-sgd"'):
        istmpi.Distributed(torch.nn.Linear, {"in_features": 5, "out_features": 3}, comm, example=loops.pair(6)[0])


@pytest.mark.ranks(only=[1])
@pytest.mark.parametrize(
    "settings, message",
    [
        ({"local_stepz": 3}, "unknown argument local_stepz; did you mean local_steps"),
        ({"patience": 3}, "patience is a setting of train and comm. Give comm_patience instead"),
        ({"epochs": 3}, "epochs is a setting of method and train. Give method_epochs instead"),
        ({"every": 3}, "every is a setting of evaluate and checkpoint. Give checkpoint_every instead"),
        ({"init": "absent"}, "init = 'absent' does not exist"),
        ({"groups": {"nothing.*": {}}, "optimizer": rmsprop}, "no parameter's name matches 'nothing"),
        ({"groups": {"*.bias": {}}}, "groups and schedule go with an optimizer that is a function"),
        ({"optimizer": lambda parameters: None}, "optimizer is NoneType, not a torch.optim.Optimizer"),
        ({"optimizer": lambda _: rmsprop([torch.zeros(1)])}, "the optimizer does not have the parameters it was given"),
        ({"optimizer": rmsprop, "momentum": 0.9}, "momentum goes with an optimizer by name. Set it in the function"),
        ({"optimizer": rmsprop, "groups": {"*.bias": {"weight_deca": 0.0}}}, "has weight_deca; did you mean weight_de"),
        ({"optimizer": rmsprop, "schedule": "cosin"}, "schedule = 'cosin' is not known; did you"),
        ({"optimizer": rmsprop, "groups": ["*.bias"]}, "groups is a list; it must be a dict of patterns and options"),
        ({"optimizer": rmsprop, "groups": {"*.bias": 5}}, "must be a pattern of names and a dict of options"),
        ({"optimizer": rmsprop, "groups": {"*.bias": {"lr": -1.0}}}, "has lr = -1.0; it must be at least 0"),
        ({"optimizer": rmsprop, "groups": {"*.bias": {"lr": "x"}}}, "has lr = 'x'; it must be at least 0"),
        ({"examples": "x"}, "examples = 'x' must be a whole number of at least 1"),
        ({"example": torch.empty(4, 1, 8, 8, device="meta")}, "example has a tensor on the device meta"),
        ({"optimizer": rmsprop([torch.zeros(1)])}, "optimizer is an instance of RMSprop; it must be a function"),
        ({"network": networks.TwoTowers(5)}, "the network is an instance of TwoTowers. Give the class"),
        ({"optimizer": torch.optim.LBFGS}, "optimizer cannot step with gradients alone"),
        ({"optimizer": torch.optim.NAdam, "optimizer_state": "carry"}, "cannot be kept between rounds: mu_product"),
        ({"scale": "fitted"}, "needs a run's loss"),
        ({"method": "codistillation"}, "codistillation"),
    ],
)
def test_arguments_that_cannot_be_are_refused(comm, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_job(comm, **settings)


def test_batches_on_another_device_are_refused(comm, shared_tmp):
    job = make_towers(comm, method=loops.choose_method(comm))
    batches = [torch.zeros(4, 5, device="meta", dtype=torch.float64)]
    with pytest.raises(ConfigError, match="the network to evaluate is on cpu and its input on meta. Use batch.to"):
        job.evaluate(lambda module, x: module(x, x).mean(), batches * comm.size)
    rounds = iter(begin_rounds(job, 1, shared_tmp / "run"))  # a loop that nobody refers to is left
    round = next(rounds)
    x = next(iter(round.take(batches)))
    for inputs, named in [((x, x), {}), ((), {"left": x, "right": x})]:
        with pytest.raises(ConfigError, match="round 1: round.module is on cpu and its input on meta. Use batch.to"):
            round.module(*inputs, **named)
    assert round.device == torch.device("cpu")
