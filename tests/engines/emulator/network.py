"""VPCs and their address blocks: what EC2 checks and ministack does not.

Source of the rules: VPC User Guide, "VPC CIDR blocks".
"""

from __future__ import annotations

import secrets
from ipaddress import IPv4Network
from typing import Any

from ministack.core.responses import get_region
from ministack.services import ec2

from .inventory import Inventory
from .kinds import Change, Kind, Properties, Provided, Refused

MOST_BLOCKS = 5
"""IPv4 CIDR blocks per VPC, primary included: the default quota."""

_PRIVATE = [IPv4Network(n) for n in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]
_NEVER_BESIDE_PRIVATE = IPv4Network("198.19.0.0/16")
_DEFAULT_VPCS = IPv4Network("172.31.0.0/16")
_UNUSABLE = [IPv4Network(n) for n in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4")]


def refuse(message: str, code: str) -> Refused:
    """EC2 says no."""
    return Refused(message, service="Ec2", code=code)


def parse_block(cidr: str, code: str) -> IPv4Network:
    """A block of a legal size in usable space."""
    network = IPv4Network(cidr, strict=False)
    if not 16 <= network.prefixlen <= 28 or any(network.overlaps(bad) for bad in _UNUSABLE):
        raise refuse(f"The CIDR '{cidr}' is invalid.", code)
    return network


class Vpc(Kind):
    """AWS::EC2::VPC."""

    type = "AWS::EC2::VPC"

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def check(self, change: Change) -> None:
        """A primary block between /16 and /28."""
        parse_block(change.properties["CidrBlock"], "InvalidVpc.Range")

    def release(self, change: Change) -> None:
        """ministack counts subnets, groups and gateways, but not what else lives in a VPC."""
        for kind in ("AWS::EC2::VPCEndpoint", "AWS::EC2::RouteTable"):
            for record in self._inventory.records(change.region, kind):
                if record.properties.get("VpcId") == change.physical_id:
                    message = f"The vpc '{change.physical_id}' has dependencies and cannot be deleted."
                    raise refuse(message, "DependencyViolation")

    def attributes(self, physical_id: str, properties: Properties, region: str) -> dict[str, Any]:
        """What L1 constructs read from a VPC."""
        return {"CidrBlock": properties["CidrBlock"], "CidrBlockAssociations": [], "Ipv6CidrBlocks": []}


class VpcCidrBlock(Provided):
    """AWS::EC2::VPCCidrBlock, IPv4."""

    type = "AWS::EC2::VPCCidrBlock"

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def blocks(self, vpc_id: str) -> list[IPv4Network]:
        """Primary and secondary blocks of a VPC."""
        vpc = ec2._vpcs.get(vpc_id)
        if vpc is None:
            raise refuse(f"The vpc ID '{vpc_id}' does not exist", "InvalidVpcID.NotFound")
        secondary = [
            IPv4Network(r.properties["CidrBlock"], strict=False)
            for r in self._inventory.records(get_region(), self.type)
            if r.properties["VpcId"] == vpc_id
        ]
        return [IPv4Network(vpc["CidrBlock"], strict=False), *secondary]

    def check(self, change: Change) -> None:
        """Size, overlap, quota, and AWS's table of permitted neighbours."""
        cidr, vpc_id = change.properties["CidrBlock"], change.properties["VpcId"]
        new, present = parse_block(cidr, "InvalidVpc.Range"), self.blocks(vpc_id)
        if len(present) >= MOST_BLOCKS:
            message = f"This network '{vpc_id}' has met its maximum number of allowed CIDRs: {MOST_BLOCKS}"
            raise refuse(message, "CidrLimitExceeded")
        if any(new.overlaps(block) for block in present):
            raise refuse(f"The CIDR '{cidr}' overlaps with a CIDR of VPC {vpc_id}.", "InvalidVpc.Range")
        if _restricted(new, present):
            message = (
                f"The CIDR '{cidr}' is restricted. Use a CIDR from the same private address range as the "
                "current VPC CIDR, or use a publicly-routable CIDR."
            )
            raise refuse(message, "InvalidVpc.Range")

    def create(self, change: Change) -> str:
        """CloudFormation's id: the association's."""
        return f"vpc-cidr-assoc-{secrets.token_hex(9)[:17]}"

    def attributes(self, physical_id: str, properties: Properties, region: str) -> dict[str, Any]:
        """Read-only properties."""
        return {"Id": physical_id}

    def release(self, change: Change) -> None:
        """A block in use by a subnet stays."""
        block = IPv4Network(change.properties["CidrBlock"], strict=False)
        for record in ec2._subnets.values():
            if record["VpcId"] == change.properties["VpcId"] and block.overlaps(
                IPv4Network(record["CidrBlock"])
            ):
                message = f"The CIDR block {block} is in use by subnet {record['SubnetId']}"
                raise refuse(message, "InvalidCidrBlock.InUse")


def _restricted(new: IPv4Network, present: list[IPv4Network]) -> bool:
    home = next((r for r in _PRIVATE if present[0].subnet_of(r)), None)
    if home is None:
        return any(new.overlaps(r) for r in _PRIVATE)
    if home == _PRIVATE[1] and new.overlaps(_DEFAULT_VPCS):
        return True
    beginning = IPv4Network("10.0.0.0/16")
    if new.overlaps(beginning) and any(b.overlaps(IPv4Network("10.0.0.0/15")) for b in present):
        return True
    return new.overlaps(_NEVER_BESIDE_PRIVATE) or any(new.overlaps(r) for r in _PRIVATE if r != home)
