"""What first commands rest on: epochs, a test split, the loss of classes, transforms, and early warnings."""

import sys
from fractions import Fraction
from math import ceil
from types import ModuleType

import numpy as np
import pytest
import torch

from istmpi.config import Run
from istmpi.config.sections import Train
from istmpi.data.batches import Batches, place
from istmpi.data.images.split import make_transform, transform_images
from istmpi.data.sources import open_for_training
from istmpi.errors import ConfigError, DataError
from istmpi.methods.class_loss import class_loss
from istmpi.methods.limits import require_classes
from istmpi.network.arguments import user_network
from istmpi.tasks import CLASSIFICATION, REGRESSION, Classification
from istmpi.training.epochs import convert_epochs

DIGITS = open_for_training(Run().data)


@pytest.mark.parametrize("placement", ["shared", "by-label"])
@pytest.mark.parametrize("epochs", [0.01, 1, 2.5])
def test_rounds_are_the_fewest_in_which_every_rank_passes_so_often(placement, epochs):
    run = Run().override({"train.epochs": epochs, "data.placement": placement, "train.batch": 32})
    rounds = convert_epochs(run, DIGITS, 3).train.rounds
    parts = [place(placement, DIGITS.train.labels(), rank, 3, 0, 0.5) for rank in range(3)]
    passes = [Fraction(20 * 32, len(part)) for part in parts]
    assert min(rounds * each for each in passes) >= Fraction(str(epochs))
    assert rounds == 1 or min((rounds - 1) * each for each in passes) < Fraction(str(epochs))
    assert convert_epochs(run.override({"train.rounds": 3}), DIGITS, 3).train.rounds == 3
    with pytest.raises(ConfigError, match="train.rounds and train.epochs both say how long to train"):
        Run().override({"train.rounds": 3, "train.epochs": epochs})
    fedavg = run.override({"method.name": "fedavg", "method.epochs": 2})
    assert convert_epochs(fedavg, DIGITS, 3).train.rounds == ceil(epochs / 2)
    joint = run.override({"method.name": "joint", "method.local_steps": 80, "method.passes": 4})
    assert convert_epochs(joint, DIGITS, 3).train.rounds == rounds, "a batch counts once, whatever its passes"


def test_a_test_split_is_held_out_by_the_seed(tmp_path):
    """Of each class, disjoint, the same again; and refused where the data have one."""
    x, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 4
    np.savez(tmp_path / "a.npz", x=x, y=y)
    np.savez(tmp_path / "b.npz", x_train=x, y_train=y)
    lines = "from torch import arange", "splits = lambda: [(arange(2.0) + 2 * n, n / 40) for n in range(40)]"
    (tmp_path / "own.py").write_text("\n".join(lines))

    def opened(name, seed=0, test=0.2):
        return open_for_training(Run().override({"data.source": name, "data.test": test}).data, 0, seed)

    def held(name, seed):
        train, test = (opened(str(tmp_path / name), seed).splits[split] for split in ("train", "test"))
        rows = [part.batch(np.arange(len(part))).inputs[0][:, 0].tolist() for part in (train, test)]
        assert [*map(len, rows)] == [32, 8] and {*rows[0], *rows[1]} == {*x[:, 0]}
        assert name == "own.py:splits" or np.bincount(test.labels()).tolist() == [2] * 4
        return rows[1]

    assert held("a.npz", 0) == held("b.npz", 0) != held("a.npz", 1)
    assert held("own.py:splits", 0) == held("own.py:splits", 0) != held("own.py:splits", 1)
    for source, test in (("digits", 0.2), (str(tmp_path / "own.py:splits"), None)):
        with pytest.raises((ConfigError, DataError), match=r"has a test split. Leave|Training data alone"):
            opened(source, test=test)


@pytest.mark.parametrize("weights", [None, (1.0, 0.0, 3.0), "balanced"])
def test_the_loss_of_classes_is_its_formula(weights):
    """(1 - e) of the label's and e of the mean over classes, by weights, over the sum of the labels' weights."""
    labels = np.array([0, 0, 0, 1, 2, 2])
    split = type("Split", (), {"labels": lambda self: labels})()
    loss = class_loss(
        Classification, Train(label_smoothing=0.3, class_weights=weights), Batches(split, range(6), 2, 0, 0)
    )
    outputs, targets = torch.randn(5, 3, dtype=torch.float64), torch.tensor([2, 0, 0, 1, 2])
    w = torch.tensor({None: [1, 1, 1], "balanced": [6 / 9, 6 / 3, 6 / 6]}.get(weights, weights)).double()
    logs = w * (outputs - outputs.exp().sum(1, keepdim=True).log())
    expected = -0.7 * logs[range(5), targets] - 0.3 * logs.mean(1)
    assert float(loss(outputs, targets)) == pytest.approx(float(expected.sum() / w[targets].sum()))
    assert class_loss(Classification, Train(), None) is Classification.loss


def test_a_loss_that_does_not_fit_is_refused():
    for settings, task, said in (
        ({"class_weights": (1.0, 2.0)}, CLASSIFICATION, r"= \[1.0, 2.0\] must be 'balanced' or a list of 3 numbers"),
        ({"logit_adjustment": 1.0}, REGRESSION, "train.logit_adjustment = 1.0 is for classes"),
    ):
        with pytest.raises(ConfigError, match=said):
            require_classes(Train(**settings), task, 3, "ist")


def test_transforms_are_made_by_name_and_draw_by_the_key(monkeypatch):
    v2, packages = ModuleType("torchvision.transforms.v2"), ModuleType("torchvision.transforms")
    packages.v2 = v2
    v2.Transform = type("Transform", (), {"__init__": lambda self, most=9: setattr(self, "most", most)})
    move = lambda self, x: (x + torch.randint(0, self.most, (1,))).to(x.dtype)  # noqa: E731
    v2.Add = type("Add", (v2.Transform,), {"__call__": move})
    v2.Half = type("Half", (v2.Transform,), {"__call__": lambda self, x: x[:, ::2]})
    for name, module in {"": ModuleType("torchvision"), ".transforms": packages, ".transforms.v2": v2}.items():
        monkeypatch.setitem(sys.modules, f"torchvision{name}", module)
    make_transform.cache_clear()
    images = np.zeros((20, 1, 4, 4), np.uint8)
    first, again, other = (transform_images(["Add(most=100)"], images, key) for key in (3, 3, 4))
    assert (first == again).all() and (first != other).any() and len({image.tobytes() for image in first}) > 9
    assert transform_images(["Add(1)"], images, 3).max() == 0 == images.max()
    refused = {"Ad(1)": "mean Add", "Add(open)": "plain arguments", "Add(1, 2, 3)": "cannot be made", "Half": "becomes"}
    for text, said in refused.items():
        with pytest.raises(ConfigError, match=said):
            transform_images([text], images, 3)
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", None)
    make_transform.cache_clear()
    with pytest.raises(ConfigError, match="needs torchvision, which cannot be imported"):
        make_transform("Add(1)")
    make_transform.cache_clear()


def test_arguments_with_names_of_others_are_filled_in():
    class Net(torch.nn.Module):
        def __init__(self, in_channels, num_classes=1000, width=8):
            super().__init__()

    network = user_network("net.py:Net", (3, 8, 8), 10, {}, network=Net)
    assert network.facts == {"in_channels": 3, "num_classes": 10} and [*network.widths] == ["width"]
    given = user_network("net.py:Net", (3, 8, 8), 10, {"num_classes": 12}, network=Net)
    assert given.facts == {"in_channels": 3} and given.settings["num_classes"] == 12


def test_narrow_subnets_are_warned_of_in_one_line(istmpi_command):
    for words, said in ((["--ranks", "512"], "on 512 ranks, a rank trains 1 of the 512 units"), (["--ranks", "4"], "")):
        lines = [x for x in istmpi_command("train", "--dry-run", *words)[1].splitlines() if x.startswith("warning: ")]
        assert len(lines) == bool(said) and said in "".join(lines)
