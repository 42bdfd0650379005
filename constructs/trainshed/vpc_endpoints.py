"""Ways to AWS's services that do not leave the VPC."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Fn
from aws_cdk import aws_ec2 as ec2
from constructs import Construct


class VpcEndpoints(Construct):
    """S3 by a gateway, which takes no address; other services by interfaces with private names.

    Args:
        vpc_id: the VPC.
        blocks: its CIDR blocks, from which interfaces admit HTTPS.
        route_table_ids: where S3's route goes.
        subnet_ids: one for each zone of the interfaces; without any there are no interfaces.
        services: names as AWS writes them after the region, such as `ecr.api`.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        vpc_id: str,
        blocks: Sequence[str],
        route_table_ids: Sequence[str],
        subnet_ids: Sequence[str],
        services: Sequence[str],
    ) -> None:
        super().__init__(scope, construct_id)
        ec2.CfnVPCEndpoint(
            self, "s3", vpc_id=vpc_id, vpc_endpoint_type="Gateway", route_table_ids=[*route_table_ids],
            service_name=_service("s3"),
        )  # fmt: skip
        if not subnet_ids or not services:
            return
        group = ec2.CfnSecurityGroup(
            self, "SecurityGroup", vpc_id=vpc_id, group_description="HTTPS from this VPC to its endpoints",
            security_group_ingress=[
                {"ipProtocol": "tcp", "fromPort": 443, "toPort": 443, "cidrIp": block, "description": "HTTPS"}
                for block in blocks
            ],
            security_group_egress=[
                {"ipProtocol": "icmp", "fromPort": 252, "toPort": 86, "cidrIp": "255.255.255.255/32",
                 "description": "Endpoints open no connections"}
            ],
        )  # fmt: skip
        for name in services:
            ec2.CfnVPCEndpoint(
                self, name, vpc_id=vpc_id, vpc_endpoint_type="Interface", service_name=_service(name),
                private_dns_enabled=True, subnet_ids=[*subnet_ids], security_group_ids=[group.attr_group_id],
            )  # fmt: skip


def _service(name: str) -> str:
    return Fn.sub(f"com.amazonaws.${{AWS::Region}}.{name}")
