"""Exported networks of one's own predict what `istmpi predict` does: for their class, and without it."""

import json
import subprocess
import sys
from pathlib import Path

import exported_networks
import networks
import numpy as np
import pytest
import torch
from checkpoint_files import OWN
from exported import raw
from patience import patient

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
from tests.networks import product_nets

CLASSES = {**vars(networks), **vars(exported_networks), **vars(product_nets)}
TRACED = ["convolutional", "sharing", "unrecorded", "shaken", "tied", "gated"]
LOADED = ["convolutional", "sharing", "two"]
"""The networks that torch.export can trace, and those of them whose class can load their state."""


def model_of(name):
    return OWN[name]["model.name"]


def predicted(checkpoints, name):
    with open_checkpoint(checkpoints / f"{name}.h5") as checkpoint:
        return CalibratedNetwork(checkpoint, model=model_of(name))(raw("digits"))


def exported(checkpoints, name, form, folder):
    return export(checkpoints / f"{name}.h5", form, folder / f"network.{form}", model=model_of(name))


def read(path, form):
    if form == "torch":
        saved = torch.load(path, weights_only=True)
        return saved["metadata"], saved["state_dict"]
    if form == "npz":
        with np.load(path, allow_pickle=False) as file:
            metadata = json.loads(file["metadata"].item())
            state = {name: torch.from_numpy(file[name]) for name in file.files if name != "metadata"}
    else:
        with pytest.importorskip("safetensors").safe_open(path, "pt") as file:
            metadata, state = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return metadata, state | {name: state[first] for name, first in json.loads(metadata.get("ties", "{}")).items()}


def outputs_of(path, form):
    """Of the class as its user makes it, for normalised examples in their own shape."""
    metadata, state = read(path, form)
    settings = dict(json.loads(metadata["run"])["model"])
    kind, dtype = CLASSES[settings.pop("name").rpartition(":")[2]], getattr(torch, settings.pop("dtype"))
    del settings["scale"], settings["init"]
    facts = {"shape": (1, 8, 8)} if kind is networks.Convolutional else {"features": 64}
    network = kind(**facts, outputs=10, **settings).to(dtype).eval()
    network.load_state_dict(state)
    normalisation = json.loads(metadata["input"])
    x = (raw("digits") - np.float32(normalisation["mean"])) / np.float32(normalisation["std"])
    with torch.no_grad():
        outputs = network(torch.from_numpy(x).to(dtype).view(-1, *facts.get("shape", (64,)))).numpy()
    output = json.loads(metadata.get("output", '{"factor": 1, "shift": 0}'))
    return outputs * np.float32(output["factor"]) + np.float32(output["shift"])


def close(outputs, expected):
    assert outputs.dtype == expected.dtype
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name, form", [*((name, "torch") for name in LOADED), ("sharing", "safetensors"), ("sharing", "npz")]
)
def test_the_class_with_the_exported_state_predicts_the_same(checkpoints, tmp_path, name, form):
    done = exported(checkpoints, name, form, tmp_path)
    assert done.note == ""
    close(outputs_of(done.path, form), predicted(checkpoints, name))


PROGRAM = """
import sys, numpy as np, torch
metadata = {"metadata": ""}
x = torch.from_numpy(np.load("x.npy"))
network = torch.export.load(sys.argv[1], extra_files=metadata).module()
with torch.no_grad():
    np.save("outputs.npy", torch.cat([network(x[:1]), network(x[1:])]).numpy())
assert "classes" in metadata["metadata"]
assert not {"istmpi", "networks", "exported_networks"} & set(sys.modules)
"""


def test_the_program_predicts_the_same_without_the_class(checkpoints, tmp_path):
    """In a process that can import neither istmpi nor the class; one example at a time, and many."""
    np.save(tmp_path / "x.npy", raw("digits").reshape(-1, 1, 8, 8))
    command = [sys.executable, "-c", PROGRAM, exported(checkpoints, "convolutional", "torch", tmp_path).beside]
    subprocess.run(command, cwd=tmp_path, env={}, check=True, timeout=patient(100))
    close(np.load(tmp_path / "outputs.npy"), predicted(checkpoints, "convolutional"))


def test_tied_parameters_are_there_once(checkpoints, tmp_path):
    """What loads them as several is the metadata `ties`, which the class needs in every form."""
    ties = {"again.weight": "inner.weight", "again.bias": "inner.bias", "tied.weight": "inner.weight"}
    state = torch.load(exported(checkpoints, "sharing", "torch", tmp_path).path, weights_only=True)["state_dict"]
    assert all(state[name].data_ptr() == state[first].data_ptr() for name, first in ties.items())
    with np.load(exported(checkpoints, "sharing", "npz", tmp_path).path) as file:
        assert {*file.files} == state.keys() - ties.keys() | {"metadata"}
        assert json.loads(json.loads(file["metadata"].item())["ties"]) == ties


@pytest.mark.parametrize("form", ["torch", "npz"])
@pytest.mark.parametrize(
    "name, problem",
    [
        ("shaken", "tied.weight shares its tensor with another layer"),
        ("tied", "linear in its forward has a factor in the full network that no weight can hold"),
        ("gated", "last.weight has a factor in the full network, and its class also uses this weight outside of last"),
        ("unrecorded", "norm has no running statistics in its class"),
    ],
)
def test_what_the_class_cannot_load_is_refused(checkpoints, tmp_path, refusal, name, form, problem):
    words = "export", checkpoints / f"{name}.h5", "--to", form, "--out", tmp_path / "x", "--model", model_of(name)
    said = refusal(*words)
    assert problem in said and "Use --to onnx." in said and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", TRACED)
def test_onnx_predicts_the_same(checkpoints, tmp_path, name):
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    done = exported(checkpoints, name, "onnx", tmp_path)
    assert done.beside is None
    onnx.checker.check_model(str(done.path), full_check=True)
    session = onnxruntime.InferenceSession(str(done.path), providers=["CPUExecutionProvider"])
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    shape = [1, 8, 8] if name == "convolutional" else [64]
    assert (given.name, given.shape) == ("input", ["batch", *shape])
    assert (made.name, made.shape) == ("output", ["batch", 10])
    x = raw("digits").reshape(-1, *shape).astype(np.float64 if given.type == "tensor(double)" else np.float32)
    one, many = (session.run(["output"], {"input": part})[0] for part in (x[:1], x[1:]))
    close(np.concatenate([one, many]), predicted(checkpoints, name))
    assert "input" not in {entry.key for entry in onnx.load(done.path).metadata_props}


@pytest.mark.parametrize("form", ["torch", "onnx"])
@pytest.mark.parametrize(
    "name, problem",
    [
        ("deciding", "torch.export cannot trace its forward: Could not guard on data-dependent expression"),
        ("counting", "branches on the number of examples"),
        ("measuring", "as len(x) and loops do, so torch.export cannot trace it. Write x.shape[0] in place"),
    ],
)
def test_what_cannot_be_traced_is_one_line_and_loses_no_weights(
    checkpoints, tmp_path, istmpi_command, name, problem, form
):
    """ONNX is refused; the state dict for PyTorch is written all the same, with a note about the missing program."""
    if form == "onnx":
        pytest.importorskip("onnxscript")
    words = "export", checkpoints / f"{name}.h5", "--to", form, "--out", tmp_path / "x", "--model", model_of(name)
    code, out, err = istmpi_command(*words)
    assert problem in err and len(err.splitlines()) == 1
    if form == "torch":
        assert code == 0 and "x has the weights, but there is no program x.pt2: " in err
        assert [path.name for path in tmp_path.iterdir()] == ["x"]
        close(outputs_of(tmp_path / "x", "torch"), predicted(checkpoints, name))
    else:
        assert (code, out) == (2, "") and list(tmp_path.iterdir()) == []


def test_another_source_is_refused_unless_it_is_asked_for(checkpoints, tmp_path, istmpi_command, refusal):
    file, source = tmp_path / "mine.py", Path(exported_networks.__file__).read_text()
    file.write_text(source)
    words = "export", checkpoints / "sharing.h5", "--to", "npz", "--out", tmp_path / "x", "--model", f"{file}:Sharing"
    assert istmpi_command(*words)[0] == 0, "the same source in another place"
    file.write_text(source + "# a remark\n")
    assert "has changed since training" in refusal(*words, "--force")
    code, _, err = istmpi_command(*words, "--force", "--changed-source")
    assert code == 0 and "has changed since training" in err


@pytest.mark.parametrize(
    "words",
    [
        ["export", "FILE", "--to", "npz"],
        ["export", "FILE", "--to", "onnx"],
        ["predict", "FILE", "digits"],
        ["checkpoint", "show", "FILE"],
        ["checkpoint", "verify", "FILE"],
    ],
    ids=" ".join,
)
def test_a_checkpoint_never_runs_code_by_itself(checkpoints, tmp_path, monkeypatch, istmpi_command, words):
    """The file that it names is there and would leave a trace, as it does where it is named."""
    monkeypatch.chdir(tmp_path)
    words = [checkpoints / "foreign.h5" if word == "FILE" else word for word in words]
    code, _, err = istmpi_command(*words)
    if words[0] == "checkpoint":
        assert code == 0
    else:
        assert code == 2 and "Give the code: --model FILE.py:Class" in err and len(err.splitlines()) == 1
        assert list(tmp_path.iterdir()) == []
        assert istmpi_command(*words, "--model", f"{checkpoints / 'foreign.py'}:Sharing")[0] == 2
        assert [path.name for path in tmp_path.iterdir()] == ["trace"]
    assert not list(checkpoints.glob("foreign.[!hp]*"))
