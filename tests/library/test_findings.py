"""Acceptances: their ids are those of cdk-nag, and they cover what they say and nothing more."""

from __future__ import annotations

import aws_cdk as cdk
import pytest
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from cdk_nag import AwsSolutionsChecks

from trainshed.findings import Accepted, Acknowledgements, wildcards


@pytest.fixture
def stack() -> cdk.Stack:
    return cdk.Stack(cdk.App(), "Stack", env=cdk.Environment(region="us-east-2"))


def policy(stack: cdk.Stack, *statements: iam.PolicyStatement) -> iam.ManagedPolicy:
    return iam.ManagedPolicy(stack, "Policy", statements=[*statements])


def allow(action: str, *resources: str) -> iam.PolicyStatement:
    return iam.PolicyStatement(actions=[action], resources=[*resources])


def open_findings(scope: cdk.Stack) -> set[str]:
    return {violation.rule_name for violation in AwsSolutionsChecks().validate_scope(scope).violations}


def test_wildcards_are_spelled_as_cdk_nag_spells_them(stack: cdk.Stack) -> None:
    bucket = s3.CfnBucket(stack, "Bucket")
    parameter = cdk.CfnParameter(stack, "Parameter")
    written = policy(
        stack,
        allow("s3:Get*", "*"),
        allow("s3:PutObject", f"{bucket.attr_arn}/*", f"{bucket.attr_arn}/one"),
        allow("s3:ListBucket", cdk.Fn.sub("arn:${AWS::Partition}:s3:::${Bucket}-*")),
        allow("s3:DeleteObject", f"arn:aws:s3:::{parameter.value_as_string}/*"),
        allow("s3:GetObjectAcl", f"{cdk.Fn.import_value('Elsewhere')}/*"),
        allow("kms:Decrypt", f"{cdk.Fn.select(1, ['a', parameter.value_as_string])}/*"),
        iam.PolicyStatement(effect=iam.Effect.DENY, actions=["iam:*"], resources=["*"]),
    )
    found = {f"AwsSolutions-IAM5[{each}]" for each in wildcards(stack.resolve(written.document))}
    assert found == {rule for rule in open_findings(stack) if "IAM5" in rule}
    assert len(found) == 7


def test_what_is_accepted_is_recorded_at_its_construct_and_nothing_else(stack: cdk.Stack) -> None:
    written = policy(stack, allow("s3:Get*", "*", "arn:aws:s3:::ours/*", "arn:aws:s3:::theirs/*"))
    rows = [
        Accepted("Policy Absent", "AwsSolutions-IAM5[Resource::…ours/*]", "{name} reads ours"),
        Accepted("Policy", "AwsSolutions-IAM5[Resource::*]", "{name} reads what has no name"),
        Accepted("Policy", "AwsSolutions-L1", "{name} is given whole"),
    ]
    assert Acknowledgements({stack: rows}).validate() == []
    recorded = {
        rule: reason
        for entry in written.node.metadata
        if entry.type == cdk.Validations.ACKNOWLEDGED_RULES_METADATA_KEY
        for rule, reason in entry.data.items()
    }
    assert recorded == {
        "AwsSolutions::AwsSolutions-IAM5[Resource::arn:aws:s3:::ours/*]": "Policy reads ours",
        "AwsSolutions::AwsSolutions-IAM5[Resource::*]": "Policy reads what has no name",
        "AwsSolutions::AwsSolutions-L1": "Policy is given whole",
    }
