"""Exports of networks that are large: bounded memory, and what ONNX cannot take."""

import os
import subprocess
import sys

import pytest
from patience import patient


def test_onnx_beyond_its_limit_is_refused_with_the_cure(checkpoints, tmp_path, monkeypatch, istmpi_command):
    pytest.importorskip("onnxscript")
    monkeypatch.setattr("istmpi.deploy.export.ONNX_LIMIT", 1000)
    words = "export", checkpoints / "batch.h5", "--to", "onnx", "--out", tmp_path / "network.onnx"
    code, out, err = istmpi_command(*words)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1 and list(tmp_path.iterdir()) == []
    assert "exceed the 2 GiB of an ONNX file. Use --to safetensors." in err


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
def test_a_network_larger_than_memory_is_exported(checkpoints, tmp_path):
    """135 MB of weights, with room for 48 MiB; the whole network does not fit there."""
    forms = ["safetensors", "npz"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    large = tmp_path / "large.h5"
    for code, words in ((MAKE, [large]), (EXPORT, [checkpoints / "none.h5", large, *forms])):
        subprocess.run([sys.executable, "-c", code, *words], check=True, env=environment, timeout=patient(100))
    assert all((tmp_path / f"large.{form}").stat().st_size > 135e6 for form in forms)
