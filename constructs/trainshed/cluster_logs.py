"""An end for the logs of a cluster's nodes, which HyperPod keeps for ever in a group of its own making."""

from __future__ import annotations

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from .function_role import FunctionRole
from .place import place_of

_TIMEOUT, _PATIENCE = cdk.Duration.minutes(1), cdk.Duration.minutes(3)


class ClusterLogs(Construct):
    """Sets the retention of a cluster's log group once the cluster is there: only then is its name known.

    Args:
        cluster_name: HyperPod writes to /aws/sagemaker/Clusters/NAME/ID (SageMaker Developer Guide,
            "HyperPod lifecycle scripts: logs").
        cluster_arn: ends with the id.
        retention_days: one of CloudWatch's periods.
        key: encrypts the function's own logs.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster_name: str,
        cluster_arn: str,
        retention_days: int,
        key: kms.IKey,
    ) -> None:
        super().__init__(scope, construct_id)
        identity = FunctionRole(self, "Identity", key=key)
        logs = f"log-group:/aws/sagemaker/Clusters/{cluster_name}/*"
        identity.policy.add_statements(
            iam.PolicyStatement(
                actions=["logs:CreateLogGroup", "logs:PutRetentionPolicy"],
                resources=[place_of(cdk.Stack.of(self)).arn("logs", logs)],
            )
        )
        function = lambda_.Function(
            self,
            "Function",
            runtime=lambda_.Runtime.PYTHON_3_14,
            handler="handler.log_retention",
            code=lambda_.Code.from_asset(str(Path(__file__).parent / "provider"), exclude=["__pycache__"]),
            timeout=_TIMEOUT,
            description="Sets how long the logs of cluster nodes are kept",
            role=identity.role,
            log_group=identity.log_group,
        )
        cluster_id = cdk.Fn.select(1, cdk.Fn.split("/", cluster_arn))
        cdk.CustomResource(
            self,
            "Retention",
            service_token=function.function_arn,
            service_timeout=_PATIENCE,
            resource_type="Custom::ClusterLogRetention",
            properties={
                "LogGroupName": f"/aws/sagemaker/Clusters/{cluster_name}/{cluster_id}",
                "RetentionInDays": retention_days,
            },
        )
