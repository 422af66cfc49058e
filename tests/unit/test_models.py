"""Networks: exactly the shapes that their patterns say, at any lengths."""

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from istmpi.config import Model
from istmpi.errors import ConfigError
from istmpi.models import architecture, mlp_network
from istmpi.models.tables import ACTIVATIONS

WIDTHS = st.lists(st.integers(1, 9), min_size=1, max_size=4)
SETTINGS = st.builds(
    Model,
    name=st.just("mlp"),
    hidden=WIDTHS.map(tuple),
    norm=st.sampled_from(["batch", "layer", "none"]),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    dropout=st.sampled_from([0.0, 0.5]),
    bias=st.booleans(),
    output_norm=st.sampled_from([None, True, False]),
    dtype=st.sampled_from(["float32", "float64"]),
)
TASKS = st.sampled_from(["classification", "regression"])


@hypothesis.settings(max_examples=30)
@given(settings=SETTINGS, features=st.integers(1, 9), labels=st.integers(1, 5), task=TASKS, data=st.data())
def test_built_at_any_lengths_every_parameter_has_the_shape_of_its_pattern(settings, features, labels, task, data):
    network = architecture(features, labels, task, settings)
    assert bool(settings.batch_statistics) == bool(network.batch_norms)
    lengths = network.lengths | {name: data.draw(st.integers(1, 12)) for name in network.groups}
    for chosen in (network.lengths, lengths):
        built = network.build(chosen)
        tensors = built.state_dict()
        assert tensors.keys() == network.parameters.keys()
        for name, parameter in network.parameters.items():
            assert tuple(tensors[name].shape) == parameter.pattern.shape(chosen), name
            assert tensors[name].dtype == getattr(torch, parameter.dtype)
        x = torch.zeros(3, chosen["features"], dtype=getattr(torch, settings.dtype))
        assert built(x).shape == (3, chosen["labels"])


@pytest.mark.parametrize(
    "norm, task, wanted, normalised",
    [
        ("batch", "classification", None, True),
        ("batch", "regression", None, False),
        ("layer", "classification", None, False),
        ("none", "classification", True, True),
        ("batch", "classification", False, False),
    ],
)
def test_the_logits_are_normalised_where_it_makes_sense(norm, task, wanted, normalised):
    network = architecture(4, 3, task, Model(hidden=(4,), norm=norm, output_norm=wanted))
    assert [type(layer).__name__ for layer in network.build(network.lengths)[-1][1:]] == ["BatchNorm"] * normalised


def test_an_unknown_name_is_refused_with_the_nearest_and_only_dropout_is_stochastic():
    for setting, wrong, near in (("name", "mlpp", "mlp"), ("norm", "layr", "layer"), ("activation", "rellu", "relu")):
        with pytest.raises(ConfigError, match=rf"^model.{setting} = '{wrong}' is not known; did you mean {near}\?"):
            architecture(4, 3, "classification", Model(**{setting: wrong}))
    assert mlp_network(4, [4], 2, dropout=0.1).stochastic and not mlp_network(4, [4], 2).stochastic
