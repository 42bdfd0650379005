"""Reading constructs before synthesis: what a token names, who waits for whom."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from constructs import Dependable, IConstruct


def field(value: object, name: str) -> Any:  # noqa: ANN401
    """A property of an L1 value, given as a typed struct or as a dictionary with camelCase keys."""
    if isinstance(value, dict):
        head, *rest = name.split("_")
        camel = head + "".join(word.title() for word in rest)
        found = cast("dict[str, Any]", value)
        return found.get(camel, found.get(name))
    return getattr(value, name, None)


def written(resource: cdk.CfnResource) -> Mapping[str, Any]:
    """What an L1 was given, tokens and all, in one round trip; typed properties take one for every field."""
    return resource._cfn_properties  # pyright: ignore[reportPrivateUsage]


def items(value: object) -> list[Any]:
    """A list property, empty when it is absent or only known at deployment."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def target(value: object) -> IConstruct | None:
    """The construct that a token refers to; None for literals and imports."""
    if not isinstance(value, str) or not cdk.Token.is_unresolved(value):
        return None
    token = cdk.Tokenization.reverse_string(value).first_token
    return cast("IConstruct | None", getattr(token, "target", None))


def rendered(scope: IConstruct, value: object) -> str:
    """A value as the template of a construct's stack will say it, in JSON."""
    return json.dumps(cdk.Stack.of(scope).resolve(value), sort_keys=True)


def subnets_of(ids: object) -> list[ec2.CfnSubnet]:
    """The subnets of this app among a list of ids."""
    return [subnet for subnet in map(target, items(ids)) if isinstance(subnet, ec2.CfnSubnet)]


def zone(subnet: ec2.CfnSubnet) -> tuple[str, str] | None:
    """Whether a subnet is placed by zone id or by name, and where; None when AWS chooses."""
    if subnet.availability_zone_id:
        return "id", str(subnet.availability_zone_id)
    return ("name", rendered(subnet, subnet.availability_zone)) if subnet.availability_zone else None


@cache
def _declared_type(kind: type[cdk.CfnResource]) -> str | None:
    return getattr(kind, "CFN_RESOURCE_TYPE_NAME", None)


def type_of(resource: cdk.CfnResource) -> str:
    """Its CloudFormation type; classes that have one are asked once, for each answer is a round trip."""
    return _declared_type(type(resource)) or resource.cfn_resource_type


def self_rules(group: ec2.CfnSecurityGroup) -> tuple[list[IConstruct], list[IConstruct]]:
    """Ingress and egress rules, anywhere in the app, by which a group admits itself."""
    # One token a property, whoever asks for it: its text tells without a round trip for what it refers to.
    itself = {group.ref, group.attr_group_id}
    ingress: list[IConstruct] = []
    egress: list[IConstruct] = []
    for other in group.node.root.node.find_all():
        if isinstance(other, ec2.CfnSecurityGroupIngress):
            ends, found = (other.group_id, other.source_security_group_id), ingress
        elif isinstance(other, ec2.CfnSecurityGroupEgress):
            ends, found = (other.group_id, other.destination_security_group_id), egress
        else:
            continue
        if itself.issuperset(ends) and other.ip_protocol == "-1":
            found.append(other)
    return ingress, egress


def depends_on(node: cdk.CfnResource, other: IConstruct) -> bool:
    """Whether a resource waits for another of its stack; other stacks are ordered by their references."""
    if cdk.Stack.of(node).node.path != cdk.Stack.of(other).node.path:
        return True
    here = other.node.path
    seen: set[str] = set()
    waiting: list[IConstruct] = [node]
    while waiting:
        for root in _waits_for(waiting.pop()):
            path = root.node.path
            if here == path or here.startswith(f"{path}/"):
                return True
            if path not in seen and not isinstance(root, cdk.Stack):
                seen.add(path)
                waiting += root.node.find_all()
    return False


def _waits_for(node: IConstruct) -> Iterator[IConstruct]:
    # CDK hands a scope's dependencies down to its resources only after Aspects have run.
    for scope in node.node.scopes:
        for dependency in scope.node.dependencies:
            yield from Dependable.of(dependency).dependency_roots
    if isinstance(node, cdk.CfnResource):
        for dependency in node.obtain_dependencies():
            if isinstance(dependency, cdk.CfnResource):
                yield dependency
