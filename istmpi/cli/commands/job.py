"""``istmpi job``: scripts for schedulers and clouds, and what those scripts ask istmpi."""

import shlex
from pathlib import Path

import click

from istmpi.cli.completion import complete_runs
from istmpi.cli.quantities import MOST_RANKS, WholeRange
from istmpi.cli.settings import resolve
from istmpi.config import Run
from istmpi.errors import ConfigError
from istmpi.files import appearing
from istmpi.names import is_own


@click.group("job")
def command() -> None:
    """Scripts that run istmpi on SLURM and EC2, printed ready to be submitted."""


@command.command("slurm", short_help="Print a job script that trains a run.")
@click.argument("run", shell_complete=complete_runs)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option("--nodes", type=WholeRange(1, MOST_RANKS), metavar="N", help="Nodes, one rank on each.")
@click.option("--time", metavar="TIME", help="Time limit: minutes, H:M:S or D-H.")
@click.option("--partition", metavar="NAME", help="As of sbatch.")
@click.option("--account", metavar="NAME", help="As of sbatch.")
@click.option("--qos", metavar="NAME", help="As of sbatch.")
@click.option("--array", metavar="N,N,...", help="A scaling run: one task for each of these numbers of nodes.")
@click.option("--compare", is_flag=True, help="Several methods in turn: istmpi compare.")
@click.option("--gpus", type=WholeRange(1, MOST_RANKS), metavar="N", help="GPUs, and ranks, on each node.")
@click.option("--modules", metavar="NAME,NAME,...", help="Environment modules to load.")
@click.option(
    "--launcher", type=click.Choice(["pmix", "pmi2", "mpirun"]), help="Start ranks so; by default the first that works."
)
@click.option("--interface", metavar="NAME", help="Network interface between the nodes.")
@click.option("--stage", multiple=True, metavar="FILE", help="Copy it to each node's local disk first.")
@click.option("--stage-venv", is_flag=True, help="Copy the virtual environment there, too.")
@click.option("--restarts", type=WholeRange(0, 1000), default=20, metavar="N", help="Times to be queued again (20).")
@click.option(
    "--relaunch",
    type=WholeRange(min=0),
    metavar="N",
    help="Times to go on at once, inside the job, without lost nodes (3; not with --array and --compare).",
)
def slurm(
    run: str,
    options: tuple[str, ...],
    nodes: int | None,
    array: str | None,
    compare: bool,
    gpus: int | None,
    modules: str | None,
    launcher: str | None,
    interface: str | None,
    stage: tuple[str, ...],
    stage_venv: bool,
    restarts: int,
    relaunch: int | None,
    **settings: str | None,
) -> None:
    """Print a job script that trains RUN. Options of istmpi train, or of istmpi compare with --compare, go behind --.

    \b
    istmpi job slurm speech --nodes 8 --time 4:00:00 -- --lr 0.01 > speech.sbatch
    istmpi job slurm speech --array 1,2,4,8 | sbatch
    """
    from istmpi.jobs import Slurm, job_name

    if compare and array:
        raise click.UsageError("--compare and --array are two scripts; name one.")
    if relaunch and (compare or array):
        raise click.UsageError("--relaunch may change the number of ranks: it is for one run alone.")
    if relaunch is None and not (compare or array):
        relaunch = 3
    for file in stage:
        if not Path(file).is_file():
            raise ConfigError(f"--stage {file}: there is no such file.")
    given = {"job-name": job_name(run)} | {name: value for name, value in settings.items() if value is not None}
    if array:
        given["array"] = array
    if gpus:
        given |= {"gpus-per-node": str(gpus), "ntasks-per-node": str(gpus)}
    start = {
        "--restarts": restarts,
        "--relaunch": relaunch,
        "--launcher": launcher,
        "--interface": interface,
        "--ranks-per-host": gpus,
    }
    words = [word for option, value in start.items() if value is not None for word in (option, str(value))]
    words += [word for file in stage for word in ("--stage", file)] + ["--stage-venv"] * stage_venv
    script = "compare" if compare else "scaling" if array else "train"
    arguments = (run, *options)
    job = Slurm(script, nodes, given, (modules or "").split(",") if modules else (), words, arguments)
    text = job.text()
    most = max(map(int, array.split(","))) if array else nodes or 1
    check(arguments, most * (gpus or 1), "compare" if compare else "train")
    _print_script(text)


@command.command("ec2", short_help="Print a script that trains a run on a cluster it makes on EC2.")
@click.argument("run", shell_complete=complete_runs)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--instances", type=WholeRange(1, MOST_RANKS), required=True, metavar="N", help="Instances, one rank on each."
)
@click.option("--type", "kind", default="m5.2xlarge", metavar="TYPE", help="Their type (m5.2xlarge).")
@click.option("--spot", is_flag=True, help="Cheaper ones, which may be taken back; the run is then resumed on others.")
@click.option("--region", metavar="NAME", help="Else as the AWS command line has it.")
@click.option("--key", metavar="NAME", help="The key pair to log in with; else $KEY when the script runs.")
@click.option("--ssh-from", metavar="CIDR", help="Who may log in, as 203.0.113.7/32; else $SSH_FROM.")
@click.option("--yes-open", is_flag=True, help="Let that be more addresses than a /16.")
@click.option(
    "--hours",
    type=WholeRange(1, 720),
    default=24,
    metavar="N",
    help="They end by themselves after it (24).",
)
@click.option("--package", metavar="REQUIREMENT", help="What pip installs there: a version, or an address of git.")
def ec2(
    run: str,
    options: tuple[str, ...],
    instances: int,
    kind: str,
    spot: bool,
    region: str | None,
    key: str | None,
    ssh_from: str | None,
    yes_open: bool,
    hours: int,
    package: str | None,
) -> None:
    """Print a script that makes a cluster on EC2, trains RUN there, brings the results here and removes the cluster.

    \b
    istmpi job ec2 speech --instances 8 --ssh-from 203.0.113.7/32 -- --lr 0.01 > speech.sh
    bash speech.sh        # says what it costs, and asks

    Options of istmpi train go behind --. A run file and a data file of this machine are sent along.
    """
    from istmpi.jobs import Ec2, job_name
    from istmpi.record import home

    resolved = check((run, *options), instances)
    out = home(resolved.output.folder, resolved.name)
    if out.is_absolute() or ".." in out.parts:
        raise ConfigError(
            f"--out {out}: on EC2 a run's folder lies below /shared; name it without .. and no / in front."
        )
    arguments = (run, *options)
    files = [run] if Path(run).is_file() else []
    data = resolved.data.source
    if Path(data).is_file():
        files.append(data)
        arguments += ("--data", data)
    up = ["--instances", str(instances), "--type", kind, "--hours", str(hours)]
    up += ["--spot"] * spot + ["--yes-open"] * yes_open
    up += ["--package", package] if package else []
    given = {name: value for name, value in {"KEY": key, "SSH_FROM": ssh_from}.items() if value}
    name = f"istmpi-{job_name(run)}"[:40].strip("-")
    _print_script(Ec2(name, region, up, given, files, str(out), arguments).text())


@command.command("folder", short_help="Check a run as train would, and print its folder.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--ranks", type=WholeRange(1, MOST_RANKS), default=1, metavar="P", help="Ranks that shall train.")
def folder(arguments: tuple[str, ...], ranks: int) -> None:
    """Check a run as istmpi train would on P ranks, and print its folder: istmpi job folder -- RUN [options].

    Job scripts ask this before they start anything.
    """
    from istmpi.record import home

    run = check(arguments, ranks)
    click.echo(home(run.output.folder, run.name))


@command.command("table", short_help="Print a table of the finished runs in a folder.")
@click.argument("folder", type=click.Path(path_type=Path))
def show_table(folder: Path) -> None:
    """Print a table of the finished runs in FOLDER's folders, and write it to FOLDER/table.md."""
    from istmpi.report.scaling import TABLE, table

    text = table(folder)
    if not text:
        raise ConfigError(f"{folder}: no folder in it has the summary of a finished run.")
    with appearing(folder / TABLE) as file:
        file.write(text.encode())
    click.echo(text, nl=False)


def _print_script(text: str) -> None:
    for line in text.split("\n"):
        if not line.replace("\t", "").isprintable():
            raise ConfigError(f"the script would have a line that cannot be printed: {line}. Name it otherwise.")
    click.echo(text, nl=False)


def check(arguments: tuple[str, ...], ranks: int, verb: str = "train") -> Run:
    """The run of a command line of istmpi train or compare; refused if it could not be trained on so many ranks."""
    from istmpi.cli.main import istmpi
    from istmpi.cli.networks import described
    from istmpi.cost import phase_costs
    from istmpi.methods import spec_of

    with click.Context(istmpi) as context:
        command = istmpi.get_command(context, verb)
    if command is None:
        raise ConfigError(f"this istmpi has no command {verb}.")
    given = command.make_context(f"istmpi {verb} {shlex.join(arguments)}", list(arguments)).params
    run = resolve(given.pop("run"), given.pop("assignments"), given)
    if is_own(run.model.name):
        return run.with_implied()  # what it deals out is found where it trains
    found = described(run, None)
    methods = given["methods"].split(",") if verb == "compare" else [found.run.method.name]
    for name in methods:
        if verb == "compare":
            spec_of(name, "--methods:")
        phase_costs(found.run.override({"method.name": name}), found.architecture, ranks)
    return found.run
