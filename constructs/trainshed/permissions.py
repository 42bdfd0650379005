"""What a role may do, read from the policies of the app."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_iam as iam

from .inspection import field, items
from .resources import Resources

# What AWS's own page attaches to node roles: it has nothing of FSx. Other AWS policies are out of sight.
READ_MANAGED_POLICIES = ("AmazonSageMakerClusterInstanceRolePolicy",)


def grants(role: iam.CfnRole, action: str, app: Resources) -> bool:
    """Whether a role's policies in this app allow an action, or one of them is out of sight.

    To be asked in a validation: references between stacks are told apart by what replaced them.
    """
    given = app.stack_of(role).resolve(app.written(role))
    arns = items(field(given, "managed_policy_arns"))
    named = app.refs(iam.CfnManagedPolicy, app.stack_of(role))
    ours = [policy for policy, ref in named if ref in arns and _names(ref, policy, role, app)]
    if len(ours) < sum(not _is_read(arn) for arn in arns):
        return True
    documents = [field(policy, "policy_document") for policy in items(field(given, "policies"))]
    documents += [app.stack_of(policy).resolve(policy.policy_document) for policy in ours]
    # To ask each policy of the app whom it is for is dear, and needed only when the role's own say nothing.
    return _allow(documents, action) or _allow(_written_for(role, app), action)


def _names(ref: object, thing: cdk.CfnResource, user: cdk.CfnResource, app: Resources) -> bool:
    """A plain `Ref` to another stack's resource means one of the user's own: nothing there refers to it."""
    return app.together(thing, user) or field(ref, "Ref") is None


def _written_for(role: iam.CfnRole, app: Resources) -> Iterator[Any]:
    for policy in app.of(iam.CfnPolicy, iam.CfnManagedPolicy):
        stack = app.stack_of(policy)
        # In a section, for what resolves to nothing is dropped.
        seen = stack.resolve({"role": app.ref(role), "roles": policy.roles})
        if field(seen, "role") in items(field(seen, "roles")) and _names(seen["role"], role, policy, app):
            yield stack.resolve(policy.policy_document)


def _is_read(arn: object) -> bool:
    return any(name in str(arn) for name in READ_MANAGED_POLICIES)


def _allow(documents: Iterable[Any], action: str) -> bool:
    return any(
        fnmatchcase(action.lower(), pattern.lower())
        for document in documents
        for statement in items(field(document, "Statement")) or [field(document, "Statement")]
        if field(statement, "Effect") == "Allow"
        for pattern in _actions(statement)
    )


def _actions(statement: object) -> list[str]:
    actions = field(statement, "Action") or "*"
    return [actions] if isinstance(actions, str) else items(actions)
