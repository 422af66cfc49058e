"""A local stand-in for AWS (moto's server), started for these tests."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import boto3
import pytest
from patience import Limit, patient

ROOT = Path(__file__).parents[2]
REGION = "eu-west-1"
SESSION = boto3.Session("test", "test")
"""Of all tests, as it reads AWS's descriptions of its services."""


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", str(port)],
            env={**os.environ, "MOTO_ENABLE_AMI_VALIDATION": "1"},
            stdout=output,
            stderr=output,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        limit = Limit(60)
        while True:
            try:
                urllib.request.urlopen(f"{url}/moto-api/", timeout=patient(5)).close()
                break
            except OSError:
                assert server.poll() is None and limit.left, log.read_text()
                time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait(patient(20))


class Account:
    """What is in the account, beside what every account has from the start."""

    def __init__(self, endpoint):
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_ENDPOINT_URL": endpoint,
        }
        self._endpoint = endpoint

    def client(self, service, region=REGION):
        return SESSION.client(service, region, endpoint_url=self._endpoint)

    def holdings(self):
        """Everything that a cluster consists of, by kind."""
        ec2 = self.client("ec2")
        reservations = ec2.describe_instances()["Reservations"]
        instances = [one for reservation in reservations for one in reservation["Instances"]]
        groups = ec2.describe_security_groups()["SecurityGroups"]
        scaling = self.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
        shared = self.client("efs").describe_file_systems()["FileSystems"]
        return {
            "stacks": [one["StackName"] for one in self.client("cloudformation").describe_stacks()["Stacks"]],
            "instances": [one["InstanceId"] for one in instances if one["State"]["Name"] != "terminated"],
            "volumes": [one["VolumeId"] for one in ec2.describe_volumes()["Volumes"]],
            "security groups": [one["GroupId"] for one in groups if one["GroupName"] != "default"],
            "launch templates": [one["LaunchTemplateId"] for one in ec2.describe_launch_templates()["LaunchTemplates"]],
            "groups": [one["AutoScalingGroupName"] for one in scaling],
            "shared folders": [one["FileSystemId"] for one in shared],
        }

    def cluster(self, *arguments, environment=None, **settings):
        """Run jobs/ec2/cluster to its end."""
        return subprocess.run(
            [sys.executable, ROOT / "jobs/ec2/cluster", *map(str, arguments)],
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=patient(60),
            **{"stdin": subprocess.DEVNULL, **settings},
        )


@pytest.fixture
def account(endpoint):
    """An empty account with one key pair."""
    urllib.request.urlopen(
        urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST"), timeout=patient(20)
    ).close()
    found = Account(endpoint)
    found.client("ec2").create_key_pair(KeyName="mine")
    return found
