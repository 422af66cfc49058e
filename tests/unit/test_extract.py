"""`istmpi extract`: what it says of itself, what is refused."""

import re

import numpy as np
import pytest
from batches import examples_of
from checkpoint_files import OWN

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.data.sources import open_dataset
from istmpi.deploy.network import CalibratedNetwork

ALL = ["batch", "layer", "dealt", "double", "convolutional", "sharing"]


def raw():
    test = open_dataset("digits").test.normalised_by(None)
    return examples_of(test, np.arange(len(test)))[0]


def predicted(path, name):
    with open_checkpoint(path) as checkpoint:
        return CalibratedNetwork(checkpoint, model=OWN.get(name, {}).get("model.name"))(raw())


def extracted(istmpi_command, path, target, *options):
    """The report of a command that must succeed."""
    code, out, err = istmpi_command("extract", path, "-o", target, *options)
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("name", ALL)
def test_all_units_are_the_network_itself(checkpoints, tmp_path, istmpi_command, name):
    target, model = tmp_path / "all.h5", OWN.get(name, {}).get("model.name")
    options = ["--rank", 0, "--ranks", 1, *(["--model", model] if model else [])]
    extracted(istmpi_command, checkpoints / f"{name}.h5", target, *options)
    tolerance = 1e-12 if name in ("double", "sharing") else 1e-5
    expected = predicted(checkpoints / f"{name}.h5", name)
    np.testing.assert_allclose(predicted(target, name), expected, rtol=tolerance, atol=tolerance)


def test_the_run_says_where_it_comes_from(checkpoints, tmp_path, istmpi_command):
    paths = [tmp_path / f"{number}.h5" for number in range(2)]
    for path in paths:
        out = extracted(istmpi_command, checkpoints / "batch.h5", path, "--rank", 10, "--ranks", 11)
        assert "hidden1 1 of 13, hidden2 1 of 11" in out
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with open_checkpoint(paths[0]) as checkpoint:
        run = checkpoint.header.run
        assert {tensor.shape for name, tensor in checkpoint.tensors.items() if "hidden2.linear" in name} == {(1, 1)}
    assert run.name.startswith("digits-rank-10-of-11-in-round-") and run.model.hidden == (1, 1)
    assert istmpi_command("checkpoint", "verify", *paths[:1])[0] == 0


@pytest.mark.parametrize(
    "name, options, problem",
    [
        ("none", [], "Missing option '--rank'"),
        ("none", ["--rank", 2, "--ranks", 2], "--rank 2 with --ranks 2: ranks are numbered from 0 to 1"),
        (
            "none",
            ["--rank", 0, "--ranks", 8],
            "hidden1 has 7 units but the run has 8 ranks; .* Use fewer ranks or widen",
        ),
        ("fedavg", ["--rank", 0], "nothing was dealt out in its run .*'fedavg'.* trained with ist"),
        ("sharing", ["--rank", 0], "not its code, which is run only when you name it: give --model FILE.py:Class"),
        ("none", ["--rank", 0, "--calibrate-on", "digits", "--model", "x.py:X"], "leave --model out"),
    ],
)
def test_what_cannot_be_extracted_is_refused_in_one_line(checkpoints, tmp_path, istmpi_command, name, options, problem):
    target = tmp_path / "part.h5"
    code, out, err = istmpi_command("extract", checkpoints / f"{name}.h5", "-o", target, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(problem, err), err
    assert not list(tmp_path.iterdir())


def test_nothing_is_replaced_unasked(checkpoints, tmp_path, istmpi_command):
    (tmp_path / "part.h5").write_text("mine")
    code, _, err = istmpi_command("extract", checkpoints / "none.h5", "-o", tmp_path / "part.h5", "--rank", 0)
    assert (code, [*tmp_path.iterdir()]) == (2, [tmp_path / "part.h5"])
    assert "replaced only with --force" in err
