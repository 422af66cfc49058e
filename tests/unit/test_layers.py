"""The structure of the package: imports go down only, and each library has the one place that DESIGN gives it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "istmpi"

TABLE = re.findall(r"^\| \d+ \| ([^|]+) \|", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"), re.MULTILINE)
LAYERS = [[name.rstrip("/") for name in re.findall("`([^`]+)`", modules)] for modules in reversed(TABLE)]
LAYERS[0].append("istmpi")
LAYERS[-1].append("__main__")
"""As the table of docs/design.md has them: a module may import from its own layer and those before it."""

PLACES = {
    "mpi4py": ["comm/"],
    "h5py": ["hdf5.py", "data/hdf5.py", "checkpoint/"],
    "matplotlib": ["report/plots.py", "report/cost_plots.py", "report/comparison_plots.py"],
    "click": ["cli/"],
    "rich": ["cli/", "report/tables.py", "report/checkpoints.py", "report/networks.py"],
    "torch.distributed": [],
    "multiprocessing": [],
}
"""Where a library may be imported."""

FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def imports(file):
    """Every module that a file imports, wherever in it; names for type checkers alone are left out."""
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            skipped |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(module):
    """The layer of ``istmpi.methods.ist``: that of methods. A name that is imported from the package is a module."""
    parts = module.split(".")
    name = parts[1] if len(parts) > 1 else "istmpi"
    if name.startswith("__") and name != "__main__":
        name = "istmpi"
    found = [number for number, names in enumerate(LAYERS) if name in names]
    assert found, f"{module} is in no layer; say in LAYERS, and in docs/design.md, where it belongs"
    return found[0]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_only_go_down(file):
    parts = [*file.parent.parts, file.stem]
    mine = layer(".".join(["istmpi", *(part for part in parts if part != "__init__")]))
    for module in imports(file):
        if module == "istmpi" or module.startswith("istmpi."):
            if module == "istmpi":
                continue  # its names follow one by one
            assert layer(module) <= mine, f"{file} is in layer {mine} and imports {module} of layer {layer(module)}"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_library_has_its_place(file):
    for module in imports(file):
        for library, places in PLACES.items():
            if module == library or module.startswith(library + "."):
                assert any(
                    str(file) == place or str(file).startswith(place + "/" * (place[-1] != "/")) for place in places
                ), f"{file} imports {module}, which only {', '.join(places) or 'nothing'} may"


def test_models_and_data_never_see_a_rank():
    """They get no communicator and read no environment variable."""
    for file in FILES:
        if file.parts[0] in ("models", "data"):
            assert "istmpi.comm" not in set(imports(file)), file
            names = {getattr(node, "attr", "") for node in ast.walk(ast.parse((PACKAGE / file).read_text()))}
            assert not names & {"environ", "getenv"}, file


def test_planning_needs_neither_torch_nor_mpi():
    """A login node often cannot start MPI, and torch takes seconds to import."""
    modules = [
        "config",
        "models",
        "axes",
        "partition",
        "layout",
        "record",
        "rng",
        "errors",
        "comm",
        "cost",
        "optimizers",
        "ring",
    ]
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        f"import {', '.join('istmpi.' + name for name in modules)}\n"
        "from istmpi.config import Run\n"
        "from istmpi.models import architecture\n"
        "architecture(64, 10, 'classification', Run.load('digits').model)\n"
        "print(sorted({'torch', 'mpi4py', 'h5py', 'matplotlib', 'rich', 'click'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_rules_can_fail(tmp_path, monkeypatch):
    """The rules are tried on a file that breaks them all."""
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "axes.py").write_text("def lazily():\n    from istmpi import train\n    import mpi4py.MPI\n")
    with pytest.raises(AssertionError, match="axes.py is in layer 0 and imports istmpi.train of layer 5"):
        test_imports_only_go_down(Path("axes.py"))
    with pytest.raises(AssertionError, match=r"imports mpi4py.MPI, which only comm/ may"):
        test_every_library_has_its_place(Path("axes.py"))
    (tmp_path / "newcomer.py").write_text("")
    with pytest.raises(AssertionError, match="istmpi.newcomer is in no layer"):
        test_imports_only_go_down(Path("newcomer.py"))
