"""Ways out of a VPC: gateway attachments, routes, elastic addresses, NAT gateways, flow logs."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from ministack.services import cloudwatch_logs, ec2, iam

from .addresses import subnet
from .inventory import Inventory
from .kinds import Change, Kind, Properties, Provided
from .network import refuse

MOST_ADDRESSES = 5
"""Elastic IP addresses per region: the default quota."""


def _gateway_of(vpc_id: str) -> str | None:
    for gateway_id, record in ec2._internet_gateways.items():
        if any(a.get("VpcId") == vpc_id for a in record.get("Attachments", [])):
            return gateway_id
    return None


class GatewayAttachment(Kind):
    """AWS::EC2::VPCGatewayAttachment."""

    type = "AWS::EC2::VPCGatewayAttachment"

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def release(self, change: Change) -> None:
        """A VPC with public addresses keeps its gateway."""
        vpc_id = change.properties["VpcId"]
        for record in self._inventory.records(change.region, NatGateway.type):
            if record.attributes["VpcId"] == vpc_id and record.properties.get("AllocationId"):
                message = (
                    f"Network {vpc_id} has some mapped public address(es). Please unmap those public "
                    "address(es) before detaching the gateway."
                )
                raise refuse(message, "DependencyViolation")


class Route(Kind):
    """AWS::EC2::Route."""

    type = "AWS::EC2::Route"

    def check(self, change: Change) -> None:
        """Table and target exist, and belong to one VPC."""
        p = change.properties
        table = ec2._route_tables.get(p["RouteTableId"])
        if table is None:
            message = f"The routeTable ID '{p['RouteTableId']}' does not exist"
            raise refuse(message, "InvalidRouteTableID.NotFound")
        gateway, nat = p.get("GatewayId"), p.get("NatGatewayId")
        if gateway and gateway != _gateway_of(table["VpcId"]):
            message = (
                f"route table {p['RouteTableId']} and network gateway {gateway} belong to different networks"
            )
            raise refuse(message, "InvalidParameterValue")
        if nat and ec2._nat_gateways.get(nat, {}).get("State") != "available":
            raise refuse(f"The natGateway ID '{nat}' does not exist", "InvalidNatGatewayID.NotFound")


class ElasticIp(Provided):
    """AWS::EC2::EIP."""

    type = "AWS::EC2::EIP"

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory

    def check(self, change: Change) -> None:
        """The quota, which counts addresses allocated through the API as well."""
        if change.creates and len(list(ec2._addresses.items())) >= MOST_ADDRESSES:
            raise refuse("The maximum number of addresses has been reached.", "AddressLimitExceeded")

    def create(self, change: Change) -> str:
        """CloudFormation's Ref is the public address."""
        return f"52.{secrets.randbelow(256)}.{secrets.randbelow(256)}.{secrets.randbelow(256)}"

    def attributes(self, physical_id: str, properties: Properties, region: str) -> dict[str, Any]:
        """The allocation id is derived, so that updates answer the same."""
        return {"PublicIp": physical_id, "AllocationId": _allocation_id(physical_id)}

    def apply(self, physical_id: str, properties: Properties) -> None:
        """Visible to DescribeAddresses."""
        names = ("AssociationId", "InstanceId", "NetworkInterfaceId", "PrivateIpAddress")
        ec2._addresses[_allocation_id(physical_id)] = {
            "AllocationId": _allocation_id(physical_id),
            "PublicIp": physical_id,
            "Domain": properties.get("Domain", "vpc"),
            **dict.fromkeys(names),
        }

    def release(self, change: Change) -> None:
        """An address in use stays."""
        mine = _allocation_id(str(change.physical_id))
        for record in self._inventory.records(change.region, NatGateway.type):
            if record.properties.get("AllocationId") == mine:
                raise refuse(f"Address with allocation id [{mine}] is in use.", "InvalidIPAddress.InUse")

    def remove(self, physical_id: str, properties: Properties) -> None:
        """Gone."""
        ec2._addresses.pop(_allocation_id(physical_id), None)


def _allocation_id(public_ip: str) -> str:
    return "eipalloc-" + "".join(f"{int(part):02x}" for part in public_ip.split(".")) + "0" * 9


class NatGateway(Provided):
    """AWS::EC2::NatGateway."""

    type = "AWS::EC2::NatGateway"

    def check(self, change: Change) -> None:
        """An address, and a subnet that reaches the internet."""
        p = change.properties
        if not change.creates or p.get("ConnectivityType") == "private":
            return
        if p.get("AllocationId") not in ec2._addresses:
            message = f"Elastic IP address {p.get('AllocationId')} could not be found"
            raise refuse(message, "InvalidElasticIpID.NotFound")
        vpc_id = subnet(p["SubnetId"], service="Ec2")["VpcId"]
        gateway = _gateway_of(vpc_id)
        if gateway is None:
            raise refuse(f"Network {vpc_id} has no Internet gateway attached", "Gateway.NotAttached")
        if not any(r.get("GatewayId") == gateway for r in _routes(p["SubnetId"])):
            # AWS would create it, and nothing behind it would reach the internet.
            message = f"Subnet {p['SubnetId']} has no route to an internet gateway"
            raise refuse(message, "Gateway.NotAttached")

    def create(self, change: Change) -> str:
        """The gateway's id."""
        return f"nat-{secrets.token_hex(9)[:17]}"

    def attributes(self, physical_id: str, properties: Properties, region: str) -> dict[str, Any]:
        """The VPC is for our own rules; CloudFormation answers the rest."""
        vpc_id = subnet(properties["SubnetId"], service="Ec2")["VpcId"]
        return {"NatGatewayId": physical_id, "EniId": physical_id.replace("nat", "eni"), "VpcId": vpc_id}

    def addresses(self, properties: Properties) -> Iterable[tuple[str, int]]:
        """One private address."""
        return [(properties["SubnetId"], 1)]

    def apply(self, physical_id: str, properties: Properties) -> None:
        """Visible to DescribeNatGateways."""
        ec2._nat_gateways[physical_id] = {
            "NatGatewayId": physical_id,
            "SubnetId": properties["SubnetId"],
            "VpcId": subnet(properties["SubnetId"], service="Ec2")["VpcId"],
            "AllocationId": properties.get("AllocationId", ""),
            "ConnectivityType": properties.get("ConnectivityType", "public"),
            "State": "available",
            "CreateTime": ec2._now_ts(),
            "Tags": list(properties.get("Tags", [])),
        }

    def remove(self, physical_id: str, properties: Properties) -> None:
        """DescribeNatGateways goes on listing it for an hour on AWS, too."""
        ec2._nat_gateways[physical_id]["State"] = "deleted"


def _routes(subnet_id: str) -> list[dict[str, Any]]:
    return [
        route
        for table in ec2._route_tables.values()
        if any(a.get("SubnetId") == subnet_id for a in table["Associations"])
        for route in table["Routes"]
    ]


class FlowLog(Provided):
    """AWS::EC2::FlowLog."""

    type = "AWS::EC2::FlowLog"

    def check(self, change: Change) -> None:
        """A log group with a role that VPC flow logs may assume; other destinations need neither."""
        p = change.properties
        if p.get("LogDestinationType", "cloud-watch-logs") != "cloud-watch-logs":
            return
        role = iam._roles.get(str(p.get("DeliverLogsPermissionArn", "")).rpartition("/")[2])
        if role is None:
            raise refuse("DeliverLogsPermissionArn can't be assumed by Ec2.", "InvalidParameter")
        if "vpc-flow-logs.amazonaws.com" not in role["AssumeRolePolicyDocument"]:
            raise refuse(f"Access Denied for role: {role['Arn']}", "InvalidParameter")
        group = p.get("LogGroupName") or str(p.get("LogDestination", "")).split(":log-group:")[
            -1
        ].removesuffix(":*")
        if group not in cloudwatch_logs._log_groups:
            raise refuse(f"LogDestination: {group} is undefined.", "InvalidParameter")

    def create(self, change: Change) -> str:
        """The flow log's id."""
        return f"fl-{secrets.token_hex(9)[:17]}"

    def attributes(self, physical_id: str, properties: Properties, region: str) -> dict[str, Any]:
        """Read-only properties."""
        return {"Id": physical_id}

    def apply(self, physical_id: str, properties: Properties) -> None:
        """Visible to DescribeFlowLogs."""
        ec2._flow_logs[physical_id] = {
            "FlowLogId": physical_id,
            "ResourceId": properties["ResourceId"],
            "ResourceType": properties["ResourceType"],
            "TrafficType": properties.get("TrafficType", "ALL"),
            "LogDestinationType": properties.get("LogDestinationType", "cloud-watch-logs"),
            "LogDestination": properties.get("LogDestination") or properties.get("LogGroupName", ""),
            "FlowLogStatus": "ACTIVE",
            "CreationTime": ec2._now_ts(),
        }

    def remove(self, physical_id: str, properties: Properties) -> None:
        """Gone."""
        ec2._flow_logs.pop(physical_id, None)
