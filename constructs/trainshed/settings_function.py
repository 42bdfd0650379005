"""The one Lambda function behind FSx settings that CloudFormation lacks."""

from __future__ import annotations

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from .function_role import FunctionRole

_ID = "FileSystemSettings"


class FileSystemSettings(Construct):
    """A stack's function. It may change the file systems it was told of and no others."""

    def __init__(self, scope: Construct, construct_id: str, *, key: kms.IKey) -> None:
        super().__init__(scope, construct_id)
        identity = FunctionRole(self, "Identity", key=key)
        self._policy = identity.policy
        self.function = lambda_.Function(
            self,
            "Function",
            runtime=lambda_.Runtime.PYTHON_3_14,
            handler="handler.root_squash",
            code=lambda_.Code.from_asset(str(Path(__file__).parent / "provider"), exclude=["__pycache__"]),
            timeout=cdk.Duration.minutes(15),
            description="Sets root squash on FSx for Lustre file systems",
            role=identity.role,
            log_group=identity.log_group,
        )

    @classmethod
    def of(cls, scope: Construct, *, key: kms.IKey) -> FileSystemSettings:
        """The function of a scope's stack; made at the first call, with that call's key."""
        stack = cdk.Stack.of(scope)
        found = stack.node.try_find_child(_ID)
        return found if isinstance(found, FileSystemSettings) else cls(stack, _ID, key=key)

    def serve(self, file_system: fsx.CfnFileSystem) -> str:
        """Let the function change a file system; the token that a custom resource for it needs."""
        self._policy.add_statements(
            iam.PolicyStatement(
                actions=["fsx:UpdateFileSystem", "fsx:DescribeFileSystems"],
                resources=[file_system.attr_resource_arn],
            )
        )
        return self.function.function_arn
