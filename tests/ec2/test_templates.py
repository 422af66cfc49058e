"""The templates of jobs/ec2: they are sound, and so is the script that an instance runs when it starts."""

import os
import re
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path
from string import Template

import pytest
import yaml
from patience import patient

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "jobs/ec2/cluster.yaml"


class Loader(yaml.SafeLoader):
    """Takes !Sub and its like for what stands behind them."""


Loader.add_multi_constructor("!", lambda loader, tag, node: getattr(node, "value", None))


def test_the_template_has_nothing_to_complain_about():
    linted = subprocess.run(["cfn-lint", TEMPLATE], capture_output=True, text=True)
    assert linted.returncode == 0 and not linted.stdout + linted.stderr


def test_parallelcluster_takes_its_configuration(monkeypatch):
    schema = pytest.importorskip("pcluster.schemas.cluster_schema", reason="needs pip install aws-parallelcluster")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    text = Template((ROOT / "jobs/ec2/parallelcluster.yaml").read_text())
    filled = text.substitute(SUBNET="subnet-0123456789abcdef0", KEY="mine", SSH_FROM="203.0.113.7/32")
    loaded = schema.ClusterSchema(cluster_name="istmpi").load(yaml.safe_load(filled))
    assert [queue.name for queue in loaded.scheduling.queues] == ["cpu", "spot", "gpu"]
    assert all(queue.networking.placement_group.enabled for queue in loaded.scheduling.queues)
    assert loaded.imds.imds_support == "v2.0"


def test_more_addresses_than_a_16_need_a_yes_of_the_template():
    pattern = re.compile(yaml.load(TEMPLATE.read_text(), Loader)["Parameters"]["SshFrom"]["AllowedPattern"])
    for given, narrow in (("203.0.0.0/16", True), ("203.0.0.0/15", False), ("0.0.0.0/0", False)):
        assert bool(pattern.fullmatch(given)) == narrow
        assert pattern.fullmatch(f"open:{given}")


@pytest.fixture(scope="module")
def setup_script():
    """What an instance runs when it starts, as CloudFormation would hand it over."""
    instance = yaml.load(TEMPLATE.read_text(), Loader)["Resources"]["Instance"]
    text = instance["Properties"]["LaunchTemplateData"]["UserData"]["Fn::Base64"]
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
        subprocess.run(["bash", "-c", program, "istmpi-hosts", *addresses], check=True, timeout=patient(20))
        return (tmp_path / "hostfile").read_text().split()

    assert hosts() == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert hosts("10.0.0.3", "10.0.0.1") == ["10.0.0.3", "10.0.0.1"]


def test_the_instance_itself_asks_for_its_end(setup_script, tmp_path):
    """Before anything that could fail. One that starts after the end has an hour."""
    lines = setup_script.splitlines()
    (left,) = (number for number, line in enumerate(lines) if line.startswith("left="))
    assert not any(line.startswith(("dnf", "tell", "trap", "timeout")) for line in lines[: left + 1])
    (tmp_path / "shutdown").write_text('#!/bin/bash\necho "$@"\n')
    (tmp_path / "shutdown").chmod(0o755)

    def shutdown(end):
        text = "\n".join(lines[left : left + 2]).replace("value-of-Until", f"{end:%Y-%m-%dT%H:%M:%SZ}")
        environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run(["bash", "-euc", text], env=environment, capture_output=True, text=True).stdout.split()

    now = datetime.now(timezone.utc)
    option, minutes = shutdown(now + timedelta(hours=24))
    assert option == "-h" and 1442 <= int(minutes.removeprefix("+")) <= 1445
    assert shutdown(now - timedelta(hours=1)) == ["-h", "+60"]
