"""The region's key, and log groups that use it: every construct encrypts with a key that outlives it."""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from .place import place_of


class DataKey(kms.Key):
    """A rotating KMS key that survives its stack, usable by CloudWatch Logs and by FSx's links to S3.

    FSx reads and writes a linked bucket through a service-linked role of its own, which gets no
    grant from the bucket (FSx for Lustre User Guide, "Working with server-side encrypted Amazon S3
    buckets").
    """

    def __init__(self, scope: Construct, construct_id: str) -> None:
        place = place_of(cdk.Stack.of(scope))
        account = f"arn:{place.partition}:iam::{place.account}"
        use = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
        role = "aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_fs-*"
        everybody = {"AWS": f"{account}:root"}
        logs = {"Service": f"logs.{place.region}.amazonaws.com"}
        # In one piece, which takes the place of CDK's own: so the account's policies decide here as well.
        statements = [
            _allow("kms:*", everybody),
            _allow(
                use, logs, "CloudWatchLogs", {"kms:EncryptionContext:aws:logs:arn": place.arn("logs", "*")}
            ),
            _allow(use, everybody, "FSxDataRepositories", {"aws:PrincipalArn": f"{account}:role/{role}"}),
        ]
        super().__init__(
            scope,
            construct_id,
            enable_key_rotation=True,
            removal_policy=cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
            description="Trainshed: datasets, checkpoints, file systems and logs of this region",
            policy=iam.PolicyDocument.from_json({"Version": "2012-10-17", "Statement": statements}),
        )


def _allow(
    actions: str | list[str], who: Mapping[str, str], sid: str | None = None,
    like: Mapping[str, str] | None = None,
) -> dict[str, object]:  # fmt: skip
    found = {"Effect": "Allow", "Action": actions, "Resource": "*", "Principal": who}
    return {**found, **({"Sid": sid} if sid else {}), **({"Condition": {"ArnLike": like}} if like else {})}


def log_group(
    scope: Construct, construct_id: str, *, key: kms.IKey, retention_days: int, name: str | None = None
) -> logs.CfnLogGroup:
    """An encrypted log group with a retention, in days; it goes with its stack."""
    group = logs.CfnLogGroup(
        scope, construct_id, kms_key_id=key.key_arn, retention_in_days=retention_days, log_group_name=name
    )
    group.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
    return group
