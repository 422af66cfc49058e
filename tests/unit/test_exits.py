"""Networks with several exits: the weighted loss."""

import pytest
import torch
from torch.nn import functional

from istmpi.config.sections import Train
from istmpi.errors import ConfigError
from istmpi.outputs import LossOfOutputs, join_outputs, require_weights
from istmpi.tasks import Classification, Regression


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_loss_is_the_weighted_sum():
    targets, outputs = torch.tensor([0, 2, 1]), [random(3, 4, seed=seed) for seed in range(3)]
    each = [float(functional.cross_entropy(one, targets)) for one in outputs]
    assert float(LossOfOutputs(Classification.loss)(outputs, targets)) == pytest.approx(sum(each))
    found = LossOfOutputs(Classification.loss, (0.5, 0.0, 2.0))(tuple(outputs), targets)
    assert float(found) == pytest.approx(0.5 * each[0] + 2 * each[2])
    numbers = random(3, 4, seed=9)
    found = LossOfOutputs(Regression.loss, (1.0, 3.0))(outputs[:2], numbers, reduction="sum")
    each = [float(((one - numbers) ** 2).sum() / 4) for one in outputs]
    assert float(found) == pytest.approx(each[0] + 3 * each[1])


def test_one_output_is_what_it_was():
    outputs, targets = random(5, 3), torch.tensor([0, 2, 1, 1, 0])
    assert join_outputs(outputs) is outputs
    found = LossOfOutputs(Classification.loss)(outputs, targets)
    assert torch.equal(found, functional.cross_entropy(outputs, targets))


@pytest.mark.parametrize(
    "weights, exits, said",
    [
        ((1.0, 2.0), 1, "has 1 output, including the last. Leave it out"),
        ((1.0, 1.0), 3, "has 3 outputs, including the last. Give 3 numbers"),
        ((0.0, 0.0), 2, "has no weight above 0"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, exits, said):
    require_weights(Train(exit_weights=(2.0, 1.0, 0.0)[:exits]), exits, "net")
    require_weights(Train(), exits, "net")
    with pytest.raises(ConfigError, match=said) as refused:
        require_weights(Train(exit_weights=weights), exits, "net")
    assert "\n" not in str(refused.value)


def test_the_plan_refuses_weights_that_do_not_fit(istmpi_command):
    network = ["--model", "resnet", "--set", "model.blocks=[1,1]", "--set", "model.channels=[4,6]"]
    network += ["--set", "model.inner=[5,7]", "--set", "model.exits=[1]", "--set"]
    code, _, err = istmpi_command("train", "--dry-run", *network, "train.exit_weights=[1, 2, 3]")
    assert (code, err.count("\n")) == (2, 1) and "resnet has 2 outputs" in err
    assert istmpi_command("train", "--dry-run", *network, "train.exit_weights=[1, 2]")[0] == 0
