"""`istmpi extract`: what a drawn share of units computes, what it says of itself, what is refused."""

import re
import shutil

import h5py
import numpy as np
import pytest
import torch
from batches import examples_of
from checkpoint_files import OWN
from plain_mlp import plain
from torch import nn

from istmpi import rng
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.config import Run
from istmpi.data.sources import open_dataset
from istmpi.deploy.network import CalibratedNetwork
from istmpi.errors import ConfigError
from istmpi.models.architecture import Architecture
from istmpi.models.inspection import inspect
from istmpi.models.narrow import narrow_module, require_same_outputs
from istmpi.models.user import user_network

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


@pytest.mark.parametrize("name", ["dealt", "none"])
def test_it_computes_what_the_network_does_without_the_other_units(checkpoints, tmp_path, istmpi_command, name):
    """With h5py and NumPy alone: other units are silent, and those that are left count as much more."""
    path, target, silent = checkpoints / f"{name}.h5", tmp_path / "part.h5", tmp_path / "silent.h5"
    out = extracted(istmpi_command, path, target, "--share", 0.3, "--seed", 4)
    shutil.copy(path, silent)
    with h5py.File(silent, "r+") as file:
        groups = [group for group in ("hidden1", "hidden2") if f"{group}.linear.weight" in file["model"]]
        for group, behind in zip(groups, [*groups[1:], "labels"]):
            weight = file["model"][f"{behind}.linear.weight"]
            length = weight.shape[1]
            count = max(round(0.3 * length), 1)
            held = rng.permutation(length, rng.key(4, "extract", group))[:count]
            factors = np.zeros(length)
            factors[held] = length / count
            weight[...] = weight[...] * factors
            assert f"{group} {count} of {length}" in out
    np.testing.assert_allclose(predicted(target, name), plain(silent, raw()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_all_units_are_the_network_itself(checkpoints, tmp_path, istmpi_command, name):
    target, model = tmp_path / "all.h5", OWN.get(name, {}).get("model.name")
    extracted(istmpi_command, checkpoints / f"{name}.h5", target, "--share", 1, *(["--model", model] if model else []))
    tolerance = 1e-12 if name in ("double", "sharing") else 1e-5
    expected = predicted(checkpoints / f"{name}.h5", name)
    np.testing.assert_allclose(predicted(target, name), expected, rtol=tolerance, atol=tolerance)


def test_the_seed_decides_and_the_run_says_where_it_comes_from(checkpoints, tmp_path, istmpi_command):
    paths = [tmp_path / f"{number}.h5" for number in range(3)]
    for path, seed in zip(paths, (1, 1, 2)):
        out = extracted(istmpi_command, checkpoints / "batch.h5", path, "--share", 0.01, "--seed", seed)
        assert "hidden1 1 of 13, hidden2 1 of 11" in out
        assert "calibrated on the training split of digits" in out
    one, again, other = (path.read_bytes() for path in paths)
    assert one == again != other
    run = Run.load(str(tmp_path / "0.toml"))
    assert (run.name, run.model.hidden, run.output.folder) == ("digits-share-0.01-of-seed-1", (1, 1), "")
    with open_checkpoint(paths[0]) as checkpoint:
        assert checkpoint.header.run == run
        assert {tensor.shape for name, tensor in checkpoint.tensors.items() if "hidden2.linear" in name} == {(1, 1)}
        assert len([name for name in checkpoint.tensors if name.endswith("/momentum_buffer")]) == 7
    assert istmpi_command("checkpoint", "verify", *paths[:1])[0] == 0


@pytest.mark.parametrize(
    "name, options, problem",
    [
        ("none", [], "give --rank R, the subnet of a rank, or --share S"),
        ("none", ["--rank", 0, "--share", 0.5], "give --rank R, the subnet of a rank, or --share S"),
        ("none", ["--share", 0.5, "--round", 0], "--ranks and --round go with --rank R"),
        ("none", ["--rank", 0, "--seed", 0], "--seed goes with --share S"),
        ("none", ["--rank", 2, "--ranks", 2], "--rank 2 with --ranks 2: ranks are numbered from 0 to 1"),
        (
            "none",
            ["--rank", 0, "--ranks", 8],
            "hidden1 has 7 units but the run has 8 ranks; .* Use fewer ranks or widen",
        ),
        ("none", ["--rank", 0, "--round", 4], "--round 4: the rounds of .* are 0 to 3"),
        ("none", ["--share", 0], "'--share': '0' must be a number, above 0, at most 1"),
        ("none", ["--share", 1.5], "'--share': '1.5' must be a number, above 0, at most 1"),
        ("none", ["--share", "nan"], "no finite number"),
        ("fedavg", ["--rank", 0], "nothing was dealt out in its run .*'fedavg'.* trained with ist"),
        ("sharing", ["--share", 0.5], "not its code, which is run only when you name it: give --model FILE.py:Class"),
        ("none", ["--share", 0.5, "--calibrate-on", "digits", "--model", "x.py:X"], "leave --model out"),
    ],
)
def test_what_cannot_be_extracted_is_refused_in_one_line(checkpoints, tmp_path, istmpi_command, name, options, problem):
    target = tmp_path / "part.h5"
    code, out, err = istmpi_command("extract", checkpoints / f"{name}.h5", "-o", target, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(problem, err), err
    assert not list(tmp_path.iterdir())


def test_nothing_is_replaced_unasked(checkpoints, tmp_path, istmpi_command):
    for taken in ("part.h5", "part.toml"):
        (tmp_path / taken).write_text("mine")
        code, _, err = istmpi_command("extract", checkpoints / "none.h5", "-o", tmp_path / "part.h5", "--share", 0.5)
        assert (code, [*tmp_path.iterdir()]) == (2, [tmp_path / taken])
        assert "replaced only with --force" in err
        (tmp_path / taken).unlink()


# ---- networks of one's own without some of their blocks


class Numbered(nn.Module):
    """Blocks of which each adds as the function says that is given how many there are, and its own number."""

    def __init__(self, features, outputs, hidden=(3, 4, 5), depth=3, kind="alike"):
        super().__init__()
        self.first = nn.Linear(features, 6)
        widths = [*hidden, *[hidden[-1]] * depth]
        self.blocks = nn.ModuleList(Added(widths[number], self.weight(kind, number, depth)) for number in range(depth))
        self.last = nn.Linear(6, outputs)

    @staticmethod
    def weight(kind, number, depth):
        return {"alike": 1.0, "by number": 1.0 + number, "by depth": 1.0 / depth}[kind]

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Added(nn.Module):
    def __init__(self, hidden, weight):
        super().__init__()
        self.up, self.down, self.weight = nn.Linear(6, hidden), nn.Linear(hidden, 6), weight

    def forward(self, x):
        return x + self.weight * self.down(torch.tanh(self.up(x)))


@pytest.mark.parametrize("kind", ["alike", "by number", "by depth"])
def test_widths_move_up_with_their_blocks_and_what_depends_on_the_place_is_refused(kind):
    own = user_network(f"{__file__}:Numbered", (8,), 2, {"kind": kind})
    whole = Architecture("numbered.py:Numbered", inspect(own), "float64", own)
    assert len(whole.blocks["depth"]) == 3
    held = {"depth": np.array([1, 2]), "hidden3": np.array([0, 3])}
    scale = {"depth": 0.5, "hidden3": 0.5}
    narrow = narrow_module(whole, held, scale)
    assert dict(narrow.settings) == {"hidden": (4, 2, 2), "depth": 2}
    assert narrow.names["blocks.1.up.weight"] == "blocks.2.up.weight"
    assert narrow.scale == pytest.approx({"depth": 0.75, "hidden2": 1.25})
    torch.manual_seed(0)
    parts = {
        name: torch.randn(of.pattern.shape(narrow.network.lengths), dtype=torch.float64)
        for name, of in narrow.network.parameters.items()
    }
    if kind == "alike":
        require_same_outputs(whole, held, scale, narrow, parts)
    else:
        with pytest.raises(ConfigError, match="depth = 2 computes something else than the subnet"):
            require_same_outputs(whole, held, scale, narrow, parts)
