"""The one Lambda function behind FSx settings that CloudFormation lacks."""

from __future__ import annotations

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct


def settings_function(scope: Construct) -> lambda_.IFunction:
    """The stack's function; made at the first call."""
    stack = cdk.Stack.of(scope)
    found = stack.node.try_find_child("FileSystemSettings")
    if isinstance(found, lambda_.Function):
        return found
    function = lambda_.Function(
        stack,
        "FileSystemSettings",
        runtime=lambda_.Runtime.PYTHON_3_14,
        handler="handler.root_squash",
        code=lambda_.Code.from_asset(str(Path(__file__).parent / "provider"), exclude=["__pycache__"]),
        timeout=cdk.Duration.minutes(15),
        description="Sets root squash on FSx for Lustre file systems",
    )
    function.add_to_role_policy(iam.PolicyStatement(
        actions=["fsx:UpdateFileSystem", "fsx:DescribeFileSystems"],
        resources=[stack.format_arn(service="fsx", resource="file-system", resource_name="*")],
    ))  # fmt: skip
    return function
