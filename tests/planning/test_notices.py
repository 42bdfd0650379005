"""What is legal but will surprise somebody is said, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from trainshed.planning.model import (
    AddressPlan,
    BucketsPlan,
    ClusterPlan,
    InstanceGroupPlan,
    NetworkPlan,
    RegionPlan,
    SubnetPlan,
)
from trainshed.planning.notices import warnings_of
from trainshed.planning.storage import AssociationPlan, LustrePlan
from trainshed.planning.workload import WorkloadPlan

ZONE = "use1-az1"


def group(name: str = "p5", kind: str = "ml.p5.48xlarge", **more: object) -> InstanceGroupPlan:
    given = {"role": "worker", "count": 2, "grow_to": 4, "zone": ZONE, "claim": name, "path": name, **more}
    return InstanceGroupPlan(name=name, instance_types=(kind,), **given)  # type: ignore[arg-type]


def region(*groups: InstanceGroupPlan, zones: int = 1, **cluster: object) -> RegionPlan:
    subnets = [
        SubnetPlan(
            claim=f"nat/{i}", zone=f"use1-az{i}", purpose="public", cidr=IPv4Network(f"10.0.{i}.0/28"),
            needed=1, reserved=1,
        )
        for i in range(1, zones + 1)
    ]  # fmt: skip
    plan = ClusterPlan(name="train", orchestrator="slurm", groups=groups, path="c", lustre="main", **cluster)  # type: ignore[arg-type]
    system = LustrePlan(name="main", zone=ZONE, capacity_gib=38_400, throughput_mbps_per_tib=250, efa=True)
    return RegionPlan(
        region="us-east-1", zones=(ZONE,), network=NetworkPlan(), buckets=BucketsPlan(), lustre=(system,),
        lustre_grow_to={}, home=None, clusters=(plan,),
        addresses=AddressPlan(blocks=(IPv4Network("10.0.0.0/16"),), subnets=tuple(subnets)),
    )  # fmt: skip


def test_an_ordinary_platform_has_no_surprises():
    assert list(warnings_of(region(group(), zones=5))) == []


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        pytest.param(region(group(), zones=6), "6 NAT gateways: AWS's default quota of", id="A13"),
        pytest.param(region(group(grow_to=160)), "interfaces at the declared growth", id="interfaces"),
        pytest.param(region(group(interface="efa-only")), "`efa-only` addresses are derived", id="A2"),
        pytest.param(region(group(zone="use1-az2")), "p5 mount main from use1-az1", id="zones apart"),
        pytest.param(region(*(group(f"g{i}") for i in range(21))), "21 groups", id="many groups"),
        pytest.param(
            region(group(kind="ml.m5.4xlarge", capacity="spot"), node_recovery=False),
            "node recovery is off", id="spot",
        ),
        pytest.param(region(group(kind="ml.p4d.24xlarge")), "will mount it over TCP", id="B2, B3"),
    ],
)  # fmt: skip
def test_what_surprises_is_said(plan: RegionPlan, words: str):
    (said,) = warnings_of(plan)
    assert words in said


def test_no_system_no_word_of_it():
    (cluster,) = region(group(zone="use1-az2")).clusters
    assert list(warnings_of(replace(region(), lustre=(), clusters=(replace(cluster, lustre=None),)))) == []


@pytest.mark.parametrize(
    ("link", "seen"),
    [
        ({"prefix": "", "import_events": ("NEW", "CHANGED")}, True),
        ({"prefix": "trainshed", "import_events": ("NEW",)}, True),
        ({"prefix": "text", "import_events": ("NEW",)}, False),
        ({"prefix": "", "import_events": ("CHANGED",)}, False),
        ({"prefix": "", "import_events": ("NEW",), "bucket": "checkpoints"}, False),
    ],
)
def test_recipes_that_no_link_brings_to_the_nodes(link: dict[str, object], seen: bool):
    tie = AssociationPlan(**{"file_system_path": "/datasets", "bucket": "datasets", **link})  # type: ignore[arg-type]
    plan = region(group())
    plan = replace(plan, lustre=(replace(plan.lustre[0], associations=(tie,)),))
    assert list(warnings_of(plan)) == []
    said = list(warnings_of(replace(plan, workload=WorkloadPlan())))
    assert (said == []) == seen
    assert seen or "no association brings new objects under trainshed/" in said[0]
