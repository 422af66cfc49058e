"""Exported networks predict what `istmpi predict` does, in programs that know nothing of istmpi."""

import json
import sys

import numpy as np
import pytest
import torch
from exported import predicted, raw, sequential
from resuming import save
from small import small_run
from torch import nn

from istmpi.comm import world
from istmpi.deploy.export import FORMS, export
from istmpi.training.loop import Training

NAMES = ["batch", "regression", "double", "layer", "none", "dealt", "leaky"]
OTHERS = [("batch", "safetensors"), ("batch", "onnx"), ("regression", "torch"), ("double", "torch"), ("double", "onnx")]


def run_torch(path, x):
    """With the layers, and the same as a program."""
    saved, metadata = torch.load(path, weights_only=True), {"metadata": ""}
    network = sequential(json.loads(saved["metadata"]["layers"]), saved["state_dict"])
    program = torch.export.load(path.with_suffix(".pt2"), extra_files=metadata).module()
    assert json.loads(metadata["metadata"]) == saved["metadata"]
    x = torch.from_numpy(x)
    with torch.no_grad():
        outputs = network(x)
        torch.testing.assert_close(torch.cat([program(x[:1]), program(x[1:])]), outputs)
        return outputs.numpy()


def run_safetensors(path, x):
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(path, "pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
        network = sequential(json.loads(file.metadata()["layers"]), state)
    return network(torch.from_numpy(x)).detach().numpy()


def run_onnx(path, x):
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    onnx.checker.check_model(str(path), full_check=True)
    if x.dtype == np.float64 and sys.version_info < (3, 11):
        pytest.skip("onnxruntime 1.23, the last one for Python 3.10, fuses silu to a kernel that has no doubles")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [one.shape for one in session.get_inputs()] == [["batch", x.shape[1]]]
    return session.run(["output"], {"input": x})[0]


def run_npz(path, x):
    with np.load(path, allow_pickle=False) as file:
        for name, kind, settings in json.loads(json.loads(file["metadata"].item())["layers"]):
            state = {key.removeprefix(f"{name}."): file[key] for key in file.files if key.startswith(f"{name}.")}
            if kind == "Linear":
                x = x @ state["weight"].T + state.get("bias", 0)
            elif kind == "BatchNorm1d":
                x = (x - state["running_mean"]) / np.sqrt(state["running_var"] + settings["eps"])
                x = x * state.get("weight", 1) + state.get("bias", 0)
            elif kind == "LayerNorm":
                x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + settings["eps"])
                x = x * state["weight"] + state["bias"]
            else:
                x = getattr(nn, kind)()(torch.from_numpy(x)).numpy()
    return x


RUN = {"torch": run_torch, "safetensors": run_safetensors, "onnx": run_onnx, "npz": run_npz}


@pytest.mark.parametrize("name, form", [*((name, "npz") for name in NAMES), *OTHERS])
def test_the_exported_network_predicts_the_same_and_is_the_same_file_again(checkpoints, tmp_path, name, form):
    """The one in double precision has dropout."""
    if form == "onnx":
        pytest.importorskip("onnxscript")
    path = export(checkpoints / f"{name}.h5", form, tmp_path / "one").path
    if name == "batch" and form != "torch":  # PyTorch's archives have their file's name in them
        assert export(checkpoints / f"{name}.h5", form, tmp_path / "other").path.read_bytes() == path.read_bytes()
    x = raw(str(checkpoints / "numbers.npz") if name == "regression" else "digits")
    outputs = RUN[form](path, x.astype(np.float64) if name == "double" else x)
    assert name == "double" or outputs.dtype == np.float32
    np.testing.assert_allclose(outputs, predicted(checkpoints / f"{name}.h5", x), rtol=1e-5, atol=1e-5)


def test_a_network_without_calibration_needs_data(checkpoints, tmp_path, istmpi_command, refusal):
    words = "export", checkpoints / "uncalibrated.h5", "--to", "npz", "--out", tmp_path / "network"
    assert "--calibrate-on DATA" in refusal(*words)
    assert list(tmp_path.iterdir()) == []
    assert istmpi_command(*words, "--calibrate-on", "digits")[0] == 0
    x = raw("digits")
    expected = predicted(checkpoints / "uncalibrated.h5", x, "digits")
    np.testing.assert_allclose(run_npz(tmp_path / "network", x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_left_of_an_export_that_fails(checkpoints, tmp_path, monkeypatch, istmpi_command, form):
    if form == "onnx":
        pytest.importorskip("onnxscript")
    target = tmp_path / "network"
    target.write_text("older")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("istmpi.files.sync", full)
    words = "export", checkpoints / "batch.h5", "--to", form, "--out", target
    assert istmpi_command(*words)[0] == 2, "there is an older one"
    code, _, err = istmpi_command(*words, "--force")
    assert code == 74 and "No space left on device" in err and len(err.splitlines()) == 1
    assert target.read_text() == "older" and list(tmp_path.iterdir()) == [target]


def test_a_missing_library_is_named(checkpoints, tmp_path, monkeypatch, refusal):
    for library in ("onnxscript", "onnx"):
        monkeypatch.setitem(sys.modules, library, None)
        said = refusal("export", checkpoints / "batch.h5", "--to", "onnx", "--out", tmp_path / "network")
        assert f"need {library}, " in said and "pip install 'istmpi[export]'" in said and not list(tmp_path.iterdir())


def test_onnx_beyond_its_limit_is_refused_with_the_cure(checkpoints, tmp_path, monkeypatch, refusal):
    pytest.importorskip("onnxscript")
    monkeypatch.setattr("istmpi.deploy.export.ONNX_LIMIT", 1000)
    words = "export", checkpoints / "batch.h5", "--to", "onnx", "--out", tmp_path / "network.onnx"
    assert "exceed the 2 GiB of an ONNX file. Use --to safetensors." in refusal(*words)
    assert list(tmp_path.iterdir()) == []


EXPORT = """
import re, resource, sys
from pathlib import Path
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
small, large, forms = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
for form in forms:
    export(small, form, large.with_name("small"), force=True)  # imports all that it needs
used = 1024 * int(re.search(r"VmData:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
resource.setrlimit(resource.RLIMIT_DATA, (used + 48 * 2**20,) * 2)
for form in forms:
    export(large, form)
try:
    with open_checkpoint(large) as checkpoint:
        CalibratedNetwork(checkpoint)
except (MemoryError, RuntimeError) as error:
    assert "allocate" in str(error)
else:
    sys.exit("the limit limits nothing")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a limit")
def test_a_network_larger_than_memory_is_exported(forked, checkpoints, tmp_path):
    """67 MB of weights, with room for 48 MiB; the whole network does not fit there."""
    forms = ["safetensors", "npz"]
    large = tmp_path / "large.h5"
    save(Training(small_run(model__dtype="float32", model__hidden=[2048, 8192]), world()), large, calibrated=True)
    done = forked(checkpoints / "none.h5", large, *forms, program=EXPORT)
    assert done.returncode == 0, done.stderr
    assert all((tmp_path / f"large.{form}").stat().st_size > 67e6 for form in forms)
