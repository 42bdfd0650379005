"""Reading constructs before synthesis: which resource a token names, who depends on whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import IConstruct


def field(value: object, name: str) -> Any:
    """A property of an L1 value, given as a typed struct or as a dictionary with camelCase keys."""
    if isinstance(value, dict):
        head, *rest = name.split("_")
        camel = head + "".join(word.title() for word in rest)
        found = cast("dict[str, Any]", value)
        return found.get(camel, found.get(name))
    return getattr(value, name, None)


def items(value: object) -> list[Any]:
    """A list property, empty when it is absent or only known at deployment."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def target(value: object) -> IConstruct | None:
    """The construct that a token refers to; None for literals and imports."""
    if not isinstance(value, str) or not cdk.Token.is_unresolved(value):
        return None
    token = cdk.Tokenization.reverse_string(value).first_token
    return cast("IConstruct | None", getattr(token, "target", None))


def self_rules(group: IConstruct) -> tuple[list[IConstruct], list[IConstruct]]:
    """Ingress and egress rules, anywhere in the app, by which a group admits itself."""
    path = group.node.path
    ingress: list[IConstruct] = []
    egress: list[IConstruct] = []
    for other in group.node.root.node.find_all():
        if isinstance(other, ec2.CfnSecurityGroupIngress):
            ends, found = (other.group_id, other.source_security_group_id), ingress
        elif isinstance(other, ec2.CfnSecurityGroupEgress):
            ends, found = (other.group_id, other.destination_security_group_id), egress
        else:
            continue
        named = [target(end) for end in ends]
        if other.ip_protocol == "-1" and all(n is not None and n.node.path == path for n in named):
            found.append(other)
    return ingress, egress


def depends_on(node: cdk.CfnResource, other: IConstruct) -> bool:
    """Whether a resource waits for another of its stack; other stacks are ordered by their references."""
    if cdk.Stack.of(node).node.path != cdk.Stack.of(other).node.path:
        return True
    here = other.node.path
    waits_for = [d.node.path for d in (*node.node.dependencies, *node.obtain_dependencies()) if hasattr(d, "node")]
    return any(here == path or here.startswith(f"{path}/") for path in waits_for)


def grants(role: iam.CfnRole, action: str) -> bool:
    """Whether a role's policies in this app name an action, or AWS manages one that we cannot read."""
    if items(role.managed_policy_arns):
        return True
    stack = cdk.Stack.of(role)
    documents = [field(p, "policy_document") for p in items(role.policies)]
    documents += [
        other.policy_document
        for other in role.node.root.node.find_all()
        if isinstance(other, iam.CfnPolicy)
        and any((found := target(name)) and found.node.path == role.node.path for name in items(other.roles))
    ]
    service, _, verb = action.partition(":")
    covering = {action, f"{service}:*", "*", *(f"{service}:{verb[:n]}*" for n in range(1, len(verb)))}
    return any(allowed in covering for document in documents for allowed in _actions(stack.resolve(document)))


def _actions(document: Any) -> Iterator[str]:
    for statement in items(field(document, "Statement")) or [field(document, "Statement")]:
        if field(statement, "Effect") == "Allow":
            actions = field(statement, "Action")
            yield from [actions] if isinstance(actions, str) else items(actions)
