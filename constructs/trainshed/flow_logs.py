"""A VPC's flow logs, encrypted."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from .encryption import log_group
from .principals import service


class FlowLogs(Construct):
    """Everything a VPC lets through or refuses, in a log group.

    Args:
        vpc_id: the VPC.
        retention_days: how long it is kept.
        key: encrypts it.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, vpc_id: str, retention_days: int, key: kms.IKey
    ) -> None:
        super().__init__(scope, construct_id)
        group = log_group(self, "Group", key=key, retention_days=retention_days)
        write = iam.PolicyStatement(
            actions=["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
            resources=[group.attr_arn],
        )
        role = iam.Role(
            self,
            "Role",
            assumed_by=service("vpc-flow-logs.amazonaws.com"),
            managed_policies=[iam.ManagedPolicy(self, "Policy", statements=[write])],
        )
        ec2.CfnFlowLog(
            self,
            "FlowLog",
            resource_id=vpc_id,
            resource_type="VPC",
            traffic_type="ALL",
            log_destination_type="cloud-watch-logs",
            log_group_name=group.ref,
            deliver_logs_permission_arn=role.role_arn,
        )
