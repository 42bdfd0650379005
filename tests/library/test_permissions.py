"""What the guards can read of a role: every way of giving it an action, and when they must not judge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import aws_cdk as cdk
import jsii
import pytest
from aws_cdk import aws_iam as iam
from constructs import IValidation

from trainshed.permissions import grants
from trainshed.resources import Resources

ACTION = "fsx:DescribeFileSystems"
NODES = iam.ServicePrincipal("sagemaker.amazonaws.com")


def statement(action: str) -> iam.PolicyStatement:
    return iam.PolicyStatement(actions=[action], resources=["*"])


def role_in(stack: cdk.Stack, **more: object) -> iam.Role:
    return iam.Role(stack, "Role", assumed_by=NODES, **more)


def attached(stack: cdk.Stack, action: str) -> iam.Role:
    return role_in(
        stack, managed_policies=[iam.ManagedPolicy(stack, "Policy", statements=[statement(action)])]
    )


def attaching(stack: cdk.Stack, action: str) -> iam.Role:
    role = role_in(stack)
    iam.ManagedPolicy(stack, "Policy", statements=[statement(action)], roles=[role])
    return role


def granted(stack: cdk.Stack, action: str) -> iam.Role:
    role = role_in(stack)
    role.add_to_policy(statement(action))
    return role


def inline(stack: cdk.Stack, action: str) -> iam.Role:
    return role_in(stack, inline_policies={"Policy": iam.PolicyDocument(statements=[statement(action)])})


def from_another_stack(stack: cdk.Stack, action: str) -> iam.Role:
    other = cdk.Stack(stack.node.root, "Other")
    policy = iam.ManagedPolicy(other, "Policy", statements=[statement(action)])
    return role_in(stack, managed_policies=[policy])


def for_a_role_of_another_stack(stack: cdk.Stack, action: str) -> iam.Role:
    other, role = cdk.Stack(stack.node.root, "Other"), role_in(stack)
    iam.Policy(other, "Policy", statements=[statement(action)], roles=[role])
    # Same logical id in the other stack, but another role.
    role_in(other)
    return role


WAYS = [attached, attaching, granted, inline, from_another_stack, for_a_role_of_another_stack]


@jsii.implements(IValidation)
class Judge:
    """Asks when guards ask."""

    def __init__(self, role: iam.Role) -> None:
        self.role = role
        self.verdict: bool | None = None

    def validate(self) -> list[str]:
        cfn = self.role.node.default_child
        assert isinstance(cfn, iam.CfnRole)
        self.verdict = grants(cfn, ACTION, Resources(cfn.node.root))
        return []


def judged(role: iam.Role) -> bool:
    judge = Judge(role)
    role.node.add_validation(judge)
    app = role.node.root
    assert isinstance(app, cdk.App)
    app.synth()
    assert judge.verdict is not None
    return judge.verdict


@pytest.fixture
def stack(tmp_path: Path) -> cdk.Stack:
    return cdk.Stack(cdk.App(outdir=str(tmp_path)), "Stack")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("action", [ACTION, "fsx:Describe*", "FSx:describe*Systems", "fsx:*", "*"])
def test_finds_the_action_however_it_was_given(
    stack: cdk.Stack, way: Callable[[cdk.Stack, str], iam.Role], action: str
) -> None:
    assert judged(way(stack, action))


@pytest.mark.parametrize("way", WAYS)
def test_another_action_does_not_count(stack: cdk.Stack, way: Callable[[cdk.Stack, str], iam.Role]) -> None:
    assert not judged(way(stack, "fsx:DescribeBackups"))


def test_a_grant_to_another_role_does_not_count(stack: cdk.Stack) -> None:
    other = cdk.Stack(stack.node.root, "Other")
    granted(other, ACTION)
    assert not judged(role_in(stack))


@pytest.mark.parametrize("beside_ours", [False, True])
def test_a_policy_out_of_sight_leaves_it_open(stack: cdk.Stack, beside_ours: bool) -> None:
    foreign = iam.ManagedPolicy.from_aws_managed_policy_name("AmazonFSxReadOnlyAccess")
    ours = [iam.ManagedPolicy(stack, "Policy", statements=[statement("s3:GetObject")])] if beside_ours else []
    assert judged(role_in(stack, managed_policies=[foreign, *ours]))


def test_the_policy_of_aws_for_nodes_is_known_to_lack_it(stack: cdk.Stack) -> None:
    known = iam.ManagedPolicy.from_aws_managed_policy_name("AmazonSageMakerClusterInstanceRolePolicy")
    assert not judged(role_in(stack, managed_policies=[known]))
