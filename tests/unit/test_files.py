"""Files that appear complete or not at all."""

import os
import threading

import pytest
from disks import small_disk

from istmpi.errors import OutputError
from istmpi.files import appearing


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
