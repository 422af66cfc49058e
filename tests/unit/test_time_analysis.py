"""The arithmetic of benchmarks/time_to_accuracy.py, and the order and names of its cells."""

import json
from xml.etree import ElementTree

import pytest

from istmpi.methods import METHODS
from istmpi.report.styles import STYLES


@pytest.fixture(scope="module")
def modules(benchmarks):
    import time_analysis
    import time_found
    import time_plan
    import time_plots

    return time_analysis, time_plan, time_found, time_plots


@pytest.fixture
def analysis(modules):
    return modules[0]


@pytest.fixture
def plan(modules):
    return modules[1]


def measured(steps, each, once, sent=0, wire=None):
    """A round of steps that take so long each, with what is sent once."""
    phases = {"compute": steps * each, "push": 0.75 * once}
    return {"seconds": steps * each + once, "steps": steps, "phases": phases, "bytes": sent, "wire": wire}


@pytest.mark.parametrize("local_steps", [2, 20, 60])
def test_a_step_of_longer_rounds_follows_from_shorter_ones(analysis, local_steps):
    """What is sent once a round is spread over its steps; computing is not."""
    whole = measured(local_steps, 0.1, 3.0)
    expected = whole["seconds"] / local_steps
    for steps in (2, 5, 20):
        rounds = [measured(steps, 0.1, 2.0), measured(steps, 0.1, 4.0)]
        assert analysis.step_seconds(rounds, local_steps, as_measured=False) == pytest.approx(expected)


def test_what_is_sent_in_every_step_is_not_spread(analysis):
    rounds = [measured(4, 0.1, 2.0)]
    assert analysis.step_seconds(rounds, 60, as_measured=True) == pytest.approx(2.4 / 4)


def test_bytes_are_those_of_the_interfaces_where_there_are_any(analysis):
    assert analysis.step_bytes([measured(5, 0.1, 1.0, 1000, 1040)], 20, as_measured=False) == pytest.approx(52)
    assert analysis.step_bytes([measured(5, 0.1, 1.0, 1000)], 20, as_measured=False) == pytest.approx(50)
    assert analysis.step_bytes([measured(5, 0.1, 1.0, 1000)], 20, as_measured=True) == pytest.approx(200)


@pytest.mark.parametrize("as_measured", [False, True])
def test_the_split_adds_up_to_the_step(analysis, as_measured):
    rounds = [measured(5, 0.1, 1.0), measured(5, 0.2, 3.0)]
    spent = analysis.split(rounds, 10, as_measured)
    assert sum(spent.values()) == pytest.approx(analysis.step_seconds(rounds, 10, as_measured))
    assert spent["compute"] == pytest.approx(0.15)
    assert spent["push"] == pytest.approx(0.75 * 2.0 / (5 if as_measured else 10))


def test_ratios_are_those_of_the_turns(analysis):
    """A machine that slows down by ten during the run changes no ratio; the ratio of medians would be 5."""
    assert analysis.ratios([2.0, 20.0, 200.0], [1.0, 4.0, 100.0]) == (2.0, 2.0, 5.0)


def test_the_crossing_is_on_the_line_between_two_points(analysis):
    curve = [(0, 0.1), (20, 0.5), (40, 0.9), (60, 0.8), (80, 0.95)]
    assert analysis.steps_to(curve, 0.7) == pytest.approx(30)
    assert analysis.steps_to(curve, 0.9) == pytest.approx(40)
    assert analysis.steps_to(curve, 0.92) == pytest.approx(60 + 20 * 0.12 / 0.15)
    assert analysis.steps_to(curve, 0.05) == 0
    assert analysis.steps_to(curve, 0.96) is None


def test_smoothing_keeps_lines_and_ends_and_flattens_peaks(analysis):
    line = [(step, 0.1 + step / 100) for step in (0, 10, 20, 30)]
    assert analysis.averaged(line) == [(step, pytest.approx(value)) for step, value in line]
    assert analysis.averaged([(0, 0.1), (10, 0.9), (20, 0.1)]) == [(0, 0.1), (10, pytest.approx(0.5)), (20, 0.1)]
    assert analysis.averaged([(0, 0.3)]) == [(0, 0.3)]


def test_the_mean_is_over_steps_that_all_seeds_have(analysis):
    one = [{"step": step, "accuracy": 0.1 * step} for step in (0, 1, 2)]
    other = [{"step": step, "accuracy": 0.3 * step} for step in (0, 2, 3)]
    assert analysis.mean_curve([one, other]) == [(0, 0.0), (2, pytest.approx(0.4))]


def test_all_reach_the_highest_common_accuracy_and_no_grain_more(analysis):
    curves = [[(0, 0.1), (5, 0.923)], [(0, 0.1), (5, 0.9049), (9, 0.90)], [(0, 0.2), (5, 0.99)]]
    common = analysis.highest_common(curves)
    assert common == 0.9
    assert all(analysis.steps_to(curve, common) is not None for curve in curves)
    assert any(analysis.steps_to(curve, common + 0.005) is None for curve in curves)
    assert analysis.highest_common([[(0, 0.905)]]) == 0.905


def test_the_final_accuracy_is_over_the_last_three_evaluations_and_all_seeds(analysis):
    def curve(*accuracies):
        return [{"step": 10 * number, "accuracy": accuracy} for number, accuracy in enumerate(accuracies)]

    end = analysis.final([curve(0.1, 0.5, 0.7, 0.8, 0.9), curve(0.1, 0.6)])
    assert (end.least, end.most, end.mean) == pytest.approx((0.6, 0.8, 0.7))
    assert (end.seeds, end.steps) == (2, 10)


def test_a_run_is_read_between_its_evaluations_but_not_beyond_them(analysis):
    points = [{"step": 40, "seconds": 8.0}, {"step": 80, "seconds": 20.0}]
    assert analysis.interpolated(points, "seconds", 20) == pytest.approx(4.0)
    assert analysis.interpolated(points, "seconds", 50) == pytest.approx(11.0)
    assert analysis.interpolated(points, "seconds", 81) is None


@pytest.mark.parametrize("scale", ["FULL", "QUICK"])
def test_cells_come_once_after_what_they_need_and_the_most_valuable_first(plan, scale):
    scale = getattr(plan, scale)
    cells = list(plan.cells(scale))
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names)
    assert names[:3] == [f"machine-P{scale.ranks[0]}", *(cell.name for cell in cells[1:3])]
    assert {cell.kind for cell in cells[1:3]} == {"speed"}
    for place, cell in enumerate(cells):
        if cell.kind in ("speed", "direct", "model"):
            assert f"machine-P{cell.ranks}" in names[:place], cell.name
        if cell.kind == "direct":
            assert f"speed-{cell.task.name}-P{cell.ranks}-1x-synchronous" in names[:place]


def test_every_contestant_learns_like_a_method_that_has_a_curve(modules):
    analysis, plan, *_ = modules
    contestants = {name for names in plan.CONTESTANTS.values() for name in names}
    assert contestants == set(analysis.ALGORITHMS)
    assert set(analysis.ALGORITHMS.values()) == set(plan.METHODS)


def test_every_method_of_istmpi_has_its_speed_measured(plan):
    methods = {plan.settings_of(name)["method.name"] for job in plan.JOBS.values() for name in job}
    assert methods - set(plan.PEERS) == set(METHODS)


# ---- pictures


def drawn_situation(modules):
    """Every contestant with two evaluated curves, each ten times as slow as the one before."""
    _, plan, found, _ = modules
    contestants = {}
    for place, name in enumerate(found.NAMES):
        curves = [[{"step": step, "accuracy": 0.5 + step / 99} for step in range(0, 40, 10)] for _ in range(2)]
        rounds = [measured(20, 0.01 * 10**place, 0.1, 1000)]
        contestants[name] = found.Contestant(name, {"local": [rounds]}, 20, curves, None)
    return found.Situation(plan.FULL.tasks[0], 8, "1x", 20, 200e6, contestants)


def test_methods_look_in_benchmarks_as_in_reports(modules, tmp_path):
    plots = modules[3]
    plots.draw([drawn_situation(modules)], tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert all(plots.LOOKS[name] == STYLES[name] == plots.PANEL.get(name, ("", STYLES[name]))[1] for name in METHODS)


def test_the_panel_shows_what_was_measured(benchmarks, modules, tmp_path):
    plots = modules[3]
    results = benchmarks / "results"
    time, controls = (json.loads((results / f"{name}.json").read_text()) for name in ("time-to-accuracy", "controls"))
    plots.draw_panel(time["details"], controls["rows"], tmp_path / "panel.svg")
    told, kept = (
        ElementTree.parse(folder / "panel.svg").getroot().find(".//*[@id='description']").text
        for folder in (tmp_path, results)
    )
    assert told == kept, "python benchmarks/time_plots.py draws it anew"
    row = next(row for row in time["rows"] if row["P"] == 8 and row["Mbit/s"] == "200" and row["J"] == 20)
    assert f"{row['network']} to {float(row['accuracy']):g}: ist {row['IST, s']} s" in told
    assert f"local-sgd {row['local SGD, s'].strip('*')} s" in told
    never = next(row for row in controls["rows"] if row["method"] == "IST, never redealt" and row["data"] == "alike")
    assert f"{told.split('never redealt ')[1].split(' s')[0]} s" in never["reached"]
    assert (results / "panel.svg").read_text() == (tmp_path / "panel.svg").read_text(), (
        "python benchmarks/time_plots.py"
    )
