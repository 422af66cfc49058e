"""Exports of networks that are large: shards with an index, bounded memory, and what ONNX cannot take."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from exported import predicted, raw, sequential
from patience import patient

from istmpi.checkpoint.reader import Tensor
from istmpi.deploy.export import export


def test_a_large_network_leaves_in_shards_with_an_index(checkpoints, tmp_path, monkeypatch, istmpi_command):
    """As transformers and accelerate read them: each weight in the file that the index names."""
    safe_open, torch_files = pytest.importorskip("safetensors").safe_open, pytest.importorskip("safetensors.torch")
    path, x = checkpoints / "batch.h5", raw("digits")
    single = export(path, "safetensors", tmp_path / "model.safetensors")
    monkeypatch.setattr("istmpi.deploy.export.SHARD", 3000)
    code, _, err = istmpi_command("export", path, "--to", "safetensors", "--out", single.path)
    assert code == 2 and "model.safetensors exists" in err
    with safe_open(single.path, "np") as file:
        metadata = file.metadata()
    whole = torch_files.load_file(single.path)
    done = export(path, "safetensors", single.path, force=True)
    shards = sorted(tmp_path.glob("model-*-of-*.safetensors"))
    assert done.path == tmp_path / "model.safetensors.index.json" and done.beside == shards[0]
    assert sorted(tmp_path.iterdir()) == sorted([done.path, *shards]), "the older file is gone"
    assert shards[-1].name == f"model-{len(shards):05}-of-{len(shards):05}.safetensors" and len(shards) > 2
    index = json.loads(done.path.read_text())
    assert index["metadata"] == {"total_size": sum(values.nbytes for values in whole.values()), **metadata}
    state = {}
    for shard in shards:
        with safe_open(shard, "pt") as file:
            assert file.metadata() == {"format": "pt"}
            state |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
            assert all(index["weight_map"][name] == shard.name for name in file.keys())  # noqa: SIM118
    assert state.keys() == index["weight_map"].keys()
    network = sequential(json.loads(metadata["layers"]), state)
    with torch.no_grad():
        outputs = network(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(outputs, predicted(path, x), rtol=1e-5, atol=1e-5)
    if find_spec("huggingface_hub"):
        from huggingface_hub import load_torch_model

        for parameter in network.parameters():
            parameter.data.zero_()
        load_torch_model(network, tmp_path, strict=False, safe=True)
        assert all(torch.equal(network.state_dict()[name], values) for name, values in state.items())
    shards[0].write_text("older")
    done.path.unlink()
    assert f"{shards[0].name} exists" in str(pytest.raises(ValueError, export, path, "safetensors", single.path).value)


def test_onnx_beyond_its_limit_is_refused_with_the_cure(checkpoints, tmp_path, monkeypatch, istmpi_command):
    pytest.importorskip("onnxscript")
    monkeypatch.setattr("istmpi.deploy.export.ONNX_LIMIT", 1000)
    words = "export", checkpoints / "batch.h5", "--to", "onnx", "--out", tmp_path / "network.onnx"
    code, out, err = istmpi_command(*words)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1 and list(tmp_path.iterdir()) == []
    assert "beyond the 2 GiB of an ONNX file. Use --to safetensors." in err


@pytest.mark.parametrize("shard", [10**9, 3000])
@pytest.mark.parametrize("form", ["safetensors", "npz"])
def test_memory_is_bounded(tmp_path, monkeypatch, form, shard, checkpoints):
    """No more than a few chunks are ever in memory, whatever the size of a parameter or of a shard."""
    monkeypatch.setattr("istmpi.deploy.export.SHARD", shard)
    monkeypatch.setattr("istmpi.deploy.layers._CHUNK", 256)
    asked = []
    read_bytes = Tensor.read_bytes

    def watched(self, first, last, out):
        asked.append(len(out))
        read_bytes(self, first, last, out)

    monkeypatch.setattr(Tensor, "read_bytes", watched)
    export(checkpoints / "batch.h5", form, tmp_path / "network")
    assert max(asked) <= 256 and len(asked) > 13


MAKE = """
import sys
from pathlib import Path
from small import small_run
from istmpi.checkpoint.saver import commit
from istmpi.comm import world
from istmpi.training.loop import Training
training = Training(small_run(model__dtype="float32", model__hidden=[4096, 8192]), world())
commit(Path(sys.argv[1]), *training.state(calibrated=True), "direct", world())
"""
EXPORT = """
import re, resource, sys
from pathlib import Path
import istmpi.deploy.export
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
istmpi.deploy.export.SHARD = 64 * 2**20
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
def test_a_network_larger_than_memory_is_exported(checkpoints, tmp_path):
    """135 MB of weights, as shards of 64 MiB, with room for 48 MiB; the whole network does not fit there."""
    forms = ["safetensors", "npz"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    large = tmp_path / "large.h5"
    for code, words in ((MAKE, [large]), (EXPORT, [checkpoints / "none.h5", large, *forms])):
        subprocess.run([sys.executable, "-c", code, *words], check=True, env=environment, timeout=patient(100))
    shards = sorted(tmp_path.glob("large-*.safetensors"))
    assert len(shards) > 1 and sum(shard.stat().st_size for shard in shards) > 135e6
    assert (tmp_path / "large.npz").stat().st_size > 135e6


def test_shards_that_cannot_be_written_leave_the_older_file(checkpoints, tmp_path, monkeypatch, istmpi_command):
    target = tmp_path / "model.safetensors"
    target.write_text("older")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("istmpi.deploy.export.SHARD", 3000)
    monkeypatch.setattr("istmpi.files.sync", full)
    words = "export", checkpoints / "batch.h5", "--to", "safetensors", "--out", target, "--force"
    code, _, err = istmpi_command(*words)
    assert code == 74 and "No space left on device" in err and len(err.splitlines()) == 1
    assert target.read_text() == "older" and list(tmp_path.iterdir()) == [target]
