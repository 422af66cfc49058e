"""An AWS account in one region, and the stacks of istmpi's clusters."""

import json
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from difflib import get_close_matches
from pathlib import Path
from typing import Any

try:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError
except ImportError:
    sys.exit("cluster: needs boto3. Install it: pip install 'istmpi[ec2]'.")

TEMPLATE = Path(__file__).resolve().with_name("cluster.yaml")
TAG = "istmpi"
BUILT_IN_PRICES = {"m5.2xlarge": 0.384, "g6.2xlarge": 0.9776}
"""US dollars an hour in us-east-1, used if the price list cannot be read."""

_EVERY = 5
"""Seconds between two queries of a stack's status."""


class Refused(Exception):
    """An operation that cannot be done; the message is one line."""


class Aws:
    """An account in one region. Raises Refused if there is no such region."""

    def __init__(self, region: str | None):
        session = boto3.Session(region_name=region)
        self.region = session.region_name
        if not self.region:
            raise NoRegionError
        regions = [
            name for part in session.get_available_partitions() for name in session.get_available_regions("ec2", part)
        ]
        if self.region not in regions:
            near = get_close_matches(self.region, regions, 1)
            meant = f"; did you mean {near[0]}?" if near else ", or boto3 is too old to know it."
            raise Refused(f"region {self.region} does not exist{meant}")
        if session.get_credentials() is None:
            raise NoCredentialsError
        self.session = session
        self.ec2 = session.client("ec2")
        self.stacks = session.client("cloudformation")
        self.groups = session.client("autoscaling")

    def instance_type(self, name: str) -> dict[str, Any]:
        try:
            return self.ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"][0]
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("InvalidInstanceType", "InvalidParameterValue"):
                raise
            pages = self.ec2.get_paginator("describe_instance_types").paginate()
            near = get_close_matches(name, [one["InstanceType"] for page in pages for one in page["InstanceTypes"]], 1)
            meant = f"; did you mean {near[0]}?" if near else "."
            raise Refused(f"--type {name}: {self.region} has no such instance type{meant}") from None

    def subnet(self, wanted: str | None, kind: str) -> dict[str, Any]:
        """Return the subnet ``wanted``, or a default one, in a zone with ``kind``. Raises Refused if there is none."""
        filters = [{"Name": "instance-type", "Values": [kind]}]
        offers = self.ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=filters)
        zones = sorted(one["Location"] for one in offers["InstanceTypeOfferings"])
        if wanted:
            try:
                found = self.ec2.describe_subnets(SubnetIds=[wanted])["Subnets"]
            except ClientError as error:
                raise Refused(f"--subnet {wanted}: {said(error)}") from None
        else:
            filters = [{"Name": "default-for-az", "Values": ["true"]}]
            found = self.ec2.describe_subnets(Filters=filters)["Subnets"]
        usable = [subnet for subnet in found if subnet["AvailabilityZone"] in zones]
        if not usable:
            subnet = f"--subnet {wanted} is not" if wanted else "there is no default subnet"
            raise Refused(
                f"{subnet} in a zone with {kind} ({', '.join(zones) or f'none in {self.region}'}). "
                "Name one that gives public addresses: --subnet ID."
            )
        return min(usable, key=lambda subnet: subnet["AvailabilityZone"])

    def key(self, wanted: str | None) -> str:
        """Return ``wanted``, or for None the name of the only key pair. Raises Refused without such a pair."""
        names = [pair["KeyName"] for pair in self.ec2.describe_key_pairs()["KeyPairs"]]
        if wanted in names or (wanted is None and len(names) == 1):
            return wanted or names[0]
        known = (
            f"it has {', '.join(sorted(names)[:8])}"
            if names
            else "it has no key pair; make one: aws ec2 create-key-pair"
        )
        said = (
            f"--key {wanted}: {self.region} has no such key pair"
            if wanted
            else "name the key pair to log in with: --key"
        )
        raise Refused(f"{said}; {known}.")

    def price(self, kind: str) -> tuple[float | None, str]:
        """Return the on-demand price in US dollars an hour (None if unknown), and the source of the price."""
        wanted = {
            "instanceType": kind,
            "regionCode": self.region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
        try:
            # The price list of all regions is kept in a few.
            answer = self.session.client("pricing", "us-east-1").get_products(ServiceCode="AmazonEC2", Filters=filters)
            terms = json.loads(answer["PriceList"][0])["terms"]["OnDemand"]
            (dimension,) = next(iter(terms.values()))["priceDimensions"].values()
            return float(dimension["pricePerUnit"]["USD"]), "price list"
        except (BotoCoreError, ClientError, LookupError, ValueError):
            if kind in BUILT_IN_PRICES:
                return BUILT_IN_PRICES[kind], "built-in price of us-east-1, because the price list cannot be read"
            return None, "the price list cannot be read"

    def spot_price(self, kind: str, zone: str) -> tuple[float | None, str]:
        """Return the spot price in a zone in US dollars an hour (None if there is none), and a remark on it."""
        history = self.ec2.describe_spot_price_history(
            InstanceTypes=[kind],
            ProductDescriptions=["Linux/UNIX"],
            AvailabilityZone=zone,
            StartTime=datetime.now(timezone.utc),
        )["SpotPriceHistory"]
        return (float(history[0]["SpotPrice"]), f"now, in {zone}") if history else (None, f"no spot price in {zone}")

    # -- stacks

    def clusters(self) -> list[dict[str, Any]]:
        """Return CloudFormation's descriptions of the stacks that `up` has made."""
        pages = self.stacks.get_paginator("describe_stacks").paginate()
        return [stack for page in pages for stack in page["Stacks"] if any(tag["Key"] == TAG for tag in stack["Tags"])]

    def cluster(self, name: str) -> dict[str, Any]:
        for stack in self.clusters():
            if stack["StackName"] == name:
                return stack
        raise Refused(f"there is no cluster {name} in {self.region}.")

    def instances(self, name: str) -> list[dict[str, Any]]:
        """Return a cluster's instances that run or start, the oldest first."""
        filters = [
            {"Name": f"tag:{TAG}", "Values": [name]},
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
        pages = self.ec2.get_paginator("describe_instances").paginate(Filters=filters)
        found = [one for page in pages for reservation in page["Reservations"] for one in reservation["Instances"]]
        return sorted(found, key=lambda one: (one["LaunchTime"], one["InstanceId"]))

    def make(self, name: str, parameters: Mapping[str, str], patience: float) -> None:
        """Make a cluster and wait until it is ready. A cluster that fails is removed, and the reason is raised."""
        stack = name
        try:
            stack = self.stacks.create_stack(
                StackName=name,
                TemplateBody=TEMPLATE.read_text(encoding="utf-8"),
                Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
                Tags=[{"Key": TAG, "Value": name}],
                OnFailure="DELETE",
            )["StackId"]
            self._wait_until_made(stack, patience)
        except BaseException as error:
            if isinstance(error, ClientError) and error.response["Error"]["Code"] == "AlreadyExistsException":
                raise Refused(f"{self.region} already has a stack {name}. Choose another name.") from None
            print(f"cluster: {name} did not become ready; removing it", file=sys.stderr)
            self.remove(stack, patience)
            if isinstance(error, ClientError):
                raise Refused(f"{name}: {said(error)}") from None
            raise

    def remove(self, stack: str, patience: float) -> None:
        """Remove a stack, if it exists, and wait until it is gone. Raises Refused if that fails."""
        try:
            stack = self.stacks.describe_stacks(StackName=stack)["Stacks"][0]["StackId"]
        except ClientError:
            return
        self.stacks.delete_stack(StackName=stack)
        deadline = time.monotonic() + patience
        while (status := self._status(stack)) != "DELETE_COMPLETE":
            if status == "DELETE_FAILED":
                raise Refused(
                    f"the stack was not completely removed: {self._first_failure(stack)}. Try again: cluster down."
                )
            _pause(deadline, patience, status)

    def _wait_until_made(self, stack: str, patience: float) -> None:
        deadline = time.monotonic() + patience
        while (status := self._status(stack)) != "CREATE_COMPLETE":
            reason = self._no_instances(stack) if status == "CREATE_IN_PROGRESS" else self._first_failure(stack)
            if reason:
                raise Refused(f"{reason}.")
            _pause(deadline, patience, status)

    def _status(self, stack: str) -> str:
        return self.stacks.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]

    def _first_failure(self, stack: str) -> str:
        events = self.stacks.describe_stack_events(StackName=stack)["StackEvents"]
        failed = [one for one in events if one["ResourceStatus"].endswith("FAILED") and "ResourceStatusReason" in one]
        if not failed:
            return "CloudFormation gives no reason"
        return f"{failed[-1]['LogicalResourceId']}: {failed[-1]['ResourceStatusReason']}"

    def _no_instances(self, stack: str) -> str:
        """Return the reason why the group cannot start instances; "" if it can."""
        resources = self.stacks.describe_stack_resources(StackName=stack)["StackResources"]
        for group in (one.get("PhysicalResourceId") for one in resources if one["LogicalResourceId"] == "Group"):
            if group:
                activities = self.groups.describe_scaling_activities(AutoScalingGroupName=group)["Activities"]
                return next((one["StatusMessage"] for one in activities if one["StatusCode"] == "Failed"), "")
        return ""


def said(error: ClientError) -> str:
    """Return an AWS error's message and code."""
    return f"{error.response['Error'].get('Message') or error} ({error.response['Error'].get('Code')})"


def _pause(deadline: float, patience: float, status: str) -> None:
    if time.monotonic() > deadline:
        raise Refused(f"still {status.lower().replace('_', ' ')} after {patience:.0f} s.")
    time.sleep(_EVERY)
