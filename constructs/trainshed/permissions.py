"""What a role may do, read from the policies of the app before synthesis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, cast

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import IConstruct

from .inspection import field, items

# What AWS's own page attaches to node roles: it has nothing of FSx. Other AWS policies are out of sight.
READ_MANAGED_POLICIES = ("AmazonSageMakerClusterInstanceRolePolicy",)


def grants(role: iam.CfnRole, action: str) -> bool:
    """Whether a role's policies in this app allow an action, or one of them is out of sight."""
    arns, attached = _targets(role, role.managed_policy_arns)
    ours = {p.node.path: p for p in attached if isinstance(p, iam.CfnManagedPolicy)}
    if len(ours) < sum(not _is_read(arn) for arn in items(arns)):
        return True
    documents = [field(p, "policy_document") for p in items(role.policies)]
    documents += [policy.policy_document for policy in ours.values()]
    # To ask each policy of the app whom it is for is dear, and needed only when the role's own say nothing.
    return _allow(role, documents, action) or _allow(role, _written_for(role), action)


def _is_read(arn: object) -> bool:
    return any(name in str(arn) for name in READ_MANAGED_POLICIES)


def _written_for(role: iam.CfnRole) -> Iterator[Any]:
    for other in role.node.root.node.find_all():
        if isinstance(other, iam.CfnPolicy | iam.CfnManagedPolicy):
            _, roles = _targets(other, other.roles)
            if any(found.node.path == role.node.path for found in roles):
                yield other.policy_document


def _allow(role: iam.CfnRole, documents: Iterable[Any], action: str) -> bool:
    stack = cdk.Stack.of(role)
    allowed = (pattern for document in documents for pattern in _actions(stack.resolve(document)))
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in allowed)


def _actions(document: object) -> Iterator[str]:
    statements = field(document, "Statement")
    for statement in items(statements) or [statements]:
        if field(statement, "Effect") == "Allow":
            actions = field(statement, "Action") or "*"
            yield from [actions] if isinstance(actions, str) else items(actions)


class _Seeing(cdk.DefaultTokenResolver):
    """Remembers what it resolves: the lists of CDK's roles are one lazy token, which hides its targets."""

    def __init__(self) -> None:
        super().__init__(cdk.StringConcat())
        self.seen: list[IConstruct] = []

    def resolve_token(
        self, t: cdk.IResolvable, context: cdk.IResolveContext, post_processor: cdk.IPostProcessor
    ) -> Any:  # noqa: ANN401
        """As CDK does."""
        found = cast("IConstruct | None", getattr(t, "target", None))
        self.seen += [found] if found else []
        return super().resolve_token(t, context, post_processor)


def _targets(owner: cdk.CfnResource, value: object) -> tuple[object, list[IConstruct]]:
    """A value as it stands resolved, and the constructs that it refers to."""
    resolver = cast("cdk.ITokenResolver", seeing := _Seeing())
    return cdk.Tokenization.resolve(value, resolver=resolver, scope=owner, preparing=False), seeing.seen
