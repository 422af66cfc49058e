"""Files of an earlier version still open, score, and resume: `tests/old_files`, which commit fb9eb69 wrote.

KIND.h5 is prepared data, KIND-network.h5 the network after three rounds, KIND-round-2.h5 the checkpoint before it.
"""

from pathlib import Path

import numpy as np
import pytest
from small import whole

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.config import Run
from istmpi.data.hdf5 import prepared_file
from istmpi.deploy.scoring import evaluate
from istmpi.simulated import simulate
from istmpi.training.loop import Training

FILES = Path(__file__).parents[1] / "old_files"
SCORES = {
    "table": (1.0, 0.197907),
    "numbers": (0.735497, 0.638886),
    "rows": (0.875, 0.971646),
    "images": (0.6, 0.685002),
    "text": (17.863915, 2.882783),
    "graph": (0.25, 1.164692),
}
"""Score and loss on the test split, as they were told when the network was saved."""


@pytest.mark.parametrize("kind", SCORES)
def test_a_network_scores_as_it_did_when_it_was_saved(kind):
    """Prepared data have no damage and no conventions of reading."""
    with prepared_file(FILES / f"{kind}.h5") as file:
        assert list(file.errors()) == [] and file.dataset.reading == {}
    path = FILES / f"{kind}-network.h5"
    with open_checkpoint(path) as checkpoint:
        checkpoint.require_valid()
    (evaluation,) = simulate(lambda comm: evaluate(path, comm, str(FILES / f"{kind}.h5")), 1).require()
    assert (evaluation.score.score, evaluation.score.loss) == pytest.approx(SCORES[kind], rel=1e-4)


@pytest.mark.parametrize("kind", SCORES)
def test_a_run_resumes_from_a_checkpoint_and_ends_where_it_ended(kind):
    with open_checkpoint(FILES / f"{kind}-network.h5") as checkpoint:
        expected = {name: tensor.rows() for name, tensor in checkpoint.tensors.items()}
        run = checkpoint.header.run.override({"data.source": str(FILES / f"{kind}.h5")})

    def resume(comm):
        training = Training(run, comm)
        training.resume(FILES / f"{kind}-round-2.h5")
        (progress,) = training.rounds()
        assert np.isfinite(progress.loss)
        return whole(training)

    (weights,) = simulate(resume, 1).require()  # as many as saved it
    for name, values in expected.items():
        np.testing.assert_allclose(weights[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_run_resumes_by_the_command_that_began_it(tmp_path):
    with open_checkpoint(FILES / "table-network.h5") as checkpoint:
        settings = checkpoint.header.run.flat() | {"data.source": str(FILES / "table.h5")}
    settings.pop("method.fragments", None)  # nobody gave it: its default, 4, was left open since

    def resume(comm):
        training = Training(Run().override(settings), comm)
        training.resume(FILES / "table-round-2.h5")
        return len(list(training.rounds()))

    assert simulate(resume, 1).require() == [1]


def test_a_default_of_then_does_not_ask_for_room_that_there_is_not():
    method = {"name": "streaming-diloco", "fragments": 4}
    assert Run.from_tree({"comm": {"survive": False}, "method": method}, "run.toml").method.fragments is None
    assert Run.from_tree({"method": method}, "run.toml").method.fragments == 4
