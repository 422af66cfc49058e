"""jobs/ec2/cluster against a local AWS: clusters that come and go, and all that is refused before one is made."""

import http.server
import importlib.util
import json
import os
import re
import subprocess
import threading
from pathlib import Path
from string import Template

import pytest
import yaml
from botocore.exceptions import ClientError
from botocore.stub import Stubber

ROOT = Path(__file__).parents[2]
FROM = ("--ssh-from", "203.0.113.7/32")
PAPER = ("--preset", "paper-4", *FROM, "--yes")


def nothing(account):
    return not any(account.holdings().values())


def test_up_status_down(account):
    made = account.cluster("up", "speech", *PAPER)
    assert made.returncode == 0, made.stderr
    held = account.holdings()
    assert held["stacks"] == ["speech"] and len(held["instances"]) == 4 and all(held.values()), held

    said = account.cluster("status").stdout.splitlines()
    assert said[0].startswith("speech: create complete, 4 of 4 x m5.2xlarge, 0.0 hours old")
    assert sorted(line.split()[0] for line in said[1:]) == sorted(held["instances"])

    again = account.cluster("up", "speech", *PAPER)
    assert again.returncode == 2
    assert again.stderr.splitlines()[-1].endswith("there is already a stack speech in eu-west-1; take another name.")
    assert account.holdings() == held

    gone = account.cluster("down", "speech")
    assert gone.returncode == 0, gone.stderr
    assert nothing(account)
    assert account.cluster("status").stdout == "no cluster in eu-west-1\n"


def test_everything_is_tagged_and_closed(account):
    assert account.cluster("up", "speech", *PAPER).returncode == 0
    ec2 = account.client("ec2")
    tag = {"Key": "istmpi", "Value": "speech"}
    (group,) = (one for one in ec2.describe_security_groups()["SecurityGroups"] if one["GroupName"] != "default")
    (folder,) = account.client("efs").describe_file_systems()["FileSystems"]
    instances = [one for item in ec2.describe_instances()["Reservations"] for one in item["Instances"]]
    for tags in (group["Tags"], folder["Tags"], *(one["Tags"] for one in instances)):
        assert tag in tags
    assert folder["Encrypted"]
    open_to = [
        (rule["IpProtocol"], rule.get("FromPort"), [one["CidrIp"] for one in rule["IpRanges"]],
         [one["GroupId"] for one in rule["UserIdGroupPairs"]])
        for rule in group["IpPermissions"]
    ]  # fmt: skip
    assert sorted(open_to) == [("-1", None, [], [group["GroupId"]]), ("tcp", 22, ["203.0.113.7/32"], [])]
    (template,) = ec2.describe_launch_templates()["LaunchTemplates"]
    versions = ec2.describe_launch_template_versions(LaunchTemplateId=template["LaunchTemplateId"])
    data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert all(one["Ebs"]["Encrypted"] for one in data["BlockDeviceMappings"])
    assert "InstanceMarketOptions" not in data


def test_what_fails_half_way_is_removed(account):
    """The image does not exist, which is noticed when security group, shared folder and template are there."""
    account.client("ssm").put_parameter(Name="/gone", Type="String", Value="ami-00000000")
    failed = account.cluster("up", "speech", *PAPER, "--image", "/gone")
    assert failed.returncode == 2
    assert failed.stderr.splitlines()[-2:] == [
        "cluster: speech did not get ready; removing what was made",
        "cluster: speech: The image id '[ami-00000000]' does not exist (InvalidAMIID.NotFound)",
    ]
    assert nothing(account)

    subnet = account.client("ec2").describe_subnets()["Subnets"][0]
    given = {
        "Vpc": subnet["VpcId"],
        "Subnet": subnet["SubnetId"],
        "KeyName": "mine",
        "SshFrom": FROM[1],
        "Image": "/gone",
    }
    with pytest.raises(ClientError, match="does not exist"):
        account.client("cloudformation").create_stack(
            StackName="speech",
            TemplateBody=(ROOT / "jobs/ec2/cluster.yaml").read_text(),
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
        )
    assert not nothing(account), "the failure was not half way"


def load_aws():
    spec = importlib.util.spec_from_file_location("ec2_aws", ROOT / "jobs/ec2/aws.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_instances_that_cannot_be_had_end_the_wait(monkeypatch, capsys):
    """CloudFormation itself would wait for them as long as it has patience."""
    for name, value in {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(name, value)
    module = load_aws()
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
        stacks.add_response("describe_stacks", state("CREATE_IN_PROGRESS"), {"StackName": stack})
        stacks.add_response("describe_stack_resources", {"StackResources": [group]})
        stacks.add_response("describe_stacks", state("CREATE_IN_PROGRESS"))
        group_with_name = group | {"PhysicalResourceId": "speech-Group"}
        stacks.add_response("describe_stack_resources", {"StackResources": [group_with_name]})
        groups.add_response("describe_scaling_activities", {"Activities": [activity]})
        stacks.add_response("describe_stacks", state("CREATE_IN_PROGRESS"))
        stacks.add_response("delete_stack", {}, {"StackName": stack})
        stacks.add_response("describe_stacks", state("DELETE_IN_PROGRESS"))
        stacks.add_response("describe_stacks", state("DELETE_COMPLETE"))
        with pytest.raises(module.Refused, match="We have no g6.2xlarge in this zone"):
            aws.make("speech", {}, 60)
        stacks.assert_no_pending_responses()
        groups.assert_no_pending_responses()
    assert "removing what was made" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("up", "a b; touch harm", *PAPER), "'a b; touch harm' cannot name a cluster: use letters, digits and hyphens"),
        (("up", "x", "--preset", "paper-4", "--instances", "0", *FROM), "--instances 0: must be at least 1."),
        (("up", "x", *FROM), "up: name a --preset, or --type and --instances."),
        (("up", "x", "--type", "m5.2xlrage", "--instances", "2", *FROM),
         "--type m5.2xlrage: there is no such instance type in eu-west-1; did you mean m5.2xlarge?"),
        (("--region", "eu-wset-1", "up", "x", *PAPER), "region eu-wset-1 does not exist; did you mean eu-west-1?"),
        (("up", "x", "--preset", "paper-2", "--ssh-from", "me"), "--ssh-from me: must be addresses like 203."),
        (("up", "x", "--preset", "paper-2", "--ssh-from", "0.0.0.0/0"), "would let the whole world knock"),
        (("up", "x", *PAPER, "--key", "yours"), "--key yours: eu-west-1 has no such key pair; it has mine."),
        (("up", "x", *PAPER, "--subnet", "subnet-1"), "--subnet subnet-1: "),
        (("up", "x", "--preset", "gpu-2", *FROM), "there is no default subnet in a zone with g6.2xlarge (none in"),
        (("up", "x", "--preset", "paper-2", *FROM), "nothing is started without a yes: --yes."),
        (("up", "x", "--preset", "paper-3", *FROM), "argument --preset: invalid choice: 'paper-3'"),
        (("down", "x"), "there is no cluster x in eu-west-1."),
        (("run", "x", "--", "istmpi", "train"), "there is no cluster x in eu-west-1."),
        (("run", "x", "--send", "no such", "--", "istmpi", "train"), "--send no such: there is no such file."),
    ],
)  # fmt: skip
def test_refused_in_one_line_and_nothing_started(account, arguments, message):
    refused = account.cluster(*arguments)
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1, refused.stderr
    assert refused.stderr.startswith(f"cluster: {message}") or message in refused.stderr
    assert nothing(account)


def test_no_credentials_and_no_region_are_said(account):
    bare = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    assert account.cluster("status", environment=bare).stderr == (
        "cluster: there are no AWS credentials. Run aws configure, or set AWS_PROFILE.\n"
    )
    nowhere = account.cluster("status", environment={"AWS_DEFAULT_REGION": ""})
    assert nowhere.returncode == 2
    assert nowhere.stderr == "cluster: no region is named. Say --region eu-central-1, or set AWS_REGION.\n"


def test_a_stack_of_another_is_never_removed(account):
    template = '{"Resources": {"Q": {"Type": "AWS::SQS::Queue"}}}'
    account.client("cloudformation").create_stack(StackName="theirs", TemplateBody=template)
    assert account.cluster("down", "theirs").returncode == 2
    assert account.cluster("up", "theirs", *PAPER).returncode == 2
    assert account.holdings()["stacks"] == ["theirs"]


def test_the_cost_is_said_first(account):
    dry = account.cluster("up", "x", "--preset", "paper-8", *FROM, "--dry-run")
    assert dry.stdout.startswith(
        "cluster: 8 x m5.2xlarge on demand in eu-west-1: 0.384 USD an hour each, 3.07 USD an hour"
    )
    account.client("ec2", "us-east-1").create_key_pair(KeyName="mine")
    gpu = ("--region", "us-east-1", "up", "x", "--preset", "gpu-2", *FROM)
    spot = account.cluster(*gpu, "--spot", "--dry-run")
    assert spot.stdout.startswith("cluster: 2 x g6.2xlarge spot in us-east-1: 1e-05 USD an hour each, 0.00 USD"), spot
    unknown = account.cluster("up", "x", "--type", "c5.large", "--instances", "1", *FROM, "--dry-run")
    assert "price not known (the price list could not be read)" in unknown.stdout
    assert nothing(account)


def test_the_price_list_is_read(account):
    """An answer as AWS gives it, from a server of our own: the local AWS has no price list."""
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": "0.4280000000"}}
    product = {"terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}}
    asked = []

    class PriceList(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps({"PriceList": [json.dumps(product)]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), PriceList) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = {"AWS_ENDPOINT_URL_PRICING": f"http://127.0.0.1:{server.server_port}"}
        dry = account.cluster("up", "x", "--preset", "paper-2", *FROM, "--dry-run", environment=url)
        server.shutdown()
    assert "0.428 USD an hour each, 0.86 USD an hour (price list)" in dry.stdout, dry.stderr
    wanted = {one["Field"]: one["Value"] for one in asked[0]["Filters"]}
    assert wanted["instanceType"] == "m5.2xlarge" and wanted["regionCode"] == "eu-west-1"


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
        "run", "speech", "--send", file, "--", "istmpi", "train", file, "--out", "runs/$(touch harm)",
        environment=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "cluster: the run was stopped and saved; restart 1 of 20" in done.stderr
    sent = shared / "sent" / file.name
    assert sent.read_text() == file.read_text()
    words = [
        "--hosts", f"{shared}/hostfile", "--spot", "istmpi", "train", "--resume", "auto", "--checkpoint-every", "10",
        str(sent), "--out", "runs/$(touch harm)",
    ]  # fmt: skip
    assert shared.with_suffix(".run").read_text().splitlines() == 2 * words
    addresses = [line.split()[-1] for line in account.cluster("status").stdout.splitlines()[1:]]
    assert (shared / "hostfile").read_text().split() == addresses
    assert not list(tmp_path.rglob("harm"))

    other = account.cluster("run", "speech", "--", "istmpi", "doctor", environment=environment)
    assert other.returncode == 0, other.stderr

    (shared / "runs" / "speech").mkdir(parents=True)
    (shared / "runs" / "speech" / "summary.json").write_text("{}")
    here = tmp_path / "here"
    here.mkdir()
    assert account.cluster("fetch", "speech", environment=environment, cwd=here).returncode == 0
    assert (here / "runs" / "speech" / "summary.json").read_text() == "{}"
    nowhere = account.cluster("fetch", "speech", "nowhere", environment=environment, cwd=here)
    assert nowhere.returncode == 2 and "/shared/nowhere of speech could not be fetched" in nowhere.stderr


def test_the_template_has_nothing_to_complain_about():
    linted = subprocess.run(["cfn-lint", ROOT / "jobs/ec2/cluster.yaml"], capture_output=True, text=True)
    assert linted.returncode == 0 and not linted.stdout + linted.stderr


def test_parallelcluster_takes_its_configuration(monkeypatch):
    schema = pytest.importorskip("pcluster.schemas.cluster_schema", reason="needs pip install aws-parallelcluster")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    text = Template((ROOT / "jobs/ec2/parallelcluster.yaml").read_text())
    filled = text.substitute(SUBNET="subnet-0123456789abcdef0", KEY="mine", SSH_FROM=FROM[1])
    loaded = schema.ClusterSchema(cluster_name="istmpi").load(yaml.safe_load(filled))
    assert [queue.name for queue in loaded.scheduling.queues] == ["cpu", "spot", "gpu"]
    assert all(queue.networking.placement_group.enabled for queue in loaded.scheduling.queues)
    assert loaded.imds.imds_support == "v2.0"


@pytest.fixture(scope="module")
def setup_script():
    """What an instance runs when it starts, as CloudFormation would hand it over."""

    class Loader(yaml.SafeLoader):
        """Takes !Sub and its like for what stands behind them."""

    Loader.add_multi_constructor("!", lambda loader, tag, node: getattr(node, "value", None))
    template = yaml.load((ROOT / "jobs/ec2/cluster.yaml").read_text(), Loader)
    data = template["Resources"]["Instance"]["Properties"]["LaunchTemplateData"]
    text = data["UserData"]["Fn::Base64"]
    return re.sub(r"\$\{([\w:]+)\}", lambda name: f"value-of-{name[1].replace(':', '')}", text)


def test_the_setup_script_is_sound(setup_script):
    assert len(setup_script) < 16_000, "EC2 takes no more"
    checked = subprocess.run(["shellcheck", "-"], input=setup_script, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_list_of_hosts_is_written(setup_script, tmp_path):
    program = re.search(r"<<'END'\n(.*?)^END$", setup_script, re.M | re.S)[1].replace("/shared", str(tmp_path))
    (tmp_path / ".cluster/hosts").mkdir(parents=True)
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        (tmp_path / ".cluster/hosts" / address).touch()

    def hosts(*addresses):
        subprocess.run(["bash", "-c", program, "istmpi-hosts", *addresses], check=True, timeout=20)
        return (tmp_path / "hostfile").read_text().split()

    assert hosts() == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert hosts("10.0.0.3", "10.0.0.1") == ["10.0.0.3", "10.0.0.1"]
