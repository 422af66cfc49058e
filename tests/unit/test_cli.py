"""The command line without MPI: help, plans, what it refuses, and what it must not import."""

import os
import re
import subprocess
import sys

import click
import pytest
from curves import curve

from istmpi.cli.main import istmpi
from istmpi.cli.run_options import OPTIONS, resolve
from istmpi.config.methods import METHODS
from istmpi.errors import ConfigError

COMMAND = "from istmpi.cli.main import main; main()"
PROGRAM = [sys.executable, "-c", COMMAND]


def resolved(run="digits", assignments=(), **given):
    """The run that a command line gives; of its options the others are left out."""
    return resolve(run, assignments, {option.lstrip("-").replace("-", "_"): None for option in OPTIONS} | given)


def test_a_plan_under_a_launcher_is_of_its_ranks_and_is_printed_once(forked):
    """Processes know each other by the environment that they began with."""
    launched, words = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "COLUMNS": "40"}, ["train", "--dry-run", "--group-size"]
    first, second = (forked(*words, 1, PMI_RANK=rank, **launched).stdout for rank in "01")
    assert "ist on 2 ranks" in first and "hidden1.linear.weight" in first.split() and second == ""
    began = os.environ | launched | {"PMI_RANK": "0"}
    done = subprocess.run([*PROGRAM, *words, "host"], capture_output=True, text=True, check=True, env=began)
    assert "ist on 1 rank," in done.stdout and "1 replica group of 2: " in done.stdout


def test_looking_around_and_planning_import_neither_torch_nor_mpi(tmp_path):
    """Plans for the data of a run, which are made last, open them, and they may be HDF5; the others open nothing."""
    curve("ist", [0.5, 0.7]).save(tmp_path / "curve.json")
    helped = ("train", "prepare", "checkpoint", "evaluate", "predict", "export", "compare", "report")
    commands = [["--help"], ["runs"], *([name, "--help"] for name in helped), ["report", str(tmp_path)]]
    commands += [["settings"], ["settings", "--schema"], ["settings", "xc"]]
    commands += [["costmodel", *words] for words in (["--advise"], ["xc", "--layers", "99-20-50"], GRAPH)]
    of_data = [["costmodel", "digits", "--compare", "all"], ["train", "--dry-run", "--ranks", "512"]]
    program = (
        "import sys, json; from istmpi.cli.main import istmpi; sys.argv[0] = 'istmpi'\n"
        f"for words in {commands + of_data!r}:\n"
        "    istmpi(words, standalone_mode=False)\n"
        "    loaded = [name for name in ('torch', 'mpi4py', 'matplotlib', 'h5py') if name in sys.modules]\n"
        f"    assert loaded == ['h5py'] * (words in {of_data!r}), (words, loaded)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


GRAPH = ["graph", "--layers", "128-64-40", "--nodes", "1000", "--degree", "20"]


def test_help_lists_every_command_with_its_own_words():
    context = click.Context(istmpi)
    listed = istmpi.get_help(context)
    for name in istmpi.list_commands(context):
        assert istmpi.get_command(context, name).help
        assert re.search(rf"^  {name} +[A-Z]\w+\W.*\w", listed, re.MULTILINE), name


def test_a_command_line_overrides_a_run_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[model]\nhidden = [64]\n[optimizer]\nlr = 0.5\n[method]\nlocal_steps = 3")
    changed = ("model.norm=layer", "method.optimizer_state = carry")
    run = resolved(str(file), changed, hidden="32,16", threads="auto", data="1.npz")
    assert (run.name, run.model.hidden, run.model.norm) == ("mine", (32, 16), "layer")
    assert (run.optimizer.lr, run.method.local_steps, run.train.threads) == (0.5, 3, 0)
    assert (run.method.optimizer_state, run.data.source) == ("carry", "1.npz")
    for text in ("it's 1.h5", "'1.h5", "it s 1.h5"):
        assert resolved(assignments=(f"data.source={text}",)).data.source == text
    assert resolved(assignments=('data.source="it s 1.h5"',)).data.source == "it s 1.h5", "quotes as in a run file"
    with pytest.raises(ConfigError, match="--shares 1;2"):
        resolved(shares="1;2")


MAKE = {"a pipe": os.mkfifo, "a folder": os.mkdir, "a device": lambda path: path.symlink_to("/dev/zero")}


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize(
    "words", ["train --dry-run --data x.h5", "costmodel --cluster x.json", "prepare csv x.csv y.h5"]
)
def test_what_is_no_file_is_refused_and_not_waited_for(refusal, tmp_path, monkeypatch, kind, words):
    monkeypatch.chdir(tmp_path)
    (name,) = re.findall(r"x\.\w+", words)
    MAKE[kind](tmp_path / name)
    said = refusal(*words.split())
    assert name in said and (f"is {kind}" in said or kind == "a folder" and name == "x.csv")


@pytest.mark.parametrize(
    "words, message",
    [
        ("trian", "no command trian; did you mean train?"),
        ("train digit --dry-run", "did you mean digits?"),
        ("train --label-smoothing 0.1", "no option --label-smoothing; it is --set train.label_smoothing=VALUE."),
        ("train --data / --dry-run", "data / is a folder; it must be a file. Use istmpi prepare (speech, images, idx,"),
        ("export /usr --to torch", "/usr is a folder. Give a file in it; list them: istmpi checkpoint ls /usr"),
        ("costmodel --advise --json", "--json does not go with --advise."),
        ("costmodel --advise --ranks 2", "--ranks does not go with --advise."),
        ("train --method lst --dry-run", "method.name = 'lst' is not known; did you mean ist?"),
        ("train --method fedavg --finish local-sgd:9% --dry-run", "does not go with fedavg"),
        ("train --finish local-sdg:9% --rounds 1 --dry-run", "method.finish = 'local-sdg' is not known; did you mean"),
        ("train --rounds 8 --set train.rounds=7", "--rounds 8 and --set train.rounds=7 both set train.rounds. Leave"),
        ("train --set train.batch=1 --set train.batch=2", "--set train.batch=1 and --set train.batch=2 both set"),
        ("train --model nets.py --dry-run", "model.name = 'nets.py' is not known. Give your network as FILE.py:Class"),
        ("train --hidden 64,x --dry-run", "--hidden 64,x must be numbers separated by commas"),
        ("train --dry-run --set data.transforms=[Rotation(15)]", "must be a list of texts, which the shell must not"),
        ("train --set model.norm --dry-run", "--set model.norm must be SECTION.KEY=VALUE"),
        ("train --data nowhere.h5 --dry-run", "nowhere.h5 does not exist"),
        ("train --batch 1 --dry-run", "train.batch = 1 with model.norm = 'batch': batch statistics need at least 2"),
        ("train --batch 1 --set model.norm=layer --set model.output_norm=true --dry-run", "= 1 with model.output_norm"),
        ("train --dry-run --set train.class_weights=[1,2]", "= [1.0, 2.0] must be 'balanced' or a list of 10"),
        ("train --dry-run --set optimizer.least_lr=0.01", "least_lr = 0.01 has no effect with schedule = 'con"),
        ("train --schedule cosine --set optimizer.milestones=[0.3]", "milestones = [0.3] has no effect"),
        ("train --dry-run --ranks 513", "hidden1 has 512 units, but the run has 513 ranks"),
        ("train --dry-run --set method.wire=int8 --finish codistillation:50%", "does not go with codistillation"),
        ("train --dry-run --set method.wire=bfloat16 --set model.dtype=float64", "model.dtype = 'float64'"),
        ("train --ranks 4", "--ranks needs --dry-run"),
        ("train --dry-run --method joint --group-size host", "train.group_size = host does not go with method joint"),
        ("train --dry-run --batch 3 --group-size host", "train.batch = 3 leaves a member of 2 fewer than two examples"),
        ("train --dry-run --cluster 1gbit --group-size host", "= host: seconds and memory need the processes"),
        ("costmodel digits --set train.group_size=0", "= host: seconds and memory need the processes of a group"),
        ("costmodel digits --set train.group_size=2 --compare joint", "= 2 does not go with method joint"),
        ("costmodel xc --layers 99-20-9 --set train.group_size=2 --advise", "= 2 does not go with sparse rows, whose"),
        ("train --gpu", "no option --gpu. See: istmpi train --help"),
        ("compare --method ist", "no option --method; did you mean --methods? See: istmpi compare --help"),
        ("simulate --set train.group_size=2", "train.group_size = 2 is for istmpi train under mpirun"),
        (f"simulate --schedules {'9' * 23}", "must be a whole number, 1 to 100,000"),
        (f"simulate --faults {'9' * 23}", "must be a whole number below 2^63, at least 0"),
        ("compare --repeats 0", "must be a whole number, 1 to 1,000"),
        ("train --dry-run --ranks 1_0", "'1_0' must be a whole number, 1 to 100,000. See: istmpi train --help"),
        ("predict a.h5 digits --temperature \u0661", "'\u0661' must be a number, at least 0"),
        ("doctor --patience nan", "--patience"),
        ("prepare csv", "Missing argument 'SRC'. See: istmpi prepare --help"),
        ("settings zzz", "no setting zzz. List all: istmpi settings"),
        ("train --dry-run --data d{rank}.npz --set data.placement=sharded", "Leave placement out"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(refusal, words, message):
    assert message in refusal(*words.split())


def full():
    return os.open("/dev/full", os.O_WRONLY)


def hung_up():
    """A terminal that is gone, as that of a program in the background is after its user."""
    ours, its = os.openpty()
    os.close(ours)
    return its


@pytest.mark.parametrize(
    "words, output, why",
    [("--version", full, "No space left on device"), ("report --help", hung_up, "Input/output error")],
)
def test_a_standard_output_that_takes_nothing_is_one_line_and_exit_code_74(words, output, why):
    with open(output(), "w") as refusing:
        done = subprocess.run([*PROGRAM, *words.split()], stdout=refusing, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 74, done.stderr
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"istmpi: cannot write to standard output ({why})")


UNREAD_OUTPUT = f"import os; reading, writing = os.pipe(); os.close(reading); os.dup2(writing, 1); {COMMAND}"


def test_a_reader_that_leaves_or_a_closed_output_ends_no_command(forked, tmp_path):
    train = ["train", "--rounds", "2", "--hidden", "8", "--out", tmp_path / "run"]
    for words in (["costmodel"], train):
        done = forked(*words, program=UNREAD_OUTPUT)
        assert (done.returncode, done.stderr) == (0, ""), words
    assert (tmp_path / "run" / "network.h5").exists()
    done = forked("runs", program=f"import os; os.close(1); {COMMAND}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words, message, rank",
    [
        ("report nowhere", "nowhere does not exist.", 0),
        ("costmodel digit", "did you mean digits?", 3),
        ("train digit --dry-run", "did you mean digits?", 3),
    ],
)
def test_a_command_that_needs_no_mpi_tells_its_own_error_whatever_started_it(forked, words, message, rank):
    result = forked(*words.split(), OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_SIZE="4")
    assert result.returncode == 2
    assert message in result.stderr and "ranks were started" not in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("istmpi: rank 3: " if rank else "istmpi: ")


def test_a_shell_gets_words_and_nothing_else_at_tab(istmpi_command, monkeypatch):
    monkeypatch.setenv("_ISTMPI_COMPLETE", "bash_complete")
    offered = {
        "istmpi checkpoint sh": ["show"],
        "istmpi train --outer": ["--outer-momentum"],
        "istmpi train --method str": ["streaming-diloco"],
        "istmpi train --model res": ["", "resnet"],  # or a file
        "istmpi train --set optimizer.mil": ["optimizer.milestones="],
        "istmpi train spe": ["", "speech"],
        "istmpi compare --methods ist,na": ["ist,narrow"],
        "istmpi nothing --a": [],
    }
    for words, expected in offered.items():
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        _, out, err = istmpi_command()
        answers = [answer.partition(",")[2] for answer in out.splitlines()]
        assert (answers, err) == (expected, ""), words


OUTER = ("data-parallel", "dynamic-averaging", "codistillation", "admm", "easgd", "downpour", "joint")
UNREAD = {
    "method.outer_lr=0.5": OUTER,
    "method.outer_momentum=0.5": OUTER,
    "method.wire=int8": (*OUTER[1:-1], "streaming-diloco", "sparse-loco"),
    "method.optimizer_state=carry": (*OUTER[:1], *OUTER[2:], "streaming-diloco", "sparse-loco"),
    "method.local_steps=3": ("fedavg",),
    "method.delay=1": [name for name in METHODS if name not in ("ist", "streaming-diloco")],
    "method.redeal=0.5": [name for name in METHODS if name != "ist"],
    "method.penalty=0.5": [name for name in METHODS if name != "admm"],
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("assignment", UNREAD)
def test_a_setting_that_the_method_does_not_read_is_refused(assignment, method):
    setting = assignment.partition("=")[0]
    if method not in UNREAD[assignment]:
        resolved(assignments=(assignment,), method=method)
        return
    with pytest.raises(ConfigError, match=f"{setting} = .* has no effect with {method}. Leave it out, or use "):
        resolved(assignments=(assignment,), method=method)


@pytest.mark.parametrize("assignment", UNREAD)
def test_a_setting_that_one_of_several_methods_reads_is_taken(assignment):
    options = {option.lstrip("-").replace("-", "_"): None for option in OPTIONS}
    resolve("digits", (assignment,), options, methods=("ist", "admm", "diloco", "local-sgd"))


def test_a_method_of_the_command_line_drops_what_only_the_file_s_method_reads(tmp_path):
    (tmp_path / "run.toml").write_text('[method]\nname = "ist"\nredeal = 0.1\nlocal_steps = 7\n')
    run = resolved(str(tmp_path / "run.toml"), method="diloco")
    assert (run.method.redeal, run.method.local_steps) == (1.0, 7)
    (tmp_path / "run.toml").write_text('[method]\nname = "diloco"\nredeal = 0.1\n')
    with pytest.raises(ConfigError, match="method.redeal = 0.1 has no effect with diloco. Leave it out, or use ist."):
        resolved(str(tmp_path / "run.toml"))


def test_a_rank_that_a_launcher_terminates_while_it_leaves_keeps_its_exit_code(forked):
    """srun and mpirun do so when another rank has left; with 143 a job script would queue the job again."""
    done = forked(
        "train", "nowhere.toml", program=f"import atexit, os; atexit.register(os.kill, os.getpid(), 15); {COMMAND}"
    )
    assert done.returncode == 2, done.stderr


def test_a_name_that_the_locale_cannot_show_ends_no_command(tmp_path):
    rows = "".join(f"{row},{'Kätzchen' if row % 2 else '犬'}\n" for row in range(20))
    (tmp_path / "table.csv").write_text(f"a,b\n{rows}", encoding="utf-8")
    words = ["prepare", "csv", tmp_path / "table.csv", tmp_path / "table.h5"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    result = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, env=environment)
    assert (result.returncode, result.stderr) == (0, "") and "\\u72ac" in result.stdout


def test_a_run_whose_standard_streams_are_closed_trains(forked, tmp_path):
    """Else the first opened file has the number of standard output. PyTorch's compiler is not imported."""
    program = f"import atexit, os, pathlib, sys; imported = pathlib.Path({str(tmp_path / 'imported')!r})\n"
    program += "atexit.register(lambda: imported.write_text(str('torch._dynamo' in sys.modules)))\n"
    words = ["train", "--rounds", 1, "--out", tmp_path / "run", "--hidden", 8, "--local-steps", 2]
    assert forked(*words, program=f"{program}os.closerange(0, 3); {COMMAND}").returncode == 0
    assert (tmp_path / "run" / "network.h5").exists() and (tmp_path / "imported").read_text() == "False"
