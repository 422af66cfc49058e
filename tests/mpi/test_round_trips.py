"""How many collective calls wait for each other: on a link with a long delay, each of them costs a round trip."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from networks import Steps
from small import checkpoint_state, on_root, own_run, small_run, trained

from istmpi.checkpoint.saver import commit
from istmpi.comm import find_members, list_neighbours
from istmpi.comm.ledger import EVALUATION, ROUNDS, SAVING, START
from istmpi.devices import fair_threads
from istmpi.environment import list_cores
from istmpi.evaluation.fitting import COLDEST, HALVINGS, HOTTEST, fit_temperature
from istmpi.training.loop import Training
from istmpi.training.run import run_training


def count_calls(comm, work):
    """Collective calls of this rank, on all communicators, while it does some work."""
    before = sum(comm.whereabouts.arrivals.values())
    work()
    return sum(comm.whereabouts.arrivals.values()) - before


@pytest.mark.parametrize("fact", ["host", "boot"])
def test_a_host_of_one_rank_is_known_without_a_call(comm, monkeypatch, fact):
    """Hosts of one name were not started together. The cores that a host's ranks share are known without one, too."""
    hosts = [replace(member, **{fact: f"{fact} {member.rank}"}) for member in find_members(comm)]
    monkeypatch.setattr(comm, "members", hosts)
    before = comm.ledger.sent[START].calls
    assert list_neighbours(comm) == [hosts[comm.rank]] and fair_threads(comm) == len(list_cores())
    assert comm.ledger.sent[START].calls == before


@pytest.mark.ranks(also=1)
@pytest.mark.parametrize(
    "method, redeal, calls, alone", [("local-sgd", 1, 1, 1), ("ist", 1, 2, 2), ("easgd", 1, 2, 2), ("ist", 0, 3, 4)]
)
def test_an_evaluation_on_one_rank(comm, method, redeal, calls, alone):
    """Weights go to rank 0, its sums to all; outputs of subnets add up at once. Owners have the newest values."""
    training, _ = trained(comm, method__name=method, method__redeal=float(redeal))
    assert training.evaluator.plan.on_one == (comm.size > 1)
    assert count_calls(comm, training.evaluate) == (calls if comm.size > 1 else alone)


@pytest.mark.parametrize("method", ["local-sgd", "data-parallel", "sparse-loco", "easgd"])
def test_a_whole_network_begins_without_messages(comm, method):
    """Ranks compute initial values, bit for bit those of the owners; those of a checkpoint they get from owners."""
    training = Training(small_run(method__name=method, optimizer__momentum=0.9), comm)
    whole = {name: training.store.whole(name, comm) for name in training.store.parameters}
    for seed in (training.run.train.seed, None):
        other = Training(training.run, comm)
        other.store.seed = seed
        before = comm.traffic.bytes
        other.method.build(0)
        other.method.shards.fetch(0, other.method.subnet.tensors)
        assert (comm.traffic.bytes > before) == (seed is None and comm.size > 1)
        for name, values in whole.items():
            if name in other.method.subnet.tensors:
                assert torch.equal(other.method.subnet.tensors[name], values), name


@pytest.mark.parametrize("bucket, calls", [(2**24, 1), (64 * 13 * 8, 2)])
def test_small_parameters_are_gathered_together(comm, monkeypatch, bucket, calls):
    """A message has all of one dtype. A large parameter that lies between small ones does not divide them."""
    monkeypatch.setattr("istmpi.engine.buckets._BUCKET", bucket)
    store = trained(comm)[0].store
    gathered, (large, small, *others) = {}, store.parameters
    assert count_calls(comm, lambda: gathered.update(store.gather([small, large, *others], comm))) == calls
    assert all(torch.equal(values, store.whole(name, comm)) for name, values in gathered.items())


def test_what_is_sent_is_counted_for_its_purpose(comm):
    """Gathered weights count for the evaluation, in which each rank sends its rows to all others, and nowhere else."""
    training, progress = trained(comm)
    store = training.store
    counted = comm.ledger.sent
    of_rounds = sum(comm.allgather(counted[ROUNDS].bytes))
    assert of_rounds >= progress[-1].bytes and (of_rounds > 0) == (comm.size > 1)
    before = {purpose: replace(sent) for purpose, sent in counted.items()}
    with training.clock("evaluate"):
        gathered = dict(store.gather(store.parameters, comm))
    more = {purpose: sent.bytes - before[purpose].bytes for purpose, sent in counted.items()}
    assert [purpose for purpose, nbytes in more.items() if nbytes] == [EVALUATION] * (comm.size > 1)
    assert sum(comm.allgather(more[EVALUATION])) == sum(part.nbytes for part in gathered.values()) * (comm.size - 1)


def test_a_checkpoint(comm, shared_tmp):
    """Checksums with leave to save, the layout, all parts, the name: a call each. To resume is one."""
    training, _ = trained(comm, method__name="local-sgd")
    header, pieces = checkpoint_state(training)
    path = shared_tmp / "network.h5"
    assert count_calls(comm, lambda: commit(path, header, pieces, "direct", comm)) == 4 and path.exists()
    again = Training(training.run, comm, start=path)
    assert count_calls(comm, lambda: again.resume(path)) == 1


@pytest.mark.parametrize("method", ["local-sgd", "ist"])
def test_the_state_of_an_evaluated_network(comm, method):
    """Rank 0 still has the weights that it scored; a process alone takes its weights again, and adds up logits."""
    training, _ = trained(comm, method__name=method)
    assert count_calls(comm, lambda: training.collect_state(calibrated=True)) == 0 or comm.size == 1


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("start", ["new", "own", "known", "resumed", "elsewhere", "epochs"])
def test_a_whole_run(comm, shared_tmp, monkeypatch, start):
    """One's own network takes a call more, a resume three: what folders have, a valid file, its values; saving four."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_tmp / "cache"))
    own, again = start in ("own", "known"), start not in ("new", "own", "known")
    run = own_run(model__name=f"{inspect.getfile(Steps)}:Steps") if own else small_run()
    run = run.override({"output.folder": str(shared_tmp / "run"), "checkpoint.every": 2 * again})
    if again or start == "known":
        run_training(run.override({"output.folder": str(shared_tmp / "before")} if own else {}), comm)
        if start in ("resumed", "elsewhere"):
            on_root(comm, (shared_tmp / "run/network.h5").unlink)
        comm.members = None  # as in another job
        comm.ledger.begin_anew()
    resume, changed = "auto" * again, {"train.epochs": 0.3} if start == "epochs" else {}
    if start == "elsewhere":
        resume = str(shared_tmp / "run/checkpoints/round-00000002.h5")
        changed = {"output.folder": str(shared_tmp / "elsewhere")}
    run_training(run.override(changed), comm, resume=resume)
    assert comm.ledger.sent[START].calls == 5 + own + 3 * again and (again or comm.ledger.sent[SAVING].calls == 4)


@pytest.mark.parametrize("examples, most", [(40, 9), (2**15, 41)])
def test_a_temperature_is_that_of_one_halving_at_a_time(examples, most):
    """With few logits, several halvings share a message; the bits are those of 40 halvings, one after the other."""
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(examples, 10, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(logits / 2, dim=1), 1, generator=generator).view(-1)
    calls = []
    fitted = fit_temperature(logits, labels, lambda values: calls.append(len(values)) or values)
    assert len(calls) == most and 1 < fitted < 4
    targets = torch.full_like(logits, 1 / (examples + 2) / 10)
    targets[torch.arange(examples), labels] += 1 - 1 / (examples + 2)
    low, high = np.log(1 / HOTTEST), np.log(1 / COLDEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        odds = torch.softmax(logits * np.exp(middle), dim=1)
        low, high = (low, middle) if ((odds - targets) * logits).sum() > 0 else (middle, high)
    assert fitted == np.exp(-(low + high) / 2)


@pytest.mark.parametrize("method, calls", [("local-sgd", 3), ("ist", 5)])
def test_a_round(comm, method, calls):
    """Two agreements; local SGD's mean; IST's hop, pull and push. After an evaluation, ranks meet once more."""
    training = Training(small_run(method__name=method, train__rounds=6), comm)
    rounds = iter(training.rounds())
    assert next(rounds).round + next(rounds).round == 3
    counted = count_calls(comm, lambda: next(rounds))
    assert counted == calls or comm.size == 1
    training.evaluate()
    assert count_calls(comm, lambda: next(rounds)) == counted + 1
