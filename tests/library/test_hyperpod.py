"""The cluster's template against its plan, against CloudFormation's schema and against the API behind it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import aws_cdk as cdk
import botocore.session
import pytest
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from botocore.validate import ParamValidator
from cloudformation_validate import RegoEngine, Severity

from tests.support import ROOT, of_type, only, shown, waits_for, walk
from trainshed.hyperpod import HyperPodCluster, Mount
from trainshed.lifecycle import LifecycleScripts
from trainshed.planning.model import (
    AccountingDatabase,
    ClusterPlan,
    InstanceGroupPlan,
    Patching,
    RollingUpdate,
)
from trainshed.security import EfaSecurityGroup
from trainshed.slurm import SlurmOrchestrator

ACCOUNT = "111122223333"
PLAN_ARN = f"arn:aws:sagemaker:us-east-2:{ACCOUNT}:training-plan/p5-november"
SECRET = f"arn:aws:secretsmanager:us-east-2:{ACCOUNT}:secret:slurm-AbCdEf"


def group(name: str, kind: str, **more: object) -> InstanceGroupPlan:
    given = {
        "role": "worker", "count": 4, "grow_to": 8, "zone": "use2-az1", "partition": name,
        "claim": f"group/train/{name}", "path": f"clusters.train.groups.{name}", **more,
    }  # fmt: skip
    return InstanceGroupPlan(name=name, instance_types=(kind,), **given)  # type: ignore[arg-type]


HEAD = {"count": 1, "grow_to": 1, "partition": None}
ROLLING = RollingUpdate(
    batch=25, batch_is_percent=True, wait_seconds=600, rollback_alarms=("stalled", "nccl")
)
GROUPS = (
    group("login", "ml.m5.4xlarge", role="login", **HEAD),
    group("controller", "ml.m5.4xlarge", role="controller", **HEAD),
    group(
        "planned", "ml.p5.48xlarge", training_plan_arn=PLAN_ARN, threads_per_core=1,
        deep_health_checks=("InstanceStress", "InstanceConnectivity"),
        patching=Patching(schedule="cron(0 3 ? * SUN *)", rolling=ROLLING),
    ),
    group("thin", "ml.p5en.48xlarge", interface="efa-only", minimum=2, zone="use2-az2"),
    group("cpu", "ml.m5.12xlarge", capacity="spot", scratch_gb=500),
    group(
        "own", "ml.p6-b200.48xlarge", image_id="ami-0a1b2c3d4e5f67890",
        patching=Patching(strategy="WhenAllIdle", rolling=RollingUpdate(batch=2)),
    ),
)  # fmt: skip
CLUSTER = ClusterPlan(
    name="train", orchestrator="slurm", groups=GROUPS, path="clusters.train", lustre="main", home=True,
    accounting=AccountingDatabase(endpoint="db.example.com", secret_arn=SECRET),
)  # fmt: skip
SUBNETS = {g.claim: f"subnet-{index:017x}" for index, g in enumerate(GROUPS)}
MOUNTS = (
    Mount(
        dns_name="fs-0123456789abcdef1.fsx.us-east-2.amazonaws.com", mount_name="abcdefgh", mount_path="/fsx"
    ),
    Mount(dns_name="fs-0123456789abcdef2.fsx.us-east-2.amazonaws.com", mount_path="/home"),
)


def cluster(plan: ClusterPlan):
    def build(stack: cdk.Stack) -> None:
        key = kms.Key(stack, "Key")
        vpc = ec2.Vpc.from_vpc_attributes(
            stack, "Vpc", vpc_id="vpc-0a1b2c3d", availability_zones=["use2-az1"]
        )
        efa = EfaSecurityGroup(stack, "Efa", vpc=vpc, egress_ports=(443,), retained=False)
        bucket = s3.Bucket(stack, "Bucket", bucket_name=f"sagemaker-fleet-{ACCOUNT}-us-east-2")
        scripts = LifecycleScripts(
            stack, "Scripts", bucket=bucket, prefix="train", folder=str(ROOT / "lifecycle"),
            entry="on_init_complete.sh", settings={}, key=key,
        )  # fmt: skip
        roles = {role: f"arn:aws:iam::{ACCOUNT}:role/{role}" for role in ("controller", "login", "worker")}
        HyperPodCluster(
            stack, "HyperPod", plan=plan, name="fleet-train", security_group=efa.security_group,
            rules=efa.rules, subnet_ids=SUBNETS, roles=roles,
            scripts=scripts, orchestrator=SlurmOrchestrator(accounting=plan.accounting), mounts=MOUNTS,
        )  # fmt: skip

    return build


@pytest.fixture(scope="module")
def template(stack_template):
    return stack_template(cluster(CLUSTER))


@pytest.fixture(scope="module")
def resource(template):
    return only(template, "AWS::SageMaker::Cluster")[1]


@pytest.fixture(scope="module")
def groups(resource):
    return {g["InstanceGroupName"]: g for g in resource["Properties"]["InstanceGroups"]}


def test_the_cluster_is_what_was_planned(resource):
    properties = resource["Properties"]
    assert properties["ClusterName"] == "fleet-train"
    assert properties["NodeRecovery"] == "Automatic"
    assert properties["NodeProvisioningMode"] == "Continuous"
    assert [g["InstanceGroupName"] for g in properties["InstanceGroups"]] == [g.name for g in GROUPS]


def test_slurm_is_configured_through_the_api_without_a_strategy(resource):
    """D13: with continuous provisioning any SlurmConfigStrategy is an API error."""
    (key,) = resource["Properties"]["Orchestrator"]
    assert key == "Slurm"
    slurm = resource["Properties"]["Orchestrator"]["Slurm"]
    assert slurm == {
        "AccountingDatabase": {
            "Endpoint": "db.example.com", "SecretArn": SECRET, "Port": 3306, "Name": "slurm_acct_db"
        }
    }  # fmt: skip
    assert not [k for k, _ in walk(resource) if k == "SlurmConfigStrategy"]


def test_without_accounting_slurm_is_still_the_orchestrator(stack_template):
    plan = replace(CLUSTER, accounting=None, node_recovery=False, continuous_provisioning=False)
    properties = only(stack_template(cluster(plan)), "AWS::SageMaker::Cluster")[1]["Properties"]
    assert properties["Orchestrator"] == {"Slurm": {}}
    assert properties["NodeRecovery"] == "None"
    assert "NodeProvisioningMode" not in properties


@pytest.mark.parametrize("plan", GROUPS, ids=[g.name for g in GROUPS])
def test_a_group_is_what_was_planned(groups, plan: InstanceGroupPlan):
    """J2, A2."""
    found = groups[plan.name]
    assert found["InstanceType"] == plan.instance_type
    assert found["InstanceCount"] == plan.count
    assert found.get("MinInstanceCount") == plan.minimum
    assert found["ExecutionRole"] == f"arn:aws:iam::{ACCOUNT}:role/{plan.role}"
    assert found.get("TrainingPlanArn") == plan.training_plan_arn
    assert found.get("ThreadsPerCore") == plan.threads_per_core
    assert found.get("ImageId") == plan.image_id
    assert found.get("OnStartDeepHealthChecks", []) == list(plan.deep_health_checks)
    assert found.get("NetworkInterface") == ({"InterfaceType": plan.interface} if plan.has_efa else None)
    assert found.get("CapacityRequirements") == ({"Spot": {}} if plan.capacity == "spot" else None)
    kind = {"controller": "Controller", "login": "Login", "worker": "Compute"}[plan.role]
    expected = {"NodeType": kind, **({"PartitionNames": [plan.partition]} if plan.partition else {})}
    assert found["SlurmConfig"] == expected


def test_efa_only_is_said_where_it_was_asked(groups):
    """A2, A3."""
    kinds = {n: g["NetworkInterface"]["InterfaceType"] for n, g in groups.items() if "NetworkInterface" in g}
    assert kinds == {"planned": "efa", "thin": "efa-only", "own": "efa"}


@pytest.mark.parametrize("plan", GROUPS, ids=[g.name for g in GROUPS])
def test_each_group_sits_in_its_claims_subnet(groups, plan: InstanceGroupPlan):
    """J4: every group says its own subnet, so HyperPod chooses none."""
    assert groups[plan.name]["OverrideVpcConfig"]["Subnets"] == [SUBNETS[plan.claim]]


def test_all_groups_share_the_efa_group(template, groups, resource):
    """A5."""
    name, _ = only(template, "AWS::EC2::SecurityGroup")
    everywhere = [resource["Properties"]["VpcConfig"], *(g["OverrideVpcConfig"] for g in groups.values())]
    assert all(v["SecurityGroupIds"] == [{"Fn::GetAtt": [name, "GroupId"]}] for v in everywhere)


def test_the_cluster_lives_where_its_controller_does(resource):
    """D13: the cluster's own subnet can never change, nor the controller's."""
    controller = next(g for g in GROUPS if g.role == "controller")
    assert resource["Properties"]["VpcConfig"]["Subnets"] == [SUBNETS[controller.claim]]


def test_our_script_runs_after_hyperpods_own_set_up(groups):
    """C1: with OnCreate HyperPod would not start Slurm."""
    for found in groups.values():
        life = found["LifeCycleConfig"]
        assert set(life) == {"SourceS3Uri", "OnInitComplete"}
        assert life["OnInitComplete"] == "on_init_complete.sh"
        assert (ROOT / "lifecycle" / life["OnInitComplete"]).exists()


def test_storage_is_mounted_by_hyperpod_itself(groups):
    """B1."""
    for name, found in groups.items():
        configs = found["InstanceStorageConfigs"]
        assert all(len(config) == 1 for config in configs), "exactly one key each"
        assert configs[0] == {"FsxLustreConfig": {
            "DnsName": MOUNTS[0].dns_name, "MountName": "abcdefgh", "MountPath": "/fsx"
        }}  # fmt: skip
        assert configs[1] == {"FsxOpenZfsConfig": {"DnsName": MOUNTS[1].dns_name, "MountPath": "/home"}}
        ebs = [{"EbsVolumeConfig": {"VolumeSizeInGB": 500}}] if name == "cpu" else []
        assert configs[2:] == ebs


def test_scheduled_updates_roll_and_roll_back(groups):
    assert groups["planned"]["ScheduledUpdateConfig"] == {
        "ScheduleExpression": "cron(0 3 ? * SUN *)",
        "DeploymentConfig": {
            "RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 25}},
            "WaitIntervalInSeconds": 600,
            "AutoRollbackConfiguration": [{"AlarmName": "stalled"}, {"AlarmName": "nccl"}],
        },
    }
    assert groups["own"]["AutoPatchConfig"] == {
        "PatchingStrategy": "WhenAllIdle",
        "DeploymentConfig": {
            "RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 2}},
            "WaitIntervalInSeconds": 0,
        },
    }
    assert all(not {"ScheduledUpdateConfig", "AutoPatchConfig"} <= set(g) for g in groups.values())


def test_the_cluster_waits_for_the_rules_and_the_scripts(template, resource):
    """A9, C1."""
    rules = [f"AWS::EC2::SecurityGroup{way}" for way in ("Ingress", "Egress")]
    needed = [n for kind in (*rules, "Custom::CDKBucketDeployment") for n in of_type(template, kind)]
    assert len(needed) == 3
    assert set(needed) <= set(waits_for(resource))


def test_several_types_are_requirements(stack_template):
    """J4."""
    flexible = replace(GROUPS[2], instance_types=("ml.p5.48xlarge", "ml.p5e.48xlarge"))
    found = only(
        stack_template(cluster(replace(CLUSTER, groups=(GROUPS[1], flexible)))), "AWS::SageMaker::Cluster"
    )
    _, planned = found[1]["Properties"]["InstanceGroups"]
    assert planned["InstanceRequirements"] == {"InstanceTypes": ["ml.p5.48xlarge", "ml.p5e.48xlarge"]}
    assert "InstanceType" not in planned


# What a deployment would put for what only a deployment knows.
VALUES = {
    "SecurityGroupIds": "sg-0a1b2c3d4e5f67890",
    "SourceS3Uri": f"s3://sagemaker-fleet-{ACCOUNT}-us-east-2/train/",
}


def deployed(value: object, key: str = ""):
    if isinstance(value, dict):
        known = any(name == "Ref" or name.startswith("Fn::") for name in value)
        return VALUES[key] if known else {k: deployed(v, k) for k, v in value.items()}
    return [deployed(v, key) for v in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def request_shape():
    model = botocore.session.get_session().get_service_model("sagemaker")
    return model.operation_model("CreateCluster").input_shape


def faults(value: object, shape, path: str = "") -> list[str]:
    """What botocore does not look at: patterns, enumerations, and the lengths of lists and texts."""
    found: list[str] = []
    limits = shape.metadata
    if shape.type_name == "structure":
        for key, inside in value.items():
            found += faults(inside, shape.members[key], f"{path}.{key}")
    elif shape.type_name == "list":
        found += [f for i, v in enumerate(value) for f in faults(v, shape.member, f"{path}[{i}]")]
    if shape.type_name == "string":
        if "enum" in limits and value not in limits["enum"]:
            found.append(f"{path}: {value} is not in {limits['enum']}")
        if "pattern" in limits and not re.fullmatch(limits["pattern"], value):
            found.append(f"{path}: {value} does not match {limits['pattern']}")
    size = (
        value
        if shape.type_name in ("integer", "long")
        else len(value)
        if shape.type_name in ("string", "list")
        else None
    )
    if size is not None and not limits.get("min", size) <= size <= limits.get("max", size):
        found.append(f"{path}: {size} is not within {limits}")
    return found


def test_the_api_would_take_it(resource, request_shape):
    request = deployed(resource["Properties"])
    report = ParamValidator().validate(request, request_shape)
    assert not report.has_errors(), report.generate_report()
    assert faults(request, request_shape) == []


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("InstanceGroups", 0, "SlurmConfig", "NodeType"), "Head"),
        (("InstanceGroups", 0, "InstanceType"), "p5.48xlarge"),
        (("InstanceGroups", 2, "ThreadsPerCore"), 3),
        (("ClusterName",), "fleet_train"),
        (("InstanceGroups", 2, "TrainingPlanArn"), "my-plan"),
    ],
)
def test_the_api_check_would_notice(resource, request_shape, where, value):
    request = json.loads(json.dumps(deployed(resource["Properties"])))
    at = request
    for step in where[:-1]:
        at = at[step]
    at[where[-1]] = value
    assert ParamValidator().validate(request, request_shape).has_errors() or faults(request, request_shape)


@pytest.fixture(scope="module")
def engine():
    return RegoEngine()


def refused(engine: RegoEngine, template: dict[str, object]) -> list[str]:
    report = engine.validate_template(json.dumps(template).encode())
    return [
        f"{d.rule_id} {d.message}"
        for d in report.diagnostics
        if d.severity in (Severity.ERROR, Severity.FATAL)
    ]


def test_cloudformation_would_take_it(engine, template):
    assert refused(engine, template) == []


def test_cloudformation_check_would_notice(engine, template):
    broken = json.loads(json.dumps(template))
    name, found = only(broken, "AWS::SageMaker::Cluster")
    found["Properties"]["InstanceGroups"][0]["InstanceStorageConfigs"] = [
        {"EbsVolumeConfig": {"VolumeSizeInGB": 5}, "FsxOpenZfsConfig": {"DnsName": "x"}}
    ]
    assert refused(engine, broken), name


@pytest.mark.parametrize("example", ["quickstart", "slurm-production", "existing-vpc"])
def test_examples_pass_both(engine, templates, request_shape, example: str):
    for name, template in templates(example).items():
        assert refused(engine, template) == [], name
        for found in of_type(template, "AWS::SageMaker::Cluster").values():
            assert all(len(c) == 1 for k, v in walk(found) if k == "InstanceStorageConfigs" for c in v)
            assert "SlurmConfigStrategy" not in shown(found)
