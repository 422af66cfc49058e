"""``istmpi costmodel``: its table, files and picture hold the paper's Figure 2; bad input is one line."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from istmpi.cli import options
from istmpi.cli.commands.costmodel import command
from istmpi.cli.output import console
from istmpi.cluster.figures import Cluster, Link, load, preset
from istmpi.cluster.survey import FIGURE_2, Scenario, survey
from istmpi.config import Run
from istmpi.errors import IstmpiError
from istmpi.models import mlp_network
from istmpi.report import tables

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
    """The plotted series, read back."""
    pytest.importorskip("matplotlib")
    from istmpi.report.plots import make_cost_figure

    network = mlp_network(1000, (4000,) * 3, 200, norm="none")
    scenario = Scenario(Run().override(FIGURE_2), network, preset("10gbit"), 10**6, shared_batch=True)
    drawn = make_cost_figure(survey(scenario, ["data-parallel-broadcast", "ist"], RANKS), "title")
    series = [{line.get_label(): line.get_ydata().tolist() for line in axis.get_lines()} for axis in drawn.axes]
    assert {tuple(line.get_xdata()) for axis in drawn.axes for line in axis.get_lines()} == {tuple(RANKS)}
    traffic, flops, seconds, speed, memory = series
    assert traffic["ist"] == pytest.approx(IST_MEGAFLOATS)
    assert traffic["data-parallel-broadcast"] == pytest.approx(PARALLEL_MEGAFLOATS)
    assert flops["ist"] == pytest.approx(IST_GIGAFLOPS, abs=0.005)
    assert flops["data-parallel-broadcast"] == pytest.approx([113.0496] * 6)
    assert seconds["ist"][-1] < seconds["data-parallel-broadcast"][-1]
    assert speed["ist"][0] == 1 and speed["linear speed-up"] == RANKS
    assert memory["ist"] == sorted(memory["ist"], reverse=True)
    costmodel("--plot", str(tmp_path / "f.pdf"), "--json")
    assert (tmp_path / "f.pdf").stat().st_size > 10_000


def test_it_takes_the_run_files_that_train_takes_and_goes_on_for_others_beyond_the_units(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[model]\nhidden = [64, 32]\n[method]\nname = 'local-sgd'\nlocal_steps = 3")
    text = costmodel(str(file), "--batch", "16", "--ranks", "1..8")
    assert "mine: 64-64-32-10, batch 16 a rank, J = 3" in text
    text = costmodel("--layers", "100-40-10", "--ranks", "32,64,100000")
    assert "ist allows at most 40 ranks: hidden1 has 40 units." in text
    assert any(line.split()[:1] == ["100000"] for line in text.splitlines())


def test_options_change_the_cluster():
    default, slow = (
        json.loads(costmodel("--json", "--compare", "ist", "--ranks", "8", *extra))["rows"][0]
        for extra in ([], ["--bandwidth", "250Mbit"])
    )
    assert slow["transfer_seconds_per_round"] > 9 * default["transfer_seconds_per_round"]
    assert slow["compute_seconds_per_round"] == default["compute_seconds_per_round"]
    rich = json.loads(costmodel("--json", "--memory", "1GB", "--latency", "1ms"))
    assert rich["cluster"] == "m5.2xlarge with --latency, --memory"


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
        (["--bandwidth", "0Gbit"], "greater than zero"),
        (["--latency", "-1us"], "--latency '-1us' must be a time"),
        (["--flops", "250X"], "--flops '250X' must be FLOP/s"),
        (["--memory", "16"], "--memory '16' must be bytes"),
        (["--ranks", "0,1"], "--ranks '0,1' must be numbers of ranks from 1 to 100000"),
        (["--ranks", "1_0"], "--ranks '1_0'"),
        (["--layers", "10-0-5"], "--layers '10-0-5' must be features, hidden widths and labels"),
        (["--compare", "ist,dataparallel"], "'dataparallel' is not known; did you mean data-parallel?"),
        (["--cluster", "m5"], "cluster m5 is neither a preset nor a file"),
        (["--cluster", "nowhere.json"], "cluster file nowhere.json cannot be read"),
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
