"""Training that is saved, stopped in the middle of a round, which drops that round, and resumed."""

from small import assert_same_bits, checkpoint_state, small_run, whole

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.training.loop import Training
from istmpi.training.run import load_initial_weights


def save(training, path, calibrated=False):
    commit(path, *checkpoint_state(training, calibrated), "direct", training.communicator)
    return path


def stored(path):
    """Every tensor of a checkpoint without a fault, whole: ``{name: array}``."""
    with open_checkpoint(path) as checkpoint:
        assert list(checkpoint.errors()) == []
        return {name: tensor.rows() for name, tensor in checkpoint.tensors.items()}


def resumed(comm, path, **changed):
    training = Training(small_run(**changed), comm)
    training.resume(path)
    return training, list(training.rounds())


def stop_at(training, round, step):
    """Ask this rank to stop when it is about to take that step of that round, which is then dropped."""
    number = training.method.find_batch(training.method.first_step(round) + step)

    def asking(take, in_a_pass):
        def asked(*place):
            step = place[0] if len(place) == 1 else place[0] * in_a_pass + place[1]
            if step == number:
                training.stop._signal, training.method.finished_within = "a test", -1.0
            return take(*place)

        return asked

    for size in training.sizes.values():
        batches = size.batches
        batches.at = asking(batches.at, batches.in_a_pass)
        batches.read_from_pass = asking(batches.read_from_pass, batches.in_a_pass)


def assert_goes_on(comm, run, path):
    """Stop rank 1 inside round 2, and resume: bit for bit a whole run, whose progress is returned."""
    whole_run, stopped = Training(run, comm), Training(run, comm)
    load_initial_weights(whole_run), load_initial_weights(stopped)
    progress = list(whole_run.rounds())
    if comm.rank == 1:
        stop_at(stopped, 1, 1)
    list(stopped.rounds())
    saved = save(stopped, path)
    again = Training(run, comm)
    again.resume(saved)
    list(again.rounds())
    assert_same_bits(whole(again), whole(whole_run))
    return progress


def stop_after(folder, rounds):
    """Make of a finished run one whose job ended after so many rounds."""
    (folder / "network.h5").unlink()
    for path in (folder / "checkpoints").iterdir():
        if path.name > f"round-{rounds:08d}.h5":
            path.unlink()
