"""The security group recipe that EFA needs."""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from constructs import Construct


class EfaSecurityGroup(Construct):
    """The one security group of nodes and file systems that speak EFA.

    EFA traffic is admitted only by rules that name the group itself, both ways; a CIDR does not
    count, and CDK drops a self egress rule silently beside `allow_all_outbound` (Amazon EC2 User
    Guide, "Get started with EFA"). Whatever needs the rules in place must depend on `rules`.

    Args:
        vpc: where it lives.
        egress_ports: TCP ports that may be reached outside the group.
        retained: outlives the stack, as it must when file systems that do so are in it.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        vpc: ec2.IVpc,
        egress_ports: tuple[int, ...],
        retained: bool,
    ) -> None:
        super().__init__(scope, construct_id)
        self.security_group: ec2.ISecurityGroup = (
            group := ec2.SecurityGroup(
                self,
                "Group",
                vpc=vpc,
                allow_all_outbound=False,
                description="HyperPod nodes and Lustre over EFA",
            )
        )
        for port in egress_ports:
            group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(port), f"TCP {port} to the outside")
        itself, why = group.security_group_id, "EFA within the group"
        self.rules = (
            ec2.CfnSecurityGroupIngress(
                self, "SelfIngress", group_id=itself, source_security_group_id=itself, ip_protocol="-1",
                description=why,
            ),
            ec2.CfnSecurityGroupEgress(
                self, "SelfEgress", group_id=itself, destination_security_group_id=itself, ip_protocol="-1",
                description=why,
            ),
        )  # fmt: skip
        if retained:
            for resource in (group, *self.rules):
                resource.apply_removal_policy(RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE)
