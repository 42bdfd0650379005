"""The region's key, and log groups that use it: every construct encrypts with a key that outlives it."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from .principals import account, service


class DataKey(kms.Key):
    """A rotating KMS key that survives its stack, usable by CloudWatch Logs and by FSx's links to S3.

    FSx reads and writes a linked bucket through a service-linked role of its own, which gets no
    grant from the bucket (FSx for Lustre User Guide, "Working with server-side encrypted Amazon S3
    buckets").
    """

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(
            scope,
            construct_id,
            enable_key_rotation=True,
            removal_policy=cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
            description="Trainshed: datasets, checkpoints, file systems and logs of this region",
        )
        stack = cdk.Stack.of(self)
        groups = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:*"
        use = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
        self.add_to_resource_policy(
            iam.PolicyStatement(
                sid="CloudWatchLogs",
                principals=[service(f"logs.{stack.region}.amazonaws.com")],
                actions=use,
                resources=["*"],
                conditions={"ArnLike": {"kms:EncryptionContext:aws:logs:arn": groups}},
            )
        )
        role = "aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_fs-*"
        self.add_to_resource_policy(
            iam.PolicyStatement(
                sid="FSxDataRepositories",
                principals=[account()],
                actions=use,
                resources=["*"],
                conditions={
                    "ArnLike": {"aws:PrincipalArn": f"arn:{stack.partition}:iam::{stack.account}:role/{role}"}
                },
            )
        )


def log_group(
    scope: Construct, construct_id: str, *, key: kms.IKey, retention_days: int, name: str | None = None
) -> logs.CfnLogGroup:
    """An encrypted log group with a retention, in days; it goes with its stack."""
    group = logs.CfnLogGroup(
        scope, construct_id, kms_key_id=key.key_arn, retention_in_days=retention_days, log_group_name=name
    )
    group.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
    return group
