"""Files that appear complete or not at all."""

import os
import threading

import pytest
from disks import small_disk

from istmpi.errors import ConfigError, OutputError
from istmpi.files import appearing, append
from istmpi.record import METRICS, RunFolder


def test_on_a_full_disk_an_older_file_is_as_it_was_and_nothing_stays(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as folder:
        (folder / "page.html").write_text("older")
        with pytest.raises(OutputError, match="page.html: cannot be written"), appearing(folder / "page.html") as file:
            file.write(b"x" * 2**17)
        assert os.listdir(folder) == ["page.html"] and (folder / "page.html").read_text() == "older"


def test_a_pipe_is_written_to_and_a_link_followed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    told = []
    reader = threading.Thread(target=lambda: told.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    for name in ("pipe", "link"):
        with appearing(tmp_path / name) as file:
            file.write(b"page")
    reader.join()
    assert told == [b"page"] and (tmp_path / "plain").read_bytes() == b"page"
    assert (tmp_path / "link").is_symlink() and (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("name", ["run.toml", "summary.json", METRICS, "progress.png"])
def test_no_link_is_followed_in_a_run_s_folder(tmp_path, name):
    """Another user may have put it there, under the name of a file or of what once was its temporary name."""
    precious, folder = tmp_path / "precious", tmp_path / "run"
    precious.write_text("kept")
    folder.mkdir()
    for planted in (folder / name, folder / f".{name}"):
        planted.symlink_to(precious)
    with appearing(folder / name, follow=False) as file:
        file.write(b"page")
    assert precious.read_text() == "kept"
    assert not (folder / name).is_symlink() and (folder / name).read_text() == "page"
    assert sorted(os.listdir(folder)) == sorted([name, f".{name}"]), "no temporary file is left"


def test_a_record_writes_through_no_link(tmp_path):
    precious, run = tmp_path / "precious", RunFolder(tmp_path / "run")
    precious.write_text("")
    run.path.mkdir()
    (run.path / "run.toml").symlink_to(precious)
    run.write("run.toml", "[train]")
    (run.path / METRICS).symlink_to(precious)
    for write in (run.make, lambda: run.append({"round": 1})):
        with pytest.raises((ConfigError, OutputError), match="cannot be written"):
            write()
    assert precious.read_text() == ""


def test_on_a_full_disk_an_appended_line_is_there_or_not(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as folder:
        append(folder / "lines", b"first\n")
        with pytest.raises(OutputError, match="lines: cannot be written"):
            append(folder / "lines", b"x" * 2**17)
        assert (folder / "lines").read_bytes() == b"first\n"
