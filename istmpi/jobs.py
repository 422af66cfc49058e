"""Job scripts: the templates of job_scripts/ filled in for one run. A text of the user's is quoted, never executed."""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from istmpi.errors import ConfigError

_TEMPLATES = Path(str(files("istmpi") / "job_scripts"))
"""jobs/ of the project: a link to it in a clone, a copy in an installation."""

_MARK = re.compile(r"^# ---- .*\n(?:.*\n)*?# ----\n", re.MULTILINE)
"""The lines of a template that are filled in."""

_SHAPES = {
    "time": (
        re.compile(r"(\d+-)?\d+(:\d\d){0,2}"),
        "minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS, as in 4:00:00",
    ),
    "array": (re.compile(r"[1-9]\d*(,[1-9]\d*)*"), "numbers of nodes with commas between them, as in 1,2,4,8"),
}
_NAME = re.compile(r"[\w.,@%+/:=-]+")


def folders_of_programs() -> list[str]:
    """Where istmpi-run and istmpi are: what a job puts in front of its PATH."""
    own = str(Path(sys.executable).parent)
    bin = _TEMPLATES.resolve().parent / "bin"
    return [str(bin), own] if bin.is_dir() else [own]


@dataclass(frozen=True)
class Slurm:
    """What a SLURM job is asked for; ConfigError where SLURM could not take it."""

    script: str = "train"
    nodes: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """sbatch's own options: ``{"time": "4:00:00", "partition": "long"}``."""
    modules: Sequence[str] = ()
    """Environment modules to load."""
    launcher: Sequence[str] = ()
    """Options of istmpi-run."""
    arguments: Sequence[str] = ()
    """RUN and options of istmpi train."""

    def text(self) -> str:
        """The script."""
        settings = dict(self.settings)
        for name, value in settings.items():
            shape, example = _SHAPES.get(name, (_NAME, "letters, digits and .,@%+/:=-"))
            if not shape.fullmatch(value):
                raise ConfigError(f"--{name} {value}: must be {example}.")
        if "array" in settings:
            largest = max(map(int, settings["array"].split(",")))
            if self.nodes is not None and self.nodes < largest:
                raise ConfigError(
                    f"--nodes {self.nodes}: --array {settings['array']} needs {largest}. Leave --nodes out."
                )
            settings["nodes"] = str(largest)
        elif self.nodes is not None:
            settings["nodes"] = str(self.nodes)
        template = _TEMPLATES / "slurm" / f"{self.script}.sbatch"
        text = template.read_text(encoding="utf-8")
        for name, value in settings.items():
            text = _with_option(text, name, value)
        return _MARK.sub(lambda _: self._environment(), text, count=1)

    def _environment(self) -> str:
        """What stands between the marks."""
        lines = ["# ---- filled in by istmpi job slurm"]
        if self.modules:
            lines.append(f"module load {shlex.join(self.modules)}")
        lines.append(f"PATH={shlex.quote(':'.join(folders_of_programs()))}:$PATH")
        lines.append(f"OPTIONS=({shlex.join(self.launcher)})")
        lines.append(f"set -- {shlex.join(self.arguments)}")
        return "\n".join([*lines, "# ----", ""])


@dataclass(frozen=True)
class Ec2:
    """A run on instances that are made for it and removed after it."""

    name: str
    region: str | None
    up: Sequence[str]
    """Options of jobs/ec2/cluster up."""
    given: Mapping[str, str]
    """What the template takes from the environment: KEY and SSH_FROM."""
    files: Sequence[str]
    """Files of this machine that the run reads."""
    folder: str
    """Where the results will be."""
    arguments: Sequence[str]
    """RUN and options of istmpi train."""

    def text(self) -> str:
        """The script."""
        folder = _TEMPLATES / "ec2"
        send = [word for file in self.files for word in ("--send", file)]
        lines = [
            "# ---- filled in by istmpi job ec2",
            f"NAME={shlex.quote(self.name)}",
            f"CLUSTER={shlex.quote(str(folder / 'cluster'))}",
            f"REGION=({shlex.join(['--region', self.region] if self.region else [])})",
            f"UP=({shlex.join(self.up)})",
            f"SEND=({shlex.join(send)})",
            f"FOLDER={shlex.quote(self.folder)}",
            *(f"{name}={shlex.quote(value)}" for name, value in self.given.items()),
            f"set -- {shlex.join(self.arguments)}",
            "# ----",
            "",
        ]
        return _MARK.sub(lambda _: "\n".join(lines), (folder / "train.sh").read_text(encoding="utf-8"), count=1)


def _with_option(text: str, name: str, value: str) -> str:
    """The script with one #SBATCH line replaced, or put behind the last."""
    line = f"#SBATCH --{name}={value}"
    found = re.compile(rf"^#SBATCH --{name}=.*$", re.MULTILINE)
    if found.search(text):
        return found.sub(lambda _: line, text)
    last = list(re.finditer(r"^#SBATCH .*$", text, re.MULTILINE))[-1].end()
    return f"{text[:last]}\n{line}{text[last:]}"


def job_name(run: str) -> str:
    """A name for schedulers and clouds, from a run's: letters, digits and hyphens, at most 40."""
    return re.sub(r"[^A-Za-z0-9]+", "-", Path(run).stem).strip("-")[:40] or "istmpi"
