"""Time and advice: formulas by hand; ``istmpi costmodel``, whose bad input is one line."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from istmpi.cli import options
from istmpi.cli.commands.costmodel import command
from istmpi.cli.output import console
from istmpi.cluster.advice import COLUMNS, LEAST_SHARE, LOCAL_STEPS, TRANSFER_SHARE, advise
from istmpi.cluster.figures import PRESETS, Cluster, Link, fit, load, network, preset
from istmpi.cluster.survey import FIGURE_2, Scenario, survey
from istmpi.cluster.time import BACKWARD_SHARE, round_time, step_seconds
from istmpi.config import Run
from istmpi.cost.counts import PROCESS
from istmpi.errors import ConfigError, DataError, IstmpiError
from istmpi.models import mlp_network
from istmpi.report import tables

NETWORK = mlp_network(1000, (4000, 4000, 4000), 200, norm="none")
BYTES = 4 * 36_800_000
ALPHA, BETA, SPEED = 1e-4, 1e-9, 1e12
PLAIN = Cluster("plain", "by hand", network(ALPHA, 1 / BETA), (SPEED,))


def scenario(cluster=PLAIN, shared_batch=False, **settings):
    run = Run().override({**FIGURE_2, **{key.replace("__", "."): value for key, value in settings.items()}})
    return Scenario(run, NETWORK, cluster, 100_000, shared_batch)


def calls(ranks):
    """The seconds of a round's two calls; more than 32 ranks pass messages on."""
    return 2 * ALPHA * {2: 1, 4: 1, 8: 1, 64: 6}[ranks]


@pytest.mark.parametrize("ranks", [2, 8])
def test_all_reduces_take_what_the_formulas_say(ranks):
    """Ring 2(P-1)(α + βm/P), behind two thirds of the step; sums of outputs of 1, 4 and 5 steps, behind earlier."""
    plan = scenario().cost("data-parallel", ranks)
    step = step_seconds(plan.largest, PLAIN)
    assert step == pytest.approx((6 * 512 * 36_800_000 - 2 * 512 * 4_000_000) / SPEED)
    ring = 2 * (ranks - 1) * (ALPHA + BETA * BYTES / ranks)
    waited = 10 * max(ring - BACKWARD_SHARE * step, 0)
    assert round_time(plan, PLAIN).transfer == pytest.approx(waited + calls(ranks))
    server = 2 * (ranks - 1) * (ALPHA + BETA * BYTES)
    found = round_time(scenario().cost("data-parallel-broadcast", ranks), PLAIN).transfer
    assert found == pytest.approx(10 * server + calls(ranks))
    sums = [(1, 0), (4, 1), (5, 5)]
    for beta, sent in (BETA, sums), (1e3 * BETA, sums), (BETA, sums[:1]):
        slow = replace(PLAIN, links=network(ALPHA, 1 / beta))
        plan = scenario(method__local_steps=sum(steps for steps, _ in sent)).cost("joint", ranks)
        step, one = step_seconds(plan.largest, slow), beta * 4 * 512 * 200 / ranks
        waits = [max(2 * (ranks - 1) * (ALPHA + steps * one) - behind * step, 0) for steps, behind in sent]
        assert round_time(plan, slow).transfer == pytest.approx(sum(waits) + calls(ranks))


@pytest.mark.parametrize("ranks", [2, 8])
def test_pull_and_push_take_what_the_formulas_say(ranks):
    mine = 4 * (4_800_000 / ranks + 32_000_000 / ranks**2)
    once = (ranks - 1) * ALPHA + BETA * mine * (1 - 1 / ranks)
    found = round_time(scenario().cost("ist-push-pull", ranks), PLAIN)
    assert found.transfer == pytest.approx(2 * once + calls(ranks))
    moved = 4 * (1 - 1 / ranks) * (4_800_000 / ranks + (2 - 1 / ranks) * 32_000_000 / ranks**2)
    expected = 3 * (ranks - 1) * ALPHA + BETA * moved + calls(ranks)
    assert round_time(scenario().cost("ist", ranks), PLAIN).transfer == pytest.approx(expected)
    step = (6 * 512 * mine / 4 - 2 * 512 * 4_000_000 / ranks) / SPEED
    assert found.compute == pytest.approx(10 * step)
    joint = round_time(scenario().cost("joint", ranks), PLAIN).compute
    assert joint == pytest.approx(10 * (step + 2 * 512 * mine / 4 / SPEED)), "each batch passes once more"
    whole = (ranks - 1) * ALPHA + BETA * BYTES * (1 - 1 / ranks)
    for method in ("dynamic-averaging", "fedavg"):
        assert round_time(scenario().cost(method, ranks), PLAIN).transfer == pytest.approx(2 * whole + calls(ranks))
    ring = 2 * (ranks - 1) * (ALPHA + BETA * BYTES / ranks)
    assert round_time(scenario().cost("local-sgd", ranks), PLAIN).transfer == pytest.approx(ring + calls(ranks))


def test_what_was_measured_beside_the_products_counts():
    plan = scenario().cost("ist", 4)
    part, base = plan.largest, round_time(plan, PLAIN)
    slower = replace(PLAIN, product_seconds=1e-5, step_seconds=1e-3, touch_seconds_per_byte=1e-11)
    step = 11 * 1e-5 + 1e-3 + float(part.touched) * 1e-11
    assert round_time(plan, slower).compute == pytest.approx(base.compute + 10 * step)
    slower = replace(PLAIN, handle_seconds_per_byte=1e-10, transfer_seconds=1e-3, deal_seconds=1e-2)
    handled = float(sum(load.handled for load in plan.loads)) * 1e-10
    assert round_time(plan, slower).transfer == pytest.approx(base.transfer + handled + 3e-3 + 1e-2)
    whole, slower = scenario().cost("fedavg", 4), replace(slower, average_seconds_per_byte=1e-9)
    handled = float(sum(load.handled for load in whole.loads)) * 1e-10 + BYTES * 1e-9
    expected = round_time(whole, PLAIN).transfer + handled + 2e-3 + 1e-2
    assert round_time(whole, slower).transfer == pytest.approx(expected), "it averages P copies of a P-th"
    ring = scenario().cost("data-parallel", 4)
    assert round_time(ring, slower).transfer == pytest.approx(round_time(ring, PLAIN).transfer + 10 * 1e-3)
    measured = replace(PLAIN, call_seconds=0.5)
    assert round_time(ring, measured).transfer == pytest.approx(round_time(ring, PLAIN).transfer + 1 - calls(4))


def test_the_slowest_rank_counts_and_shares_can_make_up_for_it():
    uneven = replace(PLAIN, flops=(SPEED, SPEED, SPEED / 10, SPEED))
    equal = round_time(scenario(uneven).cost("ist", 4), uneven)
    assert equal.compute == pytest.approx(10 * round_time(scenario().cost("ist", 4), PLAIN).compute)
    shared = round_time(scenario(uneven, method__shares=[3.0, 3.0, 1.0, 3.0]).cost("ist", 4), uneven)
    assert shared.compute < equal.compute / 2
    with pytest.raises(ConfigError, match="--flops has 4 numbers for 8 ranks"):
        survey(scenario(uneven), ["ist"], [8])


FIGURES = {"latency": 0, "seconds_per_byte": 1}


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "cannot be read: Expecting property name"),
        ("[]", r"its content is \[\]; it must be an object"),
        ({"version": 2}, "version is 2; it must be 1"),
        ({"links": []}, "links"),
        ({"links": {"allreduce": FIGURES | {"latency": None}}}, r"links\.allreduce\.latency is None"),
        ({"links": {"allreduce": FIGURES | {"more": 1}}}, r"links\.allreduce\.more is 1"),
        ({"flops": []}, "flops"),
        ({"flops": ["1e9"]}, "flops"),
        ({"deal_seconds": 10**400}, "deal_seconds"),
        ({"more": 1}, "more"),
    ],
    ids=str,
)
def test_a_cluster_reads_back_as_it_was_saved_and_a_file_that_cannot_be_used_is_refused(tmp_path, content, message):
    path = tmp_path / "c.json"
    measured = replace(preset("m5.2xlarge"), measured={"alltoallv": {"points": [{"bytes": 8, "seconds": 1e-6}]}})
    measured.save(path)
    assert load(path) == measured
    path.write_text(content if isinstance(content, str) else json.dumps(json.loads(path.read_text()) | content))
    with pytest.raises(DataError, match=rf"c\.json.*{message}.*istmpi measure"):
        load(path)


@pytest.mark.parametrize("name", [*PRESETS][::3])
def test_advice_is_a_line_a_table_and_notes(name):
    run = Run().override({"model.hidden": (4096,)})
    advice = advise(Scenario(run, mlp_network(4096, (4096,), 35), preset(name), 84_843), 16)
    assert all(line.endswith(".") and "\n" not in line for line in (advice.first, *advice.notes))
    assert all(len(row) == len(COLUMNS) and all(row) for row in advice.rows)


def test_advice_follows_its_rules():
    run = Run().override({"model.hidden": (8192, 8192)})
    case = Scenario(run, mlp_network(4096, (8192, 8192), 35), preset("m5.2xlarge"), 84_843)
    advice = advise(case, 8)
    assert re.match(r"Why: ist is [\d.]+ times as fast as [\w-]+, which trains more like one process", advice.notes[0])
    ranks, steps = map(int, re.match(r"Run ist on (\d+) ranks with (\d+) ", advice.first).groups())
    of_a_rank, of_a_half = (case.cost("ist", count).held.share_of_a_rank for count in (ranks, 2 * ranks))
    assert of_a_rank >= LEAST_SHARE > of_a_half

    def share(steps):
        run = case.run.override({"method.local_steps": steps})
        time = round_time(replace(case, run=run).cost("ist", ranks), case.cluster)
        return time.transfer / time.total

    assert share(steps) <= TRANSFER_SHARE < share(LOCAL_STEPS[LOCAL_STEPS.index(steps) - 1])


def test_advice_respects_memory_and_prefers_what_changes_less_where_it_costs_little():
    """Infinitely fast network, nothing to deal: nothing to win."""
    quick = Cluster("quick", "by hand", network(0.0, 1e15), (1e12,))
    advice = advise(Scenario(Run().override({"method.partition": []}), mlp_network(64, (64,), 10), quick, 1000), 4)
    assert advice.first.startswith("Run data-parallel on 4 ranks with 1 local step: ")
    assert advice.notes[0].startswith("Why: data-parallel trains most like one process of the methods")
    advice = advise(scenario(replace(preset("100gbit"), memory=300e6 + PROCESS)), 8)
    assert advice.first.startswith("Run ist"), advice
    assert "local-sgd" in [row[0] for row in advice.rows]


# ---- how measurements become figures


def test_short_messages_count_as_much_as_long_ones_and_no_coefficient_is_negative():
    """Points off by tenths, up and down: by absolute errors the latency would be lost beside the longest message."""
    sizes = np.array([1e2, 1e3, 1e8, 2e8])
    seconds = (1e-5 + 1e-9 * sizes) * [1.1, 0.9, 1.1, 0.9]
    (latency, each), error = fit([np.ones(4), sizes], seconds)
    assert [latency, each] == pytest.approx([1e-5, 1e-9], rel=0.15) and 0.05 < error < 0.15
    # Falling times would give a negative rate: it becomes zero, and the rest the best constant.
    (latency, each), _ = fit([[1, 1, 1], [1.0, 2.0, 3.0]], [3.0, 2.0, 1.0])
    assert each == 0 and 1 <= latency <= 3


RANKS = [1, 2, 4, 8, 16, 32]
IST_MEGAFLOATS = [3.68, 2.08, 1.28, 0.88, 0.68, 0.58]
IST_GIGAFLOPS = [113.05, 63.90, 39.32, 27.03, 20.89, 17.82]
PARALLEL_MEGAFLOATS = [36.8, 73.6, 147.2, 294.4, 588.8, 1177.6]


def costmodel(*arguments):
    result = CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_without_arguments_it_is_figure_2():
    lines = [line.split() for line in costmodel().splitlines()]
    for ranks, parallel, ist, flops in zip(RANKS, PARALLEL_MEGAFLOATS, IST_MEGAFLOATS, IST_GIGAFLOPS):
        mine = [line for line in lines if line[:1] == [str(ranks)]]
        assert [line[1] for line in mine if line[-1] == f"{ist:g}"] == [f"{parallel:g}"]
        assert [line[1] for line in mine if line[-1] == f"{flops:.2f}"] == ["113.05"]
    ist = [row for row in json.loads(costmodel("--json", "--compare", "all"))["rows"] if row["method"] == "ist"]
    assert [row["ranks"] for row in ist] == RANKS
    assert [row["received_floats_per_step"] for row in ist] == [round(1e6 * one) for one in IST_MEGAFLOATS]


def test_a_cluster_whose_fit_found_only_zeros_has_all_its_tables(tmp_path, capsys):
    """A fit without negative coefficients gives 0 to what it does not see; such a rate is left out."""
    zeros = Cluster("zeros", "by hand", {"alltoallv": Link(0, 0), "allreduce": Link(0, 0)}, (0.0,))
    tables.cluster(console(soft_wrap=True), zeros)
    rows = dict(line.strip().split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[2:])
    assert rows["transfers"] == rows["alltoallv"] == "0.0 µs" and "/s" not in rows["local"]
    quick = tmp_path / "quick.json"
    replace(zeros, flops=(1e29,)).save(quick)
    assert "On zeros: any rate, 0 µs" in costmodel("--cluster", str(quick))
    assert "Run data-parallel" in costmodel("--cluster", str(quick), "--advise")
    nothing = mlp_network(8, (8,), 2)
    nothing.operators = ()  # such as a network of look-ups alone
    rows = survey(Scenario(Run(), nothing, load(quick), 1000), ["ist", "local-sgd"], [1, 2])
    assert {row["speed_up"] for row in rows} == {1.0}


def test_the_picture_shows_figure_2(tmp_path):
    pytest.importorskip("matplotlib")
    from istmpi.report.cost_plots import list_coinciding, make_cost_figure

    network = mlp_network(1000, (4000,) * 3, 200, norm="none")
    scenario = Scenario(Run().override(FIGURE_2), network, preset("10gbit"), 10**6, shared_batch=True)
    drawn = make_cost_figure(survey(scenario, ["data-parallel-broadcast", "ist"], RANKS), "title")
    series = [{line.get_label(): line.get_ydata().tolist() for line in axis.get_lines()} for axis in drawn.axes[:5]]
    assert {tuple(line.get_xdata()) for axis in drawn.axes for line in axis.get_lines()} == {tuple(RANKS)}
    traffic, flops, seconds, speed, memory = series
    assert traffic["ist"] == pytest.approx(IST_MEGAFLOATS)
    assert flops["ist"] == pytest.approx(IST_GIGAFLOPS, abs=0.005)
    assert seconds["ist"][-1] < seconds["data-parallel-broadcast"][-1] and speed["linear speed-up"] == RANKS
    assert speed["ist"][0] == 1 and memory["ist"] == sorted(memory["ist"], reverse=True)
    (legend,) = [axis.get_legend() for axis in drawn.axes if axis.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == ["data-parallel-broadcast", "ist", "linear speed-up"]
    drawn = make_cost_figure(survey(scenario, ["data-parallel-broadcast", "data-parallel"], [2, 4]), "title")
    drawn.draw_without_rendering()
    assert "one line: data-parallel-broadcast, data-parallel" in drawn.axes[1].texts[0].get_text()
    for axis in drawn.axes[:5]:
        low, high = axis.get_ylim()
        numbers = [tick.get_text() for tick in axis.get_yticklabels() if low <= tick.get_position()[1] <= high]
        assert any(numbers), "also where all values are equal"
    lines = {"a": {1: 1.0, 2: 2.0}, "b": {2: 2.001}, "c": {1: 1.0, 2: 3.0}, "d": {1: np.nan}}
    assert list_coinciding(lines) == [["a", "b"]]
    costmodel("--plot", str(tmp_path / "f.pdf"), "--json")
    assert (tmp_path / "f.pdf").stat().st_size > 10_000


def test_it_takes_the_run_files_that_train_takes_and_counts_the_ranks_that_units_allow(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[model]\nhidden = [64, 32]\n[method]\nname = 'local-sgd'\nlocal_steps = 3")
    assert "mine: 64-64-32-10, batch 16 a rank, J = 3" in costmodel(str(file), "--batch", "16", "--ranks", "1..8")
    text = costmodel("--layers", "100-40-10", "--ranks", "32,64,100000")
    assert "ist allows at most 40 ranks: hidden1 has 40 units." in text
    assert any(line.split()[:1] == ["100000"] for line in text.splitlines())
    # Several holders of a unit divide the ranks.
    words = ["--layers", "100-3-10", "--set", "method.holders=2"]
    rows = json.loads(costmodel(*words, "--compare", "ist", "--json"))["rows"]
    assert [row["ranks"] for row in rows] == [2, 4], "three units with two holders each are enough for six ranks"
    assert "at most 6 ranks: hidden1 has 3 units, each held by 2 ranks." in costmodel(*words, "--ranks", "8")


def test_options_change_the_cluster():
    words = ["--json", "--compare", "ist", "--ranks", "8"]
    default, slow = (json.loads(costmodel(*words, *more))["rows"][0] for more in ([], ["--bandwidth", "250Mbit"]))
    assert slow["transfer_seconds_per_round"] > 8 * default["transfer_seconds_per_round"]
    assert slow["compute_seconds_per_round"] == default["compute_seconds_per_round"]
    assert "m5.2xlarge with --latency, --memory" in costmodel("--json", "--memory", "1GB", "--latency", "1ms")


@pytest.mark.parametrize(
    "read, text, value",
    [
        (options.bandwidth, "2.5Gbit", 2.5e9 / 8),
        (options.latency, "100us", 1e-4),
        (options.speeds, "250G,1.5T", (250e9, 1.5e12)),
        (options.memory, "16GB", 16e9),
        (options.memory, "16GiB", 16 * 2**30),
        (options.ranks, "4,1,2", [1, 2, 4]),
        (options.ranks, "1..20", [1, 2, 4, 8, 16, 20]),
        (options.widths, "3-2-1", [3, 2, 1]),
    ],
)
def test_quantities_are_read_as_people_write_them(read, text, value):
    assert read("--x", text) == (pytest.approx(value) if not isinstance(value, list) else value)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--bandwidth", "2.5Gbt"], "--bandwidth '2.5Gbt' must be a rate per second in bit or B"),
        (["--flops", "250X"], "--flops '250X' must be FLOP/s"),
        (["--memory", "16"], "--memory '16' must be bytes"),
        (["--ranks", "1_0"], "--ranks '1_0'"),
        (["--layers", "10-0-5"], "--layers '10-0-5' must be features, hidden widths and labels"),
        (["--compare", "ist,dataparallel"], "'dataparallel' is not known; did you mean data-parallel?"),
        (["--cluster", "m5"], "cluster m5 is neither a preset nor a file"),
        (["--shares", "1,2", "--ranks", "4"], "shares has 2 numbers, but the run has 4 ranks"),
        (["--plot", "f.gif"], "--plot f.gif: must end in .png, .svg, .pdf"),
        (["--plot", "nowhere/f.png"], "nowhere/f.png: cannot be written"),
        (["--layers", "9-40-9", "--ranks", "64", "--compare", "ist"], "at most 40 ranks: hidden1 has 40 units. Give"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    with pytest.raises(IstmpiError) as raised:
        CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert raised.value.exit_code == (74 if "cannot be written" in message else 2)
