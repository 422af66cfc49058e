"""Print scripts that run istmpi on SLURM, PBS, LSF and EC2.

A script is a template of job_scripts/, filled in for one run. Texts from the user are quoted, never
executed.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from istmpi.cli.job_check import check, find_folder, join_each_host, require_files
from istmpi.cli.options import MOST_RANKS, flag, text, whole
from istmpi.cli.scripts import (
    TEMPLATES,
    fill_directives,
    list_options,
    print_script,
    read_template,
)
from istmpi.config import Run
from istmpi.environment import read
from istmpi.errors import ConfigError
from istmpi.foreign import read_toml

_LONGEST_DAYS = 365

_RUN = click.argument("run")
_OPTIONS = click.argument("options", nargs=-1, type=click.UNPROCESSED)


@click.group("job")
def command() -> None:
    """Print scripts that run istmpi on SLURM, PBS, LSF and EC2, ready to submit."""


@click.command("slurm")
@_RUN
@_OPTIONS
@whole("--nodes", "N", "Nodes, one rank on each.", 1, MOST_RANKS)
@whole("--cores", "N", "Cores of each node; by default 8, with SLURM all.", 1, 10_000)
@text("--time", "TIME", "Time limit: minutes, H:M:S or D-H (4:00:00; with --compare 12:00:00).")
@click.option("--partition", "--queue", "queue", metavar="NAME", help="Partition, or queue.")
@text("--account", "NAME", "Account, or project, that pays.")
@whole("--memory", "GB", "Memory of each node.", 1, 1_000_000)
@flag("--compare", "Compare several methods in turn: istmpi compare.")
@whole(
    "--gpus",
    "N",
    "GPUs of each node. The node's processes, one for each, are a replica group; after --, "
    "--group-size 1 makes each a rank.",
    1,
    MOST_RANKS,
)
@whole("--sockets", "N", "Sockets of each node, with a process for each, as with --gpus.", 1, 64)
@whole("--seeds", "N", "Train with the seeds 1 to N, by an array of jobs.", 2, 10_000)
@text("--modules", "NAME,NAME,...", "Environment modules to load.")
@click.option(
    "--launcher",
    type=click.Choice(["pmix", "pmi2", "mpirun"]),
    help="Launcher; by default, one that works.",
)
@text("--interface", "NAME", "Network interface between the nodes.")
@text("--stage", "FILE", "Copy FILE to each node's local disk first.", multiple=True)
@flag("--stage-venv", "Copy the virtual environment, too.")
@whole("--restarts", "N", "SLURM: times to be queued again (20).", 0, 1000)
@whole(
    "--relaunch",
    "N",
    "Times to resume inside the job without lost nodes (3; not with --compare).",
    0,
)
@click.pass_context
def _script(context: click.Context, run: str, options: tuple[str, ...], **parameters: Any) -> None:
    """Print a job script that trains RUN. Give options of istmpi train or istmpi compare after --.

    \b
    istmpi job slurm speech --nodes 8 --time 4:00:00 -- --lr 0.01 | sbatch
    istmpi job pbs speech --nodes 8 --cores 16 > speech.pbs && qsub speech.pbs
    istmpi job lsf speech --nodes 8 --cores 16 | bsub
    """
    form = context.info_name or ""
    table = read_toml(TEMPLATES / "schedulers.toml", "Install istmpi again.")
    scheduler = table[form]
    parameters = {key: value for key, value in parameters.items() if value is not None}
    per_node = _count_processes(parameters)
    # At least a core for each process.
    cores = parameters.get("cores", max(8, per_node))
    _require_sound(parameters, options, scheduler, per_node, cores)
    compare = parameters["compare"]
    if not compare:
        options = join_each_host(run, options, per_node)
    verb = "compare" if compare else "train"
    # A comparison trains several methods in turn.
    limits = _limits(parameters.get("time", "12:00:00" if compare else "4:00:00"))
    nodes = parameters.get("nodes", 1)
    resolved = check((run, *options), nodes * per_node, verb, limits["seconds"] / 60, nodes=nodes)
    require_files(resolved)
    _require_folders(resolved.output.folder, parameters)
    fields = _list_fields(parameters, limits, run, per_node, cores)
    lines = _list_environment(parameters.get("modules"))
    lines.append(f"OPTIONS=({shlex.join(_list_launch_options(parameters, scheduler))})")
    lines += [line.format_map(fields) for line in scheduler["lines"]]
    template = read_template(scheduler["template"].format(verb=verb))
    template = fill_directives(template, scheduler, fields, table["examples"])
    print_script(template, form, lines, (run, *options))


def _require_folders(folder: str, parameters: Mapping[str, Any]) -> None:
    """Raise ConfigError if all seeds would train in the same folder."""
    if "seeds" in parameters and folder:
        raise ConfigError(
            f"--out {folder}: with --seeds each seed has a folder. Set ISTMPI_RUNS instead."
        )


def _list_fields(
    parameters: Mapping[str, Any], limits: Mapping[str, Any], run: str, ranks: int, cores: int
) -> dict[str, Any]:
    """Return the values that a template's lines may name."""
    fields = {"nodes": 2, "ranks": ranks, "name": job_name(run), **parameters, **limits}
    fields["start"] = "compare" if parameters["compare"] else "train --resume auto"
    if "cores" in parameters:
        fields["threads"] = cores // ranks
    else:
        fields["cores"] = cores
    fields["slots"] = fields["nodes"] * cores
    return fields


def _require_sound(
    parameters: Mapping[str, Any],
    options: Sequence[str],
    scheduler: Mapping[str, Any],
    ranks: int,
    cores: int,
) -> None:
    """Raise UsageError or ConfigError for options that do not fit each other or this machine."""
    if parameters["compare"] and parameters.get("relaunch"):
        raise click.UsageError(
            "--relaunch may change the number of ranks, so it does not go with --compare."
        )
    if parameters["compare"] and "seeds" in parameters:
        raise click.UsageError(
            "--seeds is for a single method; give istmpi compare --repeats after --."
        )
    if "restarts" in parameters and "restarts" not in scheduler["options"]:
        raise click.UsageError("--restarts is for istmpi job slurm only.")
    if cores < ranks:
        option = "--gpus" if "gpus" in parameters else "--sockets"
        raise ConfigError(f"--cores {cores}: must be at least {option}, {ranks}.")
    if "seeds" in parameters and re.search(r"--seed|train\.seed=", " ".join(options)):
        raise ConfigError("--seed: with --seeds the seeds are 1 to N. Leave it out.")
    for file in parameters["stage"]:
        if not Path(file).is_file():
            raise ConfigError(f"--stage {file} does not exist.")
    # These stand in directives, which no shell quotes.
    for option in ("queue", "account"):
        if option in parameters and not re.fullmatch(r"[\w.,@%+/:=-]+", parameters[option]):
            raise ConfigError(
                f"--{option} {parameters[option]}: must be letters, digits and .,@%+/:=-."
            )


def _list_launch_options(parameters: Mapping[str, Any], scheduler: Mapping[str, Any]) -> list[str]:
    """Return the options of ``istmpi-run`` in the script."""
    values = {
        "restarts": 20,
        # A comparison must keep its number of ranks, so it is not resumed on fewer nodes.
        "relaunch": None if parameters["compare"] else 3,
        "ranks-per-host": parameters.get("gpus"),
        "sockets": None,
    }
    values |= parameters
    words = list_options({key: values.get(key) for key in scheduler["options"]})
    for file in parameters["stage"]:
        words += ["--stage", file]
    if parameters["stage_venv"]:
        words.append("--stage-venv")
    return words


def _list_environment(modules: str | None) -> list[str]:
    """Return the lines that make a job's environment this one: modules, folder of runs, path."""
    lines = []
    if modules:
        lines.append(f"module load {shlex.join(modules.split(','))}")
    if "ISTMPI_RUNS" in os.environ:
        lines.append(f"export ISTMPI_RUNS={shlex.quote(read('ISTMPI_RUNS'))}")
    path = [str(Path(sys.executable).parent)]
    # In a checkout, `job_scripts` is a link, and istmpi-run lies beside its target.
    programs = TEMPLATES.resolve().parent / "bin"
    if programs.is_dir():
        path.insert(0, str(programs))
    lines.append(f"PATH={shlex.quote(':'.join(path))}:$PATH")
    return lines


for _name in ("slurm", "pbs", "lsf"):
    command.add_command(_script, _name)


def _limits(text: str) -> dict[str, Any]:
    """Return a time limit as schedulers write it: texts, whole minutes and seconds."""
    match = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d\d))?(?::(\d\d))?", text)
    rule = "minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS, such as 4:00:00"
    if text.upper() in ("UNLIMITED", "INFINITE"):
        raise ConfigError(
            f"--time {text}: a job must have an end, so that it can save before. Give {rule}."
        )
    if not match:
        raise ConfigError(f"--time {text}: must be {rule}.")
    if match[3] and not match[1] and not match[4]:
        raise ConfigError(
            f"--time {text}: must be {rule}. {text} is minutes and seconds to SLURM, hours and "
            "minutes to LSF."
        )
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] or match[4]:
        seconds = third + 60 * (second + 60 * (first + 24 * days))
    else:
        seconds = 60 * first
    if seconds > _LONGEST_DAYS * 86_400:
        raise ConfigError(f"--time {text}: must be at most {_LONGEST_DAYS} days.")
    # Schedulers differ in the form; whole minutes are rounded up, not to end a job early.
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return {"time": text, "clock": clock, "minutes": -(-seconds // 60), "seconds": seconds}


@command.command("ec2")
@_RUN
@_OPTIONS
@whole("--instances", "N", "Instances, one rank on each.", 1, MOST_RANKS, required=True)
@whole("--gpus", "N", "GPUs of each instance, which train its subnet together.", 1, 64)
@whole("--sockets", "N", "Sockets of each instance, with a process for each.", 1, 64)
@text("--type", "TYPE", "Instance type; by default m5.2xlarge, with --gpus one with L4 GPUs.")
@flag(
    "--spot",
    "Use spot instances: cheaper, but AWS may reclaim them; the run then resumes on others.",
)
@text("--region", "NAME", "AWS region; by default that of the AWS command line.")
@text("--key", "NAME", "Key pair to log in with; by default $KEY when the script runs.")
@text(
    "--ssh-from", "CIDR", "Addresses that may log in, such as 203.0.113.7/32; by default $SSH_FROM."
)
@flag("--yes-open", "Allow --ssh-from more addresses than a /16.")
@whole("--hours", "N", "Hours after which the instances terminate themselves.", 1, 720, default=24)
@text(
    "--package", "REQUIREMENT", "Requirement for pip on the instances: a version or a git address."
)
def ec2(
    run: str,
    options: tuple[str, ...],
    key: str | None,
    ssh_from: str | None,
    **parameters: Any,
) -> None:
    """Print a script that makes a cluster on EC2, trains RUN there, fetches the results and removes
    the cluster.

    \b
    istmpi job ec2 speech --instances 8 --ssh-from 203.0.113.7/32 -- --lr 0.01 > speech.sh
    bash speech.sh        # prints the cost, and asks

    Give options of istmpi train after --. A run file and a data file are sent along if this machine
    has them.
    """
    instances = parameters["instances"]
    per_host = _count_processes(parameters)
    options = join_each_host(run, options, per_host)
    resolved = check((run, *options), instances * per_host, nodes=instances)
    each = {"ranks-per-host": parameters["gpus"], "sockets": parameters["sockets"]}
    arguments = [run, *options]
    if Path(resolved.data.source).is_file():
        arguments += ["--data", resolved.data.source]
    lines = [
        f"NAME={shlex.quote(f'istmpi-{job_name(run)}'[:40].strip('-'))}",
        f"CLUSTER={shlex.quote(str(TEMPLATES / 'ec2' / 'cluster'))}",
        f"REGION=({shlex.join(list_options({'region': parameters['region'] or None}))})",
        f"UP=({shlex.join(_list_cluster_options(parameters))})",
        f"SEND=({shlex.join(_list_sent(run, resolved.data.source))})",
        f"EACH=({shlex.join(list_options(each))})",
        f"FOLDER={shlex.quote(str(_find_shared_folder(resolved)))}",
    ]
    for name, value in {"KEY": key, "SSH_FROM": ssh_from}.items():
        if value:
            lines.append(f"{name}={shlex.quote(value)}")
    print_script(read_template("ec2/train.sh"), "ec2", lines, arguments)


def _count_processes(parameters: Mapping[str, Any]) -> int:
    """Return the processes of a node. Raises UsageError if two options say so."""
    gpus = parameters.get("gpus")
    sockets = parameters.get("sockets")
    if gpus and sockets:
        raise click.UsageError("--gpus and --sockets both say how many processes a node has.")
    return gpus or sockets or 1


def _list_sent(*names: str) -> list[str]:
    """Return the options of ``cluster run`` for files of this machine, which instances lack."""
    words = []
    for name in names:
        if Path(name).is_file():
            words += ["--send", name]
    return words


def _find_shared_folder(run: Run) -> Path:
    """Return the run's folder below /shared. Raises ConfigError if it is elsewhere."""
    out = Path(run.output.folder or f"runs/{run.name}")
    if out.is_absolute() or ".." in out.parts:
        raise ConfigError(
            f"--out {out}: on EC2 a run's folder is under /shared; give a relative path without .."
        )
    return out


def _list_cluster_options(parameters: Mapping[str, Any]) -> list[str]:
    """Return the options of ``cluster up`` in the script."""
    options = {name: parameters[name] for name in ("instances", "type", "gpus", "hours")}
    # `cluster up` knows types with GPUs.
    if options["gpus"] is None and options["type"] is None:
        options["type"] = "m5.2xlarge"
    words = list_options(options)
    if parameters["spot"]:
        words.append("--spot")
    if parameters["yes_open"]:
        words.append("--yes-open")
    return words + list_options({"package": parameters["package"] or None})


@command.command("folder")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@whole("--ranks", "P", "Processes of the run.", 1, MOST_RANKS, default=1)
@whole("--nodes", "N", "Hosts of the run.", 1, MOST_RANKS, default=1)
def folder(arguments: tuple[str, ...], ranks: int, nodes: int) -> None:
    """Check a run as istmpi train would in P processes and print its folder: istmpi job folder --
    RUN [options].

    Job scripts call this first.
    """
    run = check(arguments, ranks, runs_code=True, nodes=nodes)
    click.echo(find_folder(arguments, run))


def job_name(run: str) -> str:
    """Return a run's name for schedulers and clouds: at most 40 letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", Path(run).stem).strip("-")[:40] or "istmpi"
