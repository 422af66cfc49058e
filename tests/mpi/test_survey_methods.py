"""ADMM, elastic averaging and Downpour, each beside a naive loop of its formula."""

import numpy as np
import pytest
from replicas import replicas
from small import assert_near, trained, whole

CASES = {
    "admm": {"method__name": "admm", "method__penalty": 0.3},
    "easgd, together": {"method__name": "easgd", "method__moving_rate": 0.6},
    "easgd, round-robin": {"method__name": "easgd", "method__moving_rate": 0.6, "method__order": "round-robin"},
    "downpour": {"method__name": "downpour"},
}
ROUNDS, STEPS = 4, 3


def naive(name, everyone, ranks):
    """Return the common weights behind all rounds; ``everyone``: a plain network for each rank, trained in place."""
    common = {key: values.copy() for key, values in everyone[0].named().items()}
    duals = [{key: np.zeros_like(values) for key, values in common.items()} for _ in everyone]
    changed = [{key: np.zeros_like(values) for key, values in common.items()} for _ in everyone]
    for round in range(ROUNDS):
        starts = [{key: values.copy() for key, values in one.named().items()} for one in everyone]
        for rank, one in enumerate(everyone):
            for step in range(STEPS):
                here = {key: values.copy() for key, values in one.named().items()}
                one.step(one.batches.at(STEPS * round + step))
                if name == "admm":
                    for key, values in one.named().items():
                        values -= 0.05 * 0.3 * (here[key] - common[key] + duals[rank][key])
        for key, center in common.items():
            own = [one.named()[key] for one in everyone]
            if name == "admm":
                center[...] = sum(x + dual[key] for x, dual in zip(own, duals, strict=True)) / ranks
                for x, dual in zip(own, duals, strict=True):
                    dual[key] += x - center
            elif name == "easgd, together":
                before = center.copy()
                center += 0.6 / ranks * sum(x - before for x in own)
                for x in own:
                    x -= 0.6 / ranks * (x - before)
            elif name == "easgd, round-robin":
                for x in own:
                    apart = x - center
                    center += 0.6 / ranks * apart
                    x -= 0.6 / ranks * apart
            else:
                center += sum(change[key] for change in changed) / ranks
                for x, start, change in zip(own, starts, changed, strict=True):
                    change[key] = x - start[key]
                    x[...] = center + change[key]
    return common


@pytest.mark.ranks(also=4)
@pytest.mark.parametrize("name", CASES)
def test_it_is_its_formula(comm, name):
    settings = {
        "model__norm": "none",
        "model__bias": True,
        **CASES[name],
        "data__placement": "sharded",
        "optimizer__lr": 0.05,
    }
    training, _ = trained(comm, **settings)
    everyone = replicas(training.run, comm.size)
    expected, found = naive(name, everyone, comm.size), whole(training)
    assert_near(found, expected)
    assert_near(training.method.subnet.tensors, everyone[comm.rank].named())
