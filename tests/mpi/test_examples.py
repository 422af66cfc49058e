"""Other people's networks in examples/, trained: they are skipped where their package is missing (istmpi[examples])."""

from pathlib import Path

import pytest
from small import small_run

from istmpi.cost import round_bytes
from istmpi.training.loop import Training

FOLDER = Path(__file__).parents[2] / "examples"
WRAPPERS = {
    "llama.py:Llama": ("transformers", "num_attention_heads", "intermediate_size"),
    "vit.py:ViT": ("timm", "num_heads", "mlp_hidden"),
}
SETTINGS = {
    "model__dtype": "float32",
    "method__local_steps": 10,
    "optimizer__name": "adam",
    "optimizer__lr": 0.003,
    "train__batch": 32,
}


@pytest.mark.ranks(only=[1, 2, 4])
@pytest.mark.filterwarnings("default")  # what others' packages warn of
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_network_of_another_package_learns_for_as_many_bytes_as_predicted(comm, name):
    package, *groups = WRAPPERS[name]
    pytest.importorskip(package, reason=f"{package} is not installed; pip install 'istmpi[examples]' brings it")
    run = small_run().override({"model.name": f"{FOLDER}/{name}"})
    run = run.override({key.replace("__", "."): value for key, value in SETTINGS.items()})
    training = Training(run, comm)
    assert training.method.spec.groups(run, training.architecture) == tuple(groups)
    losses = []
    for number in range(3):
        before = comm.traffic.bytes
        losses.append(training.method.run(number))
        counted = comm.allgather(comm.traffic.bytes - before)
        assert counted == round_bytes(training.run, training.architecture, comm.size, number), f"round {number}"
    assert losses[2] < losses[1] < losses[0] and losses[2] < 0.95 * losses[0], losses
    assert training.evaluate().examples == len(training.dataset.test)
