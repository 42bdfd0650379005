"""Execution roles of HyperPod nodes: one a node role, each with what that role does and no more.

Written out after AWS's managed policy AmazonSageMakerClusterInstanceRolePolicy and the Slurm-in-a-VPC
page ("IAM for HyperPod"), narrowed to this cluster's logs, folder, security group and key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from .image import pull_from
from .planning.model import NodeRole
from .principals import service

CREATE_INTERFACES = (
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:DetachNetworkInterface",
)
DESCRIBE_NETWORK = (
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
)
WRITE_LOGS = (
    "logs:CreateLogGroup",
    "logs:CreateLogStream",
    "logs:DescribeLogStreams",
    "logs:PutLogEvents",
)
SESSION_MANAGER = (
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)


class NodeExecutionRole(Construct):
    """The role that nodes of one kind run under.

    Args:
        node_role: controller, login or worker.
        cluster_name: whose logs it writes.
        security_group: the only one its network interfaces may be in.
        lifecycle_bucket: where the boot scripts lie.
        prefix: the cluster's folder in it.
        key: decrypts scripts and data.
        datasets: readable from login and worker nodes.
        checkpoints: written by worker nodes, readable from login nodes.
        secret_arn: accounting credentials, for the controller.
        watches_alarms: scheduled updates with rollback need to read alarms.
        pulls_from: ARN of the repository that login and worker nodes pull the workload's image from.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        node_role: NodeRole,
        cluster_name: str,
        security_group: ec2.ISecurityGroup,
        lifecycle_bucket: s3.IBucket,
        prefix: str,
        key: kms.IKey,
        datasets: s3.IBucket,
        checkpoints: s3.IBucket,
        secret_arn: str | None = None,
        watches_alarms: bool = False,
        pulls_from: str | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        statements = [
            *_everywhere(cdk.Stack.of(self), cluster_name, security_group.security_group_id),
            _list(lifecycle_bucket, prefix),
            _read(lifecycle_bucket, prefix),
            _use_key(key, write=node_role == "worker"),
        ]
        if node_role != "controller":
            statements += [_list(datasets), _read(datasets), _list(checkpoints), _read(checkpoints)]
            statements += pull_from(pulls_from) if pulls_from else ()
        if node_role == "worker":
            write = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
            statements.append(_allow(write, [checkpoints.arn_for_objects("*")]))
        if node_role == "controller" and secret_arn:
            statements.append(_allow(["secretsmanager:GetSecretValue"], [secret_arn]))
        if watches_alarms:
            statements.append(_allow(["cloudwatch:DescribeAlarms"], ["*"]))
        document = iam.PolicyDocument.from_json({"Version": "2012-10-17", "Statement": statements})
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=service("sagemaker.amazonaws.com"),
            managed_policies=[iam.ManagedPolicy(self, "Policy", document=document)],
        )
        self.role_arn = self.role.role_arn


def _allow(
    actions: Sequence[str], resources: Sequence[str], conditions: Mapping[str, object] | None = None
) -> dict[str, object]:
    # A document in one piece: each statement as an object of CDK's costs synthesis three round trips.
    found: dict[str, object] = {"Effect": "Allow", "Action": [*actions], "Resource": [*resources]}
    return {**found, "Condition": conditions} if conditions else found


def _everywhere(stack: cdk.Stack, cluster_name: str, security_group_id: str) -> list[dict[str, object]]:
    partition, place = stack.partition, f"{stack.region}:{stack.account}"
    logs = f"arn:{partition}:logs:{place}:log-group:/aws/sagemaker/Clusters/{cluster_name}/*"
    network = [
        f"arn:{partition}:ec2:{place}:{name}"
        for name in ("network-interface/*", "subnet/*", f"security-group/{security_group_id}")
    ]
    metrics = {"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/Clusters"}}
    return [
        _allow(WRITE_LOGS, [logs, f"{logs}:log-stream:*"]),
        _allow(["cloudwatch:PutMetricData"], ["*"], metrics),
        _allow(SESSION_MANAGER, ["*"]),
        _allow(CREATE_INTERFACES, network),
        _allow(["ec2:CreateTags"], network[:1]),
        # Without fsx:DescribeFileSystems the Lustre client mounts over TCP and says nothing.
        _allow([*DESCRIBE_NETWORK, "fsx:DescribeFileSystems"], ["*"]),
    ]


def _list(bucket: s3.IBucket, prefix: str | None = None) -> dict[str, object]:
    conditions = {"StringLike": {"s3:prefix": [f"{prefix}/*", prefix]}} if prefix else None
    return _allow(["s3:ListBucket"], [bucket.bucket_arn], conditions)


def _read(bucket: s3.IBucket, prefix: str | None = None) -> dict[str, object]:
    return _allow(["s3:GetObject"], [bucket.arn_for_objects(f"{prefix}/*" if prefix else "*")])


def _use_key(key: kms.IKey, *, write: bool) -> dict[str, object]:
    more = ["kms:GenerateDataKey"] if write else []
    return _allow(["kms:Decrypt", "kms:DescribeKey", *more], [key.key_arn])
