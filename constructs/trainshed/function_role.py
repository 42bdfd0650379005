"""What a Lambda function runs under: a role of its own and an encrypted log group.

Without both, CDK gives the function an AWS managed policy and a log group that AWS's own key encrypts.
"""

from __future__ import annotations

from typing import cast

from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from .encryption import log_group
from .principals import service

LOG_RETENTION_DAYS = 90


class FunctionRole(Construct):
    """Pass its `role` and `log_group` to a function; add what that may do to `policy`.

    Args:
        key: encrypts the logs.
    """

    def __init__(self, scope: Construct, construct_id: str, *, key: kms.IKey) -> None:
        super().__init__(scope, construct_id)
        group = log_group(self, "Logs", key=key, retention_days=LOG_RETENTION_DAYS)
        self.log_group = logs.LogGroup.from_log_group_name(self, "LogGroup", group.ref)
        write = iam.PolicyStatement(
            actions=["logs:CreateLogStream", "logs:PutLogEvents"], resources=[group.attr_arn]
        )
        self.policy = iam.ManagedPolicy(self, "Policy", statements=[write])
        role = iam.Role(
            self, "Role", assumed_by=service("lambda.amazonaws.com"), managed_policies=[self.policy]
        )
        self.role = cast("iam.IRole", role)
