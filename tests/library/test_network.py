"""EfaVpc and EfaSecurityGroup as somebody else's app uses them: an address plan in, a VPC out."""

from __future__ import annotations

import json
from ipaddress import IPv4Network

import aws_cdk as cdk
import pytest
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms

from tests.support import (
    FLAGS,
    actions_of,
    listed,
    of_type,
    only,
    resources_for,
    shown,
    statements_of,
    waits_for,
    walk,
)
from trainshed.network import EfaVpc
from trainshed.planning.addressing import allocate
from trainshed.planning.endpoints import CLOSED_NETWORK
from trainshed.planning.model import Claim, NetworkPlan
from trainshed.security import EfaSecurityGroup

ZONES = ("use2-az1", "use2-az2")


def claim(name: str, zone: str, purpose: str, addresses: int) -> Claim:
    return Claim(name=name, zone=zone, purpose=purpose, needed=addresses, reserved=addresses)  # type: ignore[arg-type]


def plan(*, public: bool, extra: tuple[Claim, ...] = ()):
    shared = [
        claim(f"nat/{z}", z, "public", 1) if public else claim(f"endpoints/{z}", z, "endpoints", 30)
        for z in ZONES
    ]
    tenants = [
        claim("group/train/p5", ZONES[0], "nodes", 500),
        claim("group/train/cpu", ZONES[1], "nodes", 100),
        claim("lustre/main", ZONES[0], "storage", 20),
    ]
    return allocate([*tenants, *shared, *extra], pool=[IPv4Network("10.8.0.0/13")])


OPEN, CLOSED = plan(public=True), plan(public=False)


@pytest.fixture(scope="module")
def nat(stack_template):
    def build(stack: cdk.Stack) -> None:
        network = NetworkPlan(egress="nat", endpoints=("logs",), flow_log_retention_days=30)
        EfaVpc(stack, "Vpc", addresses=OPEN, network=network, key=kms.Key(stack, "Key"))

    return stack_template(build)


@pytest.fixture(scope="module")
def closed(stack_template):
    def build(stack: cdk.Stack) -> None:
        EfaVpc(
            stack, "Vpc", addresses=CLOSED, network=NetworkPlan(egress="closed"), key=kms.Key(stack, "Key")
        )

    return stack_template(build)


def by_cidr(template):
    return {
        r["Properties"]["CidrBlock"]: (name, r) for name, r in of_type(template, "AWS::EC2::Subnet").items()
    }


def table_of(template, subnet: str) -> str:
    links = of_type(template, "AWS::EC2::SubnetRouteTableAssociation").values()
    (table,) = [
        r["Properties"]["RouteTableId"]["Ref"]
        for r in links
        if r["Properties"]["SubnetId"] == {"Ref": subnet}
    ]
    return table


def default_route(template, table: str):
    routes = [r["Properties"] for r in of_type(template, "AWS::EC2::Route").values()]
    (route,) = [r for r in routes if r["RouteTableId"] == {"Ref": table}]
    assert route["DestinationCidrBlock"] == "0.0.0.0/0"
    return route


def test_every_claim_gets_its_planned_subnet(nat):
    """A1: what is deployed is what was counted."""
    found = by_cidr(nat)
    assert set(found) == {str(s.cidr) for s in OPEN.subnets}
    for subnet in OPEN.subnets:
        properties = found[str(subnet.cidr)][1]["Properties"]
        assert properties["AvailabilityZoneId"] == subnet.zone
        assert {"Key": "Name", "Value": f"Stack/Vpc/{subnet.claim}"} in properties["Tags"]


def test_zones_are_ids_and_nothing_is_looked_up(tmp_path):
    """J8, L2: no zone names, no dummies, no questions to AWS, not even with account and region given."""
    app = cdk.App(context=FLAGS, outdir=str(tmp_path))
    stack = cdk.Stack(app, "Stack", env=cdk.Environment(account="111122223333", region="us-east-2"))
    EfaVpc(stack, "Vpc", addresses=OPEN, network=NetworkPlan(), key=kms.Key(stack, "Key"))
    app.synth()
    template = json.loads((tmp_path / "Stack.template.json").read_text(encoding="utf-8"))
    assert not [k for k, _ in walk(template) if k == "AvailabilityZone"]
    assert "dummy" not in shown(template)
    assert not json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8")).get("missing")


def test_a_subnet_waits_for_its_block(nat):
    blocks = of_type(nat, "AWS::EC2::VPCCidrBlock")
    _, vpc = only(nat, "AWS::EC2::VPC")
    primary, *secondary = [str(b) for b in OPEN.blocks]
    assert secondary, "the plan should need more than one block, or this proves nothing"
    assert vpc["Properties"]["CidrBlock"] == primary
    assert [b["Properties"]["CidrBlock"] for b in blocks.values()] == secondary
    for cidr, (_, subnet) in by_cidr(nat).items():
        inside = [n for n, b in blocks.items() if _holds(b["Properties"]["CidrBlock"], cidr)]
        assert waits_for(subnet) == inside


def _holds(block: str, cidr: str) -> bool:
    return IPv4Network(cidr).subnet_of(IPv4Network(block))


def test_no_subnet_maps_public_addresses(nat, closed):
    for template in (nat, closed):
        assert not any(r["Properties"].get("MapPublicIpOnLaunch") for _, r in by_cidr(template).values())


def test_the_vpc_resolves_names(nat):
    properties = only(nat, "AWS::EC2::VPC")[1]["Properties"]
    assert properties["EnableDnsHostnames"] is properties["EnableDnsSupport"] is True


def test_logical_ids_of_subnets_contain_the_cidr(nat):
    for cidr, (name, _) in by_cidr(nat).items():
        assert "".join(filter(str.isdigit, cidr)) in name


def test_a_moved_subnet_is_a_new_resource(stack_template):
    """A subnet that moved under its old id would be replaced in place, with tenants in it."""

    def template(pool: str):
        addresses = allocate([claim("group/train/p5", ZONES[0], "nodes", 20)], pool=[IPv4Network(pool)])

        def build(stack: cdk.Stack) -> None:
            key = kms.Key(stack, "Key")
            EfaVpc(stack, "Vpc", addresses=addresses, network=NetworkPlan(egress="closed"), key=key)

        return stack_template(build)

    # The same digits in another order of dots.
    first, second = template("10.16.4.0/26"), template("10.1.64.0/26")
    assert not set(of_type(first, "AWS::EC2::Subnet")) & set(of_type(second, "AWS::EC2::Subnet"))


def test_each_zone_goes_out_through_its_own_nat_gateway(nat):
    nats, subnets = of_type(nat, "AWS::EC2::NatGateway"), by_cidr(nat)
    assert len(nats) == len(of_type(nat, "AWS::EC2::EIP")) == len(ZONES)
    gateway, _ = only(nat, "AWS::EC2::InternetGateway")
    zone_of = {name: r["Properties"]["AvailabilityZoneId"] for name, r in subnets.values()}
    for subnet in OPEN.subnets:
        name, _ = subnets[str(subnet.cidr)]
        route = default_route(nat, table_of(nat, name))
        if subnet.purpose == "public":
            assert route["GatewayId"] == {"Ref": gateway}
        else:
            through = nats[route["NatGatewayId"]["Ref"]]["Properties"]
            assert zone_of[through["SubnetId"]["Ref"]] == subnet.zone


def test_nat_gateways_and_addresses_wait_for_the_way_out(nat):
    attachment, _ = only(nat, "AWS::EC2::VPCGatewayAttachment")
    (public,) = [n for n, r in of_type(nat, "AWS::EC2::Route").items() if "GatewayId" in r["Properties"]]
    assert attachment in waits_for(nat["Resources"][public])
    assert all(attachment in waits_for(r) for r in of_type(nat, "AWS::EC2::EIP").values())
    assert all(public in waits_for(r) for r in of_type(nat, "AWS::EC2::NatGateway").values())


def test_a_closed_network_has_no_way_out(closed):
    for kind in (
        "InternetGateway",
        "NatGateway",
        "EIP",
        "Route",
        "EgressOnlyInternetGateway",
        "VPCGatewayAttachment",
    ):
        assert not of_type(closed, f"AWS::EC2::{kind}"), kind


def test_a_closed_network_has_every_interface_endpoint_in_the_endpoint_subnets(closed):
    endpoints = [e["Properties"] for e in of_type(closed, "AWS::EC2::VPCEndpoint").values()]
    interface = [e for e in endpoints if e["VpcEndpointType"] == "Interface"]
    names = [e["ServiceName"]["Fn::Sub"].removeprefix("com.amazonaws.${AWS::Region}.") for e in interface]
    assert sorted(names) == sorted(CLOSED_NETWORK)
    subnets = by_cidr(closed)
    home = [{"Ref": subnets[str(s.cidr)][0]} for s in CLOSED.subnets if s.purpose == "endpoints"]
    for endpoint in interface:
        assert endpoint["PrivateDnsEnabled"] is True
        assert sorted(endpoint["SubnetIds"], key=shown) == sorted(home, key=shown)


def test_endpoints_admit_https_from_every_block_and_nothing_else(closed):
    name, group = only(closed, "AWS::EC2::SecurityGroup")
    ingress = group["Properties"]["SecurityGroupIngress"]
    assert {i["CidrIp"] for i in ingress} == {str(b) for b in CLOSED.blocks}
    assert {(i["IpProtocol"], i["FromPort"], i["ToPort"]) for i in ingress} == {("tcp", 443, 443)}
    for endpoint in of_type(closed, "AWS::EC2::VPCEndpoint").values():
        if endpoint["Properties"]["VpcEndpointType"] == "Interface":
            assert endpoint["Properties"]["SecurityGroupIds"] == [{"Fn::GetAtt": [name, "GroupId"]}]


def test_every_private_route_table_reaches_s3(nat, closed):
    for template, addresses in ((nat, OPEN), (closed, CLOSED)):
        endpoints = [e["Properties"] for e in of_type(template, "AWS::EC2::VPCEndpoint").values()]
        (gateway,) = [e for e in endpoints if e["VpcEndpointType"] == "Gateway"]
        assert gateway["ServiceName"] == {"Fn::Sub": "com.amazonaws.${AWS::Region}.s3"}
        subnets = by_cidr(template)
        tables = {
            table_of(template, subnets[str(s.cidr)][0]) for s in addresses.subnets if s.purpose != "public"
        }
        assert {t["Ref"] for t in gateway["RouteTableIds"]} == tables


def test_endpoints_asked_for_without_subnets_for_them_are_none(nat):
    """A NAT network has no endpoint subnets unless endpoints were planned."""
    kinds = [e["Properties"]["VpcEndpointType"] for e in of_type(nat, "AWS::EC2::VPCEndpoint").values()]
    assert kinds == ["Gateway"]


def test_flow_logs_are_written_encrypted_and_kept(nat):
    log_name, group = only(nat, "AWS::Logs::LogGroup")
    key, _ = only(nat, "AWS::KMS::Key")
    assert group["Properties"]["RetentionInDays"] == 30
    assert group["Properties"]["KmsKeyId"] == {"Fn::GetAtt": [key, "Arn"]}
    flow = only(nat, "AWS::EC2::FlowLog")[1]["Properties"]
    assert flow["TrafficType"] == "ALL"
    assert flow["ResourceId"] == {"Ref": only(nat, "AWS::EC2::VPC")[0]}
    assert flow["LogGroupName"] == {"Ref": log_name}
    role = flow["DeliverLogsPermissionArn"]["Fn::GetAtt"][0]
    trust = nat["Resources"][role]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    assert [s["Principal"] for s in trust] == [{"Service": "vpc-flow-logs.amazonaws.com"}]
    statements = statements_of(nat, role)
    assert {"logs:CreateLogStream", "logs:PutLogEvents"} <= actions_of(statements)
    assert all(
        shown({"Fn::GetAtt": [log_name, "Arn"]}) in shown(r)
        for r in resources_for(statements, "logs:PutLogEvents")
    )
    assert "*" not in {r for s in statements for r in listed(s["Resource"]) if isinstance(r, str)}


@pytest.fixture(scope="module", params=[True, False], ids=["retained", "not-retained"])
def efa(request, stack_template):
    def build(stack: cdk.Stack) -> None:
        vpc = ec2.Vpc.from_vpc_attributes(
            stack, "Vpc", vpc_id="vpc-0a1b2c3d4e5f67890", availability_zones=["use2-az1"]
        )
        EfaSecurityGroup(stack, "Efa", vpc=vpc, egress_ports=(443, 3306), retained=request.param)

    return stack_template(build)


def test_efa_group_admits_itself_both_ways_by_id(efa):
    """A4, A5, A6."""
    name, _ = only(efa, "AWS::EC2::SecurityGroup")
    itself = {"Fn::GetAtt": [name, "GroupId"]}
    for kind, peer in (("Ingress", "SourceSecurityGroupId"), ("Egress", "DestinationSecurityGroupId")):
        rule = only(efa, f"AWS::EC2::SecurityGroup{kind}")[1]["Properties"]
        assert rule["IpProtocol"] == "-1"
        assert rule["GroupId"] == rule[peer] == itself
        assert not {"CidrIp", "CidrIpv6"} & set(rule)


def test_efa_group_reaches_the_listed_ports_and_no_others(efa):
    """A4: `0.0.0.0/0` for all traffic may fail EFA's health checks."""
    properties = only(efa, "AWS::EC2::SecurityGroup")[1]["Properties"]
    egress = properties["SecurityGroupEgress"]
    assert [(e["IpProtocol"], e["FromPort"], e["ToPort"], e["CidrIp"]) for e in egress] == [
        ("tcp", 443, 443, "0.0.0.0/0"),
        ("tcp", 3306, 3306, "0.0.0.0/0"),
    ]
    assert "SecurityGroupIngress" not in properties
