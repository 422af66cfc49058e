"""What was proved of a network is remembered, and taken again only for that very network, from a private file."""

import json
import os
from pathlib import Path

import networks
import pytest
import torch
from small import small_run

from istmpi.data.sources import open_dataset
from istmpi.inspection import large
from istmpi.inspection.examine import inspect
from istmpi.network.arguments import user_network
from istmpi.training import proof_cache
from istmpi.training.network import plan_network
from istmpi.training.proof_cache import recall, remember

SOURCE = "from networks import Steps\n\n\nclass Net(Steps):\n    pass\n\n\nclass Other(Steps):\n    pass\n"


GIVES_AWAY = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(SOURCE)
    return path


def own(file, kind="Net", shape=(7,), outputs=10, **settings):
    return user_network(f"{file}:{kind}", shape, outputs, settings)


@pytest.fixture
def table(cache, file):
    tree = inspect(own(file)).tree()
    remember(own(file), tree)
    return tree


def kept(cache):
    return list(cache.rglob("*.json"))


def test_it_is_what_was_found(cache, file, table):
    assert recall(own(file)) == table == inspect(own(file)).tree()
    (path,) = kept(cache)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert [one.name for one in path.parent.iterdir()] == [path.name], "nothing is left beside it"


def test_a_plan_takes_it_where_it_fits(cache, file, monkeypatch):
    looked, look = [], large.inspect
    monkeypatch.setattr(large, "inspect", lambda own: looked.append(own.name) or look(own))
    run, data = small_run().override({"model.name": f"{file}:Net"}), open_dataset("digits")
    tables = [plan_network(run, data).table.tree() for _ in range(2)]
    assert tables[0] == tables[1] and len(looked) == 1
    (path,) = kept(cache)
    path.write_text(path.read_text().replace("hidden 64", "hidden 63"))
    assert plan_network(run, data).table.tree() == tables[0] and len(looked) == 2


def test_defaults_that_json_does_not_know_are_the_same_in_every_process(cache):
    network = user_network(f"{networks.__file__}:Choosing", (7,), 10, {})
    remember(network, inspect(network).tree())
    (path,) = kept(cache)
    assert recall(network) is not None and " at 0x" not in path.read_text()


def test_it_is_not_that_of_another_network_version_source_or_precision(file, table, monkeypatch):
    for change in ({"hidden": 10}, {"outputs": 9}, {"shape": (8,)}, {"kind": "Other"}):
        assert recall(own(file, **change)) is None
    for name in ("istmpi.training.proof_cache.__version__", "torch.__version__"):
        with monkeypatch.context() as patch:
            patch.setattr(name, "0.0.0")
            assert recall(own(file)) is None
    torch.set_default_dtype(torch.float64)
    try:
        assert recall(own(file)) is None
    finally:
        torch.set_default_dtype(torch.float32)
    assert recall(own(file)) is not None
    file.write_text(SOURCE + "# a remark\n")
    assert recall(own(file)) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text(path.read_text()[:50]),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_text("{}"),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "table": {"source": 3}})),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.chmod(0o666),
        lambda path: path.parent.chmod(0o777),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), os.mkfifo(path)),
        pytest.param(lambda path: os.chown(path, 12345, -1), marks=GIVES_AWAY),
    ],
)
def test_what_cannot_be_trusted_is_as_if_it_were_not_there(cache, file, table, damage):
    (path,) = kept(cache)
    damage(path)
    assert recall(own(file)) is None


def test_it_is_in_the_home_folder_without_the_variable_and_nowhere_if_it_cannot_be_written(tmp_path, file, monkeypatch):
    (tmp_path / "taken").write_text("")
    for folder in (tmp_path / "taken", Path("/proc/nowhere")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        remember(own(file), {})
        assert recall(own(file)) is None
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        remember(own(file), {"a": 1})
    assert len(kept(tmp_path / ".cache" / "istmpi" / "proofs")) == 1


def test_the_newest_are_kept(cache, file, monkeypatch):
    monkeypatch.setattr(proof_cache, "KEPT", 2)
    trees = {hidden: inspect(own(file, hidden=hidden)).tree() for hidden in (8, 10, 12)}
    for age, (hidden, tree) in enumerate(trees.items()):
        remember(own(file, hidden=hidden), tree)
        for path in kept(cache):
            os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9 * (3 - age)))
    found = {hidden: recall(own(file, hidden=hidden)) for hidden in trees}
    assert len(kept(cache)) == 2 and found[12] == trees[12] and found[8] is None
