"""Which addresses of a subnet are taken, and by whom.

Counted from the inventory, so that a retained file system goes on holding its subnet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network
from typing import Any

from ministack.core.responses import get_region
from ministack.services import ec2

from .inventory import Inventory, Record
from .kinds import Kind, Refused

RESERVED = 5
"""The first four addresses of a subnet and the last. Source: VPC User Guide, "Subnet sizing"."""


class Occupancy:
    """Who holds what, in the region of the request being served."""

    def __init__(self, inventory: Inventory, kinds: Mapping[str, Kind]) -> None:
        self._inventory = inventory
        self._kinds = kinds

    def tenants(self, subnet_id: str) -> Iterator[tuple[Record, int]]:
        """Resources with addresses in a subnet."""
        for record in self._inventory.records(get_region()):
            taken = sum(
                count
                for subnet, count in self._kind(record).addresses(record.properties)
                if subnet == subnet_id
            )
            if taken:
                yield record, taken

    def users(self, security_group_id: str) -> Iterator[Record]:
        """Resources whose network interfaces carry a security group."""
        for record in self._inventory.records(get_region()):
            if security_group_id in self._kind(record).security_groups(record.properties):
                yield record

    def demand(self, needs: Mapping[str, int], *, besides: str | None, service: str) -> None:
        """Refuse when a subnet cannot take so many more; `besides` is the asker's own physical id."""
        for subnet_id, wanted in needs.items():
            record = subnet(subnet_id, service=service)
            taken = sum(n for r, n in self.tenants(subnet_id) if r.physical_id != besides)
            free = capacity(record) - taken
            if wanted > free:
                message = (
                    f"The specified subnet does not have enough free addresses to satisfy the request: "
                    f"{subnet_id} ({record['CidrBlock']}) has {free} free, {wanted} are needed"
                )
                raise Refused(message, service=service, code="InsufficientFreeAddressesInSubnet")

    def publish(self) -> None:
        """Let DescribeSubnets report what is left."""
        for subnet_id, record in ec2._subnets.items():
            taken = sum(n for _, n in self.tenants(subnet_id))
            record["AvailableIpAddressCount"] = capacity(record) - taken

    def _kind(self, record: Record) -> Kind:
        return self._kinds.get(record.type, _NOBODY)


_NOBODY = Kind()


def subnet(subnet_id: str, *, service: str) -> dict[str, Any]:
    """ministack's record of a subnet, or the refusal of a service that was given a wrong one."""
    record = ec2._subnets.get(subnet_id)
    if record is None:
        message = f"The subnet ID '{subnet_id}' does not exist"
        raise Refused(message, service=service, code="InvalidSubnetID.NotFound")
    return record


def capacity(record: Mapping[str, Any]) -> int:
    """Addresses a subnet can hand out when nobody lives in it."""
    return IPv4Network(record["CidrBlock"]).num_addresses - RESERVED
