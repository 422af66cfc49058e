"""What a run file may say: described on the screen, on a page, for editors and for shells, all from the code."""

import inspect
import json
from pathlib import Path

import pytest

from istmpi.cli.commands.settings import command, schema
from istmpi.config import SHIPPED, Run, shipped
from istmpi.errors import ConfigError
from istmpi.foreign import read_toml
from istmpi.names import NETWORKS
from istmpi.network.arguments import DATA_ARGUMENTS, read_arguments

DOCS = Path(__file__).parents[2] / "docs"


def said(capsys, *arguments):
    command.main([*arguments], standalone_mode=False)
    return capsys.readouterr().out


def test_the_page_and_the_schema_in_docs_are_what_the_code_makes(capsys):
    cure = "istmpi settings --markdown > docs/settings.md; istmpi settings --schema > docs/run.schema.json"
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == said(capsys, "--markdown"), cure
    assert (DOCS / "run.schema.json").read_text(encoding="utf-8") == said(capsys, "--schema"), cure


@pytest.mark.parametrize("network", NETWORKS)
def test_arguments_of_a_network_are_those_of_its_constructor(network):
    module, _, kind = NETWORKS[network].partition(":")
    made = inspect.signature(getattr(__import__(module, fromlist=[kind]), kind)).parameters
    expected = {name: one.default for name, one in made.items() if name not in DATA_ARGUMENTS}
    assert {name: default for name, _, default in read_arguments(network)} == expected


def test_a_setting_a_section_a_method_and_a_key_are_found(capsys):
    first = "method.redeal  (ist)\n  Fraction of each unit group to redeal each round.\n"
    assert said(capsys, "method.redeal").startswith(first)
    assert "  range:   in [0, 1]\n  default: 1.0\n" in said(capsys, "redeal")
    assert said(capsys, "fedavg").count("(fedavg)") == 2
    assert {"(xc)", "(mlp)", "(transformer)"} <= {*said(capsys, "model.hidden").split()}
    assert "optimizer.lr\n" in said(capsys, "[optimizer]")
    listed = " ".join(said(capsys).split())
    assert "method.redeal 1.0 ist: Fraction of each unit group to redeal each round. (in [0, 1])" in listed
    assert 'model.dtype "float32" Type of weights and computation. (float32 | float64)' in listed


def test_a_name_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="no setting locl_steps.*local_steps"):
        command.main(["locl_steps"], standalone_mode=False)


SOUND = """
name = "mine"
data = {source = "x.h5", fanout = [3, 4]}
optimizer = {lr = 1, milestones = [0.2]}
train = {resolution = [[0.4, 8], [0.6, 16]]}
evaluate = {propensity = [0.5, 1.5], examples = 7}
"""


def parsed(text, folder):
    (folder / "run.toml").write_text(text)
    return read_toml(folder / "run.toml", "")


def validator():
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator.check_schema(schema())
    return jsonschema.Draft7Validator(schema())


def test_the_schema_takes_what_a_run_takes(tmp_path):
    check = validator()
    for name in shipped():
        check.validate(read_toml(SHIPPED / f"{name}.toml", ""))
        check.validate(Run.load(name).tree())
    check.validate(parsed(SOUND, tmp_path))
    for network in NETWORKS:
        given = {name: json.loads(json.dumps(default)) for name, _, default in read_arguments(network)}
        check.validate({"model": {"name": network, "dtype": "float64", **given}})
    check.validate({"model": {"name": "mine.py:Net", "anything": 3}})


@pytest.mark.parametrize(
    "text",
    [
        "rounds = 3",
        "train = {rounds = 2.5}",
        "train = {resolution = [[0.4, 8, 9]]}",
        "method = {redael = 1}",
        "optimizer = {lr = 0}",
        "data = {placement = 'everywhere'}",
    ],
)
def test_the_schema_refuses_what_a_run_refuses(text, tmp_path):
    tree = parsed(text, tmp_path)
    assert not validator().is_valid(tree)
    with pytest.raises(ConfigError):
        Run.from_tree(tree, "here")
