"""jobs/ec2/cluster against a local AWS: clusters that come and go, and all that is refused before one is made."""

import base64
import importlib.util
import io
import json
import os
import tarfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from botocore.stub import Stubber

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "jobs/ec2/cluster.yaml"
FROM = ("--ssh-from", "203.0.113.7/32")
PAPER = ("--preset", "paper-4", *FROM, "--yes")
EACH = ("--ranks-per-host", "2")


def nothing(account):
    return not any(account.holdings().values())


def test_up_status_down(account):
    made = account.cluster("up", "speech", *PAPER)
    assert made.returncode == 0, made.stderr
    held = account.holdings()
    assert held["stacks"] == ["speech"] and len(held["instances"]) == 4 and all(held.values()), held

    said = account.cluster("status").stdout.splitlines()
    assert said[0].startswith("speech: create complete, 4 of 4 x m5.2xlarge, 0.0 hours old, until ")
    assert sorted(line.split()[0] for line in said[1:]) == sorted(held["instances"])

    again = account.cluster("up", "speech", *PAPER)
    assert again.returncode == 2
    assert again.stderr.splitlines()[-1].endswith("eu-west-1 already has a stack speech. Choose another name.")
    assert account.holdings() == held

    gone = account.cluster("down", "speech")
    assert gone.returncode == 0, gone.stderr
    assert nothing(account)
    assert account.cluster("status").stdout == "no cluster in eu-west-1\n"


def test_a_cluster_is_tagged_and_closed_and_ends_by_itself(account):
    """Its group first, which would replace instances; then these, for good. More addresses than a /16 need a yes."""
    now = datetime.now(timezone.utc)
    open_to = ("--ssh-from", "203.0.0.0/15", "--yes-open")
    made = account.cluster("up", "speech", "--preset", "paper-4", *open_to, "--hours", "3", "--yes")
    assert made.returncode == 0, made.stderr
    assert "1.54 USD an hour (built-in" in made.stdout and "or for 3 hours, 4.61 USD; volumes" in made.stdout
    ec2 = account.client("ec2")
    tag = {"Key": "istmpi", "Value": "speech"}
    (group,) = (one for one in ec2.describe_security_groups()["SecurityGroups"] if one["GroupName"] != "default")
    (folder,) = account.client("efs").describe_file_systems()["FileSystems"]
    instances = [one for item in ec2.describe_instances()["Reservations"] for one in item["Instances"]]
    for tags in (group["Tags"], folder["Tags"], *(one["Tags"] for one in instances)):
        assert tag in tags
    assert folder["Encrypted"]
    rules = [
        (rule["IpProtocol"], rule.get("FromPort"), [one["CidrIp"] for one in rule["IpRanges"]],
         [one["GroupId"] for one in rule["UserIdGroupPairs"]])
        for rule in group["IpPermissions"]
    ]  # fmt: skip
    assert sorted(rules) == [("-1", None, [], [group["GroupId"]]), ("tcp", 22, ["203.0.0.0/15"], [])]
    (template,) = ec2.describe_launch_templates()["LaunchTemplates"]
    versions = ec2.describe_launch_template_versions(LaunchTemplateId=template["LaunchTemplateId"])
    data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert all(one["Ebs"]["Encrypted"] for one in data["BlockDeviceMappings"])
    assert "InstanceMarketOptions" not in data

    (end,) = account.client("autoscaling").describe_scheduled_actions()["ScheduledUpdateGroupActions"]
    (scaling,) = account.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    assert end["AutoScalingGroupName"] == scaling["AutoScalingGroupName"]
    assert [int(end[size]) for size in ("MinSize", "MaxSize", "DesiredCapacity")] == [0, 0, 0]
    until = end["StartTime"].strftime("%Y-%m-%dT%H:%M:%SZ")
    assert now + timedelta(hours=3, seconds=-1) <= end["StartTime"]
    assert end["StartTime"] <= datetime.now(timezone.utc) + timedelta(hours=3, minutes=2)
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert f"$(date -d '{until}' +%s)" in base64.b64decode(data["UserData"]).decode()
    assert until in account.cluster("status").stdout


def test_what_fails_half_way_is_removed(account):
    """The image does not exist, which is noticed when security group, shared folder and template are there."""
    account.client("ssm").put_parameter(Name="/gone", Type="String", Value="ami-00000000")
    failed = account.cluster("up", "speech", *PAPER, "--image", "/gone")
    assert failed.returncode == 2
    assert failed.stderr.splitlines()[-2:] == [
        "cluster: speech did not become ready; removing it",
        "cluster: speech: The image id '[ami-00000000]' does not exist (InvalidAMIID.NotFound)",
    ]
    assert nothing(account)


@pytest.fixture
def module(monkeypatch):
    """The module jobs/ec2/aws.py, for calls whose answers are written down here."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    spec = importlib.util.spec_from_file_location("ec2_aws", ROOT / "jobs/ec2/aws.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_price_list_is_read(module, monkeypatch):
    """An answer as AWS gives it: the local AWS has no price list."""
    asked = []
    aws = module.Aws("eu-west-1")
    prices = aws.session.client("pricing", "us-east-1")
    monkeypatch.setattr(aws.session, "client", lambda *_: prices)
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": "0.4280000000"}}
    product = {"terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}}
    prices.meta.events.register("provide-client-params", lambda params, **_: asked.extend(params["Filters"]))
    with Stubber(prices) as stubbed:
        stubbed.add_response("get_products", {"PriceList": [json.dumps(product)]})
        assert aws.price("m5.2xlarge") == (0.428, "price list")
    assert {"m5.2xlarge", "eu-west-1"} <= {one["Value"] for one in asked}


def test_instances_that_cannot_be_had_end_the_wait(module, monkeypatch, capsys):
    """CloudFormation itself would wait for them as long as it has patience."""
    monkeypatch.setattr(module, "_EVERY", 0)
    aws = module.Aws("eu-west-1")
    stack = "arn:aws:cloudformation:eu-west-1:123456789012:stack/speech/1"

    def state(status):
        return {"Stacks": [{"StackId": stack, "StackName": "speech", "CreationTime": 0, "StackStatus": status}]}

    group = {"LogicalResourceId": "Group", "ResourceType": "-", "Timestamp": 0, "ResourceStatus": "CREATE_IN_PROGRESS"}
    activity = {"ActivityId": "1", "AutoScalingGroupName": "speech-Group", "Cause": "-", "StartTime": 0}
    activity |= {"StatusCode": "Failed", "StatusMessage": "We have no g6.2xlarge in this zone"}
    with Stubber(aws.stacks) as stacks, Stubber(aws.groups) as groups:
        stacks.add_response("create_stack", {"StackId": stack})
        for resource in (group, group | {"PhysicalResourceId": "speech-Group"}):
            stacks.add_response("describe_stacks", state("CREATE_IN_PROGRESS"))
            stacks.add_response("describe_stack_resources", {"StackResources": [resource]})
        groups.add_response("describe_scaling_activities", {"Activities": [activity]})
        stacks.add_response("describe_stacks", state("CREATE_IN_PROGRESS"))
        stacks.add_response("delete_stack", {}, {"StackName": stack})
        stacks.add_response("describe_stacks", state("DELETE_IN_PROGRESS"))
        stacks.add_response("describe_stacks", state("DELETE_COMPLETE"))
        with pytest.raises(module.Refused, match="We have no g6.2xlarge in this zone"):
            aws.make("speech", {}, 60)
        stacks.assert_no_pending_responses()
        groups.assert_no_pending_responses()
    assert "removing it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("up", "a b; touch harm", *PAPER), "'a b; touch harm' cannot name a cluster: use letters, digits and hyphens"),
        (("up", "x", "--preset", "paper-4", "--instances", "0", *FROM), "--instances 0: must be at least 1."),
        (("up", "x", *FROM), "up: name a --preset, or --type or --gpus, and --instances."),
        (("up", "x", *PAPER, "--gpus", "8"), "--gpus 8: --type m5.2xlarge has no GPU. g6.48xlarge has enough."),
        (("up", "x", "--instances", "2", "--gpus", "16", *FROM), "the largest type that is known has 8 GPUs. Name a"),
        (("up", "x", "--type", "m5.2xlrage", "--instances", "2", *FROM),
         "--type m5.2xlrage: eu-west-1 has no such instance type; did you mean m5.2xlarge?"),
        (("--region", "eu-wset-1", "up", "x", *PAPER), "region eu-wset-1 does not exist; did you mean eu-west-1?"),
        (("up", "x", "--preset", "paper-2", "--ssh-from", "me"), "--ssh-from me: must be addresses like 203."),
        (("up", "x", "--preset", "paper-2", "--yes", "--ssh-from", "203.0.0.0/15"),
         "--ssh-from 203.0.0.0/15: allows 131,072 addresses; the limit is 65,536 (/16). Give your"),
        (("up", "x", *PAPER, "--hours", "999999999999"), "--hours 999999999999: must be from 1 to 720."),
        (("fetch", "x", "/etc"), "'/etc': must be a folder below /shared, such as runs/speech"),
        (("fetch", "x", "runs/../../etc"), "'runs/../../etc': must be a folder below /shared"),
        (("up", "x", *PAPER, "--key", "yours"), "--key yours: eu-west-1 has no such key pair; it has mine."),
        (("up", "x", *PAPER, "--subnet", "subnet-1"), "--subnet subnet-1: "),
        (("up", "x", "--preset", "gpu-2", *FROM), "there is no default subnet in a zone with g6.2xlarge (none in"),
        (("up", "x", "--preset", "paper-2", *FROM), "no terminal to ask on. Give --yes to start."),
        (("down", "x", "--patience", "nan"), "argument --patience: nan: must be a positive number of seconds"),
        (("run", "x", "--", "istmpi", "train"), "there is no cluster x in eu-west-1."),
        (("run", "x", "--send", TEMPLATE, "--send", TEMPLATE, "--", "istmpi", "train"),
         "--send: 2 files are called cluster.yaml, but all go to one folder. Rename them."),
        (("run", "x", "--send", "no such", "--", "istmpi", "train"), "--send no such: there is no such file."),
    ],
)  # fmt: skip
def test_refused_in_one_line_and_nothing_started(account, arguments, message):
    refused = account.cluster(*arguments)
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1, refused.stderr
    assert refused.stderr.startswith("cluster: ") and message in refused.stderr
    assert nothing(account)


def test_a_stack_of_another_is_never_removed(account):
    template = '{"Resources": {"Q": {"Type": "AWS::SQS::Queue"}}}'
    account.client("cloudformation").create_stack(StackName="theirs", TemplateBody=template)
    assert all(account.cluster(*words).returncode == 2 for words in (("down", "theirs"), ("up", "theirs", *PAPER)))
    assert account.holdings()["stacks"] == ["theirs"]


def test_the_cost_is_said_first(account):
    dry = account.cluster("up", "x", "--preset", "paper-8", *FROM, "--dry-run").stdout
    assert dry.startswith("cluster: 8 x m5.2xlarge on demand in eu-west-1: 0.384 USD an hour each, 3.07 USD an hour")
    account.client("ec2", "us-east-1").create_key_pair(KeyName="mine")
    gpu = ("--region", "us-east-1", "up", "x", "--preset", "gpu-2", *FROM)
    spot = account.cluster(*gpu, "--spot", "--dry-run")
    assert spot.stdout.startswith("cluster: 2 x g6.2xlarge spot in us-east-1: 1e-05 USD an hour each, 0.00 USD"), spot
    several = account.cluster(*gpu[:4], "--instances", "2", "--gpus", "3", *FROM, "--dry-run").stdout
    assert several.startswith("cluster: 2 x g6.12xlarge (4 GPUs each, of which 3 will train) on demand"), several
    unknown = account.cluster("up", "x", "--type", "c5.large", "--instances", "1", *FROM, "--dry-run")
    assert "unknown price (the price list cannot be read)" in unknown.stdout
    assert nothing(account)


@pytest.fixture
def inside(tmp_path):
    """The folder /shared of a cluster, and an environment in which ssh runs its command here instead."""
    shared, programs = tmp_path / "shared", tmp_path / "programs"
    shared.mkdir()
    programs.mkdir()
    scripts = {
        "ssh": 'printf "%s\\n" "${@:$#-1:1}" >>"$SHARED.ssh"; text=${!#}; exec bash -c "${text//\\/shared/$SHARED}"',
        "istmpi-hosts": 'printf "%s\\n" "$@" >hostfile',
        # Stopped the first time, as by a notice that a spot instance is taken back.
        "istmpi-run": 'printf "%s\\n" "$@" >>"$SHARED.run"; [ -e again ] || { touch again; exit 75; }',
    }
    for name, text in scripts.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    return shared, {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "SHARED": str(shared)}


def test_a_stopped_run_goes_on_and_no_name_is_executed(account, inside, tmp_path):
    shared, environment = inside
    assert account.cluster("up", "speech", *PAPER).returncode == 0
    file = tmp_path / "my 'run' $(touch harm) `touch harm`; touch harm #.toml"
    file.write_text("[train]\nrounds = 3\n")
    done = account.cluster(
        "run", "speech", "--send", file, "--", *EACH, "istmpi", "train", file, "--out", "runs/$(touch harm)",
        environment=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "cluster: the run was stopped and saved; restart 1 of 20" in done.stderr
    sent = shared / "sent" / file.name
    assert sent.read_text() == file.read_text()
    words = [
        *("--hosts", f"{shared}/hostfile", "--spot", *EACH, "istmpi", "train", "--resume", "auto"),
        *("--checkpoint-every", "10", str(sent), "--out", "runs/$(touch harm)"),
    ]  # fmt: skip
    assert shared.with_suffix(".run").read_text().splitlines() == 2 * words
    addresses = [line.split()[-1] for line in account.cluster("status").stdout.splitlines()[1:]]
    assert (shared / "hostfile").read_text().split() == addresses
    assert not list(tmp_path.rglob("harm"))

    (shared / "runs" / "speech").mkdir(parents=True)
    (shared / "runs" / "speech" / "summary.json").write_text("{}")
    here = tmp_path / "here"
    here.mkdir()
    assert account.cluster("fetch", "speech", environment=environment, cwd=here).returncode == 0
    assert (here / "runs" / "speech" / "summary.json").read_text() == "{}"
    os.link(shared / "runs" / "speech" / "summary.json", shared / "runs" / "speech" / "twice.json")
    assert account.cluster("fetch", "speech", environment=environment, cwd=here).returncode == 0
    assert (here / "runs" / "speech" / "twice.json").read_text() == "{}"
    nowhere = account.cluster("fetch", "speech", "nowhere", environment=environment, cwd=here)
    assert nowhere.returncode == 2 and "/shared/nowhere of speech could not be fetched" in nowhere.stderr


def member(name, content=b"harm", kind=tarfile.REGTYPE, link=""):
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, link, len(content) if kind == tarfile.REGTYPE else 0
    return found, io.BytesIO(content)


def test_what_an_instance_sends_stays_in_the_folder(account, inside, tmp_path):
    """An instance may send anything; links that are here already may lead anywhere."""
    shared, environment = inside
    assert account.cluster("up", "speech", *PAPER).returncode == 0
    here, other = tmp_path / "here", tmp_path / "other"
    (here / "runs").mkdir(parents=True)
    other.mkdir()
    (here / "runs" / "out").symlink_to(other)
    sent = [
        member("runs/good", b"good"), member(f"{other}/absolute"), member("../other/above"), member("runs/../beside"),
        member("beside"), member("runs/out/behind"), member("runs/in", kind=tarfile.SYMTYPE, link=str(other)),
        member("runs/in/behind"), member("runs/hard", kind=tarfile.LNKTYPE, link="/etc/passwd"),
        member("runs/pipe", kind=tarfile.FIFOTYPE), member("runs/device", kind=tarfile.CHRTYPE),
        member("runs/end", b"end"),
    ]  # fmt: skip
    with tarfile.open(shared.with_name("sent.tar"), "w") as packed:
        for one in sent:
            packed.addfile(*one)
    program = tmp_path / "programs" / "tar"
    program.write_text('#!/bin/sh\ncat "$SHARED/../sent.tar"\n')
    program.chmod(0o755)
    fetched = account.cluster("fetch", "speech", environment=environment, cwd=here)
    assert fetched.returncode == 2
    assert fetched.stderr.count("\n") == 1 and "speech: 9 entries were skipped" in fetched.stderr
    assert not list(other.iterdir()) and [path.name for path in here.iterdir()] == ["runs"]
    written = {path.name: path.read_bytes() for path in (here / "runs").rglob("*") if path.is_file()}
    assert written == {"good": b"good", "behind": b"harm", "end": b"end"} and not (here / "runs" / "in").is_symlink()

    shared.with_name("sent.tar").write_bytes(shared.with_name("sent.tar").read_bytes()[:700])
    cut = account.cluster("fetch", "speech", environment=environment, cwd=here)
    assert cut.returncode == 2 and cut.stderr.count("\n") == 1 and "could not be fetched" in cut.stderr
