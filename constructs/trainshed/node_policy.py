"""Statements of nodes' policies, as documents: as objects of CDK's each costs three round trips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import aws_cdk as cdk
from aws_cdk import aws_kms as kms

from .place import place_of

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


def allow(
    actions: Sequence[str], resources: Sequence[str], conditions: Mapping[str, object] | None = None
) -> dict[str, object]:
    """One statement."""
    found: dict[str, object] = {"Effect": "Allow", "Action": [*actions], "Resource": [*resources]}
    return {**found, "Condition": conditions} if conditions else found


def everywhere(stack: cdk.Stack, cluster_name: str, security_group_id: str) -> list[dict[str, object]]:
    """What every node does, in its own cluster and security group."""
    place = place_of(stack)
    logs = place.arn("logs", f"log-group:/aws/sagemaker/Clusters/{cluster_name}/*")
    network = [
        place.arn("ec2", name)
        for name in ("network-interface/*", "subnet/*", f"security-group/{security_group_id}")
    ]
    metrics = {"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/Clusters"}}
    return [
        allow(WRITE_LOGS, [logs, f"{logs}:log-stream:*"]),
        allow(["cloudwatch:PutMetricData"], ["*"], metrics),
        allow(SESSION_MANAGER, ["*"]),
        allow(CREATE_INTERFACES, network),
        allow(["ec2:CreateTags"], network[:1]),
        # Without fsx:DescribeFileSystems the Lustre client mounts over TCP and says nothing.
        allow([*DESCRIBE_NETWORK, "fsx:DescribeFileSystems"], ["*"]),
    ]


def list_bucket(arn: str, prefix: str | None = None) -> dict[str, object]:
    """A bucket's names, under a prefix where one is given."""
    conditions = {"StringLike": {"s3:prefix": [f"{prefix}/*", prefix]}} if prefix else None
    return allow(["s3:ListBucket"], [arn], conditions)


def read_objects(arn: str, *prefixes: str) -> dict[str, object]:
    """A bucket's objects, under some prefixes or all of them."""
    places = [f"{prefix}/*" for prefix in prefixes] or ["*"]
    return allow(["s3:GetObject"], [f"{arn}/{place}" for place in places])


def use_key(key: kms.IKey, *, write: bool) -> dict[str, object]:
    """Decrypt, and to write encrypt."""
    more = ["kms:GenerateDataKey"] if write else []
    return allow(["kms:Decrypt", "kms:DescribeKey", *more], [key.key_arn])
