"""Buckets: data that survives everything, and the one bucket that empties itself.

All are private, TLS-only and encrypted; data buckets are versioned, logged and retained.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypedDict, Unpack, cast

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from .planning.nodes import lifecycle_bucket_name

_days = cache(cdk.Duration.days)
_ABORT_AFTER = _days(7)
_NOTHING_PUBLIC = s3.BlockPublicAccess.BLOCK_ALL


class _Props(TypedDict, total=False):
    bucket_name: str
    server_access_logs_bucket: s3.IBucket
    server_access_logs_prefix: str
    removal_policy: cdk.RemovalPolicy
    auto_delete_objects: bool
    lifecycle_rules: Sequence[s3.LifecycleRule]


class _PrivateBucket(s3.Bucket):
    """What every bucket here has; without a key S3's own encrypts."""

    def __init__(
        self, scope: Construct, construct_id: str, *, key: kms.IKey | None = None, **props: Unpack[_Props]
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=key,
            bucket_key_enabled=True if key else None,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            block_public_access=_NOTHING_PUBLIC,
            versioned=True,
            **props,
        )


class AccessLogBucket(_PrivateBucket):
    """Receives the access logs of the others; S3 delivers them to SSE-S3 buckets only."""

    def __init__(self, scope: Construct, construct_id: str, *, expire_after_days: int) -> None:
        super().__init__(
            scope,
            construct_id,
            removal_policy=cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
            lifecycle_rules=[
                s3.LifecycleRule(
                    expiration=_days(expire_after_days),
                    noncurrent_version_expiration=_days(1),
                    abort_incomplete_multipart_upload_after=_ABORT_AFTER,
                )
            ],
        )


class DatasetBucket(_PrivateBucket):
    """A bucket for datasets or checkpoints.

    Args:
        key: encrypts the objects.
        access_logs: receives access logs under this bucket's id.
        noncurrent_expire_after_days: when overwritten and deleted versions go, in days.
        infrequent_access_after_days: when objects move to infrequent access, in days; None: never
            (checkpoints are thinned out by the trainer, which knows which ones matter).
        events: send its notifications to EventBridge.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        key: kms.IKey,
        access_logs: s3.IBucket,
        noncurrent_expire_after_days: int,
        infrequent_access_after_days: int | None = None,
        events: bool = False,
    ) -> None:
        moves = [] if infrequent_access_after_days is None else [
            s3.Transition(
                storage_class=s3.StorageClass.INFREQUENT_ACCESS,
                transition_after=_days(infrequent_access_after_days),
            )
        ]  # fmt: skip
        super().__init__(
            scope,
            construct_id,
            key=key,
            server_access_logs_bucket=access_logs,
            server_access_logs_prefix=f"{construct_id.lower()}/",
            removal_policy=cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
            lifecycle_rules=[
                s3.LifecycleRule(
                    transitions=moves,
                    noncurrent_version_expiration=_days(noncurrent_expire_after_days),
                    abort_incomplete_multipart_upload_after=_ABORT_AFTER,
                )
            ],
        )
        if events:
            # CDK's own switch brings a function along that writes what CloudFormation can write itself.
            cast(
                "s3.CfnBucket", self.node.default_child
            ).notification_configuration = s3.CfnBucket.NotificationConfigurationProperty(
                event_bridge_configuration=s3.CfnBucket.EventBridgeConfigurationProperty(
                    event_bridge_enabled=True
                )
            )


class LifecycleBucket(_PrivateBucket):
    """Holds what nodes run at boot: rebuilt from the repository at each deploy, so it empties itself.

    Its name begins with `sagemaker-` because AWS's managed policy for cluster nodes admits no other
    (AmazonSageMakerClusterInstanceRolePolicy), and ends with account and region to be unique.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, platform: str, key: kms.IKey, access_logs: s3.IBucket
    ) -> None:
        stack = cdk.Stack.of(scope)
        super().__init__(
            scope,
            construct_id,
            bucket_name=lifecycle_bucket_name(platform, stack.account, stack.region),
            key=key,
            server_access_logs_bucket=access_logs,
            server_access_logs_prefix="lifecycle/",
            removal_policy=cdk.RemovalPolicy.DESTROY,
            auto_delete_objects=True,
            lifecycle_rules=[s3.LifecycleRule(
                noncurrent_version_expiration=_days(30),
                abort_incomplete_multipart_upload_after=_ABORT_AFTER,
            )],
        )  # fmt: skip
