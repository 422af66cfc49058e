"""Simulated ranks against the ranks of this very job: the same bits, losses, scores and bytes, and the same files."""

import pytest
from small import small_run

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.record import RunFolder
from istmpi.simulated import Faults
from istmpi.simulated.schedules import simulated_training
from istmpi.training.run import run_training

pytestmark = pytest.mark.real


def test_a_simulated_run_leaves_the_files_that_a_real_one_leaves(comm, shared_tmp):
    run = small_run(checkpoint__every=2)
    real, simulated = ({"output.folder": str(shared_tmp / name)} for name in ("real", "simulated"))
    run_training(run.override(real), comm)
    if comm.rank == 0:
        simulated_training(run.override(simulated), comm.size, Faults(3)).require()
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
