"""Each guard: an app that trips it and legal neighbours that pass, made of anybody's constructs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import aws_cdk as cdk
import jsii
import pytest
from aws_cdk import aws_aps as aps
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_rds as rds
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_deployment as deployment
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

import trainshed
from tests.support import FLAGS
from trainshed.guards import Guards

ALL = ec2.Port.all_traffic()
NODE_POLICY = "AmazonSageMakerClusterInstanceRolePolicy"
RETAIN, DESTROY = cdk.RemovalPolicy.RETAIN, cdk.RemovalPolicy.DESTROY
Build = Callable[[cdk.Stack], object]


@pytest.fixture
def findings(tmp_path):
    """`findings(build)`: what the guards say of one stack: (construct path, message, guard)."""

    def get(build: Build) -> list[tuple[str, str, str]]:
        app = cdk.App(context=FLAGS, outdir=str(tmp_path))
        stack = cdk.Stack(app, "Theirs", env=cdk.Environment(region="us-east-2"))
        build(stack)
        app.node.add_validation(Guards(app))
        try:
            app.synth()
            failed = False
        except RuntimeError:
            failed = True
        written = tmp_path / "validation-report.json"
        report = (
            json.loads(written.read_text(encoding="utf-8")) if written.exists() else {"pluginReports": []}
        )
        found = [
            (at["constructPath"], *violation["description"].removesuffix("]").split(" [trainshed:"))
            for plugin in report["pluginReports"]
            for violation in plugin["violations"]
            if violation["severity"] == "error"
            for at in violation["violatingConstructs"]
        ]
        assert failed == bool(found), "synthesis must fail on what the guards find, and on nothing else"
        return found

    return get


def network(stack: cdk.Stack) -> ec2.IVpc:
    return ec2.Vpc.from_vpc_attributes(stack, "Vpc", vpc_id="vpc-0a1b2c3d", availability_zones=["a"])


def security_group(stack: cdk.Stack, name: str = "Group", *, outbound: bool = False) -> ec2.SecurityGroup:
    vpc = stack.node.try_find_child("Vpc") or network(stack)
    return ec2.SecurityGroup(stack, name, vpc=vpc, allow_all_outbound=outbound)


def efa_group(stack: cdk.Stack, name: str = "Group") -> ec2.SecurityGroup:
    group = security_group(stack, name)
    group.connections.allow_internally(ALL)
    return group


def subnet(stack: cdk.Stack, name: str, zone: str, **more: object) -> str:
    return ec2.CfnSubnet(
        stack, name, vpc_id="vpc-1", cidr_block="10.0.0.0/24", availability_zone_id=zone, **more
    ).ref


def lustre(
    stack: cdk.Stack,
    name: str = "Fsx",
    *,
    groups: list[str] | None = None,
    at: str = "subnet-1",
    efa: bool = False,
    **more: object,
):
    given = {
        "file_system_type": "LUSTRE", "file_system_type_version": "2.15", "subnet_ids": [at],
        "security_group_ids": groups or ["sg-theirs"],
        "lustre_configuration": {"deploymentType": "PERSISTENT_2", "efaEnabled": efa},
        **more,
    }  # fmt: skip
    system = fsx.CfnFileSystem(stack, name, **given)
    system.apply_removal_policy(RETAIN)
    return system


def group_of(name: str = "p5", kind: str = "ml.p5.48xlarge", **more: object) -> dict[str, object]:
    role = "arn:aws:iam::111122223333:role/theirs"
    return {
        "instanceGroupName": name,
        "instanceCount": 1,
        "instanceType": kind,
        "executionRole": role,
        **more,
    }


def cluster(
    scope: Construct, *groups: object, subnets: list[str] | None = None, security: list[str] | None = None
):
    vpc = {"subnets": subnets or ["subnet-1"], "securityGroupIds": security or ["sg-theirs"]}
    return sagemaker.CfnCluster(scope, "Cluster", instance_groups=[*groups], vpc_config=vpc)


def mounting(system: fsx.CfnFileSystem | str, **more: object) -> dict[str, object]:
    dns = system if isinstance(system, str) else system.attr_dns_name
    return {
        **more,
        "instanceStorageConfigs": [{"fsxLustreConfig": {"dnsName": dns, "mountName": "abcdefgh"}}],
    }


# --- efa-rules


def outbound_swallows_the_rule(stack):
    group = security_group(stack, outbound=True)
    group.connections.allow_internally(ALL)
    cluster(stack, group_of(), security=[group.security_group_id]).node.add_dependency(group)


def cidr_rules(stack):
    group = security_group(stack)
    group.add_ingress_rule(ec2.Peer.ipv4("10.0.0.0/8"), ALL)
    group.add_egress_rule(ec2.Peer.ipv4("10.0.0.0/8"), ALL)
    cluster(stack, group_of(), security=[group.security_group_id]).node.add_dependency(group)


def tcp_alone(stack):
    group = security_group(stack)
    group.connections.allow_internally(ec2.Port.all_tcp())
    cluster(stack, group_of(), security=[group.security_group_id]).node.add_dependency(group)


def rules_of_another_group(stack):
    mine, other = security_group(stack), security_group(stack, "Other")
    mine.connections.allow_from(other, ALL)
    mine.connections.allow_to(other, ALL)
    cluster(stack, group_of(), security=[mine.security_group_id]).node.add_dependency(mine, other)


def overridden_by_a_plain_group(stack):
    good, plain = efa_group(stack), security_group(stack, "Plain")
    override = {"subnets": ["subnet-1"], "securityGroupIds": [plain.security_group_id]}
    made = cluster(stack, group_of(overrideVpcConfig=override), security=[good.security_group_id])
    made.node.add_dependency(good)


def typed_properties(stack):
    made = sagemaker.CfnCluster
    group = made.ClusterInstanceGroupProperty(
        instance_group_name="p5", instance_count=1, instance_type="ml.p5.48xlarge", execution_role="role",
    )  # fmt: skip
    security = security_group(stack).security_group_id
    vpc = made.VpcConfigProperty(subnets=["subnet-1"], security_group_ids=[security])
    made(stack, "Cluster", instance_groups=[group], vpc_config=vpc)


def flexible_types(stack):
    group = group_of(instanceRequirements={"instanceTypes": ["ml.m5.4xlarge", "ml.p5.48xlarge"]})
    del group["instanceType"]
    cluster(stack, group, security=[security_group(stack).security_group_id])


def efa_file_system(stack):
    lustre(stack, groups=[security_group(stack).security_group_id], efa=True)


def efa_both_ways(stack):
    group = efa_group(stack)
    cluster(stack, group_of(), security=[group.security_group_id]).node.add_dependency(group)


def l1_rules(stack):
    group = ec2.CfnSecurityGroup(stack, "Group", group_description="x", vpc_id="vpc-1")
    itself = {"group_id": group.attr_group_id, "ip_protocol": "-1"}
    rules = [
        ec2.CfnSecurityGroupIngress(stack, "In", source_security_group_id=group.ref, **itself),
        ec2.CfnSecurityGroupEgress(stack, "Out", destination_security_group_id=group.attr_group_id, **itself),
    ]
    made = cluster(stack, group_of(), security=[group.attr_group_id])
    for rule in rules:
        made.add_dependency(rule)


def imported_group(stack):
    group = ec2.SecurityGroup.from_security_group_id(stack, "Group", "sg-0a1b2c3d4e5f67890")
    cluster(stack, group_of(), security=[group.security_group_id])


def group_from_a_parameter(stack):
    given = cdk.CfnParameter(stack, "GroupId")
    cluster(stack, group_of(), security=[given.value_as_string])


def no_network_of_ones_own(stack):
    sagemaker.CfnCluster(stack, "Cluster", instance_groups=[group_of()])


def one_imported_of_two(stack):
    plain = security_group(stack)
    cluster(stack, group_of(), security=[plain.security_group_id, "sg-0a1b2c3d4e5f67890"])


def two_groups_of_which_the_set_satisfies(stack):
    into, out = security_group(stack, "Into"), security_group(stack, "Out")
    into.add_ingress_rule(into, ALL)
    out.add_egress_rule(out, ALL)
    made = cluster(stack, group_of(), security=[into.security_group_id, out.security_group_id])
    made.node.add_dependency(into, out)


def two_groups_of_which_one_is_right(stack):
    good, plain = efa_group(stack), security_group(stack, "Plain", outbound=True)
    made = cluster(stack, group_of(), security=[plain.security_group_id, good.security_group_id])
    made.node.add_dependency(good)


def two_right_groups_of_which_one_is_waited_for(stack):
    first, second = efa_group(stack, "First"), efa_group(stack, "Second")
    made = cluster(stack, group_of(), security=[first.security_group_id, second.security_group_id])
    made.node.add_dependency(second)


def no_efa_no_rules(stack):
    cluster(stack, group_of("cpu", "ml.m5.4xlarge"), security=[security_group(stack).security_group_id])


def no_efa_file_system(stack):
    lustre(stack, groups=[security_group(stack).security_group_id])


# --- order


def rules_not_waited_for(stack):
    cluster(stack, group_of(), security=[efa_group(stack).security_group_id])


def file_system_does_not_wait(stack):
    lustre(stack, groups=[efa_group(stack).security_group_id], efa=True)


def file_system_waits(stack):
    group = efa_group(stack)
    lustre(stack, groups=[group.security_group_id], efa=True).node.add_dependency(group)


def the_scope_waits(stack):
    group = efa_group(stack)
    scope = Construct(stack, "Scope")
    cluster(scope, group_of(), security=[group.security_group_id])
    scope.node.add_dependency(group)


def something_between_waits(stack):
    group = efa_group(stack)
    between = cdk.CfnWaitConditionHandle(stack, "Between")
    between.node.add_dependency(group)
    cluster(stack, group_of(), security=[group.security_group_id]).node.add_dependency(between)


def rules_in_another_stack(stack):
    other = cdk.Stack(stack.node.root, "Network", env=cdk.Environment(region="us-east-2"))
    cluster(stack, group_of(), security=[efa_group(other).security_group_id])


def scripts(bucket: s3.IBucket) -> dict[str, object]:
    return {"lifeCycleConfig": {"sourceS3Uri": f"s3://{bucket.bucket_name}/train/", "onCreate": "run.sh"}}


def upload(stack: cdk.Stack, bucket: s3.IBucket, name: str = "Upload") -> deployment.BucketDeployment:
    source = [deployment.Source.data("run.sh", "true")]
    return deployment.BucketDeployment(stack, name, sources=source, destination_bucket=bucket)


def nodes_before_scripts(stack):
    bucket = s3.Bucket(stack, "Bucket")
    upload(stack, bucket)
    cluster(stack, group_of("cpu", "ml.m5.4xlarge", **scripts(bucket)))


def nodes_before_scripts_in_a_bucket_by_name(stack):
    bucket = s3.Bucket.from_bucket_name(stack, "Bucket", "sagemaker-theirs")
    upload(stack, bucket)
    cluster(stack, group_of("cpu", "ml.m5.4xlarge", **scripts(bucket)))


def scripts_before_nodes(stack):
    bucket = s3.Bucket(stack, "Bucket")
    uploaded = upload(stack, bucket)
    cluster(stack, group_of("cpu", "ml.m5.4xlarge", **scripts(bucket))).node.add_dependency(uploaded)


def an_upload_of_something_else(stack):
    upload(stack, s3.Bucket(stack, "Website"))
    cluster(stack, group_of("cpu", "ml.m5.4xlarge", **scripts(s3.Bucket(stack, "Bucket"))))


def an_upload_and_no_scripts(stack):
    upload(stack, s3.Bucket(stack, "Website"))
    cluster(stack, group_of("cpu", "ml.m5.4xlarge"))


# --- zone


def apart(stack, *, efa: bool = True, kind: str = "ml.p5.48xlarge"):
    system = lustre(stack, at=subnet(stack, "A", "use2-az1"), efa=efa)
    cluster(stack, group_of(kind=kind, **mounting(system)), subnets=[subnet(stack, "B", "use2-az2")])


def apart_by_override(stack):
    here = subnet(stack, "A", "use2-az1")
    override = {"subnets": [subnet(stack, "B", "use2-az2")], "securityGroupIds": ["sg-theirs"]}
    group = group_of(overrideVpcConfig=override, **mounting(lustre(stack, at=here, efa=True)))
    cluster(stack, group, subnets=[here])


def apart_by_chance(stack):
    here, there = subnet(stack, "A", "use2-az1"), subnet(stack, "B", "use2-az2")
    cluster(stack, group_of(**mounting(lustre(stack, at=here, efa=True))), subnets=[here, there])


def apart_by_name(stack):
    vpc = ec2.Vpc(stack, "Theirs", max_azs=2)
    one, two = [s.subnet_id for s in vpc.private_subnets]
    cluster(stack, group_of(**mounting(lustre(stack, at=one, efa=True))), subnets=[two])


def two_systems_swapped(stack):
    a, b = subnet(stack, "A", "use2-az1"), subnet(stack, "B", "use2-az2")
    first, second = lustre(stack, "First", at=a, efa=True), lustre(stack, "Second", at=b, efa=True)
    groups = [
        group_of(
            name, overrideVpcConfig={"subnets": [at], "securityGroupIds": ["sg-theirs"]}, **mounting(system)
        )
        for name, at, system in (("one", b, first), ("two", a, second))
    ]
    cluster(stack, *groups)


def together(stack):
    here = subnet(stack, "A", "use2-az1")
    cluster(stack, group_of(**mounting(lustre(stack, at=here, efa=True))), subnets=[here])


def together_in_two_subnets(stack):
    system = lustre(stack, at=subnet(stack, "A", "use2-az1"), efa=True)
    cluster(stack, group_of(**mounting(system)), subnets=[subnet(stack, "B", "use2-az1")])


def together_by_name(stack):
    vpc = ec2.Vpc(stack, "Theirs", max_azs=1)
    (here,) = [s.subnet_id for s in vpc.private_subnets]
    cluster(stack, group_of(**mounting(lustre(stack, at=here, efa=True))), subnets=[here])


def a_name_and_an_id(stack):
    system = lustre(stack, at=subnet(stack, "A", "use2-az1"), efa=True)
    (named,) = [s.subnet_id for s in ec2.Vpc(stack, "Theirs", max_azs=1).private_subnets]
    cluster(stack, group_of(**mounting(system)), subnets=[named])


def each_system_with_its_group(stack):
    a, b = subnet(stack, "A", "use2-az1"), subnet(stack, "B", "use2-az2")
    first, second = lustre(stack, "First", at=a, efa=True), lustre(stack, "Second", at=b, efa=True)
    groups = [
        group_of(
            name, overrideVpcConfig={"subnets": [at], "securityGroupIds": ["sg-theirs"]}, **mounting(system)
        )
        for name, at, system in (("one", a, first), ("two", b, second))
    ]
    cluster(stack, *groups)


def a_system_of_somebody_else(stack):
    group = group_of(**mounting("fs-0123456789abcdef0.fsx.us-east-2.amazonaws.com"))
    cluster(stack, group, subnets=[subnet(stack, "B", "use2-az2")])


# --- describe-file-systems


def role(stack: cdk.Stack, *policies: str, **more: object) -> iam.Role:
    managed = [iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in policies]
    principal = iam.ServicePrincipal("sagemaker.amazonaws.com")
    return iam.Role(stack, "Role", assumed_by=principal, managed_policies=managed, **more)


def under(stack: cdk.Stack, arn: str, *, mounts: bool = True):
    group = group_of("cpu", "ml.m5.4xlarge", executionRole=arn)
    cluster(stack, mounting("fs-0123456789abcdef0.fsx", **group) if mounts else group)


def silent_role(stack):
    under(stack, role(stack).role_arn)


def aws_node_policy_alone(stack):
    under(stack, role(stack, NODE_POLICY).role_arn)


def l1_role(stack, action: str = "fsx:CreateFileSystem"):
    statement = {"Effect": "Allow", "Action": action, "Resource": "*"}
    policy = {"policyName": "p", "policyDocument": {"Version": "2012-10-17", "Statement": [statement]}}
    trust = {"Version": "2012-10-17", "Statement": []}
    arn = f"arn:aws:iam::aws:policy/{NODE_POLICY}"
    made = iam.CfnRole(
        stack, "Role", assume_role_policy_document=trust, policies=[policy], managed_policy_arns=[arn]
    )
    under(stack, made.attr_arn)


def denied_role(stack):
    made = role(stack)
    made.add_to_policy(iam.PolicyStatement(
        effect=iam.Effect.DENY, actions=["fsx:DescribeFileSystems"], resources=["*"]
    ))  # fmt: skip
    under(stack, made.role_arn)


def granted(stack):
    made = role(stack, NODE_POLICY)
    made.add_to_policy(iam.PolicyStatement(actions=["fsx:Describe*"], resources=["*"]))
    under(stack, made.role_arn)


def granted_inline(stack):
    statement = iam.PolicyStatement(actions=["fsx:DescribeFileSystems"], resources=["*"])
    document = iam.PolicyDocument(statements=[statement])
    under(stack, role(stack, inline_policies={"Fsx": document}).role_arn)


def granted_by_aws(stack):
    under(stack, role(stack, NODE_POLICY, "AmazonFSxReadOnlyAccess").role_arn)


def imported_role(stack):
    made = iam.Role.from_role_arn(stack, "Role", "arn:aws:iam::111122223333:role/theirs")
    under(stack, made.role_arn)


def nothing_mounted(stack):
    under(stack, role(stack).role_arn, mounts=False)


# --- lustre-version, retain, retention, public-subnet


def l2_lustre(stack):
    fsx.LustreFileSystem(
        stack, "Fsx", vpc=network(stack), storage_capacity_gib=1200, removal_policy=RETAIN,
        vpc_subnet=ec2.Subnet.from_subnet_id(stack, "Subnet", "subnet-1"),
        lustre_configuration=fsx.LustreConfiguration(
            deployment_type=fsx.LustreDeploymentType.PERSISTENT_2, per_unit_storage_throughput=125
        ),
    )  # fmt: skip


def windows(stack):
    given = {"throughputCapacity": 32}
    made = fsx.CfnFileSystem(
        stack, "Fsx", file_system_type="WINDOWS", subnet_ids=["subnet-1"], windows_configuration=given
    )
    made.apply_removal_policy(RETAIN)


def unretained(stack, policy: cdk.RemovalPolicy | None = None):
    made = fsx.CfnFileSystem(stack, "Fsx", file_system_type="OPENZFS", subnet_ids=["subnet-1"])
    if policy:
        made.apply_removal_policy(policy)


def replaced(stack):
    made = fsx.CfnFileSystem(stack, "Fsx", file_system_type="OPENZFS", subnet_ids=["subnet-1"])
    made.cfn_options.deletion_policy = cdk.CfnDeletionPolicy.RETAIN


def bucket(stack, **more: object):
    s3.Bucket(stack, "Bucket", **more)


def database(stack, policy: cdk.RemovalPolicy):
    rds.CfnDBCluster(stack, "Db", engine="aurora-mysql").apply_removal_policy(policy)


class KeepsLogsAMonth:
    """Somebody's own Aspect."""

    def visit(self, node):
        if isinstance(node, logs.CfnLogGroup):
            node.retention_in_days = 30


jsii.implements(cdk.IAspect)(KeepsLogsAMonth)


def retention_by_another_aspect(stack):
    logs.CfnLogGroup(stack, "Logs")
    cdk.Aspects.of(stack).add(KeepsLogsAMonth())


def public_subnets(stack):
    made = ec2.Vpc(stack, "Theirs", max_azs=1)
    cluster(stack, group_of("cpu", "ml.m5.4xlarge"), subnets=[made.public_subnets[0].subnet_id])


def public_by_override(stack):
    public = subnet(stack, "Public", "use2-az1", map_public_ip_on_launch=True)
    override = {"subnets": [public], "securityGroupIds": ["sg-theirs"]}
    cluster(stack, group_of("cpu", "ml.m5.4xlarge", overrideVpcConfig=override))


def private_subnets_of_a_vpc_with_public_ones(stack):
    made = ec2.Vpc(stack, "Theirs", max_azs=1)
    cluster(stack, group_of("cpu", "ml.m5.4xlarge"), subnets=[made.private_subnets[0].subnet_id])


def case(name: str, build: Build, *args: object, **kwargs: object):
    return pytest.param(lambda stack: build(stack, *args, **kwargs), id=name)


def refused(name: str, guard: str, at: str, words: str, build: Build, *args: object, **kwargs: object):
    return pytest.param(guard, at, words, lambda stack: build(stack, *args, **kwargs), id=f"{guard}: {name}")


REFUSED = [
    refused("A6 allow_all_outbound", "efa-rules", "Cluster", "group p5 egress", outbound_swallows_the_rule),
    refused("A4 CIDR rules", "efa-rules", "Cluster", "group p5 ingress egress EfaSecurityGroup", cidr_rules),
    refused("TCP alone", "efa-rules", "Cluster", "ingress egress", tcp_alone),
    refused("another group's rules", "efa-rules", "Cluster", "ingress egress", rules_of_another_group),
    refused("A5 override", "efa-rules", "Cluster", "ingress egress", overridden_by_a_plain_group),
    refused("typed properties", "efa-rules", "Cluster", "ingress egress", typed_properties),
    refused("flexible types", "efa-rules", "Cluster", "ingress egress", flexible_types),
    refused("file system", "efa-rules", "Fsx", "EFA file system", efa_file_system),
    refused("no group", "efa-rules", "Fsx", "EFA file system", lustre, efa=True, security_group_ids=[]),
    refused("A5 rules", "order", "Cluster", "Theirs/Group add the dependency", rules_not_waited_for),
    refused("A9 file system", "order", "Fsx", "Theirs/Group add the dependency", file_system_does_not_wait),
    refused("upload", "order", "Cluster", "Theirs/Upload uploaded add the dependency", nodes_before_scripts),
    refused("upload by name", "order", "Cluster", "uploaded", nodes_before_scripts_in_a_bucket_by_name),
    refused("B3 apart", "zone", "Cluster", "group p5 use2-az2 use2-az1 put both in one", apart),
    refused("override", "zone", "Cluster", "use2-az2 use2-az1", apart_by_override),
    refused("one of two subnets", "zone", "Cluster", "use2-az2 use2-az1", apart_by_chance),
    refused("zones by name", "zone", "Cluster", "GetAZs", apart_by_name),
    refused("two systems", "zone", "Cluster", "group one group two", two_systems_swapped),
    refused("B2 no policy", "describe-file-systems", "Cluster", "group cpu role TCP allow", silent_role),
    refused("B2 AWS's node policy", "describe-file-systems", "Cluster", "TCP", aws_node_policy_alone),
    refused("B2 L1 role", "describe-file-systems", "Cluster", "TCP", l1_role),
    refused("B2 denied", "describe-file-systems", "Cluster", "TCP", denied_role),
    refused("AWS's default", "lustre-version", "Fsx", "2.10 2.15 set", lustre, file_system_type_version=None),
    refused("2.12", "lustre-version", "Fsx", "2.12 2.15 set", lustre, file_system_type_version="2.12"),
    refused("the L2's default", "lustre-version", "Fsx/Resource", "2.10 2.15", l2_lustre),
    refused("B11 file system", "retain", "Fsx", "AWS::FSx::FileSystem RETAIN", unretained),
    refused("B11 destroyed", "retain", "Fsx", "RETAIN", unretained, cdk.RemovalPolicy.DESTROY),
    refused("on replacement", "retain", "Fsx", "RETAIN", replaced),
    refused("I2 bucket", "retain", "Bucket/Resource", "RETAIN", bucket, removal_policy=DESTROY),
    refused("key", "retain", "Key", "AWS::KMS::Key", lambda stack: kms.CfnKey(stack, "Key")),
    refused("metrics", "retain", "Amp", "AWS::APS::Workspace", lambda stack: aps.CfnWorkspace(stack, "Amp")),
    refused("database", "retain", "Db", "AWS::RDS::DBCluster", database, cdk.RemovalPolicy.DESTROY),
    refused("L1", "retention", "Logs", "for ever set", lambda stack: logs.CfnLogGroup(stack, "Logs")),
    refused("L2", "retention", "Logs/Resource", "set",
            lambda stack: logs.LogGroup(stack, "Logs", retention=logs.RetentionDays.INFINITE)),
    refused("cluster", "public-subnet", "Cluster", "group cpu public wants private", public_subnets),
    refused("override", "public-subnet", "Cluster", "group cpu", public_by_override),
]  # fmt: skip

PASSES = [
    case("A4 both ways", efa_both_ways),
    case("L1 rules", l1_rules),
    case("imported group", imported_group),
    case("group from a parameter", group_from_a_parameter),
    case("one imported of two", one_imported_of_two),
    case("HyperPod's own network", no_network_of_ones_own),
    case("A7 the set satisfies", two_groups_of_which_the_set_satisfies),
    case("A7 one of two", two_groups_of_which_one_is_right),
    case("A7 one waited for", two_right_groups_of_which_one_is_waited_for),
    case("no EFA", no_efa_no_rules),
    case("no EFA file system", no_efa_file_system),
    case("file system waits", file_system_waits),
    case("scope waits", the_scope_waits),
    case("waits through another", something_between_waits),
    case("rules in another stack", rules_in_another_stack),
    case("scripts first", scripts_before_nodes),
    case("another upload", an_upload_of_something_else),
    case("no scripts", an_upload_and_no_scripts),
    case("one zone", together),
    case("one zone, two subnets", together_in_two_subnets),
    case("one zone by name", together_by_name),
    case("a name and an id", a_name_and_an_id),
    case("zones apart without EFA", apart, efa=False),
    case("zones apart, clients without EFA", apart, kind="ml.m5.4xlarge"),
    case("each system with its group", each_system_with_its_group),
    case("imported file system", a_system_of_somebody_else),
    case("granted", granted),
    case("granted inline", granted_inline),
    case("granted by AWS's policy", granted_by_aws),
    case("granted in another case", l1_role, "FSX:describefilesystems"),
    case("imported role", imported_role),
    case("nothing mounted", nothing_mounted),
    case("Lustre 2.15", lustre),
    case("Windows", windows),
    case("kept", unretained, cdk.RemovalPolicy.RETAIN),
    case("kept once made", unretained, cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE),
    case("snapshot", database, cdk.RemovalPolicy.SNAPSHOT),
    case("bucket by default", bucket),
    case("empties itself", bucket, removal_policy=cdk.RemovalPolicy.DESTROY, auto_delete_objects=True),
    case("retention", lambda stack: logs.LogGroup(stack, "Logs")),
    case("retention by an Aspect", retention_by_another_aspect),
    case("private beside public", private_subnets_of_a_vpc_with_public_ones),
    case("public subnets of no cluster", lambda stack: ec2.Vpc(stack, "Theirs", max_azs=1)),
]


@pytest.mark.parametrize(("guard", "at", "words", "build"), REFUSED)
def test_refused(findings, guard: str, at: str, words: str, build: Build):
    found = findings(build)
    assert {path for path, _, _ in found} == {f"Theirs/{at}"}, "the resource"
    assert {name for _, _, name in found} == {guard}
    said = " ".join(message for _, message, _ in found)
    phrases = [words] if words in said else words.split()
    assert all(phrase in said for phrase in phrases), said
    assert all(":" in message for _, message, _ in found), "what is wrong: what to do"


@pytest.mark.parametrize("build", PASSES)
def test_passes(findings, build: Build):
    assert findings(build) == []


def test_a_stack_for_any_region_is_read_as_well(findings):
    """B2: there AWS's node policy is an expression, not a text."""
    (found,) = findings(lambda stack: aws_node_policy_alone(cdk.Stack(stack.node.root, "Anywhere")))
    assert found[0] == "Anywhere/Cluster"
    assert found[2] == "describe-file-systems"


def test_every_guard_has_both():
    """A guard that is added without its two tests fails here."""
    folder = Path(str(trainshed.__file__)).parent
    text = "".join((folder / name).read_text(encoding="utf-8") for name in ("guards.py", "efa_guards.py"))
    named = set(re.findall(r'yield "([a-z-]+)"', text))
    assert named == {param.values[0] for param in REFUSED}
