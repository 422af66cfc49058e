"""Optimizers: they step as PyTorch's own, and what cannot be used is named."""

from pathlib import Path

import pytest
import torch
from small import small_run

from istmpi.config import Optimizer
from istmpi.errors import ConfigError
from istmpi.optim.optimizers import OPTIMIZERS, choose_optimizer
from istmpi.simulated import simulate
from istmpi.training.loop import Training

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = [
    Optimizer("sgd", 0.1, momentum=0.9, weight_decay=0.01),
    Optimizer("adamw", 0.1, weight_decay=0.01),
    Optimizer("adamw", 0.1, betas=(0.8, 0.95), eps=0.01),
]


def gradient(step):
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def walk(parameter, optimizer, steps):
    for step in steps:
        parameter.grad = gradient(step)
        optimizer.step()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_steps_as_pytorchs_own(settings):
    """With the settings that were given, and no state beside its slots."""
    ours, theirs = (torch.nn.Parameter(torch.ones(4, 3, dtype=torch.float64)) for _ in range(2))
    its = choose_optimizer(settings)
    optimizer = its.make([ours])
    known = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    known |= {"betas": settings.betas, "eps": settings.eps} if settings.eps else {}
    known |= {"momentum": settings.momentum} if settings.momentum else {}
    walk(ours, optimizer, range(4))
    walk(theirs, {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[settings.name]([theirs], **known), range(4))
    assert torch.equal(ours, theirs) and not torch.equal(ours, torch.ones_like(ours))
    state = {name for name, value in optimizer.state[ours].items() if value is not None}
    assert state == {*its.slots, *(["step"] if its.counts_steps else [])}


def test_an_unknown_optimizer_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"optimizer.name = 'adan' is not known; did you mean adam\?"):
        choose_optimizer(Optimizer("adan"))
    for name in ("sgd", "torch.optim:RMSprop"):
        with pytest.raises(ConfigError, match="optimizer.eps = 0.01 is for adam and adamw, not "):
            choose_optimizer(Optimizer(name, 0.1, eps=0.01))
    assert list(OPTIMIZERS) == ["sgd", "adam", "adamw"]


@pytest.mark.parametrize(
    "body, problem",
    [
        ("def __init__(self, parameters, lr): pass", "does not have the parameters it was given"),
        ("def __init__(self, parameters, lr): raise Own('x')", "mine.py:Mine cannot be created: Own: x"),
        ("def step(self): raise Own('x')", "mine.py:Mine cannot step with gradients alone: Own: x"),
        ("def zero_grad(self, set_to_none=True): raise Own('x')", "mine.py:Mine: zero_grad fails: Own: x"),
    ],
)
def test_an_optimizer_of_ones_own_that_fails_is_named(tmp_path, body, problem):
    """``Own`` derives from BaseException, which no ``except Exception`` catches."""
    (tmp_path / "mine.py").write_text(
        f"import torch\nclass Own(BaseException): pass\nclass Mine(torch.optim.SGD):\n    {body}\n"
    )
    run = small_run(optimizer__name=f"{tmp_path}/mine.py:Mine", train__rounds=1)
    with pytest.raises(ConfigError, match=problem):
        simulate(lambda comm: list(Training(run, comm).rounds()), 1).require()


def test_the_lars_of_the_examples_moves_matrices_by_a_part_of_their_norm():
    """Whatever the gradient; vectors move by it. Its momentum can be kept between rounds."""
    lars = choose_optimizer(Optimizer(f"{EXAMPLES}/lars.py:Lars", 0.5, arguments={"trust": 0.02}))
    assert lars.slots == ("momentum",) and not lars.problem
    for size in (1.0, 1e3):
        matrix, vector = torch.nn.Parameter(torch.ones(4, 3)), torch.nn.Parameter(torch.ones(3))
        matrix.grad, vector.grad = size * gradient(0).float(), size * torch.ones(3)
        lars.make([matrix, vector]).step()
        assert (matrix - 1).norm().item() == pytest.approx(0.01 * 12**0.5, rel=1e-5)
        assert (1 - vector).tolist() == pytest.approx([0.01 * size] * 3, rel=1e-4)
