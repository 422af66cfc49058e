"""Networks of one's own on disk and in error: resuming, a changed source, the remembered proof, what is refused."""

import random

import numpy as np
import pytest
from own_runs import FILE, SHAKEN, own_trained
from resuming import save
from small import assert_same_bits, own_run, whole

from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError
from istmpi.inspection import large
from istmpi.training.loop import Training


def test_a_changed_source_is_told_and_another_network_refused(comm, shared_tmp):
    """A network is known by its source, wherever it lies, or by its parameters where its name is the same."""
    path, file, moved = shared_tmp / "network.h5", shared_tmp / "net.py", shared_tmp / "elsewhere" / "renamed.py"
    source, remark = "from networks import Steps\n\n\nclass Net(Steps):\n    pass\n", "# a remark\n"
    wide = "    def __init__(self, features, outputs, hidden=10):\n        super().__init__(features, outputs, hidden)"

    def again(text, file=file, kind="Net"):
        write(comm, file, text)
        return Training(own_run(model__name=f"{file}:{kind}", train__rounds=1), comm)

    training = again(source)
    list(training.rounds())
    save(training, path, calibrated=True)
    assert evaluate(path, comm, model=f"{file}:Net").note == ""
    assert again(source + remark).resume(path) == [f"the source of {file}:Net, with unchanged parameters"]
    assert "has changed since training" in evaluate(path, comm, model=f"{file}:Net").note
    other = again(source, moved)
    assert other.resume(path) == [f"model.name = {file}:Net in the checkpoint, {moved}:Net here"]
    assert_same_bits(whole(other), whole(training))
    assert evaluate(path, comm, model=f"{moved}:Net").note == ""
    for text, kind in ((source + remark, "Net"), (source.replace("class Net", "class Other"), "Other")):
        with pytest.raises(ConfigError, match="belongs to another run: model.name = .* in the checkpoint, .* here"):
            again(text, moved, kind).resume(path)
    with pytest.raises(ConfigError, match="settings, hidden: 8 or 10"):
        again(source.replace("    pass", wide)).resume(path)


def test_the_proof_is_remembered(comm, shared_tmp, monkeypatch):
    """Nobody looks again where nothing has changed, and all is as before; tests/unit/test_proof_cache.py says when."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_tmp / "cache"))
    looked, look = [], large.inspect
    monkeypatch.setattr(large, "inspect", lambda own: looked.append(own.name) or look(own))
    first, second = (own_trained(comm, **SHAKEN | {"train__rounds": 1})[0] for _ in range(2))
    assert len(looked) == (comm.rank == 0)
    assert first.architecture.table.tree() == second.architecture.table.tree()
    assert_same_bits(whole(first), whole(second))


def write(comm, file, text):
    comm.barrier()
    if comm.rank == 0:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    comm.barrier()


@pytest.mark.real
@pytest.mark.ranks(min=2)
def test_another_file_of_that_name_on_a_rank_is_refused(comm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # each rank's own
    remark = f"# on rank {comm.rank}\n" * (comm.rank == 1)
    (tmp_path / "net.py").write_text(f"from networks import Steps\n\n\nclass Net(Steps):\n    pass\n{remark}")
    with pytest.raises(ConfigError) as refused:
        Training(own_run(model__name="net.py:Net"), comm)
    same = "its file, or a file that it imports, differs on rank 1 and rank 0. Give all ranks the same files."
    assert refused.value.everywhere and str(refused.value) == f"net.py:Net: {same}"


FORWARDS = {
    "one rank": "y * (1 + (RANK == 1))",
    "a buffer": "y + self.place",
    "rounding": "y * (1 + RANK * 1e-6)",
    "random": "y + random.random() * torch.ones(1)",
}
DIFFERING = """
import os, random

import torch
from torch import nn

RANK = int(os.environ["RANK_OF_TEST"])

class Net(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.last = nn.Linear(features, outputs)
        self.register_buffer("place", torch.full((1,), float(RANK == 1)))

    def forward(self, x):
        y = self.last(x)
        return FORWARD
"""


@pytest.mark.real
@pytest.mark.ranks(min=2)
@pytest.mark.parametrize(
    "forward, placement", [*((name, "shared") for name in FORWARDS), ("one rank", "local"), ("rounding", "local")]
)
def test_a_forward_that_differs_between_ranks_is_refused(comm, shared_tmp, monkeypatch, forward, placement):
    monkeypatch.setenv("RANK_OF_TEST", str(comm.rank))
    path = shared_tmp / "forward.py"
    settings = {"method__name": "local-sgd", "model__name": f"{path}:Net", "train__rounds": 1}
    if comm.rank == 0:
        path.write_text(DIFFERING.replace("FORWARD", FORWARDS[forward]))
    if placement == "local":
        numbers = np.random.default_rng(comm.rank)
        x, y = numbers.normal(size=(40, 6)).astype(np.float32), np.arange(40) % 3
        np.savez(shared_tmp / f"of-{comm.rank}.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
        settings |= {"data__source": str(shared_tmp / "of-{rank}.npz")}
    comm.barrier()
    if forward in ("rounding", "random"):
        random.seed(comm.rank)
        assert list(Training(own_run(**settings), comm).rounds())[-1].score
    else:
        with pytest.raises(ConfigError) as refused:
            Training(own_run(**settings), comm)
        assert refused.value.everywhere and str(refused.value) == (
            f"{path}:Net: its forward gives other outputs for the same examples and weights on rank 1 and rank 0. "
            "Make it compute the same on all ranks."
        )


def test_without_a_deal_anything_trains(comm):
    training, progress = own_trained(comm, model__name=f"{FILE}:Fixed", method__name="local-sgd", train__rounds=1)
    assert np.isfinite(progress[-1].loss) and training.architecture.groups == ()
