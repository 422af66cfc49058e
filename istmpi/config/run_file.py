"""Finds the file of a run that a command line names: a TOML file, a run's folder, or a run that
istmpi ships."""

from pathlib import Path

from istmpi.data import KINDS
from istmpi.data.callable.source import is_function
from istmpi.errors import ConfigError, did_you_mean, kind_of
from istmpi.foreign import exists, is_file
from istmpi.record import SETTINGS, find_run

SHIPPED = Path(__file__).parents[1] / "runs"
_ARRAYS = {".h5", ".hdf5", ".npz", ".tsv", ".gz", ".tgz", ".tar", ".zip", ".wav"}
_ENDINGS = _ARRAYS.union(*(kind.endings for kind in KINDS.values())) - {".txt"}
"""Endings of data. A .txt may be a run file."""
_CURES = dict.fromkeys((".json", ".yaml", ".yml"), "Run files are TOML: [train], then rounds = 30.")


def shipped() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def find_run_file(name_or_path: str) -> Path:
    """Return the TOML file of a run. Raises ConfigError if there is none."""
    path = Path(name_or_path)
    if is_file(path / SETTINGS):
        return path / SETTINGS
    # A read from a pipe would wait for a writer.
    if exists(path) and not path.is_file() and not path.is_dir():
        raise ConfigError(f"run {path} is {kind_of(path)}; it must be a TOML file.")
    if path.suffix in _ENDINGS or path.suffix == ".py" or is_function(name_or_path):
        raise _refuse_other(name_or_path)
    if is_file(path):
        return path
    built_in = SHIPPED / f"{name_or_path}.toml"
    if is_file(built_in):
        return built_in
    if exists(path) and path.is_dir():
        raise ConfigError(
            f"run {path} is a folder without {SETTINGS}, so it is not a run's. Give data "
            "with istmpi prepare, then --data FILE.h5."
        )
    raise ConfigError(
        f"run {name_or_path} is neither a file nor a built-in run{_suggest(name_or_path)}"
    )


def find_cure(path: Path) -> str:
    """Return what to do about a run file that cannot be read."""
    if path.suffix == ".toml":
        return "Correct it; istmpi runs lists readable runs."
    return _CURES.get(path.suffix, f"Data are given with --data {path}")


def _refuse_other(name: str) -> ConfigError:
    """Return the error for data, code or a network in place of a run, with the option for it."""
    if is_function(name):
        return ConfigError(
            f"run {name} is code, not a run file. Give a network with --model {name}, a function "
            f"of data with --data {name}."
        )
    path = Path(name)
    if path.suffix == ".py":
        return ConfigError(
            f"run {name} is a program, not a run file. Start it: mpirun -n P python {name}"
        )
    folder = find_run(path)
    if is_file(folder / SETTINGS):
        return ConfigError(f"run {name} is a file of a run. Name the run's folder: {folder}")
    return ConfigError(f"run {name} is data, not a run file. Give it with --data {name}")


def _suggest(name_or_path: str) -> str:
    """Return a hint for a run that does not exist: the nearest file beside it, or built-in run."""
    path = Path(name_or_path)
    if path.suffix == ".toml":
        files = [file.name for file in path.parent.glob("*.toml")]
        if files:
            return did_you_mean(path.name, files)
    return did_you_mean(name_or_path, shipped())
