"""Subnets and VPC endpoints: what EC2 checks and ministack does not."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network
from typing import Any

from ministack.core.responses import get_region
from ministack.services import ec2

from .addresses import Occupancy, subnet
from .inventory import Inventory
from .kinds import Change, Kind, Properties
from .network import VpcCidrBlock, parse_block, refuse


class Subnet(Kind):
    """AWS::EC2::Subnet."""

    type = "AWS::EC2::Subnet"

    def __init__(self, blocks: VpcCidrBlock, occupancy: Occupancy) -> None:
        self._blocks = blocks
        self._occupancy = occupancy

    def check(self, change: Change) -> None:
        """Inside one block, apart from the other subnets, in a zone of this region."""
        if not change.creates:
            return
        cidr, vpc_id = change.properties["CidrBlock"], change.properties["VpcId"]
        new = parse_block(cidr, "InvalidSubnet.Range")
        if not any(new.subnet_of(block) for block in self._blocks.blocks(vpc_id)):
            raise refuse(f"The CIDR '{cidr}' is invalid.", "InvalidSubnet.Range")
        for other in ec2._subnets.values():
            if other["VpcId"] == vpc_id and new.overlaps(IPv4Network(other["CidrBlock"])):
                raise refuse(f"The CIDR '{cidr}' conflicts with another subnet", "InvalidSubnet.Conflict")
        zone_id = change.properties.get("AvailabilityZoneId")
        if zone_id and zone_name(zone_id) is None:
            message = f"Value ({zone_id}) for parameter availabilityZoneId is invalid."
            raise refuse(message, "InvalidParameterValue")

    def release(self, change: Change) -> None:
        """Nobody may live in it."""
        for tenant, _ in self._occupancy.tenants(str(change.physical_id)):
            message = (
                f"The subnet '{change.physical_id}' has dependencies and cannot be deleted. "
                f"({tenant.type} {tenant.physical_id})"
            )
            raise refuse(message, "DependencyViolation")

    def attributes(self, physical_id: str, properties: Properties, region: str) -> dict[str, Any]:
        """What L1 constructs read from a subnet."""
        record = ec2._subnets[physical_id]
        names = ("VpcId", "CidrBlock", "AvailabilityZone", "AvailabilityZoneId")
        return {
            **{n: record[n] for n in names},
            "Ipv6CidrBlocks": [],
            "NetworkAclAssociationId": "aclassoc-0",
        }


def zone_name(zone_id: str) -> str | None:
    """The zone's name in this region; ministack itself knows only the first three zones."""
    names = (f"{get_region()}{letter}" for letter in "abcdef")
    return next((name for name in names if ec2._az_id_for_zone_name(name) == zone_id), None)


class VpcEndpoint(Kind):
    """AWS::EC2::VPCEndpoint."""

    type = "AWS::EC2::VPCEndpoint"

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def check(self, change: Change) -> None:
        """Subnets of distinct zones, and private names that nobody else claims."""
        p = change.properties
        zones = [subnet(s, service="Ec2")["AvailabilityZoneId"] for s in p.get("SubnetIds", [])]
        if len(zones) != len(set(zones)):
            raise refuse(
                "Found another VPC endpoint subnet in the availability zone.", "DuplicateSubnetsInSameZone"
            )
        missing = [t for t in p.get("RouteTableIds", []) if t not in ec2._route_tables]
        if missing:
            raise refuse(f"The routeTable ID '{missing[0]}' does not exist", "InvalidRouteTableId.NotFound")
        if (
            p.get("VpcEndpointType") == "Interface"
            and str(p.get("PrivateDnsEnabled", True)).lower() == "true"
        ):
            self._check_private_names(change)

    def _check_private_names(self, change: Change) -> None:
        vpc_id, name = change.properties["VpcId"], change.properties["ServiceName"]
        vpc = ec2._vpcs.get(vpc_id, {})
        if not (vpc.get("EnableDnsSupport", True) and vpc.get("EnableDnsHostnames", False)):
            message = (
                "Enabling private DNS requires both enableDnsSupport and enableDnsHostnames VPC attributes "
                f"set to true for {vpc_id}"
            )
            raise refuse(message, "InvalidParameter")
        for other in self._inventory.records(change.region, self.type):
            same = (other.properties["VpcId"], other.properties["ServiceName"]) == (vpc_id, name)
            if same and other.physical_id != change.physical_id and _is_interface(other.properties):
                message = (
                    "private-dns-enabled cannot be set because there is already a conflicting DNS domain for "
                    f"{name} in the VPC {vpc_id}"
                )
                raise refuse(message, "InvalidParameter")

    def addresses(self, properties: Properties) -> Iterable[tuple[str, int]]:
        """One network interface in each subnet."""
        return [(s, 1) for s in properties.get("SubnetIds", [])]

    def security_groups(self, properties: Properties) -> Iterable[str]:
        """Those of its network interfaces."""
        return properties.get("SecurityGroupIds", [])


def _is_interface(properties: Properties) -> bool:
    return properties.get("VpcEndpointType") == "Interface"
