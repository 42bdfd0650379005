"""A region's ground: the key, the VPC and the EFA security group."""

from __future__ import annotations

from typing import cast

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from constructs import Construct

from trainshed.encryption import DataKey
from trainshed.network import EfaVpc
from trainshed.planning.model import PlatformPlan, RegionPlan
from trainshed.security import EfaSecurityGroup

from .base import RegionStack


class NetworkStack(RegionStack):
    """VPC, endpoints, flow logs, security group and the region's key."""

    def __init__(
        self, scope: Construct, construct_id: str, *, platform: PlatformPlan, plan: RegionPlan
    ) -> None:
        super().__init__(
            scope, construct_id, region=plan.region, account=platform.account, protect=platform.protect
        )
        network = plan.network
        self.key = cast("kms.IKey", DataKey(self, "Key"))
        if network.vpc_id is None:
            ours = EfaVpc(self, "Vpc", addresses=plan.addresses, network=network, key=self.key)
            self.vpc: ec2.IVpc = ours.vpc
            self.subnet_ids = ours.subnet_ids
        else:
            self.vpc = ec2.Vpc.from_vpc_attributes(
                self, "Vpc", vpc_id=network.vpc_id, availability_zones=list(plan.zones)
            )
            self.subnet_ids = plan.given
        self.efa = EfaSecurityGroup(
            self,
            "Efa",
            vpc=self.vpc,
            egress_ports=network.egress_ports,
            retained=bool(plan.lustre or plan.home),
        )
