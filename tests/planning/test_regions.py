"""The region table against cfn-lint's data, moto's zones and AWS's printed lists; the slots against time."""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import cfnlint
import pytest
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

from trainshed.planning.instances import INSTANCE_TYPES, UnknownInstanceType
from trainshed.planning.regions import (
    REGIONS,
    TRAINING_PLAN_ONLY,
    UnknownRegion,
    lookup_region,
    offering,
    region_of_zone,
)

SCHEMAS = Path(cfnlint.__file__).parent / "data/schemas"

# "Amazon SageMaker HyperPod", AWS Regions supported, as AWS prints it.
AWS_HYPERPOD_REGIONS = """us-east-1 us-east-2 us-west-1 us-west-2 eu-central-1 eu-north-1 eu-west-1 eu-west-2
    eu-south-2 ap-south-1 ap-south-2 ap-southeast-1 ap-southeast-2 ap-southeast-3 ap-southeast-4
    ap-northeast-1 ap-northeast-2 sa-east-1"""

# "AWS Availability Zones": ids AWS prints that moto's snapshot lacks, and why an account may lack them too.
ZONES_NOT_IN_MOTO = {
    "usw1-az2": "newer accounts can access two Availability Zones in us-west-1",
    "apne1-az3": "constrained, hidden from newer accounts",
    "euw2-az4": "newer than the snapshot",
}


def has_type(region: str, resource_type: str) -> bool:
    return resource_type in json.loads((SCHEMAS / f"providers/{region}.json").read_text())


def commercial(region: str) -> bool:
    return not region.startswith(("us-gov-", "us-iso", "eu-iso", "eusc-", "cn-"))


@pytest.fixture(scope="module")
def price_list() -> dict[str, set[str]]:
    enums = json.loads((SCHEMAS / "extensions/aws_sagemaker_cluster/instancetype_enum.json").read_text())
    return {region: set(each["enum"]) for region, each in enums.items() if region != "description"}


def test_the_regions_are_those_aws_documents_and_the_one_only_its_data_has() -> None:
    assert set(REGIONS) == {*AWS_HYPERPOD_REGIONS.split(), "ca-central-1"}
    with_cluster = {
        schemas.stem
        for schemas in (SCHEMAS / "providers").glob("*.json")
        if commercial(schemas.stem) and has_type(schemas.stem, "AWS::SageMaker::Cluster")
    }
    assert set(REGIONS) == with_cluster, "CloudFormation's commercial regions with clusters have drifted"


def test_slots_are_for_ever() -> None:
    assert {name: region.address_slot for name, region in REGIONS.items()} == {
        "us-east-1": 1,
        "us-east-2": 2,
        "us-west-1": 3,
        "us-west-2": 4,
        "ca-central-1": 5,
        "sa-east-1": 6,
        "eu-central-1": 7,
        "eu-north-1": 8,
        "eu-south-2": 9,
        "eu-west-1": 10,
        "eu-west-2": 11,
        "ap-northeast-1": 13,
        "ap-northeast-2": 14,
        "ap-south-1": 15,
        "ap-south-2": 16,
        "ap-southeast-1": 17,
        "ap-southeast-2": 18,
        "ap-southeast-3": 19,
        "ap-southeast-4": 20,
    }, "moving a slot moves somebody's network: only ever add a region, at a slot nobody has had"


def test_slots_are_unique_and_their_pools_keep_clear_of_what_aws_reserves() -> None:
    slots = [region.address_slot for region in REGIONS.values()]
    assert len(set(slots)) == len(slots)
    pools = [ip_network(f"10.{8 * slot}.0.0/13") for slot in slots]
    for taken in ("10.0.0.0/15", "10.100.0.0/16"):
        assert not any(pool.overlaps(ip_network(taken)) for pool in pools)
    assert all(1 <= slot <= 31 for slot in slots)


@pytest.mark.parametrize(
    ("field", "resource_type"),
    [
        ("cluster", "AWS::SageMaker::Cluster"),
        ("scheduler_config", "AWS::SageMaker::ClusterSchedulerConfig"),
        ("compute_quota", "AWS::SageMaker::ComputeQuota"),
        ("amp", "AWS::APS::Workspace"),
        ("amg", "AWS::Grafana::Workspace"),
    ],
)
def test_services_are_where_cloudformation_has_them(field: str, resource_type: str) -> None:
    table = {name for name, region in REGIONS.items() if getattr(region, field)}
    cloudformation = {name for name in REGIONS if has_type(name, resource_type)}
    assert table == cloudformation, f"{resource_type} has drifted in {sorted(table ^ cloudformation)}"


def test_managed_grafana_is_in_the_ten_regions_aws_prints() -> None:
    printed = """us-east-1 us-east-2 us-west-2 ap-northeast-1 ap-northeast-2 ap-southeast-1 ap-southeast-2
        eu-central-1 eu-west-1 eu-west-2"""
    assert {name for name, region in REGIONS.items() if region.amg} == set(printed.split())


def test_openzfs_is_everywhere_but_its_second_single_az_generation_is_not() -> None:
    """FSx for OpenZFS, Availability by AWS Region: Jakarta and Melbourne lack the Single-AZ 2 columns."""
    assert all(region.openzfs for region in REGIONS.values())
    without = {name for name, region in REGIONS.items() if not region.openzfs_single_az_2}
    assert without == {"ap-southeast-3", "ap-southeast-4"}


def test_zone_ids_are_motos_and_the_ones_aws_prints_besides() -> None:
    zones = {zone for region in REGIONS.values() for zone in region.zones}
    motos = {zone.zone_id for name in REGIONS for zone in RegionsAndZonesBackend.zones[name]}
    assert zones - motos == set(ZONES_NOT_IN_MOTO)
    assert not motos - zones


def test_zone_ids_are_in_their_region_and_in_order() -> None:
    for name, region in REGIONS.items():
        assert list(region.zones) == sorted(region.zones)
        assert {zone.zone_id for zone in RegionsAndZonesBackend.zones[name]} <= set(region.zones)


def test_only_dallas_is_a_local_zone_with_hyperpod_capacity() -> None:
    """SageMaker AI: only us-east-1-dfw-2a has UltraServers; the Local Zones guide gives its id."""
    assert {zone: name for name, region in REGIONS.items() for zone in region.local_zones} == {
        "use1-dfw2-az1": "us-east-1"
    }


@pytest.mark.parametrize(
    ("zone", "region"),
    [
        ("use2-az1", "us-east-2"),
        ("use1-dfw2-az1", "us-east-1"),
        ("apne1-az4", "ap-northeast-1"),
        ("use2-az9", None),
        ("us-east-2a", None),
    ],
)
def test_region_of_a_zone_id(zone: str, region: str | None) -> None:
    assert region_of_zone(zone) == region


def test_no_zone_is_claimed_twice() -> None:
    every = [zone for region in REGIONS.values() for zone in (*region.zones, *region.local_zones)]
    assert len(set(every)) == len(every)


def test_offerings_are_the_price_lists(price_list: dict[str, set[str]]) -> None:
    drift = {
        name: sorted(wrong)
        for name, region in REGIONS.items()
        if (wrong := {each for each in INSTANCE_TYPES if region.offers(each) != (each in price_list[name])})
    }
    assert not drift, f"the price list has changed; region → types to look at: {drift}"


def test_training_plan_only_types_are_those_no_price_list_has(price_list: dict[str, set[str]]) -> None:
    listed_somewhere = set().union(*price_list.values())
    assert set(TRAINING_PLAN_ONLY) == set(INSTANCE_TYPES) - listed_somewhere


@pytest.mark.parametrize(
    ("region", "instance_type", "expected"),
    [
        ("us-east-2", "ml.p5.48xlarge", "listed"),
        ("eu-south-2", "ml.p5.48xlarge", "absent"),
        ("us-west-2", "ml.p5e.48xlarge", "training-plan-only"),
        ("us-east-1", "ml.p6e-gb200.36xlarge", "training-plan-only"),
        ("us-west-2", "ml.p6e-gb200.36xlarge", "absent"),
        ("us-east-2", "ml.trn2.48xlarge", "listed"),
        ("us-east-1", "ml.trn2.48xlarge", "absent"),
    ],
)
def test_offering(region: str, instance_type: str, expected: Any) -> None:
    assert offering(region, instance_type) == expected


def test_offering_of_what_does_not_exist_is_an_error_not_absent() -> None:
    with pytest.raises(UnknownInstanceType):
        offering("us-east-1", "ml.p5.49xlarge")
    with pytest.raises(UnknownRegion):
        offering("us-east-9", "ml.p5.48xlarge")


def test_lookup_region_returns_the_row() -> None:
    assert lookup_region("us-east-2") is REGIONS["us-east-2"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [("us-esat-2", "us-east-2"), ("eu-nort-1", "eu-north-1"), ("us-east-2a", "us-east-2")],
)
def test_lookup_region_suggests_what_was_probably_meant(written: str, meant: str) -> None:
    with pytest.raises(UnknownRegion, match=rf"'{written}' is not one of the 19 .*Did you mean .*{meant}"):
        lookup_region(written)


def test_lookup_region_of_nonsense_lists_the_regions() -> None:
    with pytest.raises(UnknownRegion, match=r"HyperPod has ap-northeast-1, .*, us-west-2\."):
        lookup_region("mars")
