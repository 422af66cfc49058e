"""Weights to begin with: what has the name and the shape is taken, so that the full network is the one of the file."""

import json

import numpy as np
import perceptron
import pytest
import torch
from torch import nn

from istmpi.checkpoint.initial import begin_with, check_fit
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.cli.plan import show
from istmpi.config import Run
from istmpi.config.sections import Train
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
from istmpi.engine.store import ParameterStore
from istmpi.errors import ConfigError, DataError
from istmpi.inspection.examine import inspect
from istmpi.models import mlp_network
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import user_network
from istmpi.network.leaves import prepare

SCALE = {"hidden1": 0.25, "hidden2": 0.125}
OTHER = {"hidden1": 0.5, "hidden2": 0.2}


def network():
    return mlp_network(6, (7, 5), 3, norm="none", bias=True)


def plain():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))


def state_of(module, prefix=""):
    """Its tensors by the names of istmpi's network of the same layers."""
    names = {"0": "hidden1.linear", "2": "hidden2.linear", "4": "labels.linear"}
    return {f"{prefix}{names[name[0]]}{name[1:]}": of.clone() for name, of in module.state_dict().items()}


def begun(path, ranks=1, scale=None, of=None):
    of = of or network()
    stores = []
    for rank in range(ranks):
        store = ParameterStore(of.parameters, of.lengths, ranks, rank)
        store.scale = scale or {}
        store.initialise(1)
        fit = begin_with(path, of, store)
        stores.append(store)
    return stores, fit


def outputs(stores, x, of=None):
    of = of or network()
    whole = ParameterStore(of.parameters, of.lengths, 1, 0)
    whole.scale = stores[0].scale
    for name in whole.tensors:
        whole.tensors[name].copy_(torch.cat([store.tensors[name] for store in stores]))
    module = of.without_values(whole.full_scale).eval()
    for name, parameter in prepare(module, elsewhere=()).items():
        parameter.data = whole.tensors[name]
    with torch.no_grad():
        return module(x)


def test_what_stands_before_every_name_is_passed_over(tmp_path):
    for prefix in ("module.", "lit.model.module."):
        torch.save({"state_dict": state_of(plain(), prefix)}, tmp_path / "theirs.ckpt")
        assert begun(tmp_path / "theirs.ckpt")[1].weights == (107, 107)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_full_network_is_that_of_safetensors(tmp_path, dtype):
    """Among tensors of every type."""
    safetensors = pytest.importorskip("safetensors.torch")
    module = plain().to(dtype)
    state = state_of(module) | {"one": torch.tensor(1.0), "none": torch.zeros(0, 3)}
    for other in (torch.bool, torch.int8, torch.int64, torch.uint16, torch.complex64, torch.float8_e5m2):
        state[str(other)] = torch.zeros(3, dtype=other)
    safetensors.save_file(state, tmp_path / "theirs.safetensors")
    stores, _ = begun(tmp_path / "theirs.safetensors", 2, SCALE)
    x = torch.randn(20, 6)
    torch.testing.assert_close(outputs(stores, x), module.float()(x))


@pytest.mark.parametrize("name", ["dealt", "layer"])
@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_the_full_network_is_that_of_another_run_or_its_export(checkpoints, tmp_path, name, form):
    path = checkpoints / f"{name}.h5"
    with open_checkpoint(path) as checkpoint:
        of, features = checkpoint.architecture, checkpoint.header.data.shape
        x = np.random.default_rng(0).normal(size=(9, int(np.prod(features)))).astype(np.float32)
        expected = CalibratedNetwork(checkpoint)(x.copy()) * checkpoint.header.temperature
        mean, std, _ = checkpoint.normalisation
        (store,), _ = begun(path, 1, checkpoint.header.full_scale, of)
        for of_file, tensor in checkpoint.tensors.items():
            np.testing.assert_array_equal(store.tensors[of_file].numpy(), tensor.rows())
    x = torch.from_numpy((x - mean) / std)
    file = export(path, form, tmp_path / f"network{'.pt' if form == 'torch' else '.safetensors'}").path
    for start in (path, file):
        stores, fit = begun(start, 2, OTHER, of)
        torch.testing.assert_close(outputs(stores, x, of).numpy(), expected, rtol=1e-4, atol=1e-4)
        assert not fit.missing and not fit.misshapen
    assert {name.partition(".")[0] for name in fit.unused} == {"input", "output"}


def test_what_fits_and_what_does_not_is_told(tmp_path):
    state = state_of(plain()) | {f"other{n}": torch.zeros(2) for n in range(9)}
    state["labels.linear.weight"] = torch.zeros(10, 5)
    del state["hidden1.linear.bias"]
    torch.save(state, tmp_path / "some.pth")
    (store,), fit = begun(tmp_path / "some.pth")
    fresh = ParameterStore(network().parameters, network().lengths, 1, 0)
    fresh.initialise(1)
    for name in ("labels.linear.weight", "hidden1.linear.bias"):
        assert torch.equal(store.tensors[name], fresh.tensors[name])
    assert torch.equal(store.tensors["hidden2.linear.weight"], plain()[2].weight)
    assert fit.lines[0].endswith("4 of 6 parameters fit, 85 of 107 weights.")
    assert fit.lines[1:] == [
        "wrong shape, ignored: labels.linear.weight (10 x 5 in the file, 3 x 5 here).",
        "not in the file, initialized as usual: hidden1.linear.bias.",
        "only in the file: other0, other1, other2, other3, other4, other5, and 3 more.",
    ]
    torch.save({"a": torch.zeros(2)}, tmp_path / "none.pt")
    with pytest.raises(ConfigError, match="no parameter in it fits the network: not in the file.*only in the file: a"):
        begun(tmp_path / "none.pt")


@pytest.mark.parametrize(
    "name, words", [("tied", "linear in its forward has a"), ("gated", "also uses this weight outside")]
)
def test_a_factor_that_no_weight_can_hold_is_told(checkpoints, name, words):
    path = checkpoints / f"{name}.h5"
    with open_checkpoint(path) as checkpoint:
        of, scale = checkpoint.architecture, checkpoint.header.full_scale
    for other, is_told in ((scale, False), ({}, True), ({"hidden": 0.5}, True)):
        _, fit = begun(path, 1, other, of)
        assert (words in " ".join(fit.lines)) == is_told, fit.lines


class Evil:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize("json", [False, True])
def test_a_dry_run_looks_at_the_file(tmp_path, capsys, json):
    run = Run.load("digits").override({"train.init": str(tmp_path / "a.pt"), "model.hidden": [7, 5]})
    with pytest.raises(DataError, match="a.pt does not exist"):
        show(run, 2, as_json=json)
    torch.save({"labels.linear.weight": torch.zeros(10, 5), "b": torch.zeros(2)}, tmp_path / "a.pt")
    show(run, 2, as_json=json)
    shown = capsys.readouterr().out
    assert "a.pt: 1 of" in shown and "parameters fit, 50 of" in shown and "only in the file: b." in shown
    torch.save({"labels.linear.weight": torch.zeros(9, 5)}, tmp_path / "a.pt")
    with pytest.raises(ConfigError, match="no parameter in it fits"):
        show(run, 2, as_json=json)


@pytest.mark.filterwarnings("default")  # torch's own: programs are deprecated
@pytest.mark.parametrize("suffix", [".h5", ".safetensors", ".pt"])
@pytest.mark.parametrize(
    "save, reason",
    [
        (lambda path: torch.save({"a": Evil()}, path), "it would run code: print"),
        (lambda path: torch.jit.script(nn.Linear(2, 3)).save(path), "it is not a state dict"),
        (lambda path: path.write_bytes(b"no weights at all"), "it is not a state dict"),
        (lambda path: path.write_bytes((2**40).to_bytes(8, "little") + b"{}"), ""),
        (lambda path: path.write_bytes(b""), ""),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: None, "does not exist"),
    ],
)
def test_what_is_no_file_of_weights_is_refused_in_one_line_and_runs_nothing(tmp_path, capsys, suffix, save, reason):
    save(tmp_path / f"bad{suffix}")
    with pytest.raises(DataError, match="bad") as refused:
        begun(tmp_path / f"bad{suffix}")
    said = str(refused.value)
    assert (suffix != ".pt" or reason in said) and "\n" not in said
    assert "weights_only" not in said, "no advice to run the code of a file"
    assert "run" not in capsys.readouterr().out


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header, nbytes",
    [
        ({"a": F32}, 12),
        ({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, 12),
        ({"a": F32 | {"shape": [-2, -1]}}, 8),
        ({"a": F32 | {"shape": [1] * 99}}, 8),
        ({"a": F32 | {"shape": [3]}}, 8),
        ({"a": 3}, 8),
    ],
)
def test_a_header_of_safetensors_that_does_not_tell_where_its_data_lie_is_refused(tmp_path, header, nbytes):
    text, path = json.dumps(header).encode(), tmp_path / "bad.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(nbytes))
    with pytest.raises(DataError, match="bad.safetensors cannot be read: .* Give a network.h5"):
        begun(path)


def test_a_folder_of_safetensors_is_read_and_the_class_may_wrap_its_network(tmp_path):
    """As a Hugging Face folder: several files, and names without the wrapper's attribute."""
    safetensors = pytest.importorskip("safetensors.torch")
    own = user_network(f"{perceptron.__file__}:Perceptron", (6,), 3, {})
    of = Architecture(own.name, inspect(own), "float32", own)
    torch.save(perceptron.Perceptron(6, 3).state_dict(), tmp_path / "theirs.pt")
    assert not begun(tmp_path / "theirs.pt", of=of)[1].missing, "a part that all of the network's own names have stays"
    state = {name.removeprefix("layers."): values for name, values in perceptron.Perceptron(6, 3).state_dict().items()}
    for number, name in enumerate(state):
        safetensors.save_file({name: state[name]}, tmp_path / f"model-{number}.safetensors")
    assert begun(tmp_path, of=of)[1].missing == ()
    with pytest.raises(DataError, match="a folder without .safetensors files"):
        begun(tmp_path / "..", of=of)


def test_names_are_replaced_by_their_beginnings(tmp_path):
    state = {name.replace("hidden1.linear", "bert.first"): values for name, values in state_of(plain()).items()}
    torch.save(state, tmp_path / "theirs.pt")
    assert len(begun(tmp_path / "theirs.pt")[1].missing) > 0
    renamed = Train(init_names={"bert.first": "hidden1.linear"})
    assert check_fit(tmp_path / "theirs.pt", network(), renamed).missing == ()
