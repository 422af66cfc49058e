"""What was proved of a network is remembered, and taken again only for that very network, from a private file."""

import hashlib
import importlib
import json
import os
import shutil
import sys
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
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "table": {"source": 3}})),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.chmod(0o666),
        lambda path: path.parent.chmod(0o777),
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


# ---- the source of a network: which files it is


NET = """
import json, os.path
import torch
from torch import nn
import helpers.blocks as blocks

class Net(nn.Module):
    def __init__(self, features, outputs, hidden=8):
        super().__init__()
        import late
        self.first, self.last = nn.Linear(features, hidden), nn.Linear(hidden, outputs)
"""
FILES = {
    "net.py": NET,
    "late.py": "from helpers import two\n",
    "helpers/__init__.py": "",
    "helpers/blocks.py": "from . import one\nfrom .deep.er import thing\n",
    "helpers/one.py": "",
    "helpers/two.py": "",
    "helpers/unused.py": "",
    "helpers/deep/__init__.py": "",
    "helpers/deep/er.py": "thing = 1\n",
    "beside.py": "",
    "broken.py": "def (",
}
PART_OF_IT = {"net.py", "late.py", *(name for name in FILES if name.startswith("helpers/") and "unused" not in name)}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("helpers", "late", "net")]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not path.startswith(str(tmp_path))]


def source(path, kind="Net"):
    return user_network(f"{path}:{kind}", (7,), 3, {}).source


def test_of_one_file_it_is_the_hash_of_that_file_and_of_two_of_both(folder):
    file = folder / "alone.py"
    file.write_text("from torch import nn\n\n\nclass Net(nn.Identity):\n    pass\n")
    assert source(file).hash == hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    assert source(folder / "net.py").libraries == {"torch": torch.__version__}
    installed = user_network("torch.nn:Linear", (7,), 10, {"in_features": 7, "out_features": 10}).source
    assert installed.libraries == {"torch": torch.__version__} and len(installed.hash) == 16
    (folder / "other.py").write_text("from net import Net\n")
    before = source(folder / "other.py").hash
    assert before != source(folder / "net.py").hash
    (folder / "net.py").write_text(NET + "# a remark\n")
    assert source(folder / "other.py").hash != before


@pytest.mark.parametrize("name", FILES)
def test_it_changes_with_what_the_file_imports_from_its_folder_alone(folder, name):
    before = source(folder / "net.py").hash
    with (folder / name).open("a") as file:
        file.write("# a remark\n")
    assert (source(folder / "net.py").hash != before) == (name in PART_OF_IT)


def test_it_is_the_same_in_another_place_and_under_another_name(folder):
    before = source(folder / "net.py")
    (folder / "net.py").rename(folder / "renamed.py")
    assert source(folder / "renamed.py") == before
    shutil.copytree(folder, folder / "copy")
    assert source(folder / "copy" / "renamed.py") == before
    (folder / "late.py").rename(folder / "later.py")
    assert source(folder / "renamed.py") != before


def test_a_module_of_another_folder_counts_by_its_version_or_else_by_its_content(folder, monkeypatch):
    elsewhere, net = folder / "elsewhere", folder / "net.py"
    elsewhere.mkdir()
    monkeypatch.syspath_prepend(elsewhere)
    net.write_text("import mylibrary\n" + NET)
    found = {}
    for text in ("one = 1", "one = 2", "__version__ = '2.0'"):
        (elsewhere / "mylibrary.py").write_text(text)
        monkeypatch.delitem(sys.modules, "mylibrary", raising=False)
        importlib.invalidate_caches()
        found[text] = source(net)
    versions = [of.libraries["mylibrary"] for of in found.values()]
    assert len(set(versions)) == 3 and versions[2] == "2.0"
    assert len({of.hash for of in found.values()}) == 1
