"""The emulator's own rules, each with its legal neighbour: small templates, no CDK."""

from __future__ import annotations

import io
import json
import subprocess
import time
import zipfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.engines.emulator.client import ROOT, SERVER_PYTHON, Emulator, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

Resources = dict[str, Any]
BUCKET = "sagemaker-scripts"
GONE = "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com"
SEED = 4  # one under which the route comes before the attachment
SCHEMAS = ROOT / "tests/engines/emulator/schemas.json"


def ref(name: str) -> Resources:
    return {"Ref": name}


def att(name: str, attribute: str) -> Resources:
    return {"Fn::GetAtt": [name, attribute]}


def resource(kind: str, depends: list[str] | None = None, **properties: Any) -> Resources:
    return {"Type": f"AWS::{kind}", "Properties": properties, "DependsOn": depends or []}


class Cloud:
    """CloudFormation without the waiting."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.cloudformation = emulator.client("cloudformation")

    def deploy(self, stack: str, resources: Resources, **sections: Any) -> str:
        """Create or update, and return the status it ends in."""
        body = json.dumps({"Resources": resources, **sections})
        call = self.cloudformation.update_stack if self.status(stack) else self.cloudformation.create_stack
        call(StackName=stack, TemplateBody=body, Capabilities=["CAPABILITY_NAMED_IAM"])
        return self.settle(stack)

    def delete(self, stack: str) -> str:
        stack_id = self.cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackId"]
        self.cloudformation.delete_stack(StackName=stack)
        return self.settle(stack_id)

    def settle(self, stack: str) -> str:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            status = self.status(stack) or "DELETE_COMPLETE"
            if not status.endswith("_IN_PROGRESS"):
                return status
            time.sleep(0.02)
        raise TimeoutError(stack)

    def status(self, stack: str) -> str | None:
        try:
            return self.cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
        except ClientError:
            return None

    def reason(self, stack: str, logical_id: str | None = None) -> str:
        """Why the latest failure happened, or the latest of one resource."""
        events = self.cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
        for event in events:
            name = event["LogicalResourceId"]
            if event["ResourceStatus"].endswith("_FAILED") and name != stack and logical_id in (None, name):
                return f"{name}: {event['ResourceStatusReason']}"
        return "nothing failed"

    def physical_id(self, stack: str, logical_id: str) -> str:
        detail = self.cloudformation.describe_stack_resource(StackName=stack, LogicalResourceId=logical_id)
        return detail["StackResourceDetail"]["PhysicalResourceId"]

    def refuses(self, resources: Resources) -> str:
        """The reason; the stack is rolled back and gone afterwards."""
        assert self.deploy("refused", resources) == "ROLLBACK_COMPLETE", "it was accepted"
        reason = self.reason("refused")
        assert self.delete("refused") == "DELETE_COMPLETE"
        return reason

    def accepts(self, resources: Resources) -> None:
        status = self.deploy("accepted", resources)
        reason = self.reason("accepted")
        assert self.delete("accepted") == "DELETE_COMPLETE", self.reason("accepted")
        assert status == "CREATE_COMPLETE", reason


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(state=tmp_path_factory.mktemp("emulator")) as running:
        s3 = running.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        for script in ("on_create.sh", "on_init_complete.sh"):
            s3.put_object(Bucket=BUCKET, Key=f"life/{script}", Body=b"#!/bin/sh\n")
        yield running


@pytest.fixture
def cloud(emulator: Emulator) -> Iterator[Cloud]:
    cloud = Cloud(emulator)
    yield cloud
    emulator.faults()
    for _ in range(3):
        live = [s["StackName"] for s in cloud.cloudformation.describe_stacks()["Stacks"]]
        for stack in live:
            cloud.delete(stack)


def ground(block: str = "10.0.0.0/16", subnet: str = "10.0.0.0/20") -> Resources:
    """A VPC, a subnet, and a security group fit for EFA."""
    everything = {"GroupId": att("Sg", "GroupId"), "IpProtocol": "-1"}
    return {
        "Vpc": resource("EC2::VPC", CidrBlock=block, EnableDnsSupport=True, EnableDnsHostnames=True),
        "Subnet": resource("EC2::Subnet", VpcId=ref("Vpc"), CidrBlock=subnet, AvailabilityZoneId="use1-az2"),
        "Sg": resource(
            "EC2::SecurityGroup",
            GroupDescription="nodes",
            VpcId=ref("Vpc"),
            SecurityGroupEgress=[
                {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "CidrIp": "0.0.0.0/0"}
            ],
        ),
        "SelfIn": resource(
            "EC2::SecurityGroupIngress", SourceSecurityGroupId=att("Sg", "GroupId"), **everything
        ),
        "SelfOut": resource(
            "EC2::SecurityGroupEgress", DestinationSecurityGroupId=att("Sg", "GroupId"), **everything
        ),
    }


def lustre(**changes: Any) -> Resources:
    """EFA-enabled, one storage and one metadata server."""
    configuration: Resources = {
        "DeploymentType": "PERSISTENT_2",
        "PerUnitStorageThroughput": 1000,
        "EfaEnabled": True,
        "MetadataConfiguration": {"Mode": "AUTOMATIC"},
    }
    for key in [k for k in changes if k in configuration or k == "AutomaticBackupRetentionDays"]:
        configuration[key] = changes.pop(key)
    properties = {
        "FileSystemType": "LUSTRE",
        "FileSystemTypeVersion": "2.15",
        "StorageCapacity": 4800,
        "StorageType": "SSD",
        "SubnetIds": [ref("Subnet")],
        "SecurityGroupIds": [att("Sg", "GroupId")],
        "LustreConfiguration": {k: v for k, v in configuration.items() if v is not None},
    } | changes
    return resource("FSx::FileSystem", ["SelfIn", "SelfOut"], **properties)


def role(*actions: str, service: str = "sagemaker.amazonaws.com") -> Resources:
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    return resource(
        "IAM::Role",
        AssumeRolePolicyDocument={
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}],
        },
        Policies=[{"PolicyName": "p", "PolicyDocument": {"Version": "2012-10-17", "Statement": [statement]}}],
    )


def group(name: str, node: str, count: int = 1, instance: str = "ml.c5.large", **more: Any) -> Resources:
    slurm = {"NodeType": node} | ({"PartitionNames": ["gpu"]} if node == "Compute" else {})
    life = {"SourceS3Uri": f"s3://{BUCKET}/life", "OnInitComplete": "on_init_complete.sh"}
    return {
        "InstanceGroupName": name,
        "InstanceType": instance,
        "InstanceCount": count,
        "ExecutionRole": att("Role", "Arn"),
        "LifeCycleConfig": life,
        "SlurmConfig": slurm,
    } | more


def slurm(*groups: Resources, orchestrator: Resources | None = None, **properties: Any) -> Resources:
    """Everything a cluster needs, and the cluster."""
    cluster = {
        "ClusterName": "train",
        "NodeProvisioningMode": "Continuous",
        "Orchestrator": orchestrator or {"Slurm": {}},
        "VpcConfig": {"Subnets": [ref("Subnet")], "SecurityGroupIds": [att("Sg", "GroupId")]},
        "InstanceGroups": list(groups)
        or [group("head", "Controller"), group("gpu", "Compute", 2, "ml.p5.48xlarge")],
    } | properties
    return ground() | {
        "Role": role("s3:*", "ec2:*", "fsx:DescribeFileSystems"),
        "Cluster": resource("SageMaker::Cluster", ["SelfIn", "SelfOut"], **cluster),
    }


def without(resources: Resources, *names: str) -> Resources:
    kept = {n: deepcopy(r) for n, r in resources.items() if n not in names}
    for r in kept.values():
        r["DependsOn"] = [d for d in r.get("DependsOn", []) if d in kept]
    return kept


# Schema


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"Colour": "red"}, "Additional properties are not allowed"),
        ({"StorageCapacity": "much"}, "is not of type 'integer'"),
        ({"DNSName": "mine"}, "Encountered readOnly property [/properties/DNSName]"),
    ],
)
def test_properties_are_checked_against_the_schema(cloud: Cloud, changes: Resources, complaint: str) -> None:
    reason = cloud.refuses(ground() | {"Fs": lustre(**changes)})
    assert reason.startswith("Fs: Properties validation failed for resource Fs with message: [#/")
    assert complaint in reason


def test_required_properties_and_patterns(cloud: Cloud) -> None:
    assert "is a required property" in cloud.refuses(
        {"Ip": resource("EC2::NatGateway"), "F": resource("EC2::FlowLog")}
    )
    assert "does not match pattern" in cloud.refuses(slurm(ClusterName="-bad-"))
    assert "'Sometimes' is not one of ['Automatic', 'None']" in cloud.refuses(slurm(NodeRecovery="Sometimes"))


@pytest.mark.parametrize("kind", sorted(json.loads(SCHEMAS.read_text())))
def test_listed_facts_are_those_of_the_published_schema(kind: str) -> None:
    manager = pytest.importorskip("cfnlint.schema").PROVIDER_SCHEMA_MANAGER
    schema = manager.get_resource_schema("us-east-1", kind).schema

    def paths(key: str) -> list[str]:
        return sorted(p.removeprefix("/properties/") for p in schema.get(key, []))

    expected = {"createOnly": paths("createOnlyProperties")}
    expected["readOnly"] = [p for p in paths("readOnlyProperties") if "/" not in p]
    assert json.loads(SCHEMAS.read_text())[kind] == expected


# Addresses


@pytest.mark.parametrize(
    ("primary", "secondary", "legal"),
    [
        ("10.0.0.0/16", "10.1.0.0/16", True),
        ("10.0.0.0/16", "100.64.0.0/16", True),
        ("10.0.0.0/16", "44.0.0.0/16", True),
        ("10.0.0.0/16", "172.16.0.0/16", False),
        ("10.0.0.0/16", "192.168.0.0/16", False),
        ("10.0.0.0/16", "198.19.0.0/16", False),
        ("10.0.0.0/16", "10.0.128.0/17", False),
        ("10.0.0.0/16", "100.64.0.0/15", False),
        ("10.1.0.0/16", "10.0.0.0/16", False),
        ("10.2.0.0/16", "10.0.0.0/16", True),
        ("172.16.0.0/16", "172.18.0.0/16", True),
        ("172.16.0.0/16", "172.31.0.0/16", False),
        ("100.64.0.0/16", "198.19.0.0/16", True),
        ("100.64.0.0/16", "10.0.0.0/16", False),
    ],
)
def test_secondary_blocks(cloud: Cloud, primary: str, secondary: str, legal: bool) -> None:
    resources = {
        "Vpc": resource("EC2::VPC", CidrBlock=primary),
        "Block": resource("EC2::VPCCidrBlock", VpcId=ref("Vpc"), CidrBlock=secondary),
    }
    if legal:
        cloud.accepts(resources)
    else:
        assert "(Service: Ec2" in cloud.refuses(resources)


def test_block_quota_is_five_with_the_primary(cloud: Cloud) -> None:
    def blocks(count: int) -> Resources:
        each = (
            resource("EC2::VPCCidrBlock", VpcId=ref("Vpc"), CidrBlock=f"10.{n + 1}.0.0/16")
            for n in range(count)
        )
        return {"Vpc": ground()["Vpc"]} | {f"Block{n}": block for n, block in enumerate(each)}

    cloud.accepts(blocks(4))
    assert "maximum number of allowed CIDRs: 5" in cloud.refuses(blocks(5))


@pytest.mark.parametrize(
    ("cidr", "complaint"),
    [
        ("10.1.0.0/24", "The CIDR '10.1.0.0/24' is invalid."),
        ("10.0.1.0/29", "The CIDR '10.0.1.0/29' is invalid."),
        ("10.0.15.0/24", "conflicts with another subnet"),
        ("10.0.16.0/24", None),
        ("100.64.0.0/24", None),
    ],
)
def test_subnets(cloud: Cloud, cidr: str, complaint: str | None) -> None:
    resources = ground() | {
        "Block": resource("EC2::VPCCidrBlock", VpcId=ref("Vpc"), CidrBlock="100.64.0.0/16"),
        "Other": resource("EC2::Subnet", ["Block", "Subnet"], VpcId=ref("Vpc"), CidrBlock=cidr),
    }
    if complaint is None:
        cloud.accepts(resources)
    else:
        assert complaint in cloud.refuses(resources)


def test_zone_ids_belong_to_the_region(cloud: Cloud) -> None:
    resources = ground()
    resources["Subnet"]["Properties"]["AvailabilityZoneId"] = "usw2-az1"
    assert "Value (usw2-az1) for parameter availabilityZoneId is invalid." in cloud.refuses(resources)
    resources["Subnet"]["Properties"]["AvailabilityZoneId"] = "use1-az6"
    cloud.accepts(resources)


def test_a_new_block_replaces_a_subnet_and_the_same_one_cannot(cloud: Cloud, emulator: Emulator) -> None:
    cloud.deploy("net", ground())
    old = cloud.physical_id("net", "Subnet")
    assert cloud.deploy("net", ground(subnet="10.0.16.0/20")) == "UPDATE_COMPLETE"
    assert cloud.physical_id("net", "Subnet") != old
    assert [r["properties"]["CidrBlock"] for r in emulator.inventory("AWS::EC2::Subnet")] == ["10.0.16.0/20"]
    moved = ground(subnet="10.0.16.0/20")
    moved["Subnet"]["Properties"]["AvailabilityZoneId"] = "use1-az3"
    assert cloud.deploy("net", moved) == "UPDATE_ROLLBACK_COMPLETE"
    assert "conflicts with another subnet" in cloud.reason("net")


def test_a_block_with_subnets_stays(cloud: Cloud) -> None:
    cloud.deploy("net", ground())
    vpc = cloud.physical_id("net", "Vpc")
    block = resource("EC2::VPCCidrBlock", VpcId=vpc, CidrBlock="100.64.0.0/16")
    cloud.deploy("more", {"Block": block})
    cloud.deploy("sub", {"S": resource("EC2::Subnet", VpcId=vpc, CidrBlock="100.64.0.0/24")})
    assert cloud.delete("more") == "DELETE_FAILED"
    assert "in use by subnet" in cloud.reason("more")
    assert cloud.delete("sub") == "DELETE_COMPLETE"
    assert cloud.delete("more") == "DELETE_COMPLETE"


def test_what_others_live_in_cannot_be_deleted(cloud: Cloud) -> None:
    cloud.deploy("net", ground())
    ids = {n: cloud.physical_id("net", n) for n in ("Vpc", "Subnet", "Sg")}
    fs = lustre(SubnetIds=[ids["Subnet"]], SecurityGroupIds=[ids["Sg"]]) | {"DependsOn": []}
    endpoint = resource(
        "EC2::VPCEndpoint",
        VpcId=ids["Vpc"],
        ServiceName="com.amazonaws.us-east-1.s3",
        VpcEndpointType="Gateway",
    )
    assert cloud.deploy("fs", {"Fs": fs, "Endpoint": endpoint}) == "CREATE_COMPLETE"
    assert cloud.delete("net") == "DELETE_FAILED"
    assert "has dependencies and cannot be deleted" in cloud.reason("net", "Vpc")
    assert "AWS::FSx::FileSystem fs-" in cloud.reason("net", "Subnet")
    assert "has a dependent object (AWS::FSx::FileSystem" in cloud.reason("net", "Sg")
    assert cloud.delete("fs") == "DELETE_COMPLETE"
    assert cloud.delete("net") == "DELETE_COMPLETE"


def test_interface_endpoints(cloud: Cloud, emulator: Emulator) -> None:
    def endpoint(*subnets: str) -> Resources:
        return resource(
            "EC2::VPCEndpoint",
            VpcId=ref("Vpc"),
            SubnetIds=[ref(name) for name in subnets or ("Subnet",)],
            ServiceName="com.amazonaws.us-east-1.ssm",
            VpcEndpointType="Interface",
            PrivateDnsEnabled=True,
        )

    assert cloud.deploy("ends", ground() | {"E": endpoint()}) == "CREATE_COMPLETE"
    subnet = emulator.client("ec2").describe_subnets(SubnetIds=[cloud.physical_id("ends", "Subnet")])[
        "Subnets"
    ][0]
    assert subnet["AvailableIpAddressCount"] == 4096 - 5 - 1
    cloud.delete("ends")
    assert "conflicting DNS domain" in cloud.refuses(ground() | {"E": endpoint(), "F": endpoint()})
    twice = endpoint("Subnet", "Next")
    neighbour = {
        "Next": resource(
            "EC2::Subnet", VpcId=ref("Vpc"), CidrBlock="10.0.16.0/24", AvailabilityZoneId="use1-az2"
        )
    }
    assert "availability zone" in cloud.refuses(ground() | neighbour | {"E": twice})
    silent = ground()
    silent["Vpc"]["Properties"]["EnableDnsHostnames"] = False
    assert "requires both enableDnsSupport" in cloud.refuses(silent | {"E": endpoint()})


# Ways out


def way_out() -> Resources:
    attached = resource("EC2::VPCGatewayAttachment", VpcId=ref("Vpc"), InternetGatewayId=ref("Igw"))
    return ground() | {
        "Igw": resource("EC2::InternetGateway"),
        "Attached": attached,
        "Table": resource("EC2::RouteTable", VpcId=ref("Vpc")),
        "Uses": resource(
            "EC2::SubnetRouteTableAssociation", RouteTableId=ref("Table"), SubnetId=ref("Subnet")
        ),
        "Out": resource(
            "EC2::Route",
            ["Attached"],
            RouteTableId=ref("Table"),
            DestinationCidrBlock="0.0.0.0/0",
            GatewayId=ref("Igw"),
        ),
        "Ip": resource("EC2::EIP", ["Attached"], Domain="vpc"),
        "Nat": resource(
            "EC2::NatGateway", ["Out", "Uses"], AllocationId=att("Ip", "AllocationId"), SubnetId=ref("Subnet")
        ),
    }


def test_nat_gateways_need_address_gateway_and_route(cloud: Cloud) -> None:
    cloud.accepts(way_out())
    assert "has no route to an internet gateway" in cloud.refuses(without(way_out(), "Out"))
    assert "has no Internet gateway attached" in cloud.refuses(without(way_out(), "Out", "Attached"))
    no_address = way_out()
    no_address["Nat"]["Properties"]["AllocationId"] = "eipalloc-00000000000000000"
    assert "could not be found" in cloud.refuses(no_address)
    assert "belong to different networks" in cloud.refuses(without(way_out(), "Attached", "Nat"))


def test_an_address_quota_of_five(cloud: Cloud) -> None:
    cloud.accepts({f"Ip{n}": resource("EC2::EIP", Domain="vpc") for n in range(5)})
    reason = cloud.refuses({f"Ip{n}": resource("EC2::EIP", Domain="vpc") for n in range(6)})
    assert "The maximum number of addresses has been reached." in reason


def test_a_gateway_behind_public_addresses_stays_attached(cloud: Cloud) -> None:
    resources = way_out()
    resources["Nat"]["DependsOn"] = ["Out", "Uses"]
    cloud.deploy("out", resources)
    assert cloud.deploy("out", without(resources, "Attached")) == "UPDATE_COMPLETE"
    assert "mapped public address(es)" in cloud.reason("out")


def test_flow_logs_need_group_and_role(cloud: Cloud) -> None:
    def log(**changes: Any) -> Resources:
        properties = {
            "ResourceId": ref("Vpc"),
            "ResourceType": "VPC",
            "TrafficType": "REJECT",
            "LogGroupName": ref("Group"),
            "DeliverLogsPermissionArn": att("Role", "Arn"),
        } | changes
        return ground() | {
            "Group": resource("Logs::LogGroup", LogGroupName="/flow"),
            "Role": role("logs:*", service="vpc-flow-logs.amazonaws.com"),
            "Flow": resource("EC2::FlowLog", **properties),
        }

    cloud.accepts(log())
    assert "is undefined" in cloud.refuses(log(LogGroupName="/other"))
    arn = "arn:aws:iam::000000000000:role/nobody"
    assert "can't be assumed" in cloud.refuses(log(DeliverLogsPermissionArn=arn))


# File systems


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, None),
        ({"StorageType": "TAPE"}, "Value 'TAPE' at '/StorageType' must satisfy enum value set"),
        ({"DeploymentType": "PERSISTENT_3"}, "at '/LustreConfiguration/DeploymentType' must satisfy enum"),
        ({"PerUnitStorageThroughput": 125, "StorageCapacity": 38400}, None),
        ({"PerUnitStorageThroughput": 500, "StorageCapacity": 9600}, None),
        ({"PerUnitStorageThroughput": 250, "StorageCapacity": 9600}, "multiples of 19200 GiB"),
        ({"StorageCapacity": 7200}, "Invalid storage capacity: 7200"),
        ({"EfaEnabled": False, "StorageCapacity": 7200}, None),
        ({"EfaEnabled": False, "StorageCapacity": 1200}, None),
        ({"EfaEnabled": False, "StorageCapacity": 3600}, "1200, 2400 and increments of 2400 GiB"),
        ({"PerUnitStorageThroughput": 200}, "PerUnitStorageThroughput 200 is invalid"),
        ({"MetadataConfiguration": None}, "EFA requires deployment type PERSISTENT_2 with a metadata"),
        ({"FileSystemTypeVersion": "2.12"}, "supported only for PERSISTENT_2 with Lustre version 2.15"),
        ({"MetadataConfiguration": {"Mode": "USER_PROVISIONED", "Iops": 5000}}, "Invalid Metadata IOPS"),
        ({"MetadataConfiguration": {"Mode": "USER_PROVISIONED", "Iops": 6000}}, None),
        ({"SubnetIds": [ref("Subnet"), ref("Subnet")]}, "Exactly one subnet"),
    ],
)
def test_lustre_shapes(cloud: Cloud, changes: Resources, complaint: str | None) -> None:
    resources = ground() | {"Fs": lustre(**changes)}
    if complaint is None:
        cloud.accepts(resources)
    else:
        assert complaint in cloud.refuses(resources)


def test_lustre_network(cloud: Cloud) -> None:
    resources = ground() | {"Fs": lustre()}
    assert "traffic on port 988" in cloud.refuses(without(resources, "SelfIn"))
    lenient = ground() | {"Fs": lustre()}
    lenient["Sg"]["Properties"].pop("SecurityGroupEgress")
    assert "do not permit EFA traffic" in cloud.refuses(without(lenient, "SelfOut"))
    lenient["Fs"] = lustre(EfaEnabled=False)
    lenient["SelfIn"]["Properties"] |= {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 1023}
    cloud.accepts(without(lenient, "SelfOut"))


def test_lustre_servers_need_addresses(cloud: Cloud) -> None:
    room = ground(subnet="10.0.0.0/28")
    cloud.accepts(room | {"Fs": lustre(StorageCapacity=43200)})
    reason = cloud.refuses(room | {"Fs": lustre(StorageCapacity=48000)})
    assert "has 11 free, 12 are needed" in reason


def test_lustre_updates(cloud: Cloud) -> None:
    def with_fs(**changes: Any) -> Resources:
        return ground() | {"Fs": lustre(**changes)}

    cloud.deploy("fs", with_fs())
    first = cloud.physical_id("fs", "Fs")
    assert cloud.deploy("fs", with_fs(StorageCapacity=9600)) == "UPDATE_COMPLETE"
    assert cloud.physical_id("fs", "Fs") == first
    for changes, complaint in (
        ({"StorageCapacity": 4800}, "can only be increased"),
        ({"StorageCapacity": 9600, "EfaEnabled": False}, "EFA support cannot be changed"),
        ({"StorageCapacity": 9600, "PerUnitStorageThroughput": 500}, "cannot be changed"),
    ):
        assert cloud.deploy("fs", with_fs(**changes)) == "UPDATE_ROLLBACK_COMPLETE"
        assert complaint in cloud.reason("fs")
    changes = {"DeploymentType": "PERSISTENT_1", "EfaEnabled": False, "MetadataConfiguration": None}
    assert (
        cloud.deploy("fs", with_fs(StorageCapacity=9600, PerUnitStorageThroughput=200, **changes))
        == "UPDATE_COMPLETE"
    )
    assert cloud.physical_id("fs", "Fs") != first


def test_openzfs(cloud: Cloud) -> None:
    def zfs(throughput: int) -> Resources:
        return ground() | {
            "Home": resource(
                "FSx::FileSystem",
                FileSystemType="OPENZFS",
                StorageCapacity=64,
                SubnetIds=[ref("Subnet")],
                SecurityGroupIds=[att("Sg", "GroupId")],
                OpenZFSConfiguration={"DeploymentType": "SINGLE_AZ_HA_2", "ThroughputCapacity": throughput},
            )
        }

    cloud.accepts(zfs(320))
    assert "ThroughputCapacity 64 is invalid" in cloud.refuses(zfs(64))


def linked(*paths: tuple[str, str], **changes: Any) -> Resources:
    links = {
        f"Link{n}": resource(
            "FSx::DataRepositoryAssociation",
            [f"Link{n - 1}"] if n else [],
            FileSystemId=ref("Fs"),
            FileSystemPath=path,
            DataRepositoryPath=f"s3://{bucket}",
        )
        for n, (path, bucket) in enumerate(paths)
    }
    return ground() | {"Fs": lustre(**changes)} | links


def test_links_to_s3(cloud: Cloud) -> None:
    many = [(f"/d{n}", f"{BUCKET}/d{n}") for n in range(9)]
    cloud.accepts(linked(*many[:8]))
    assert "at most 8 data repository associations" in cloud.refuses(linked(*many))
    overlapping = linked(("/data", f"{BUCKET}/a"), ("/data/train", f"{BUCKET}/b"))
    assert "FileSystemPath /data/train overlaps with /data" in cloud.refuses(overlapping)
    assert "DataRepositoryPath" in cloud.refuses(linked(("/a", f"{BUCKET}/x"), ("/b", f"{BUCKET}/x/y")))
    cloud.accepts(linked(("/data", f"{BUCKET}/a"), ("/data2", f"{BUCKET}/a2")))
    assert "bucket nobody does not exist" in cloud.refuses(linked(("/data", "nobody")))
    assert "automatic backups" in cloud.refuses(linked(("/data", BUCKET), AutomaticBackupRetentionDays=7))
    scratch = {"DeploymentType": "SCRATCH_1", "EfaEnabled": False, "PerUnitStorageThroughput": None}
    old = {"MetadataConfiguration": None, "FileSystemTypeVersion": "2.10", "StorageCapacity": 3600}
    assert "are not supported on fs-" in cloud.refuses(linked(("/data", BUCKET), **scratch, **old))


def test_a_linked_file_system_stays(cloud: Cloud) -> None:
    cloud.deploy("fs", ground() | {"Fs": lustre()})
    link = linked(("/data", BUCKET))["Link0"]
    link["Properties"]["FileSystemId"] = cloud.physical_id("fs", "Fs")
    cloud.deploy("link", {"Link": link})
    assert cloud.delete("fs") == "DELETE_FAILED"
    assert "association dra-" in cloud.reason("fs", "Fs")
    assert cloud.delete("link") == "DELETE_COMPLETE"
    assert cloud.delete("fs") == "DELETE_COMPLETE"


def test_the_fsx_api_sets_root_squash(cloud: Cloud, emulator: Emulator) -> None:
    cloud.deploy("fs", ground() | {"Fs": lustre()})
    fs_id, fsx = cloud.physical_id("fs", "Fs"), emulator.client("fsx")

    def update(squash: str) -> Resources:
        configuration = {"RootSquashConfiguration": {"RootSquash": squash, "NoSquashNids": ["10.0.0.1@tcp"]}}
        return fsx.update_file_system(FileSystemId=fs_id, LustreConfiguration=configuration)["FileSystem"]

    assert update("65534:65534")["AdministrativeActions"][0]["Status"] == "IN_PROGRESS"
    with pytest.raises(ClientError, match="another update is in progress"):
        update("1:1")
    busy, done = (fsx.describe_file_systems(FileSystemIds=[fs_id])["FileSystems"][0] for _ in range(2))
    assert (busy["Lifecycle"], done["Lifecycle"]) == ("UPDATING", "AVAILABLE")
    assert done["AdministrativeActions"][0]["Status"] == "COMPLETED"
    assert done["LustreConfiguration"]["RootSquashConfiguration"]["RootSquash"] == "65534:65534"
    with pytest.raises(ClientError, match="Invalid RootSquash"):
        update("nobody")
    with pytest.raises(fsx.exceptions.FileSystemNotFound):
        fsx.describe_file_systems(FileSystemIds=["fs-00000000000000000"])


# Clusters


def test_clusters_come_up(cloud: Cloud) -> None:
    cloud.accepts(slurm())
    mounted = {
        "FsxLustreConfig": {"DnsName": att("Fs", "DNSName"), "MountName": att("Fs", "LustreMountName")}
    }
    groups = [group("head", "Controller"), group("gpu", "Compute", InstanceStorageConfigs=[mounted])]
    cloud.accepts(slurm(*groups) | {"Fs": lustre()})


@pytest.mark.parametrize(
    ("groups", "complaint"),
    [
        ([group("gpu", "Compute")], "exactly one InstanceGroup with Controller node type"),
        ([group("a", "Controller"), group("b", "Controller")], "exactly one InstanceGroup with Controller"),
        (
            [group(n, "Login") for n in "ab"] + [group("c", "Controller")],
            "at most one InstanceGroup with Login",
        ),
        (
            [group("a", "Controller"), group("b", "Compute", SlurmConfig={"NodeType": "Compute"})],
            "PartitionNames is required",
        ),
        (
            [group("a", "Controller", SlurmConfig={"NodeType": "Controller", "PartitionNames": ["x"]})],
            "Partitions can only be assigned to Compute node types",
        ),
        (
            [
                group(
                    "a",
                    "Controller",
                    LifeCycleConfig={"SourceS3Uri": f"s3://{BUCKET}/life", "OnCreate": "gone.sh"},
                )
            ],
            f"Lifecycle script s3://{BUCKET}/life/gone.sh",
        ),
        (
            [
                group(
                    "a",
                    "Controller",
                    LifeCycleConfig={"SourceS3Uri": "s3://nowhere-at-all", "OnCreate": "on_create.sh"},
                )
            ],
            "Lifecycle script s3://nowhere-at-all/on_create.sh",
        ),
        (
            [group("a", "Controller", ExecutionRole="arn:aws:iam::000000000000:role/nobody")],
            "Could not assume role arn:aws:iam::000000000000:role/nobody",
        ),
        (
            [
                group(
                    "a",
                    "Controller",
                    InstanceStorageConfigs=[{"FsxLustreConfig": {"DnsName": GONE, "MountName": "abc"}}],
                )
            ],
            f"FSx file system {GONE} (abc) was not found",
        ),
    ],
)
def test_cluster_groups(cloud: Cloud, groups: list[Resources], complaint: str) -> None:
    assert complaint in cloud.refuses(slurm(*groups))


def test_cluster_modes(cloud: Cloud) -> None:
    managed = {"Slurm": {"SlurmConfigStrategy": "Managed"}}
    assert "SlurmConfigStrategy is not supported" in cloud.refuses(slurm(orchestrator=managed))
    at_once = slurm(orchestrator=managed)
    at_once["Cluster"]["Properties"].pop("NodeProvisioningMode")
    cloud.accepts(at_once)
    secret = "arn:aws:secretsmanager:us-east-1:000000000000:secret:db-abcdef"
    database = {"Slurm": {"AccountingDatabase": {"Endpoint": "db.example.com", "SecretArn": secret}}}
    cloud.accepts(slurm(orchestrator=database))
    at_once["Cluster"]["Properties"]["Orchestrator"] = database
    assert "AccountingDatabase is only supported" in cloud.refuses(at_once)


def test_cluster_roles(cloud: Cloud) -> None:
    def with_role(granted: Resources, **more: Any) -> Resources:
        return slurm(group("head", "Controller", **more)) | {"Role": granted, "Fs": lustre()}

    assert "allows principal 'sagemaker.amazonaws.com'" in cloud.refuses(
        with_role(role("s3:*", "ec2:*", service="ec2.amazonaws.com"))
    )
    assert "not authorized to perform: s3:GetObject" in cloud.refuses(with_role(role("ec2:*")))
    assert "not authorized to perform: ec2:CreateNetworkInterface" in cloud.refuses(with_role(role("s3:*")))
    mounted = {
        "FsxLustreConfig": {"DnsName": att("Fs", "DNSName"), "MountName": att("Fs", "LustreMountName")}
    }
    blind = with_role(role("s3:*", "ec2:*"), InstanceStorageConfigs=[mounted])
    assert "not authorized to perform: fsx:DescribeFileSystems" in cloud.refuses(blind)
    cloud.accepts(with_role(role("s3:*", "ec2:*")))


def test_efa_groups_need_rules_to_themselves(cloud: Cloud) -> None:
    resources = slurm()
    resources["Sg"]["Properties"].pop("SecurityGroupEgress")
    assert "EFA health checks did not run successfully" in cloud.refuses(without(resources, "SelfOut"))
    plain = slurm(group("head", "Controller"), group("cpu", "Compute"))
    plain["Sg"]["Properties"].pop("SecurityGroupEgress")
    cloud.accepts(without(plain, "SelfIn", "SelfOut"))


def test_nodes_need_addresses(cloud: Cloud) -> None:
    def nodes(count: int) -> Resources:
        head, gpu = group("head", "Controller"), group("gpu", "Compute", count, "ml.p5.48xlarge")
        return slurm(head, gpu) | {"Subnet": ground(subnet="10.0.0.0/24")["Subnet"]}

    cloud.accepts(nodes(7))
    assert "has 251 free, 257 are needed" in cloud.refuses(nodes(8))


def test_cluster_updates(cloud: Cloud) -> None:
    def cluster(
        count: int = 2, node: str = "Compute", subnet: str = "Subnet", name: str = "train"
    ) -> Resources:
        groups = (group("head", "Controller"), group("gpu", node, count, "ml.p5.48xlarge"))
        vpc = {"Subnets": [ref(subnet)], "SecurityGroupIds": [att("Sg", "GroupId")]}
        other = resource("EC2::Subnet", VpcId=ref("Vpc"), CidrBlock="10.0.16.0/20")
        return slurm(*groups, VpcConfig=vpc, ClusterName=name) | {"Other": other}

    cloud.deploy("hp", cluster())
    first = cloud.physical_id("hp", "Cluster")
    assert cloud.deploy("hp", cluster(count=3)) == "UPDATE_COMPLETE"
    assert cloud.physical_id("hp", "Cluster") == first
    assert cloud.deploy("hp", cluster(count=3, node="Login")) == "UPDATE_ROLLBACK_COMPLETE"
    assert "SlurmConfig.NodeType of instance group gpu is immutable" in cloud.reason("hp")
    assert cloud.deploy("hp", cluster(count=3, subnet="Other")) == "UPDATE_ROLLBACK_COMPLETE"
    assert "Cluster with name train already exists" in cloud.reason("hp")
    assert cloud.deploy("hp", cluster(count=3, subnet="Other", name="train2")) == "UPDATE_COMPLETE"
    assert cloud.physical_id("hp", "Cluster") != first


def test_change_sets_announce_replacement(cloud: Cloud) -> None:
    cloud.deploy("fs", ground() | {"Fs": lustre()})
    moved = json.dumps({"Resources": ground(subnet="10.0.32.0/20") | {"Fs": lustre()}})
    cloud.cloudformation.create_change_set(StackName="fs", ChangeSetName="c", TemplateBody=moved)
    changes = cloud.cloudformation.describe_change_set(StackName="fs", ChangeSetName="c")["Changes"]
    replaced = {c["ResourceChange"]["LogicalResourceId"]: c["ResourceChange"]["Replacement"] for c in changes}
    assert replaced == {"Subnet": "True", "Fs": "True"}


# Retention, faults, order


def test_retained_resources_survive_and_are_listed(cloud: Cloud, emulator: Emulator) -> None:
    keep = {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}
    prometheus = {"Amp": resource("APS::Workspace", Alias="kept") | keep}
    cloud.deploy("amp", prometheus)
    first = cloud.physical_id("amp", "Amp")
    prometheus["Amp"]["Properties"]["KmsKeyArn"] = "arn:aws:kms:us-east-1:000000000000:key/0"
    assert cloud.deploy("amp", prometheus) == "UPDATE_COMPLETE"
    second = cloud.physical_id("amp", "Amp")
    assert cloud.delete("amp") == "DELETE_COMPLETE"
    records = {r["physical_id"]: r for r in emulator.inventory("AWS::APS::Workspace")}
    assert {i: r["status"] for i, r in records.items()} == {first: "retained", second: "retained"}
    assert records[second]["stack"] == "amp"


def test_a_fault_fails_once_and_then_no_more(cloud: Cloud, emulator: Emulator) -> None:
    order = {
        "type": "AWS::SQS::Queue",
        "logical_id_contains": "Q",
        "action": "create",
        "message": "Rate exceeded",
    }
    emulator.faults(order)
    queue = {"Q": resource("SQS::Queue")}
    assert cloud.refuses(queue) == "Q: Rate exceeded"
    cloud.accepts(queue)
    emulator.faults(order | {"action": "delete"})
    cloud.deploy("q", queue)
    assert cloud.delete("q") == "DELETE_FAILED"
    assert cloud.delete("q") == "DELETE_COMPLETE"


def test_a_delay_leaves_the_server_free(cloud: Cloud, emulator: Emulator) -> None:
    emulator.faults({"type": "AWS::SQS::Queue", "delay_s": 1})
    cloud.cloudformation.create_stack(
        StackName="slow", TemplateBody=json.dumps({"Resources": {"Q": resource("SQS::Queue")}})
    )
    time.sleep(0.2)
    started = time.monotonic()
    assert cloud.status("slow") == "CREATE_IN_PROGRESS"
    assert time.monotonic() - started < 0.5
    assert cloud.settle("slow") == "CREATE_COMPLETE"


def test_a_random_order_finds_a_missing_dependency(cloud: Cloud) -> None:
    careless = way_out()
    careless["Out"]["DependsOn"] = []
    cloud.accepts(careless)
    with Emulator(order=SEED) as shuffled:
        cloud = Cloud(shuffled)
        cloud.accepts(way_out())
        assert "belong to different networks" in cloud.refuses(careless)


# Buckets, functions, other stacks


def test_buckets_must_be_empty_or_empty_themselves(cloud: Cloud, emulator: Emulator) -> None:
    name, s3 = "full-of-versions", emulator.client("s3")
    tag = {"Key": "aws-cdk:auto-delete-objects", "Value": "true"}
    bucket = resource(
        "S3::Bucket", BucketName=name, VersioningConfiguration={"Status": "Enabled"}, Tags=[tag]
    )
    cloud.deploy("store", {"Bucket": bucket})
    s3.put_object(Bucket=name, Key="a", Body=b"1")
    s3.delete_object(Bucket=name, Key="a")
    assert cloud.delete("store") == "DELETE_FAILED"
    assert "The bucket you tried to delete is not empty" in cloud.reason("store")
    for version in s3.list_object_versions(Bucket=name)["Versions"]:
        s3.delete_object(Bucket=name, Key="a", VersionId=version["VersionId"])
    for marker in s3.list_object_versions(Bucket=name)["DeleteMarkers"]:
        s3.delete_object(Bucket=name, Key="a", VersionId=marker["VersionId"])
    assert cloud.delete("store") == "DELETE_COMPLETE"

    emptied = {
        "Type": "Custom::S3AutoDeleteObjects",
        "Properties": {"ServiceToken": "-", "BucketName": ref("Bucket")},
    }
    cloud.deploy("store", {"Bucket": bucket, "Emptied": emptied})
    s3.put_object(Bucket=name, Key="a", Body=b"1")
    s3.delete_object(Bucket=name, Key="a")
    assert cloud.delete("store") == "DELETE_COMPLETE"


FUNCTION = """
import json, os, subprocess, urllib.request, boto3
def handler(event, context):
    if event["ResourceProperties"]["Name"] == "crash":
        raise KeyError("no such thing")
    boto3.client("ssm").put_parameter(Name="/seen", Value=event["RequestType"], Type="String", Overwrite=True)
    said = subprocess.check_output(["/opt/tool/say", "hello"], text=True)
    body = {k: event[k] for k in ("StackId", "RequestId", "LogicalResourceId")}
    body |= {"Status": "SUCCESS", "PhysicalResourceId": "it", "Data": {"Said": said.strip()}}
    request = urllib.request.Request(event["ResponseURL"], json.dumps(body).encode(), method="PUT")
    urllib.request.urlopen(request)
"""


def zipped(name: str, text: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, text)
    return buffer.getvalue()


def test_functions_of_custom_resources(cloud: Cloud, emulator: Emulator) -> None:
    s3 = emulator.client("s3")
    s3.put_object(Bucket=BUCKET, Key="code.zip", Body=zipped("index.py", FUNCTION))
    s3.put_object(Bucket=BUCKET, Key="layer.zip", Body=zipped("tool/say", "import sys; print(sys.argv[1])"))

    def custom(name: str) -> Resources:
        code = {"S3Bucket": BUCKET, "S3Key": "code.zip"}
        return {
            "Role": role("*", service="lambda.amazonaws.com"),
            "Layer": resource("Lambda::LayerVersion", Content={"S3Bucket": BUCKET, "S3Key": "layer.zip"}),
            "Function": resource(
                "Lambda::Function",
                Runtime="python3.13",
                Handler="index.handler",
                Code=code,
                Role=att("Role", "Arn"),
                Layers=[ref("Layer")],
            ),
            "Thing": {
                "Type": "Custom::Thing",
                "Properties": {"ServiceToken": att("Function", "Arn"), "Name": name},
            },
        }

    outputs = {"Said": {"Value": att("Thing", "Said")}}
    assert cloud.deploy("custom", custom("fine"), Outputs=outputs) == "CREATE_COMPLETE", cloud.reason(
        "custom"
    )
    stack = cloud.cloudformation.describe_stacks(StackName="custom")["Stacks"][0]
    assert stack["Outputs"][0]["OutputValue"] == "hello"
    assert cloud.delete("custom") == "DELETE_COMPLETE"
    assert emulator.client("ssm").get_parameter(Name="/seen")["Parameter"]["Value"] == "Delete"
    reason = cloud.refuses(custom("crash"))
    assert "Lambda failed before it answered" in reason
    assert "no such thing" in reason


def test_outputs_are_read_across_regions_and_not_from_the_dead(cloud: Cloud, emulator: Emulator) -> None:
    west = Cloud(emulator)
    west.cloudformation = emulator.client("cloudformation", region="us-west-2")
    output = {"Fn::GetStackOutput": {"StackName": "here", "OutputName": "Name", "Region": "us-east-1"}}
    reader = {"P": resource("SSM::Parameter", Type="String", Name="/read", Value=output)}
    cloud.deploy(
        "here",
        {"Q": resource("SQS::Queue", QueueName="q")},
        Outputs={"Name": {"Value": att("Q", "QueueName")}},
    )
    assert west.deploy("there", reader) == "CREATE_COMPLETE"
    ssm = emulator.client("ssm", region="us-west-2")
    assert ssm.get_parameter(Name="/read")["Parameter"]["Value"] == "q"
    west.delete("there")
    cloud.delete("here")
    assert west.deploy("there", reader) == "ROLLBACK_COMPLETE"
    assert "Stack here does not exist in us-east-1" in west.reason("there")
    west.delete("there")


def test_only_the_pinned_ministack_is_patched(tmp_path: Path) -> None:
    program = "from tests.engines.emulator import server; server.PINNED = '0.0.1'; server.main()"
    command = [str(SERVER_PYTHON), "-c", program, "--port", "1", "--state", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("emulator: ministack ")
    assert "0.0.1 is required" in done.stderr
