"""The source of a network of one's own: which files it is, and that nothing else changes its hash."""

import hashlib
import importlib
import shutil
import sys

import pytest
import torch

from istmpi.network.arguments import user_network

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
    "outside.py": "",
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


def test_of_one_file_it_is_the_hash_of_that_file(folder):
    file = folder / "alone.py"
    file.write_text("from torch import nn\n\n\nclass Net(nn.Identity):\n    pass\n")
    assert source(file).hash == hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    assert source(file).libraries == {"torch": torch.__version__}
    installed = user_network("torch.nn:Linear", (7,), 10, {"in_features": 7, "out_features": 10}).source
    assert installed.libraries == {"torch": torch.__version__} and len(installed.hash) == 16


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


def test_a_class_that_another_file_defines_has_both(folder):
    (folder / "other.py").write_text("from net import Net\n")
    before = source(folder / "other.py").hash
    assert before != source(folder / "net.py").hash
    with (folder / "net.py").open("a") as file:
        file.write("# a remark\n")
    assert source(folder / "other.py").hash != before
