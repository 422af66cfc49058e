"""Runs: defaults < run file < command line; nothing unknown, nothing out of range, and back again from its own file."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from istmpi import gone
from istmpi.cli.run_options import changes
from istmpi.config import Data, Method, Model, Optimizer, Output, Run, Train, every_setting, shipped, type_of
from istmpi.errors import ConfigError
from istmpi.names import NETWORKS
from istmpi.settings import check_value


def load(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return Run.load(str(path))


def test_a_run_has_the_name_of_its_file_and_a_file_goes_before_a_run_that_ships(tmp_path, monkeypatch):
    assert load(tmp_path, "").name == "run" and load(tmp_path, 'name = "mine"').name == "mine"
    assert [Run.load(name).name for name in shipped()] == list(shipped())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").write_text("[train]\nrounds = 3\n")
    assert Run.load("digits").train.rounds == 3


TEXT = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=8)
NAME = TEXT.map(lambda text: text.replace("/", "")).filter(lambda text: text.strip("."))
RUNS = st.builds(
    Run,
    name=NAME,
    data=st.builds(Data, source=TEXT, alpha=st.floats(1e-12, 1e12)),
    model=st.builds(
        Model,
        hidden=st.lists(st.integers(1, 10**6), min_size=1, max_size=3).map(tuple),
        bias=st.booleans(),
        output_norm=st.sampled_from([None, True, False]),
    ),
    method=st.builds(
        Method,
        partition=st.none() | st.lists(TEXT, max_size=2).map(tuple),
        shares=st.none() | st.lists(st.floats(1e-6, 1e6), max_size=3).map(tuple),
        redeal=st.floats(0, 1),
    ),
    optimizer=st.builds(Optimizer, lr=st.floats(1e-30, 1e30)),
    train=st.builds(Train, seed=st.integers(0, 2**60), autocast=st.booleans()),
    output=st.builds(Output, folder=TEXT),
)


@given(run=RUNS)
def test_a_resolved_run_reads_back_to_the_same_run(tmp_path_factory, run):
    path = tmp_path_factory.getbasetemp() / "resolved.toml"
    path.write_text(run.toml(), encoding="utf-8", newline="")
    assert Run.load(str(path)) == run and Run.load(str(path)).toml() == run.toml()


@given(run=RUNS, other=RUNS)
def test_differences_name_the_setting_and_both_values(run, other):
    assert run.differences(run) == {} and bool(run.differences(other)) == (run != other)
    changed = Run().override({"model.hidden": [256], "method.shares": [1, 2]})
    assert Run().differences(changed) == {"method.shares": (None, [1.0, 2.0]), "model.hidden": ([512], [256])}


@pytest.mark.parametrize(
    "key, says",
    [
        ("method.local_step", "unknown key method.local_step; did you mean method.local_steps?"),
        ("modle.hidden", "unknown key modle; did you mean model?"),
        ("rounds", "unknown key rounds; did you mean train.rounds?"),
        ("train.zzz", "unknown key train.zzz; known: train.autocast, train.batch, "),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(tmp_path, key, says):
    with pytest.raises(ConfigError, match=f"^command line: {re.escape(says)}"):
        Run().override({key: 1})
    with pytest.raises(ConfigError, match=f"^run.toml: {re.escape(says)}"):
        load(tmp_path, f"{key} = 1")


@pytest.mark.parametrize(
    "key, value, says",
    [
        ("train.rounds", 0, "must be at least 1"),
        ("train.rounds", 1.5, "must be a whole number"),
        ("train.rounds", True, "= true must be a whole number"),
        ("train.rounds", "3", "= '3' must be a whole number"),
        ("train.seed", 2**64, "must be at most 18446744073709551615"),
        ("train.autocast", 1, "must be true or false"),
        ("data.source", "a\nb", "must be printable text"),
        ("data.placement", "share", "did you mean shared?"),
        ("data.alpha", 10**400, "2^64"),
        ("model.hidden", [], "at least one hidden layer"),
        ("model.hidden", [8, 0], "of at least one unit"),
        ("model.dropout", 1, "must lie in [0, 1)"),
        ("method.redeal", 1.1, "must lie in [0, 1]"),
        ("method.shares", [1, "a"], "must be a number, each"),
        ("optimizer.lr", float("nan"), "must be above 0"),
        ("optimizer.lr", float("inf"), "must be finite"),
        ("train", 3, "must be a section"),
        ("train.rounds.more", 1, "is a setting, not a section"),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(key, value, says):
    with pytest.raises(ConfigError) as refused:
        Run().override({key: value})
    assert re.match(rf"command line: ({key} = |rounds of {key} )", str(refused.value))
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name, message",
    [
        ("text.toml", "text.toml is not a readable TOML file: "),
        ("binary.toml", "binary.toml is not a readable TOML file: "),
        ("run.json", "run.json is not a readable TOML file: .* Run files are TOML: .train., then rounds = 30"),
        ("run.yaml", "Run files are TOML"),
        ("digit", r"run digit is neither a file nor a built-in run; did you mean digits\?$"),
        ("txt.toml", r"built-in run; did you mean text.toml\?$"),
        ("speech.h5", r"run speech.h5 is data, not a run file. Give it with --data speech.h5$"),
        ("site-{rank}.csv", r"--data site-.rank..csv$"),
        ("words.txt", r"words.txt is not a readable TOML file: .* Data are given with --data words.txt$"),
        ("net.py:Net", r"is code, not a run file. Give a network with --model net.py:Net, .* --data net.py:Net"),
        ("net.py", r"is a program, not a run file. Start it: mpirun -n P python net.py$"),
        ("old/network.h5", r"is a file of a run. Name the run's folder: old$"),
        ("photos", r"photos is a folder without run.toml, .* istmpi prepare, then --data"),
    ],
)
def test_a_run_that_cannot_be_read_is_refused_by_name_and_with_the_nearest(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    for folder in ("old", "photos"):
        (tmp_path / folder).mkdir()
    (tmp_path / "old" / "run.toml").write_text("")
    (tmp_path / "text.toml").write_text("[train\n")
    (tmp_path / "run.json").write_text('{"train": {"rounds": 7}}')
    (tmp_path / "run.yaml").write_text("train:\n  rounds: 7\n")
    for name_of_bytes in ("binary.toml", "words.txt", "old/network.h5"):
        (tmp_path / name_of_bytes).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=message):
        Run.load(name)


IMAGES = {"model.name": "resnet"}


@pytest.mark.parametrize(
    "plan, finish, rounds, stretches",
    [
        ([], "", 30, [("ist", 0, 30)]),
        ([], "data-parallel:0.5%", 10, [("ist", 0, 9), ("data-parallel", 0, 1)]),
        ([], "local-sgd:99%", 10, [("ist", 0, 1), ("local-sgd", 0, 9)]),
        ([[0.4, 8], [0.3, 16], [0.3, 32]], "", 10, [("ist", 8, 4), ("ist", 16, 3), ("ist", 32, 3)]),
        ([[0.26, 8], [0.74, 16]], "", 10, [("ist", 8, 3), ("ist", 16, 7)]),
        ([[0.4, 8], [0.6, 16]], "local-sgd:30%", 10, [("ist", 8, 4), ("ist", 16, 3), ("local-sgd", 16, 3)]),
        ([[0.8, 8], [0.2, 16]], "local-sgd:50%", 10, [("ist", 8, 5), ("local-sgd", 8, 3), ("local-sgd", 16, 2)]),
    ],
)
def test_sizes_of_images_and_a_finish_take_their_shares_of_the_rounds(plan, finish, rounds, stretches):
    settings = {**IMAGES, "train.rounds": rounds, "train.resolution": plan, "method.finish": finish}
    run = Run().override(settings).with_implied()
    assert run.stretches() == stretches and Run.from_tree(run.tree(), "again") == run
    assert sum(rounds for _, rounds in run.phases()) == rounds


@pytest.mark.parametrize(
    "plan, said",
    [
        ([[0.4, 8], [0.5, 16]], "its fractions sum to 0.9; they must sum to 1"),
        ([[0.4, 16], [0.6, 8]], "its sides must increase"),
        ([[0.01, 8], [0.99, 16]], "leaves no round of 10 for side 8"),
        ([[0.4, 8.5], [0.6, 16]], "must be pairs of a fraction of the rounds and a side"),
        ([[float("nan"), 8]], "must be pairs"),
    ],
)
def test_a_plan_of_sizes_that_is_none_is_refused(plan, said):
    with pytest.raises(ConfigError, match="model.name = 'mlp': its first layer depends on the image size"):
        Run().override({"train.resolution": [[1.0, 8]]}).with_implied()
    with pytest.raises(ConfigError, match=said):
        Run().override({**IMAGES, "train.rounds": 10, "train.resolution": plan}).with_implied()


def test_every_setting_has_a_sentence_of_help_and_a_default_within_its_range():
    assert len([*every_setting()]) > 80
    for one in every_setting():
        assert one.help.endswith("."), one.name
        assert check_value(one.default, one.hint, one.name, "default") == one.default
        assert one.owner in NETWORKS or type_of(one.name) == one.hint


OWN = {"model.name": "nets.py:Net", "model.channels": [8, 16], "model.hidden": 32, "model.kind": "wide"}


def test_the_settings_of_an_own_network_are_kept_as_they_are_given(tmp_path):
    run = Run().override(OWN)
    assert run.model.arguments == {"channels": [8, 16], "hidden": 32, "kind": "wide"}
    assert load(tmp_path, run.toml()) == run == Run.from_tree(run.tree(), "a file")
    assert run.override({"model.hidden": 64}).model.arguments == {**run.model.arguments, "hidden": 64}
    assert run.differences(run.override({"model.hidden": 64})) == {"model.hidden": (32, 64)}


def test_settings_of_one_network_are_none_of_another():
    mlp = Run().override({"model.hidden": [7], "model.norm": "layer", "model.dtype": "float64"})
    own = mlp.override({"model.name": "nets.py:Net"})
    assert own.model.arguments == {} and own.model.dtype == "float64"
    with pytest.raises(ConfigError, match="model.dtype = 'int8' is not known"):
        own.override({"model.dtype": "int8"})
    deep = own.override({"model.depth": 3})
    for name, arguments in (("nets.py:Other", {}), ("nets.py:Net", {"depth": 3})):
        assert deep.override({"model.name": name}).model.arguments == arguments
    assert deep.override({"model.name": "mlp"}).model == Model(dtype="float64")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1, float("nan")], {"a": 2**65}], ids=str)
def test_numbers_that_no_network_can_be_given_are_refused_by_name(value):
    with pytest.raises(ConfigError, match="command line: model.hidden must have finite numbers below 2.64"):
        Run().override({"model.name": "mine.py:Net", "model.hidden": value})


def test_the_command_line_gives_arguments_of_an_user_network():
    for text, hidden in (("8192", 8192), ("8,9", [8, 9])):
        changed = changes(("model.activation=relu",), {"model": "nets.py:Net", "hidden": text})
        assert Run().override(changed).model.arguments == {"hidden": hidden, "activation": "relu"}
    built_in = changes(("model.heads=4",), {"model": "transformer", "hidden": "32"})
    assert Run().override(built_in).model.arguments == {"hidden": [32], "heads": [4]}


@pytest.mark.parametrize("name, default", gone.GONE.items())
def test_a_setting_that_is_gone_may_have_its_default_alone(name, default):
    assert Run().override({name: default}) == Run()
    section, key = name.split(".")
    assert Run.from_tree({section: {key: default}}, "run.toml") == Run()
    with pytest.raises(ConfigError, match=rf"^run.toml: {name} = 7 no longer exists. Leave it out.$"):
        Run.from_tree({section: {key: 7}}, "run.toml")


def test_the_settings_in_a_copied_folder_name_the_copy(tmp_path):
    """A run that resumes from a copy must not write to the folder that was copied; a byte order mark is passed over."""
    (tmp_path / "bom.toml").write_bytes(b"\xef\xbb\xbf[train]\nrounds = 3\n")
    assert Run.load(str(tmp_path / "bom.toml")).train.rounds == 3
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").touch()
        (tmp_path / name / "run.toml").write_text(f'[output]\nfolder = "{tmp_path / "x"}"\n')
    for name in ("x", "y"):
        assert Run.load(str(tmp_path / name / "run.toml")).output.folder == str(tmp_path / name)
