"""Simulated ranks against the ranks of this very job: the same bits, losses, scores and bytes, and the same files."""

import pytest
from small import small_run

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.record import RunFolder
from istmpi.simulated import Faults, simulate
from istmpi.simulated.schedules import simulate_training, train
from istmpi.training.run import run_training

pytestmark = pytest.mark.real

RUNS = {
    "ist": small_run(),
    "ist, exchanged in pieces": small_run(comm__exchange="pieces"),
    "ist, a tenth redealt": small_run(method__redeal=0.1, method__optimizer_state="carry", optimizer__momentum=0.9),
    "ist, delay": small_run(method__delay=2, method__redeal=0.5),
    "ist, wire of int8": small_run(model__dtype="float32", method__wire="int8"),
    "data-parallel": small_run(method__name="data-parallel"),
    "fedavg": small_run(method__name="fedavg", method__fraction=0.5, train__batch=100),
    "dynamic-averaging": small_run(method__name="dynamic-averaging", method__threshold=0.012),
    "sparse-loco": small_run(method__name="sparse-loco"),
    "streaming-diloco": small_run(method__name="streaming-diloco", method__local_steps=6, method__fragments=2),
    "codistillation": small_run(method__name="codistillation", method__burn_in=1),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_simulated_cluster_computes_and_sends_what_a_real_one_does(comm, name):
    real = comm.allgather(train(RUNS[name], comm))
    if comm.rank == 0:
        for faults in (Faults(), Faults.draw(len(name), comm.size, ["stops", "slow"], 200)):
            assert simulate(lambda its: train(RUNS[name], its), comm.size, faults).require() == real


def test_a_simulated_run_leaves_the_files_that_a_real_one_leaves(comm, shared_tmp):
    run = small_run(checkpoint__every=2)
    real, simulated = ({"output.folder": str(shared_tmp / name)} for name in ("real", "simulated"))
    run_training(run.override(real), comm)
    if comm.rank == 0:
        simulate_training(run.override(simulated), comm.size, Faults(3)).require()
        for name in ("network.h5", "checkpoints/round-00000002.h5"):
            with (
                open_checkpoint(shared_tmp / "real" / name) as one,
                open_checkpoint(shared_tmp / "simulated" / name) as other,
            ):
                other.require_valid()
                assert one.tensors.keys() == other.tensors.keys()
                for tensor in one.tensors:
                    assert one.tensors[tensor].rows().tobytes() == other.tensors[tensor].rows().tobytes(), tensor
        one, other = (RunFolder(shared_tmp / name).metrics() for name in ("real", "simulated"))
        same = ("round", "loss", "bytes", "examples", "score", "test_loss", "ranks")
        assert [[line.get(key) for key in same] for line in one] == [[line.get(key) for key in same] for line in other]
