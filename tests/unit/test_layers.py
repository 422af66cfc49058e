"""The structure of the package: imports go down only, and each library has the one place that DESIGN gives it."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from itertools import product
from pathlib import Path

import istmpi

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


TEXT = (Path(__file__).parents[2] / "docs/library.md").read_text(encoding="utf-8")


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
