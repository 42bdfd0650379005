"""A validation that refuses a template that would fail at night.

Each guard names the resource, what is wrong and what to change. It reads what the constructs say,
so it holds for anybody's constructs in the same app, not only for this library's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk
import jsii
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sagemaker as sagemaker
from constructs import IConstruct, IValidation

from .efa_guards import Findings, efa_rules, same_zone
from .inspection import field, items
from .permissions import grants
from .planning.instances import INSTANCE_TYPES
from .resources import Resources

STATEFUL = frozenset({
    "AWS::APS::Workspace", "AWS::EFS::FileSystem", "AWS::FSx::DataRepositoryAssociation",
    "AWS::FSx::FileSystem", "AWS::KMS::Key", "AWS::RDS::DBCluster", "AWS::RDS::DBInstance", "AWS::S3::Bucket",
})  # fmt: skip
_KEEPS = ("Retain", "RetainExceptOnCreate", "Snapshot")
_UPLOAD = "Custom::CDKBucketDeployment"
_EMPTIES_ITSELF = "AutoDeleteObjectsCustomResource"
_SILENT = 'its role lacks fsx:DescribeFileSystems and would fall back to TCP in silence: allow it on "*"'


@jsii.implements(IValidation)
class Guards:
    """Makes synthesis fail on what it finds below a scope: an app, a stage or a stack.

    Add with `scope.node.add_validation(Guards(scope))`. CDK validates after every Aspect, so what they
    mend is mended.
    """

    def __init__(self, scope: IConstruct) -> None:
        self._scope = scope

    def validate(self) -> list[str]:
        """Findings become error annotations where they arise, which name the construct."""
        app = Resources(self._scope)
        stateful = app.of_type(*STATEFUL)
        for node, options in zip(stateful, app.options(stateful), strict=True):
            _report(node, _retained(node, options))
        for group in app.of(logs.CfnLogGroup):
            _report(group, _ends(group, app))
        for system in app.of(fsx.CfnFileSystem):
            _report(system, _lustre(system, app))
        for cluster in app.of(sagemaker.CfnCluster):
            _report(cluster, _cluster(cluster, app))
        return []


def _report(node: cdk.CfnResource, findings: Findings) -> None:
    for guard, message in findings:
        cdk.Annotations.of(node).add_error(f"{message} [trainshed:{guard}]")


def _retained(node: cdk.CfnResource, options: Mapping[str, Any]) -> Findings:
    if options.get("deletionPolicy") in _KEEPS and options.get("updateReplacePolicy") in _KEEPS:
        return
    parent = node.node.scope
    if parent is None or not parent.node.try_find_child(_EMPTIES_ITSELF):
        yield "retain", f"{node.cfn_resource_type} would go with its stack: apply RemovalPolicy.RETAIN"


def _ends(node: logs.CfnLogGroup, app: Resources) -> Findings:
    if field(app.written(node), "retention_in_days") is None:
        yield "retention", "this log group is kept for ever: set retention_in_days"


def _lustre(node: fsx.CfnFileSystem, app: Resources) -> Findings:
    given = app.written(node)
    if field(given, "file_system_type") != "LUSTRE":
        return
    version = field(given, "file_system_type_version")
    if version != "2.15":
        found = version or "2.10 (AWS's default)"
        yield "lustre-version", f"Lustre {found}, but current AMIs mount 2.15: set file_system_type_version"
    if field(field(given, "lustre_configuration"), "efa_enabled") is True:
        yield from efa_rules(node, items(field(given, "security_group_ids")), "this EFA file system", app)


def _cluster(node: sagemaker.CfnCluster, app: Resources) -> Findings:
    given = app.written(node)
    groups = items(field(given, "instance_groups"))
    for group in groups:
        name = f"group {field(group, 'instance_group_name')}"
        network = field(group, "override_vpc_config") or field(given, "vpc_config")
        subnets = app.subnets_of(field(network, "subnets"))
        if any(field(app.written(s), "map_public_ip_on_launch") is True for s in subnets):
            yield "public-subnet", f"{name} would get public addresses: HyperPod wants private subnets"
        storage = items(field(group, "instance_storage_configs"))
        mounts = [mount for mount in (field(s, "fsx_lustre_config") for s in storage) if mount]
        if network and _speaks_efa(group):
            yield from efa_rules(node, items(field(network, "security_group_ids")), name, app)
            systems = [app.target(field(mount, "dns_name")) for mount in mounts]
            yield from same_zone(subnets, systems, name, app)
        if mounts:
            yield from _describes_file_systems(field(group, "execution_role"), name, app)
    sources = [field(field(group, "life_cycle_config"), "source_s3_uri") for group in groups]
    yield from _uploaded(node, app.rendered(node, sources), app)


def _speaks_efa(group: object) -> bool:
    types = items(field(field(group, "instance_requirements"), "instance_types"))
    kinds = [INSTANCE_TYPES.get(str(name)) for name in types or [field(group, "instance_type")]]
    return any(kind.efa_interfaces for kind in kinds if kind)


def _uploaded(node: sagemaker.CfnCluster, scripts: str, app: Resources) -> Findings:
    for other in app.of_type(_UPLOAD):
        if not app.together(node, other):
            continue
        bucket = app.rendered(other, app.written(other).get("DestinationBucketName", "")).strip('"')
        if bucket and bucket in scripts and not app.depends_on(node, other):
            yield "order", f"the cluster may start before {other.node.path} has uploaded: add the dependency"


def _describes_file_systems(role_arn: object, what: str, app: Resources) -> Findings:
    role = app.target(role_arn)
    if isinstance(role, iam.CfnRole) and not grants(role, "fsx:DescribeFileSystems", app):
        yield "describe-file-systems", f"{what} mounts Lustre, but {_SILENT}"
