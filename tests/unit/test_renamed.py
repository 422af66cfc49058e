"""Old spellings: they still work, and one line says the new one."""

import subprocess
import sys
from pathlib import Path

import pytest

from istmpi import renamed
from istmpi.config import Run
from istmpi.errors import ConfigError
from istmpi.renamed import RenamedWarning


def said_by(*words):
    """What ``istmpi words...`` says on both streams."""
    program = Path(sys.executable).with_name("istmpi")
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_an_old_setting_is_the_new_one():
    with pytest.warns(RenamedWarning, match="command line: method.resample is now method.redeal"):
        run = Run().override({"method.resample": 0.25})
    assert run == Run().override({"method.redeal": 0.25}) != Run()


def test_a_run_file_may_have_the_old_name_but_not_both(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[method]\nlocal_steps = 7\nresample = 0.25\n")
    with pytest.warns(RenamedWarning, match="mine.toml: method.resample is now method.redeal"):
        run = Run.load(str(path))
    assert (run.method.redeal, run.method.local_steps) == (0.25, 7)
    assert "redeal = 0.25" in run.toml() and "resample" not in run.toml()
    path.write_text("[method]\nresample = 0.25\nredeal = 0.25\n")
    with pytest.raises(ConfigError, match="mine.toml: method.resample is the old name of method.redeal"):
        Run.load(str(path))


@pytest.mark.parametrize("name, default", renamed.GONE.items())
def test_a_setting_that_is_gone_may_have_its_default_alone(name, default):
    assert Run().override({name: default}) == Run()
    section, key = name.split(".")
    assert Run.from_tree({section: {key: default}}, "run.toml") == Run()
    with pytest.raises(ConfigError, match=rf"^run.toml: {name} = 7 no longer exists. Leave it out.$"):
        Run.from_tree({section: {key: 7}}, "run.toml")


def test_what_programs_wrote_is_read_in_silence():
    assert Run.from_tree({"method": {"resample": 0.25}}, "a checkpoint").method.redeal == 0.25


def test_an_old_setting_of_the_command_line_is_told_in_one_line():
    old = "--set", "method.resample=0.1"
    out, err = said_by("costmodel", "digits", "--layers", "64-32-10", "--ranks", "2", *old)
    new = said_by("costmodel", "digits", "--layers", "64-32-10", "--ranks", "2", "--redeal", "0.1")
    assert new == (out, "")
    assert len(err.splitlines()) == 1 and err.startswith("istmpi: ") and "redeal; the old name still works" in err


@pytest.mark.parametrize(
    "words, said",
    [
        (["costmodel", "digits", "--resample", "0.1"], "no option --resample; it is --redeal now. "),
        (["demo", "--reckon"], "no option --reckon; the demo always predicts: leave it out. "),
    ],
)
def test_an_option_of_older_versions_is_refused_with_the_cure(istmpi_command, words, said):
    code, out, err = istmpi_command(*words)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1 and err.startswith(f"istmpi: {said}")


def test_an_old_command_is_told_in_one_line_and_no_longer_listed():
    out, err = said_by("calibrate", "--help")
    assert err == "istmpi: istmpi calibrate is now istmpi measure; the old name still works.\n"
    assert out == said_by("measure", "--help")[0]
    assert "calibrate" not in said_by("--help")[0] and "--resample" not in said_by("train", "--help")[0]
