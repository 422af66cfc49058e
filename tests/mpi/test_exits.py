"""Networks with several exits in training and in use: scores of every exit, and examples that leave early."""

from collections import Counter
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from batches import examples_of
from own_runs import FILE, RESNET, own_trained
from small import own_run, whole

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.data.sources import open_dataset
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork, _exit_modules
from istmpi.deploy.prediction import predict
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError
from istmpi.exits import THRESHOLDS, normalised_entropy
from istmpi.methods import METHODS
from istmpi.training.loop import Training

EARLY = {"model__name": f"{FILE}:Early", "train__rounds": 2, "train__exit_weights": [0.5, 1.0]}

pytestmark = pytest.mark.ranks(only=[1, 3])


def saved(comm, path, **settings):
    training, progress = own_trained(comm, **settings)
    commit(path, *training.state(calibrated=True), "direct", comm)
    return training, progress


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_every_exit(comm, method):
    training = Training(own_run(**EARLY, method__name=method), comm)
    assert training.architecture.exits == 2
    before, progress = whole(training), list(training.rounds())
    after = whole(training)
    assert all(np.abs(after[name] - before[name]).max() > 1e-4 for name in ("exit.weight", "last.weight"))
    score = progress[-1].score
    assert len(score.exits) == 2 and score.exits[-1] == score.score


def test_what_leaves_early_is_what_each_example_says(comm, shared_tmp):
    """The curve, the scores of the exits and the predictions, against one network that has all examples to itself."""
    path = shared_tmp / "network.h5"
    settings = RESNET | {"model__exits": [1], "optimizer__lr": 0.3, "train__rounds": 6}
    training, progress = saved(comm, path, **settings)
    result = evaluate(path, comm)
    assert result.score.exits == pytest.approx(progress[-1].score.exits, abs=1e-12)
    curve = result.early_exits
    assert [point.threshold for point in curve] == [*THRESHOLDS]

    test = open_dataset("digits").test
    x, _ = examples_of(test.normalised_by(None), np.arange(len(test)))
    with open_checkpoint(path) as checkpoint:
        network, temperature = CalibratedNetwork(checkpoint), checkpoint.header.temperature
    logits = [of.double() for of in network._run(x)]
    right = [(of.argmax(1).numpy() == test.labels()) for of in logits]
    assert result.score.exits == pytest.approx([each.mean() for each in right])
    odds = logits[0].softmax(1).numpy()
    entropy = -(odds * np.log(np.maximum(odds, 1e-300))).sum(1) / np.log(10)
    for point in curve[::5]:
        early = entropy < point.threshold if point.threshold < 1 else np.ones(len(x), bool)
        assert point.shares == pytest.approx((early.mean(), 1 - early.mean()))
        assert sum(point.shares) == pytest.approx(1)
        assert point.accuracy == pytest.approx(np.where(early, *right).mean())
        assert point.accuracy == pytest.approx(sum(point.right))
    assert (curve[0].early, curve[-1].early) == (0, 1)
    assert (curve[0].accuracy, curve[-1].accuracy) == pytest.approx([*result.score.exits][::-1])

    middle = float(np.median(entropy))
    predicted = [*predict(network, [(range(len(x)), x)], middle)]
    taken = np.concatenate([one.exits for one in predicted])
    assert taken.tolist() == np.where(entropy < middle, 1, 2).tolist() and {*taken} == {1, 2}
    expected = np.where((taken == 1)[:, None], logits[0], logits[1])
    outputs = np.concatenate([one.outputs for one in predicted])
    np.testing.assert_allclose(outputs * temperature, expected, rtol=1e-12)
    np.testing.assert_allclose(network(x) * temperature, logits[1], rtol=1e-12)
    comm.barrier()


def test_what_lies_behind_the_exit_is_not_computed(comm, shared_tmp):
    """Each layer counts its examples: those behind an exit see only the examples that have not left."""
    if comm.size > 1:
        return  # one rank's network predicts as any other's
    path = shared_tmp / "network.h5"
    saved(comm, path, **RESNET | {"model__blocks": [1, 1, 1], "model__channels": [4, 6, 5], "model__inner": [5, 7, 4]}
        | {"model__exits": [1, 2], "optimizer__lr": 0.3, "train__rounds": 4})  # fmt: skip
    test = open_dataset("digits").test
    x, _ = examples_of(test.normalised_by(None), np.arange(len(test)))
    with open_checkpoint(path) as checkpoint:
        network = CalibratedNetwork(checkpoint)
    layers = "stem", "sections.1", "exits.2.norm", "sections.2", "outputs"
    module, passed = network.module, Counter()
    for name in layers:

        def count(module, inputs, outputs, name=name):
            passed[name] += len(outputs)

        module.get_submodule(name).register_forward_hook(count)
    unsure = normalised_entropy(network._run(x)[0])
    network.leaving_early(x[:1], 0.5)  # the first call looks for the exits
    for threshold in (0.0, float(unsure.median()), 1.0):
        passed.clear()
        taken = np.concatenate([one.exits for one in predict(network, [(range(len(x)), x)], threshold)])
        first, second = int((taken > 1).sum()), int((taken > 2).sum())
        assert [passed[name] for name in layers] == [len(x), first, first, second, second]
        assert first == {0.0: len(x), 1.0: 0}.get(threshold, len(x) - int((unsure < threshold).sum()))


def test_an_exit_that_no_module_makes_is_taken_at_the_end():
    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = (torch.nn.Linear(3, 2) for _ in range(3))

        def forward(self, x):
            return self.first(x), self.second(x) + 1, self.first(x), self.last(x)

    network = Sum()
    assert _exit_modules(network, (torch.zeros(4, 3),)) == [], "the first is called twice"
    network.forward = lambda x: (network.second(x), network.first(x) + 1, network.last(x), x)
    assert _exit_modules(network, (torch.zeros(4, 3),)) == [network.second]


def test_a_regression_has_exits_but_nobody_leaves_early(comm, shared_tmp):
    if comm.rank == 0:
        random = np.random.default_rng(3)
        x = random.uniform(size=(300, 6)).astype(np.float32)
        y = x @ random.normal(size=(6, 2))
        np.savez(shared_tmp / "numbers.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    comm.barrier()
    path = shared_tmp / "network.h5"
    _, progress = saved(comm, path, **EARLY | {"data__source": str(shared_tmp / "numbers.npz")})
    score = progress[-1].score
    assert len(score.exits) == 2 and score.exits[-1] == score.score
    result = evaluate(path, comm, model=EARLY["model__name"])
    assert result.score.exits == pytest.approx(score.exits) and result.early_exits == ()
    with open_checkpoint(path) as checkpoint:
        network = CalibratedNetwork(checkpoint, model=EARLY["model__name"])
        with pytest.raises(ConfigError, match="for classifiers with several exits; .* has a network for regression"):
            network.require_early_exits()
    comm.barrier()


def test_an_export_has_the_outputs_of_every_exit(comm, shared_tmp):
    """As torch.export's program, and as ONNX where that is there."""
    if comm.size > 1:
        return  # one rank's network is exported as any other's
    path = shared_tmp / "network.h5"
    saved(comm, path, **RESNET | {"model__exits": [1], "model__dtype": "float32"})
    x = np.random.default_rng(0).normal(8, 4, (5, 64)).astype(np.float32)
    with open_checkpoint(path) as checkpoint:
        temperature = checkpoint.header.temperature
        expected = [of.numpy() / temperature for of in CalibratedNetwork(checkpoint)._run(x)]
    program = torch.export.load(export(path, "torch").beside).module()
    for found, wanted in zip(program(torch.from_numpy(x.reshape(-1, 1, 8, 8))), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)
    if all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        import onnxruntime

        session = onnxruntime.InferenceSession(export(path, "onnx").path)
        assert [output.name for output in session.get_outputs()] == ["exit1", "output"]
        for found, wanted in zip(session.run(None, {"input": x.reshape(-1, 1, 8, 8)}), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
