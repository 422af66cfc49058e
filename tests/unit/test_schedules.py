"""The learning rate and the optimizers: PyTorch's; what cannot be is refused, and plans and pictures show it."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from small import small_run

from istmpi.config import Optimizer, Run
from istmpi.errors import ConfigError, DataError
from istmpi.optim.optimizers import OPTIMIZERS, choose_optimizer
from istmpi.optim.schedules import rate_at, require_usable
from istmpi.record import RunFolder
from istmpi.report import plots
from istmpi.simulated import simulate
from istmpi.training.loop import Training


@pytest.mark.parametrize("warm_up", [0, 3])
def test_a_schedule_is_that_of_pytorch(warm_up):
    """At every step; the last warm-up step has the full rate already, so a schedule begins behind it."""
    schedulers, steps = torch.optim.lr_scheduler, 40
    least, linear = (Optimizer(lr=0.8, warm_up=warm_up, schedule=name, least_lr=0.2) for name in ("cosine", "linear"))
    falling = Optimizer(lr=0.8, warm_up=warm_up, schedule="step", milestones=(0.3, 0.55, 0.9), decay=0.2)
    cycle = Optimizer(lr=0.8, schedule="one-cycle")
    for ours, make in (
        (least, lambda optimizer: schedulers.CosineAnnealingLR(optimizer, steps - warm_up, 0.2)),
        (linear, lambda optimizer: schedulers.LinearLR(optimizer, 1, 0.25, steps - warm_up)),
        (cycle, lambda optimizer: schedulers.OneCycleLR(optimizer, 0.8, steps, cycle_momentum=False)),
        (falling, lambda optimizer: schedulers.MultiStepLR(optimizer, [at - warm_up for at in (12, 22, 36)], 0.2)),
    ):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.8)
        scheduler = make(optimizer)
        for step in range(ours.warm_up, steps):
            assert rate_at(ours, step, steps) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-15)
            optimizer.step()
            scheduler.step()
        assert [rate_at(ours, n, steps) for n in range(ours.warm_up)] == [
            0.8 * ((n + 1) / 3) for n in range(ours.warm_up)
        ]


def test_a_plateau_falls_at_its_end_and_steps_end_at_the_least_rate():
    stable = Optimizer(lr=0.8, warm_up=5, schedule="warm-up-stable-decay", least_lr=0.1)
    rates = [rate_at(stable, step, 50) for step in range(50)]
    assert rates[:5] == pytest.approx([0.16, 0.32, 0.48, 0.64, 0.8]) and {*rates[5:41]} == {0.8}
    assert rates[41:] == pytest.approx([0.8 - 0.07 * n for n in range(1, 10)])
    falling = Optimizer(lr=0.8, schedule="step", least_lr=0.05)
    assert [rate_at(falling, step, 8) for step in (3, 4, 6)] == pytest.approx([0.8, 0.08, 0.05])


@pytest.mark.parametrize(
    "setting, value, said",
    [
        ("milestones", [0.5, 1.5], "fractions of the run"),
        ("milestones", [], "fractions of the run"),
        ("milestones", [0.5, 0.5], "must be increasing fractions"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(setting, value, said):
    with pytest.raises(ConfigError, match=said) as refused:
        Run().override({f"optimizer.{setting}": value})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "settings, steps, said",
    [
        ({"warm_up": 41}, 40, "optimizer.warm_up = 41 is more than the 40 local steps of the run"),
        ({"warm_up": 33, "schedule": "warm-up-stable-decay"}, 40, "beyond local step 32 of 40"),
        ({"warm_up": 1, "schedule": "one-cycle"}, 40, "moves the rate itself. Leave warm_up out."),
        ({"warm_up": 13, "schedule": "step", "milestones": (0.3, 0.6)}, 40, "beyond local step 12 of 40"),
    ],
)
def test_a_schedule_that_a_run_does_not_get_to_is_refused(settings, steps, said):
    with pytest.raises(ConfigError, match=said) as refused:
        require_usable(Optimizer(**settings), steps)
    assert "\n" not in str(refused.value)
    require_usable(Optimizer(**settings | {"warm_up": settings["warm_up"] - 1}), steps)


@pytest.mark.parametrize(
    "options, said",
    [
        (["--method", "fedavg", "--warm-up", "40"], "learning rate 0.05, warmed up over 40 of 720 local steps"),
        (
            ["--schedule", "step", "--set", "optimizer.milestones=[0.5,0.9]"],
            "learning rate 0.05, times 0.1 after 0.5 and 0.9 of the run (local steps 300, 540 of 600)",
        ),
        (
            ["--schedule", "cosine", "--warm-up", "40"],
            "learning rate 0.05, warmed up over 40 of 600 local steps, "
            "falling to 0 along a cosine over the last 560 local steps",
        ),
    ],
)
def test_a_plan_tells_the_learning_rate(answer, refusal, options, said):
    assert " ".join(answer("train", "--dry-run", "--rounds", "60", *options).split()).endswith(said)
    said = f"optimizer.warm_up = 999 is more than the {720 if 'fedavg' in options else 600} local steps"
    assert said in refusal("train", "--dry-run", "--rounds", "60", *options, "--warm-up", "999")


def leave(folder, *rates):
    """The record of a finished run with such learning rates in its rounds; None for a line without one."""
    figures = {"seconds": 1.0, "bytes": 1, "examples": 1, "loss": 1.0, "score": 1.0, "test_loss": 1.0}
    lines = [{"round": number, **figures, "learning_rate": rate} for number, rate in enumerate(rates, 1)]
    lines = [{key: value for key, value in line.items() if value is not None} for line in lines]
    made = RunFolder(folder)
    made.make()
    made.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    made.write("summary.json", json.dumps({"ranks": 2, "score_name": "accuracy", "seconds": {"compute": 1.0}}))
    return folder


def test_the_learning_rate_has_a_panel_where_it_changes(tmp_path):
    def height(*rates):
        with Image.open(plots.draw(leave(tmp_path / "run", *rates))) as picture:
            return picture.height

    assert height(0.1, 0.1) == height(None, 0.1) < height(0.1, 0.05)
    with pytest.raises(DataError, match="line 2: learning_rate is"):
        height(0.1, -0.1)


def test_the_picture_of_a_resumed_run_marks_where_and_on_how_many_ranks(tmp_path):
    folder = leave(tmp_path / "run", 0.1, 0.1, 0.1, 0.1)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line, ranks in zip(lines, (4, 4, 2, 2)):
        line |= {"ranks": ranks, "seconds": float(line["round"])}
    lines[3]["resumed_from"] = 3
    RunFolder(folder).write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    RunFolder(folder).write("run.toml", Run().override({"method.name": "ist"}).toml())
    with Image.open(plots.draw(folder)) as picture:
        assert "ist on 4, then 2 ranks" in picture.info["Title"]
    drawn = plots._progress(RunFolder(folder).lines(), "accuracy", "")
    marks = [(note.xy[0], note.get_text().strip()) for note in drawn.axes[0].texts]
    assert marks == [(2.0, "resumed on 2 ranks"), (3.0, "resumed on 2 ranks")]


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
