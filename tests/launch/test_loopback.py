"""What listens on the network while ranks of one host train."""

import socket
import struct
import subprocess
from pathlib import Path

import pytest
from following import lines

LISTENING = "0A"
RUN = ("train", "--hidden", "16", "--rounds", "100000", "--evaluate-every", "100000", "--out")


def listening(process):
    """The addresses at which a process listens, by the numbers of its sockets."""
    links = [path.readlink() for path in Path(f"/proc/{process}/fd").iterdir()]
    own = {str(link)[8:-1] for link in links if str(link).startswith("socket:")}
    rows = [row.split() for row in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]]
    return {
        row[9]: socket.inet_ntoa(struct.pack("=I", int(row[1].split(":")[0], 16)))
        for row in rows
        if row[3] == LISTENING and row[9] in own
    }


def test_ranks_of_one_host_listen_to_nobody_outside_it(start, tmp_path):
    """The launcher may: its own sockets, which ranks inherit, are left out. Open MPI decides for itself."""
    job = start(2, "istmpi", *RUN, tmp_path / "run")
    job.wait_until(lambda: lines(tmp_path / "run"))
    version = subprocess.run([job.process.args[0], "--version"], capture_output=True, text=True).stdout
    if "HYDRA" not in version:
        pytest.skip("needs MPICH")
    launcher = listening(job.process.pid)
    for rank in job.ranks:
        own = {number: address for number, address in listening(rank).items() if number not in launcher}
        assert own and {*own.values()} == {"127.0.0.1"}
    (tmp_path / "run" / "STOP").touch()
    assert job.end().returncode == 75
