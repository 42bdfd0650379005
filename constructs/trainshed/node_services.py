"""What the steps on nodes talk to in AWS: a log group of the cluster's own, and a metrics workspace."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from .planning.model import ClusterPlan
from .planning.nodes import MetricsDestination


class NodeLogs(Construct):
    """The CloudWatch log group that nodes ship Slurm's logs and their own to, where the plan says so.

    Args:
        cluster_name: nodes may write below /aws/sagemaker/Clusters/NAME only.
        plan: whether they ship there, and for how long it is kept.
        key: encrypts it.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, cluster_name: str, plan: ClusterPlan, key: kms.IKey
    ) -> None:
        super().__init__(scope, construct_id)
        self.name: str | None = None
        if plan.nodes.logs and plan.nodes.logs.to == "cloudwatch":
            self.name = f"/aws/sagemaker/Clusters/{cluster_name}/nodes"
            logs.CfnLogGroup(
                self,
                "Group",
                log_group_name=self.name,
                retention_in_days=plan.log_retention_days,
                kms_key_id=key.key_arn,
            )


def workspace_arn(scope: Construct, metrics: MetricsDestination | None) -> str | None:
    """ARN of the AMP workspace that nodes write to, in this account; None for any other destination."""
    if metrics is None or metrics.workspace is None:
        return None
    region, workspace = metrics.workspace
    stack = cdk.Stack.of(scope)
    return f"arn:{stack.partition}:aps:{region}:{stack.account}:workspace/{workspace}"
