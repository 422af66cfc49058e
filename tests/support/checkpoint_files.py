"""Small checkpoints of all sorts, of one simulated rank."""

import shutil
from pathlib import Path

import numpy as np
from small import checkpoint_state, small_run

from istmpi.checkpoint.saver import commit
from istmpi.comm import Communicator
from istmpi.comm.stopping import StopSign
from istmpi.simulated import simulate
from istmpi.training.loop import Training

FLOAT = {"model__dtype": "float32"}
NETWORKS = {
    "batch": {**FLOAT, "optimizer__momentum": 0.9, "method__optimizer_state": "carry"},
    "layer": {**FLOAT, "model__norm": "layer", "model__bias": True, "model__activation": "gelu"},
    "none": {**FLOAT, "model__norm": "none", "model__bias": True, "model__activation": "tanh", "model__hidden": [7]},
    "dealt": {**FLOAT, "model__norm": "none", "model__bias": True},
    "leaky": {**FLOAT, "model__output_norm": False, "model__activation": "leaky-relu"},
    "double": {"model__activation": "silu", "model__dropout": 0.5},
    "regression": {**FLOAT, "data__source": "numbers.npz", "optimizer__lr": 0.01, "model__norm": "batch"},
}
"""Settings as `small.small_run` takes them."""
SCALES = {"dealt": {"hidden1": 0.25, "hidden2": 0.125}}
"""What the full network multiplies a group's contributions by, as if the run had begun on several ranks."""
_HERE = Path(__file__).parent
OWN = {
    "convolutional": {"model.name": f"{_HERE}/networks.py:Convolutional", "model.channels": [6, 4], "model.hidden": 9},
    "shaken": {"model.name": f"{_HERE}/networks.py:Shaken"},
    "sharing": {"model.name": f"{_HERE}/exported_networks.py:Sharing", "model.dtype": "float64"},
    "unrecorded": {"model.name": f"{_HERE}/exported_networks.py:Unrecorded"},
    "deciding": {"model.name": f"{_HERE}/exported_networks.py:Deciding"},
    "tied": {"model.name": f"{_HERE}/exported_networks.py:Tied"},
    "gated": {"model.name": f"{_HERE}/exported_networks.py:Gated"},
    "two": {"model.name": f"{_HERE.parent}/networks/product_nets.py:Bilinear"},
    "counting": {"model.name": f"{_HERE}/exported_networks.py:Deciding", "model.on": "number"},
    "measuring": {"model.name": f"{_HERE}/exported_networks.py:Deciding", "model.on": "length"},
}
"""Settings of networks of one's own."""
OWN_SCALE = {"channels1": 0.5, "channels2": 0.25, "hidden": 0.25, "wide": 0.5, "left": 0.5, "right": 0.25}


class After(StopSign):
    """Stops when it has been asked so often."""

    def __init__(self, communicator, times):
        super().__init__(communicator)
        self.times = times

    def asked(self):
        self.times -= 1
        self._signal = "test" if self.times <= 0 else ""
        return super().asked()


def make_checkpoints(folder: Path) -> None:
    """NETWORK.h5 for each of the above, ``uncalibrated.h5``; ``stopped.h5`` and ``fedavg.h5`` of stopped runs.
    NETWORK.h5 for each network of one's own, too, and ``foreign.h5`` of one whose file, ``foreign.py``, leaves a file
    ``trace`` behind when it is run. ``codistillation.h5`` is of ranks with networks of their own, ``local.h5`` of such
    with data of their own."""
    x = np.random.default_rng(0).normal(3, 2, size=(60, 6)).astype(np.float32)
    y = np.stack([x.sum(axis=1), x[:, 0]], axis=1)
    np.savez(folder / "numbers.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    simulate(lambda communicator: _train_all(folder, communicator), 1).require()


def _train_all(folder: Path, communicator: Communicator) -> None:
    def save(name, training, calibrated):
        commit(folder / f"{name}.h5", *checkpoint_state(training, calibrated), "direct", communicator)

    for name, settings in NETWORKS.items():
        if "data__source" in settings:
            settings = {**settings, "data__source": str(folder / settings["data__source"])}
        training = Training(small_run(**settings), communicator)
        training.store.scale = SCALES.get(name, training.store.scale)
        list(training.rounds())
        save(name, training, calibrated=True)
    for name, settings in OWN.items():
        training = Training(small_run(model__dtype="float32", train__rounds=2).override(settings), communicator)
        training.store.scale = {group: OWN_SCALE[group] for group in training.architecture.groups}
        list(training.rounds())
        save(name, training, calibrated=True)
    foreign = folder / "foreign.py"
    shutil.copy(_HERE / "exported_networks.py", foreign)
    training = Training(small_run().override({"model.name": f"{foreign}:Sharing"}), communicator)
    save("foreign", training, calibrated=True)
    foreign.write_text("open('trace', 'w').close()\n")
    for name, stop in (("uncalibrated", None), ("stopped", After(communicator, 6))):
        training = Training(small_run(**NETWORKS["batch"], train__rounds=3), communicator, stop)
        for progress in training.rounds():
            if progress.round == 2 and name == "uncalibrated":
                break
        save(name, training, calibrated=False)
    passes = small_run(**NETWORKS["batch"], train__rounds=3, train__batch=100, method__name="fedavg")
    training = Training(passes, communicator, After(communicator, 25))
    list(training.rounds())
    save("fedavg", training, calibrated=False)
    own = folder / "own-{rank}.npz"
    shutil.copy(folder / "numbers.npz", str(own).format(rank=0))
    for name, settings in {
        "codistillation": {**NETWORKS["leaky"], "method__name": "codistillation"},
        "local": {**NETWORKS["regression"], "data__source": str(own)},
    }.items():
        training = Training(small_run(**settings, train__rounds=2), communicator)
        list(training.rounds())
        save(name, training, calibrated=False)
