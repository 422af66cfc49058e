"""`istmpi prepare`: a skin over the library, with progress on stderr and a table at the end."""

from click.testing import CliRunner
from data_files import make_idx, make_images, make_speech

from istmpi.cli import output
from istmpi.cli.commands.prepare import command
from istmpi.data.hdf5 import open_prepared


def invoke(*words):
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


def test_the_table_at_the_end(tmp_path):
    result = invoke("idx", make_idx(tmp_path / "input"), tmp_path / "data.h5")
    assert result.exit_code == 0 and result.stderr == ""
    for words in ("data.h5", "20 examples", "6 examples", "20 (1 x 5 x 4)"):
        assert words in result.stdout


def test_the_options_reach_the_library(tmp_path):
    target = tmp_path / "data.h5"
    (tmp_path / "table.csv").write_text("kind,size\n" + "".join(f"{row % 2},{row}\n" for row in range(10)))
    invoke("csv", tmp_path / "table.csv", target, "--label", "kind", "--task", "regression")
    data = open_prepared(target)
    assert data.task == "regression" and set(data.train.labels()[:, 0]) == {0, 1}
    folder = make_images(tmp_path / "input")
    (folder / "train" / "cat" / "[red].png").write_bytes(b"")
    result = invoke("images", folder, target, "--size", "3", "--max-bad", "0.1", "--force")
    assert open_prepared(target).shape == (3, 3, 3)
    assert "train/cat/[red].png" in result.stdout


def test_a_log_file_gets_a_line_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 0)
    result = invoke("speech", make_speech(tmp_path / "input"), tmp_path / "data.h5")
    assert "decoding 12 of 12" in result.stderr


def test_a_small_file_has_a_size_and_a_table_no_files_to_skip(tmp_path):
    (tmp_path / "table.csv").write_text("size,kind\n" + "".join(f"{row},{row % 2}\n" for row in range(10)))
    said = invoke("csv", tmp_path / "table.csv", tmp_path / "table.h5").stdout
    assert "0.0 MB" not in said and " kB" in said and "skipped" not in said
