"""About how many bytes travel between hosts: told where each rank has a host of its own, and nowhere else."""

import json
import re
from dataclasses import replace

from small import small_run

from istmpi.comm import members, resends
from istmpi.comm.hang_report import Member
from istmpi.comm.ledger import estimate_line_bytes
from istmpi.record import RunFolder
from istmpi.units import size


def test_segments_messages_and_a_start_have_their_bytes():
    starts = {2: 2 * 10_000 + 2 * 8_000, 4: 4 * 10_000 + 12 * 8_000, 5: 5 * 10_000 + 20 * 8_000}
    assert estimate_line_bytes(1_448_000, calls=0, hosts=2) == starts[2] + 1_448_000 + 1000 * (66 + 33)
    assert estimate_line_bytes(2896, calls=3, hosts=4) == starts[4] + 2896 + 2 * 99 + 3 * 4 * 3 * 73
    assert estimate_line_bytes(0, calls=2, hosts=5) == starts[5] + 2 * 5 * 4 * 73
    assert estimate_line_bytes(2896, calls=3, hosts=1) == 0


TABLE = "Ip: Forwarding\nIp: 1\nTcp: OutSegs RetransSegs InErrs\nTcp: 9 {} 0\n"


def test_segments_that_tcp_sends_again_count_once_a_host_since_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(resends, "TABLE", tmp_path / "snmp")
    assert resends.Resends().count() is None
    hosts = [Member(rank, host, 1, "", True, boot) for rank, (host, boot) in enumerate(("ax", "bx", "ax", "ay"))]
    assert resends.add_up_hosts([5, 3, 6, 1], hosts) == 6 + 3 + 1
    assert resends.add_up_hosts([5, None, 6, 1], hosts) is None
    assert resends.add_up_hosts([5, 6], hosts[::2]) is None


def test_a_job_tells_its_bytes_and_its_energy_at_its_end_in_its_summary_and_its_report(
    istmpi_command, answer, tmp_path, monkeypatch
):
    """Those of this job, also where it was resumed. With two hosts for three ranks, nobody knows what stays inside."""
    file, folder, describe = tmp_path / "small.toml", tmp_path / "run", members._describe
    monkeypatch.setattr(resends, "TABLE", tmp_path / "snmp")
    file.write_text(small_run(train__watts=50).toml())
    words = [file, "--out", folder]
    for rounds, hosts in enumerate((3, 3, 2, 1), 1):
        resends.TABLE.write_text(TABLE.format(5))
        begun = []

        def describe_and_send_again(comm, hosts=hosts, begun=begun):
            begun.append(comm.rank)
            if len(begun) == 3:
                resends.TABLE.write_text(TABLE.format(12))
            return replace(describe(comm), host=f"host {comm.rank % hosts}")

        monkeypatch.setattr(members, "_describe", describe_and_send_again)
        out = answer("simulate", *words, "--ranks", 3, "--rounds", rounds)
        summary = json.loads((folder / "summary.json").read_text())
        nbytes, calls = (sum(sent[name] for sent in summary["sent"].values()) for name in ("bytes", "calls"))
        expected = estimate_line_bytes(nbytes, calls, 3) if hosts == 3 else None
        assert summary.get("line_bytes") == expected and ("B on the line, with headers" in out) == (hosts == 3)
        assert (f"waits      {calls:,} calls of this job" in out) == (hosts == 3)
        again = 7 * hosts * (1448 + 66) if hosts > 1 else None
        assert summary.get("resent_bytes") == again and ("B again\n" in out) == (hosts > 1)
        line, sent = RunFolder(folder).metrics()[-1], {name: found["bytes"] for name, found in summary["sent"].items()}
        told = [*re.findall(r"(?:  |in this job |; \w+ )([\d.]+ k?B)", re.search("sent  .*B", out)[0])]
        values = line["round_bytes"], sent.pop("rounds") - line["round_bytes"]
        parts = [*values, sent["evaluation"], sent["saving"], sent["start"]]
        assert told[-5:] == [size(nbytes) for nbytes in parts] and (rounds > 1) == ("in this job" in out), out
        assert told[0] == size(line["bytes"]) and sent == {name: line[f"{name}_bytes"] for name in sent}
        assert summary["energy"]["source"] == "train.watts" and "of this job (train.watts)" in out
        code, out, _ = istmpi_command("report", folder)
        assert code == 0 and "energy (train.watts)" in out
        assert ("sent on the line, about" in out) == (hosts == 3) and ("sent again" in out) == (hosts > 1)
        assert (f"waits to save {summary['sent']['saving']['calls']}" in " ".join(out.split())) == (hosts == 3)
        words = [folder]
