"""What EFA demands of a template: rules that name the group itself, in place in time, and one zone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from constructs import IConstruct

from .inspection import field
from .resources import Resources

Findings = Iterator[tuple[str, str]]
"""Name of the guard, and what it says."""


_NO_RULE = (
    "has no security group with a rule for all traffic whose {way} peer is the group itself, which EFA needs "
    "(CIDR rules do not count): use EfaSecurityGroup, or add the rule"
)


def efa_rules(node: cdk.CfnResource, group_ids: list[Any], what: str, app: Resources) -> Findings:
    """One of the security groups must admit itself both ways, before the resource comes up."""
    groups = [g for g in map(app.target, group_ids) if isinstance(g, ec2.CfnSecurityGroup)]
    if len(groups) < len(group_ids):
        return  # an imported group's rules are out of sight
    rules = [app.self_rules(group) for group in groups]
    for way, index in (("ingress", 0), ("egress", 1)):
        found = [rule for sides in rules for rule in sides[index]]
        if not found:
            yield "efa-rules", f"{what} {_NO_RULE.format(way=way)}"
        elif not any(app.depends_on(node, rule) for rule in found):
            yield "order", f"{what} may come up before {found[0].node.path}: add the dependency"


def same_zone(
    subnets: list[ec2.CfnSubnet], systems: list[IConstruct | None], what: str, app: Resources
) -> Findings:
    """HyperPod picks one subnet of a group, so each must be in the file system's zone."""
    mine = {found for found in map(app.zone, subnets) if found}
    for system in systems:
        if not isinstance(system, fsx.CfnFileSystem):
            continue
        given = app.written(system)
        if not field(field(given, "lustre_configuration"), "efa_enabled"):
            continue
        theirs = {found for found in map(app.zone, app.subnets_of(field(given, "subnet_ids"))) if found}
        apart = mine - theirs
        if apart and {kind for kind, _ in mine} == {kind for kind, _ in theirs}:
            where = f"{what} is in {min(apart)[1]}, its EFA file system in {min(theirs)[1]}"
            yield "zone", f"{where}, and EFA does not cross zones: put both in one"
