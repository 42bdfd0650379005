"""An Aspect that refuses a template that would fail at night.

Each guard names the resource, what is wrong and what to change. It reads what the template will
say, so it holds for anybody's constructs in the same app, not only for this library's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aws_cdk as cdk
import jsii
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sagemaker as sagemaker
from constructs import IConstruct

from .inspection import depends_on, field, grants, items, self_rules, target
from .planning.instances import INSTANCE_TYPES

STATEFUL = frozenset({
    "AWS::APS::Workspace", "AWS::EFS::FileSystem", "AWS::FSx::DataRepositoryAssociation", "AWS::FSx::FileSystem",
    "AWS::KMS::Key", "AWS::RDS::DBCluster", "AWS::RDS::DBInstance", "AWS::S3::Bucket",
})  # fmt: skip
_UPLOAD = "Custom::CDKBucketDeployment"
_EMPTIES_ITSELF = "AutoDeleteObjectsCustomResource"
Findings = Iterator[tuple[str, str]]


@jsii.implements(cdk.IAspect)
class Guards:
    """Add with `Aspects.of(app).add(Guards())`; synthesis then fails on what it finds."""

    def visit(self, node: IConstruct) -> None:
        """Check one construct, and with a cluster or file system what it leans on."""
        if not isinstance(node, cdk.CfnResource):
            return
        for guard, message in self._findings(node):
            cdk.Annotations.of(node).add_error(f"{message} [trainshed:{guard}]")

    def _findings(self, node: cdk.CfnResource) -> Findings:
        if node.cfn_resource_type in STATEFUL:
            yield from _retained(node)
        if isinstance(node, logs.CfnLogGroup) and node.retention_in_days is None:
            yield "retention", "this log group is kept for ever: set retention_in_days"
        elif isinstance(node, ec2.CfnSubnet) and node.map_public_ip_on_launch is True:
            yield "public-subnet", "HyperPod refuses subnets that map public addresses: turn MapPublicIpOnLaunch off"
        elif isinstance(node, fsx.CfnFileSystem) and node.file_system_type == "LUSTRE":
            yield from _lustre(node)
        elif isinstance(node, sagemaker.CfnCluster):
            yield from _cluster(node)


def _retained(node: cdk.CfnResource) -> Findings:
    parent = node.node.scope
    if parent is not None and parent.node.try_find_child(_EMPTIES_ITSELF):
        return
    keeps = (cdk.CfnDeletionPolicy.RETAIN, cdk.CfnDeletionPolicy.SNAPSHOT)
    options = node.cfn_options
    if options.deletion_policy not in keeps or options.update_replace_policy not in keeps:
        yield "retain", f"{node.cfn_resource_type} would go with its stack: apply RemovalPolicy.RETAIN"


def _lustre(node: fsx.CfnFileSystem) -> Findings:
    if node.file_system_type_version != "2.15":
        found = node.file_system_type_version or "2.10 (AWS's default)"
        yield "lustre-version", f"Lustre {found}, but current AMIs mount 2.15 only: set file_system_type_version"
    if field(node.lustre_configuration, "efa_enabled") is True:
        yield from _efa_rules(node, items(node.security_group_ids), "this EFA file system")


def _cluster(node: sagemaker.CfnCluster) -> Findings:
    groups = items(node.instance_groups)
    zones = _efa_zones(node)
    for group in groups:
        name = f"group {field(group, 'instance_group_name')}"
        kind = INSTANCE_TYPES.get(str(field(group, "instance_type")))
        network = field(group, "override_vpc_config") or node.vpc_config
        if kind and kind.efa_interfaces:
            yield from _efa_rules(node, items(field(network, "security_group_ids")), name)
            yield from _same_zone(items(field(network, "subnets")), zones, name)
        storage = items(field(group, "instance_storage_configs"))
        if any(field(s, "fsx_lustre_config") for s in storage):
            yield from _describes_file_systems(field(group, "execution_role"), name)
    if any(field(field(g, "life_cycle_config"), "source_s3_uri") for g in groups):
        for other in cdk.Stack.of(node).node.find_all():
            is_upload = isinstance(other, cdk.CfnResource) and other.cfn_resource_type == _UPLOAD
            if is_upload and not depends_on(node, other):
                yield "order", f"the cluster may come up before {other.node.path} has uploaded: add the dependency"


def _efa_rules(node: cdk.CfnResource, group_ids: list[Any], what: str) -> Findings:
    groups = [g for g in map(target, group_ids) if g is not None]
    if len(groups) < len(group_ids):
        return  # an imported group's rules are out of sight
    rules = [self_rules(group) for group in groups]
    for way, index in (("ingress", 0), ("egress", 1)):
        if not any(found[index] for found in rules):
            yield "efa-rules", (
                f"{what} speaks EFA, but no security group of it has a rule for all traffic whose {way} peer is the "
                "group itself (CIDR rules do not count): use EfaSecurityGroup, or add the rule"
            )
    waited = [rule for found in rules for side in found for rule in side]
    for rule in waited:
        if not depends_on(node, rule):
            yield "order", f"{what} may come up before {rule.node.path}: add the dependency"


def _same_zone(subnets: list[Any], efa_zones: set[str], what: str) -> Findings:
    zones = {str(s.availability_zone_id) for s in map(target, subnets) if isinstance(s, ec2.CfnSubnet)}
    if zones and efa_zones and not zones & efa_zones:
        yield "zone", f"{what} is in {min(zones)}, its EFA file system in {min(efa_zones)}: EFA does not cross zones"


def _efa_zones(node: sagemaker.CfnCluster) -> set[str]:
    """Zones of the EFA file systems that the cluster mounts."""
    zones: set[str] = set()
    for group in items(node.instance_groups):
        for storage in items(field(group, "instance_storage_configs")):
            system = target(field(field(storage, "fsx_lustre_config"), "dns_name"))
            if isinstance(system, fsx.CfnFileSystem) and field(system.lustre_configuration, "efa_enabled") is True:
                found = map(target, items(system.subnet_ids))
                zones |= {str(s.availability_zone_id) for s in found if isinstance(s, ec2.CfnSubnet)}
    return zones


def _describes_file_systems(role_arn: object, what: str) -> Findings:
    role = target(role_arn)
    if isinstance(role, iam.CfnRole) and not grants(role, "fsx:DescribeFileSystems"):
        yield "describe-file-systems", (
            f"{what} mounts Lustre, but its role lacks fsx:DescribeFileSystems: it would fall back to TCP in silence"
        )
