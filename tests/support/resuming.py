"""Training that is saved, stopped in the middle of a round, which drops that round, and resumed."""

from small import small_run

from istmpi.checkpoint.saver import commit
from istmpi.training.loop import Training


def save(training, path):
    commit(path, *training.state(), "direct", training.communicator)
    return path


def resumed(comm, path, **changed):
    training = Training(small_run(**changed), comm)
    training.resume(path)
    return training, list(training.rounds())


def stop_at(training, round, step):
    """Ask this rank to stop when it is about to take that step of that round, which is then dropped."""
    method = training.method
    method.finished_within = -1.0
    take, number = method.batch, method.first_step(round) + step

    def batch(current):
        if current == number:
            training.stop._signal = "a test"
        return take(current)

    method.batch = batch
