"""Batch systems as data: what a job script of each says of the same job."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from istmpi.errors import ConfigError

EXAMPLES = {"queue": "NAME", "account": "NAME", "memory": 16, "gpus": 1, "seeds": 5}
"""Values in the commented lines of a script, of options that were not given."""

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d\d))?(?::(\d\d))?")


class Scheduler(NamedTuple):
    """A batch system: its name, its template in jobs/, and what is filled in there.

    A directive has fields of a job in braces, and is a comment where one is missing; a part in <> is left out with its
    field. The ``lines`` stand in the script.
    """

    title: str
    template: str
    mark: str
    directives: tuple[str, ...]
    lines: tuple[str, ...] = ()

    def filled(self, template: str, fields: Mapping[str, object]) -> str:
        """Return a template with each directive's line filled in, or commented where its field is missing."""
        for directive in self.directives:
            begin = re.escape(self.mark + re.split("[{<]", directive)[0])
            line = re.search(rf"^#?{begin}.*$", template, re.MULTILINE)
            text = re.sub("<(.*?{(\\w+)}.*?)>", lambda part: part[1] if part[2] in fields else "", directive)
            comment = "#" * (not {*re.findall(r"{(\w+)}", text)} <= {*fields})
            if line:
                text = comment + self.mark + text.format_map({**EXAMPLES, **fields})
                template = template[: line.start()] + text + template[line.end() :]
        return template


_LINES = ("export SLURM_JOB_END_TIME=$(($(date +%s) + {seconds}))", "VERB=({verb})")
"""The end of the job, which these systems tell no job, and the command."""

SCHEDULERS = {
    "slurm": Scheduler(
        "SLURM",
        "slurm/{verb}.sbatch",
        "#SBATCH ",
        (
            "--job-name={name}",
            "--nodes={nodes}",
            "--ntasks-per-node={ranks}",
            "--time={time}",
            "--account={account}",
            "--partition={queue}",
            "--mem={memory}G",
            "--gpus-per-node={gpus}",
            "--array=1-{seeds}",
        ),
    ),
    "pbs": Scheduler(
        "PBS Professional and OpenPBS",
        "pbs/train.pbs",
        "#PBS ",
        (
            "-N {name}",
            "-l select={nodes}:ncpus={cores}:mpiprocs={ranks}<:mem={memory}gb><:ngpus={gpus}>",
            "-l walltime={clock}",
            "-A {account}",
            "-q {queue}",
            "-J 1-{seeds}",
        ),
        _LINES,
    ),
    "lsf": Scheduler(
        "LSF",
        "lsf/train.lsf",
        "#BSUB ",
        (
            '-J "{name}<[1-{seeds}]>"',
            "-n {slots}",
            '-R "span[ptile={cores}]"',
            "-W {minutes}",
            "-P {account}",
            "-q {queue}",
            '-R "rusage[mem={memory}GB/host]"',
            '-gpu "num={gpus}"',
        ),
        _LINES,
    ),
}


def times(text: str) -> dict[str, object]:
    """Return a time limit in the forms of all schedulers; ConfigError where SLURM could not read it."""
    match = _TIME.fullmatch(text)
    if not match:
        raise ConfigError(f"--time {text}: must be minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS, as in 4:00:00.")
    days, *parts = (int(part or 0) for part in match.groups())
    colons = text.count(":")
    if match[1] or colons == 2:
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = 0, *parts[:2]
    seconds += 3600 * (24 * days + hours) + 60 * minutes
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return {"time": text, "clock": clock, "minutes": -(-seconds // 60), "seconds": seconds}
