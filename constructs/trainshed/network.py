"""A VPC whose subnets are counted, not defaulted: it deploys an address plan and adds the ways out.

Zones are given by id, so synthesis asks AWS nothing and the same template fits every account.
"""

from __future__ import annotations

from ipaddress import IPv4Network

from aws_cdk import CfnTag, RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from constructs import Construct

from .flow_logs import FlowLogs
from .planning.endpoints import endpoints_for
from .planning.model import AddressPlan, NetworkPlan, SubnetPlan
from .vpc_endpoints import VpcEndpoints

_PUBLIC = "public"


class EfaVpc(Construct):
    """A VPC with one subnet for each claim of an address plan.

    Args:
        addresses: blocks and subnets, as `trainshed.planning.addressing.allocate` gives them.
        network: egress mode, endpoints, flow log retention.
        key: encrypts the flow logs.

    `subnet_ids` maps each claim's name to its subnet id; `vpc` is the VPC for constructs that ask
    for one. Node subnets never map public addresses. Storage subnets, and with them the VPC, outlive
    the stack, as the file systems in them do.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        addresses: AddressPlan,
        network: NetworkPlan,
        key: kms.IKey,
    ) -> None:
        super().__init__(scope, construct_id)
        primary = str(addresses.blocks[0])
        # What is asked of CDK often is asked once: each time is a round trip.
        self._path = self.node.path
        self._cfn = ec2.CfnVPC(
            self, "Vpc", cidr_block=primary, enable_dns_hostnames=True, enable_dns_support=True,
            tags=[CfnTag(key="Name", value=self._path)],
        )  # fmt: skip
        self._vpc_id = self._cfn.ref
        self._blocks = {
            block: ec2.CfnVPCCidrBlock(
                self, f"Block{_dots(block)}", vpc_id=self._vpc_id, cidr_block=str(block)
            )
            for block in addresses.blocks[1:]
        }
        self._tables: dict[str, str] = {}
        self._routed: dict[str, ec2.CfnSubnetRouteTableAssociation] = {}
        self.subnet_ids = {subnet.claim: self._subnet(subnet) for subnet in addresses.subnets}
        if network.egress == "nat":
            self._route_out(addresses)
        kept = [s for s in addresses.subnets if s.purpose == "endpoints" and not s.retired]
        VpcEndpoints(
            self,
            "Endpoints",
            vpc_id=self._vpc_id,
            blocks=[str(block) for block in addresses.blocks],
            route_table_ids=[table for zone, table in self._tables.items() if zone != _PUBLIC],
            subnet_ids=[self.subnet_ids[s.claim] for s in kept],
            services=endpoints_for(network.egress, network.endpoints),
        )
        FlowLogs(
            self, "FlowLogs", vpc_id=self._vpc_id, retention_days=network.flow_log_retention_days, key=key
        )
        zones = sorted({subnet.zone for subnet in addresses.subnets})
        self.vpc: ec2.IVpc = ec2.Vpc.from_vpc_attributes(
            self, "Ref", vpc_id=self._vpc_id, availability_zones=zones, vpc_cidr_block=primary
        )

    def _subnet(self, plan: SubnetPlan) -> str:
        # The CIDR is part of the logical id: consumers in other stacks see a moved subnet as a new one.
        name = f"{_id(plan.claim)}{_dots(plan.cidr)}"
        subnet = ec2.CfnSubnet(
            self, name, vpc_id=self._vpc_id, cidr_block=str(plan.cidr), availability_zone_id=plan.zone,
            map_public_ip_on_launch=False, tags=[CfnTag(key="Name", value=f"{self._path}/{plan.claim}")],
        )  # fmt: skip
        block = next((cfn for net, cfn in self._blocks.items() if plan.cidr.subnet_of(net)), None)
        if block:
            subnet.add_resource_dependency(block)
        if plan.purpose == "storage":
            # A retained file system keeps its interfaces: AWS would refuse to delete what they are in.
            for held in (self._cfn, subnet, *([block] if block else [])):
                held.apply_removal_policy(RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE)
        subnet_id, table = subnet.ref, self._table(_PUBLIC if plan.purpose == "public" else plan.zone)
        self._routed[plan.claim] = ec2.CfnSubnetRouteTableAssociation(
            self, f"{name}Table", subnet_id=subnet_id, route_table_id=table
        )
        return subnet_id

    def _table(self, of: str) -> str:
        """The private route table of a zone, or the public one."""
        if of not in self._tables:
            self._tables[of] = ec2.CfnRouteTable(self, f"Table{_id(of)}", vpc_id=self._vpc_id).ref
        return self._tables[of]

    def _route_out(self, addresses: AddressPlan) -> None:
        gateway = ec2.CfnInternetGateway(self, "InternetGateway")
        attached = ec2.CfnVPCGatewayAttachment(
            self, "InternetGatewayAttachment", vpc_id=self._vpc_id, internet_gateway_id=gateway.ref
        )
        out = ec2.CfnRoute(
            self, "PublicRoute", route_table_id=self._table(_PUBLIC), destination_cidr_block="0.0.0.0/0",
            gateway_id=gateway.ref,
        )  # fmt: skip
        out.add_resource_dependency(attached)
        for public in addresses.subnets:
            if public.purpose != "public":
                continue
            zone = _id(public.zone)
            address = ec2.CfnEIP(self, f"Address{zone}", domain="vpc")
            address.add_resource_dependency(attached)
            nat = ec2.CfnNatGateway(
                self,
                f"Nat{zone}",
                subnet_id=self.subnet_ids[public.claim],
                allocation_id=address.attr_allocation_id,
            )
            # A NAT gateway that comes up before its subnet has a way out forwards nothing until it has.
            nat.add_resource_dependency(out)
            nat.add_resource_dependency(self._routed[public.claim])
            if public.zone in self._tables:
                ec2.CfnRoute(
                    self, f"Route{zone}", route_table_id=self._tables[public.zone],
                    destination_cidr_block="0.0.0.0/0", nat_gateway_id=nat.ref,
                )  # fmt: skip


def _id(text: str) -> str:
    return "".join(part.capitalize() for part in text.replace(".", "-").replace("/", "-").split("-"))


def _dots(cidr: IPv4Network) -> str:
    # With its dots: 10.16.4.0 and 10.1.64.0 must not become one id.
    return str(cidr).replace("/", "-")
