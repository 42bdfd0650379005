"""Reading an app that is put together: what a token names, who waits for whom.

Every question to CDK is a round trip to another process, so what is asked twice is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from constructs import IConstruct


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


def identity(construct: object) -> str:
    """What tells constructs apart: jsii makes another Python object each time it returns one."""
    return construct.__jsii_ref__.ref  # type: ignore[attr-defined]


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
    given = written(subnet)
    if found := field(given, "availability_zone_id"):
        return "id", str(found)
    found = field(given, "availability_zone")
    return ("name", rendered(subnet, found)) if found else None


@cache
def _declared_type(kind: type[cdk.CfnResource]) -> str | None:
    return getattr(kind, "CFN_RESOURCE_TYPE_NAME", None)


def type_of(resource: cdk.CfnResource) -> str:
    """Its CloudFormation type; classes that have one are asked once."""
    return _declared_type(type(resource)) or resource.cfn_resource_type


_Answer = TypeVar("_Answer")
_Resource = TypeVar("_Resource", bound=cdk.CfnResource)


class Resources:
    """The resources below a scope. Make it in a validation: by then they have their scopes' dependencies."""

    def __init__(self, scope: IConstruct) -> None:
        self.all = [node for node in scope.node.find_all() if isinstance(node, cdk.CfnResource)]
        self._kept: dict[tuple[str, str], Any] = {}

    def of(self, *kinds: type[_Resource]) -> list[_Resource]:
        """Those of some classes."""
        return [resource for resource in self.all if isinstance(resource, kinds)]

    def written(self, resource: cdk.CfnResource) -> Mapping[str, Any]:
        """What one was given."""
        return self._once("written", resource, written)

    def stack_of(self, resource: cdk.CfnResource) -> str:
        """The identity of its stack."""
        return self._once("stack", resource, lambda asked: identity(asked.stack))

    def ref(self, resource: cdk.CfnResource) -> str:
        """The token of its `Ref`."""
        return self._once("ref", resource, lambda asked: asked.ref)

    def _once(
        self, what: str, resource: cdk.CfnResource, ask: Callable[[cdk.CfnResource], _Answer]
    ) -> _Answer:
        key = (what, identity(resource))
        if key not in self._kept:
            self._kept[key] = ask(resource)
        return self._kept[key]

    def self_rules(
        self, group: ec2.CfnSecurityGroup
    ) -> tuple[Sequence[cdk.CfnResource], Sequence[cdk.CfnResource]]:
        """Ingress and egress rules by which a group admits itself to all."""
        # One token a property, whoever asks for it: its text tells without resolving it what it refers to.
        itself = {self.ref(group), group.attr_group_id}
        ends = {
            ec2.CfnSecurityGroupIngress: ("group_id", "source_security_group_id"),
            ec2.CfnSecurityGroupEgress: ("group_id", "destination_security_group_id"),
        }
        ingress, egress = (
            [
                rule
                for rule in self.of(kind)
                if itself.issuperset(field(self.written(rule), end) for end in pair)
                and field(self.written(rule), "ip_protocol") == "-1"
            ]
            for kind, pair in ends.items()
        )
        return ingress, egress


def depends_on(node: cdk.CfnResource, other: cdk.CfnResource) -> bool:
    """Whether a resource waits for another of its stack; other stacks are ordered by their references."""
    if identity(node.stack) != identity(other.stack):
        return True
    here, seen, waiting = identity(other), set[str](), [node]
    while waiting:
        for found in waiting.pop().obtain_dependencies():
            if (key := identity(found)) == here:
                return True
            if isinstance(found, cdk.CfnResource) and key not in seen:
                seen.add(key)
                waiting.append(found)
    return False
