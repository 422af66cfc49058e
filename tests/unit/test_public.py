"""What `import istmpi` offers is what docs/library.md teaches: every name of one is in the other."""

import re
import subprocess
import sys
from pathlib import Path

import istmpi

TEXT = (Path(__file__).parents[2] / "docs/library.md").read_text(encoding="utf-8")


def test_every_exported_name_is_documented_and_every_documented_one_exported():
    imported = {
        name for line in re.findall(r"^from istmpi import (.+)$", TEXT, re.MULTILINE) for name in line.split(", ")
    }
    mentioned = set(re.findall(r"`istmpi\.(\w+)", TEXT))
    assert imported | mentioned == set(istmpi.__all__)
    assert not re.findall(r"^from istmpi\.", TEXT, re.MULTILINE)


def test_every_exported_name_is_there():
    for name in istmpi.__all__:
        assert getattr(istmpi, name).__name__ == name
        assert name in dir(istmpi)
    assert not hasattr(istmpi, "training_loop")


def test_type_checkers_see_the_same_names():
    source = Path(istmpi.__file__).read_text(encoding="utf-8")
    seen = re.findall(r"^    from istmpi\.(\S+) import (\w+) as \2$", source, re.MULTILINE)
    assert {name: place for place, name in seen} == istmpi._PLACES


def test_importing_the_package_imports_nothing_else():
    code = "import sys, istmpi; print(sorted({'torch', 'numpy', 'mpi4py', 'h5py', 'click'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
