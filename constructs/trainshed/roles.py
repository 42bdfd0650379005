"""Execution roles of HyperPod nodes: one a node role, each with what that role does and no more.

Written out after AWS's managed policy AmazonSageMakerClusterInstanceRolePolicy and the Slurm-in-a-VPC
page ("IAM for HyperPod"), narrowed to this cluster's logs, folder, security group and key.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

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
    ) -> None:
        super().__init__(scope, construct_id)
        statements = [
            *_everywhere(cdk.Stack.of(self), cluster_name, security_group.security_group_id),
            _list(lifecycle_bucket, prefix),
            _read(lifecycle_bucket, prefix),
        ]
        statements.append(_use_key(key, write=node_role == "worker"))
        if node_role != "controller":
            statements += [_list(datasets), _read(datasets), _list(checkpoints), _read(checkpoints)]
        if node_role == "worker":
            statements.append(iam.PolicyStatement(
                actions=["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
                resources=[checkpoints.arn_for_objects("*")],
            ))  # fmt: skip
        if node_role == "controller" and secret_arn:
            statements.append(
                iam.PolicyStatement(actions=["secretsmanager:GetSecretValue"], resources=[secret_arn])
            )
        if watches_alarms:
            statements.append(iam.PolicyStatement(actions=["cloudwatch:DescribeAlarms"], resources=["*"]))
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=service("sagemaker.amazonaws.com"),
            managed_policies=[iam.ManagedPolicy(self, "Policy", statements=statements)],
        )
        self.role_arn = self.role.role_arn


def _everywhere(stack: cdk.Stack, cluster_name: str, security_group_id: str) -> list[iam.PolicyStatement]:
    logs = stack.format_arn(
        service="logs", resource="log-group", resource_name=f"/aws/sagemaker/Clusters/{cluster_name}/*",
        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
    )  # fmt: skip
    network = [
        stack.format_arn(service="ec2", resource=kind, resource_name=name)
        for kind, name in (("network-interface", "*"), ("subnet", "*"), ("security-group", security_group_id))
    ]
    return [
        iam.PolicyStatement(
            actions=[*WRITE_LOGS],
            resources=[logs, f"{logs}:log-stream:*"],
        ),
        iam.PolicyStatement(
            actions=["cloudwatch:PutMetricData"], resources=["*"],
            conditions={"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/Clusters"}},
        ),
        iam.PolicyStatement(actions=[*SESSION_MANAGER], resources=["*"]),
        iam.PolicyStatement(actions=[*CREATE_INTERFACES], resources=network),
        iam.PolicyStatement(actions=["ec2:CreateTags"], resources=network[:1]),
        # Without fsx:DescribeFileSystems the Lustre client mounts over TCP and says nothing.
        iam.PolicyStatement(actions=[*DESCRIBE_NETWORK, "fsx:DescribeFileSystems"], resources=["*"]),
    ]  # fmt: skip


def _list(bucket: s3.IBucket, prefix: str | None = None) -> iam.PolicyStatement:
    conditions = {"StringLike": {"s3:prefix": [f"{prefix}/*", prefix]}} if prefix else None
    return iam.PolicyStatement(
        actions=["s3:ListBucket"], resources=[bucket.bucket_arn], conditions=conditions
    )


def _read(bucket: s3.IBucket, prefix: str | None = None) -> iam.PolicyStatement:
    return iam.PolicyStatement(
        actions=["s3:GetObject"], resources=[bucket.arn_for_objects(f"{prefix}/*" if prefix else "*")]
    )


def _use_key(key: kms.IKey, *, write: bool) -> iam.PolicyStatement:
    actions = ["kms:Decrypt", "kms:DescribeKey", *(["kms:GenerateDataKey"] if write else [])]
    return iam.PolicyStatement(actions=actions, resources=[key.key_arn])
