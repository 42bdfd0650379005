"""Security groups, their separate rules, and the questions other services ask of them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network
from typing import Any

from ministack.services import ec2
from ministack.services.cloudformation import provisioners

from .addresses import Occupancy
from .kinds import Change, Kind, Properties, Provided, Refused
from .network import refuse

LUSTRE_PORT = 988
ALL_TRAFFIC = "-1"
_DIRECTIONS = ("IpPermissions", "IpPermissionsEgress")


class SecurityGroup(Kind):
    """AWS::EC2::SecurityGroup."""

    type = "AWS::EC2::SecurityGroup"

    def __init__(self, occupancy: Occupancy) -> None:
        self._occupancy = occupancy

    def release(self, change: Change) -> None:
        """Neither a network interface nor another group's rule may refer to it."""
        mine = str(change.physical_id)
        users = [f"{r.type} {r.physical_id}" for r in self._occupancy.users(mine)]
        users += [
            other
            for other, group in ec2._security_groups.items()
            if other != mine and any(mine in _groups(rule) for d in _DIRECTIONS for rule in group[d])
        ]
        if users:
            message = f"resource {mine} has a dependent object ({', '.join(users)})"
            raise refuse(message, "DependencyViolation")

    def attributes(self, physical_id: str, properties: Properties, region: str) -> dict[str, Any]:
        """What L1 constructs read from a group."""
        return {"Id": physical_id, "GroupId": physical_id}


class _Rule(Provided):
    direction: str

    def check(self, change: Change) -> None:
        """The groups exist, and the rule is new."""
        p = change.properties
        for name in ("GroupId", "SourceSecurityGroupId", "DestinationSecurityGroupId"):
            if name in p and p[name] not in ec2._security_groups:
                raise refuse(f"The security group '{p[name]}' does not exist", "InvalidGroup.NotFound")
        (rule,) = provisioners._ec2_sg_permissions([p])
        present = ec2._security_groups[p["GroupId"]][self.direction]
        if change.creates and any(ec2._rules_match(rule, _without_id(other)) for other in present):
            message = f'the specified rule "{p["IpProtocol"]}" already exists'
            raise refuse(message, "InvalidPermission.Duplicate")

    def create(self, change: Change) -> str:
        """The rule's id."""
        return f"sgr-{secrets.token_hex(9)[:17]}"

    def attributes(self, physical_id: str, properties: Properties, region: str) -> dict[str, Any]:
        """Read-only properties."""
        return {"Id": physical_id}

    def apply(self, physical_id: str, properties: Properties) -> None:
        """Put the rule into its group, once; only its description can change."""
        self.remove(physical_id, properties)
        (rule,) = provisioners._ec2_sg_permissions([properties])
        rule["SecurityGroupRuleId"] = physical_id
        ec2._security_groups[properties["GroupId"]][self.direction].append(rule)

    def remove(self, physical_id: str, properties: Properties) -> None:
        """Take the rule out; the group may be gone already."""
        group = ec2._security_groups.get(properties["GroupId"])
        if group:
            group[self.direction] = [
                r for r in group[self.direction] if r.get("SecurityGroupRuleId") != physical_id
            ]


class Ingress(_Rule):
    """AWS::EC2::SecurityGroupIngress."""

    type = "AWS::EC2::SecurityGroupIngress"
    direction = "IpPermissions"


class Egress(_Rule):
    """AWS::EC2::SecurityGroupEgress."""

    type = "AWS::EC2::SecurityGroupEgress"
    direction = "IpPermissionsEgress"


def _without_id(rule: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in rule.items() if key != "SecurityGroupRuleId"}


def require_groups(group_ids: Iterable[str], vpc_id: str, *, service: str) -> None:
    """Refuse groups that are missing or belong to another VPC."""
    for group_id in group_ids:
        group = ec2._security_groups.get(group_id)
        if group is None or group["VpcId"] != vpc_id:
            message = f"The security group '{group_id}' does not exist in VPC {vpc_id}"
            raise Refused(message, service=service, code="InvalidGroup.NotFound")


def permits_lustre(group_ids: Iterable[str], subnet_block: str) -> bool:
    """Port 988 between members of the groups, in both directions, by group or by address."""
    ids = set(group_ids)
    return all(
        any(
            _covers(rule, LUSTRE_PORT) and _reaches(rule, ids, subnet_block)
            for rule in _rules(ids, direction)
        )
        for direction in _DIRECTIONS
    )


def permits_efa(group_ids: Iterable[str]) -> bool:
    """One group allows all traffic from itself and to itself, by group id: address rules do not count."""
    return any(
        all(
            any(
                r["IpProtocol"] == ALL_TRAFFIC and group_id in _groups(r)
                for r in _rules({group_id}, direction)
            )
            for direction in _DIRECTIONS
        )
        for group_id in group_ids
    )


def _rules(group_ids: set[str], direction: str) -> Iterator[dict[str, Any]]:
    for group_id in group_ids:
        yield from ec2._security_groups[group_id][direction]


def _groups(rule: dict[str, Any]) -> set[str]:
    return {pair["GroupId"] for pair in rule["UserIdGroupPairs"] if "GroupId" in pair}


def _covers(rule: dict[str, Any], port: int) -> bool:
    if rule["IpProtocol"] == ALL_TRAFFIC:
        return True
    return rule["IpProtocol"] in ("tcp", "6") and rule.get("FromPort", 0) <= port <= rule.get("ToPort", -1)


def _reaches(rule: dict[str, Any], group_ids: set[str], block: str) -> bool:
    ranges = (IPv4Network(r["CidrIp"], strict=False) for r in rule["IpRanges"])
    return bool(_groups(rule) & group_ids) or any(IPv4Network(block).subnet_of(r) for r in ranges)
