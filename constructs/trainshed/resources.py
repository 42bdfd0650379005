"""An app that is put together, as a validation reads it: what a token names, who waits for whom.

Every question to CDK is a round trip to another process, so what is asked twice is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from constructs import IConstruct

from .inspection import declared_type, field, identity, is_a, items, target, written

_Answer = TypeVar("_Answer")
_Resource = TypeVar("_Resource", bound=cdk.CfnResource)


class Resources:
    """The resources below a scope. Make it in a validation: by then they have their scopes' dependencies."""

    def __init__(self, scope: IConstruct) -> None:
        self.all = [node for node in scope.node.find_all() if is_a(node, cdk.CfnResource)]
        self._kept: dict[tuple[str, str], Any] = {}

    def of(self, *kinds: type[_Resource]) -> list[_Resource]:
        """Those of some classes."""
        return [resource for resource in self.all if isinstance(resource, kinds)]

    def of_type(self, *names: str) -> list[cdk.CfnResource]:
        """Those of some CloudFormation types, whatever their class."""
        return [resource for resource in self.all if self._type(resource) in names]

    def _type(self, resource: cdk.CfnResource) -> str:
        return declared_type(type(resource)) or self._once(
            "type", resource, lambda asked: asked.cfn_resource_type
        )

    def written(self, resource: cdk.CfnResource) -> Mapping[str, Any]:
        """What one was given."""
        return self._once("written", resource, written)

    def options(self, resources: Sequence[cdk.CfnResource]) -> list[Mapping[str, Any]]:
        """What templates say of some beside their properties, such as `deletionPolicy`."""
        found = [resource.cfn_options for resource in resources]
        return self.stack_of(resources[0]).resolve(found) if found else []

    def stack_of(self, resource: cdk.CfnResource) -> cdk.Stack:
        """The stack of one."""
        return self._once("stack", resource, lambda asked: asked.stack)

    def together(self, one: cdk.CfnResource, other: cdk.CfnResource) -> bool:
        """Whether two are in one stack."""
        return identity(self.stack_of(one)) == identity(self.stack_of(other))

    def ref(self, resource: cdk.CfnResource) -> str:
        """The token of its `Ref`."""
        return self._once("ref", resource, lambda asked: asked.ref)

    def refs(self, kind: type[_Resource], stack: cdk.Stack) -> list[tuple[_Resource, object]]:
        """Those of a class, each with its `Ref` as a stack would say it."""
        found = self.of(kind)
        said = self._keep(
            (f"refs of {kind}", identity(stack)), lambda: stack.resolve([self.ref(r) for r in found])
        )
        return list(zip(found, said, strict=True))

    def target(self, value: object) -> IConstruct | None:
        """The construct that a token refers to; None for literals and imports."""
        return self._keep(("target", value), lambda: target(value)) if isinstance(value, str) else None

    def rendered(self, resource: cdk.CfnResource, value: object) -> str:
        """A value as the template of a resource's stack will say it, in JSON."""
        return json.dumps(self.stack_of(resource).resolve(value), sort_keys=True)

    def subnets_of(self, ids: object) -> list[ec2.CfnSubnet]:
        """The subnets of this app among a list of ids."""
        return [subnet for subnet in map(self.target, items(ids)) if isinstance(subnet, ec2.CfnSubnet)]

    def zone(self, subnet: ec2.CfnSubnet) -> tuple[str, str] | None:
        """Whether a subnet is placed by zone id or by name, and where; None when AWS chooses."""
        given = self.written(subnet)
        if found := field(given, "availability_zone_id"):
            return "id", str(found)
        found = field(given, "availability_zone")
        return ("name", self.rendered(subnet, found)) if found else None

    def self_rules(
        self, group: ec2.CfnSecurityGroup
    ) -> tuple[Sequence[cdk.CfnResource], Sequence[cdk.CfnResource]]:
        """Ingress and egress rules by which a group admits itself to all."""
        # One token a property, whoever asks for it: its text tells without resolving it what it refers to.
        itself = {self.ref(group), self._once("id", group, lambda asked: asked.attr_group_id)}
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

    def depends_on(self, node: cdk.CfnResource, other: cdk.CfnResource) -> bool:
        """Whether a resource waits for another of its stack; other stacks are ordered by their references."""
        if not self.together(node, other):
            return True
        here, seen, waiting = identity(other), set[str](), [node]
        while waiting:
            for found in self._dependencies(waiting.pop()):
                if (key := identity(found)) == here:
                    return True
                if is_a(found, cdk.CfnResource) and key not in seen:
                    seen.add(key)
                    waiting.append(found)
        return False

    def _dependencies(self, resource: cdk.CfnResource) -> Sequence[object]:
        return self._once("dependencies", resource, lambda asked: asked.obtain_dependencies())

    def _once(self, what: str, resource: _Resource, ask: Callable[[_Resource], _Answer]) -> _Answer:
        return self._keep((what, identity(resource)), lambda: ask(resource))

    def _keep(self, key: tuple[str, str], ask: Callable[[], _Answer]) -> _Answer:
        if key not in self._kept:
            self._kept[key] = ask()
        return self._kept[key]
