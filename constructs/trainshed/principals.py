"""Principals as CDK's interfaces want them: jsii's parameter names differ, which strict typing refuses."""

from __future__ import annotations

from functools import cache
from typing import cast

from aws_cdk import aws_iam as iam


@cache
def service(name: str) -> iam.IPrincipal:
    """An AWS service, such as `lambda.amazonaws.com`."""
    return cast("iam.IPrincipal", iam.ServicePrincipal(name))
