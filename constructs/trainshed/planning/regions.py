"""THE region table: zone ids, a fixed address slot, and what each HyperPod region has of services and types.

The figures are AWS's own lists, pinned. The tests compare them with the data that cfn-lint and moto ship, so
drift fails a test and not a deployment. That a region lists an instance type says nothing of its capacity.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from .instances import INSTANCE_TYPES, lookup

Offering = Literal["listed", "training-plan-only", "absent"]

SOURCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "HP-REGIONS": "SageMaker AI Developer Guide, Amazon SageMaker HyperPod, supported Regions (18)",
        "CFN": "CloudFormation registry, resource types per Region (read from cfn-lint's schemas)",
        "PRICES": "AWS price list, cluster instance types per Region (read from cfn-lint's enum)",
        "ZONES": "AWS Regions and Availability Zones, AWS Availability Zones",
        "LOCAL-ZONES": "AWS Local Zones User Guide, Available Local Zones",
        "PLANS": "SageMaker AI Developer Guide, Reserve Flexible Training Plans for ML workloads",
        "AMG": "Amazon Managed Grafana User Guide, What is Amazon Managed Grafana, Supported Regions",
        "OPENZFS": "FSx for OpenZFS User Guide, Availability by AWS Region",
        "VPC": "Amazon VPC User Guide, VPC CIDR blocks, IPv4 CIDR block association restrictions",
        "EKS": "Amazon EKS API Reference, KubernetesNetworkConfigRequest, serviceIpv4Cidr",
    }
)
"""Where the figures come from: the key used in this file → the AWS page or data."""


@dataclass(frozen=True, slots=True)
class Region:
    """One commercial AWS Region with HyperPod (HP-REGIONS; ca-central-1 by CFN and PRICES alone).

    `address_slot` (1 to 31) is assigned once, never moved and never reused: it fixes the Region's private
    pool, 10.(8 * slot).0.0/13, so moving a slot moves somebody's network. `zones` are all zone ids, ordered
    (ZONES); an account may see fewer, for AWS closes constrained zones to newcomers. `local_zones` are those
    in which AWS sells HyperPod capacity (PLANS, LOCAL-ZONES). `cluster`, `scheduler_config`,
    `compute_quota`, `amp`, `amg`: CloudFormation has AWS::SageMaker::Cluster, ::ClusterSchedulerConfig,
    ::ComputeQuota, AWS::APS::Workspace, AWS::Grafana::Workspace there (CFN; for the last, AMG agrees).
    `openzfs`: FSx for OpenZFS is offered, and with `openzfs_single_az_2` also as SINGLE_AZ_2 and
    SINGLE_AZ_HA_2 (OPENZFS).
    """

    name: str
    address_slot: int
    zones: tuple[str, ...]
    local_zones: tuple[str, ...]
    cluster: bool
    scheduler_config: bool
    compute_quota: bool
    amp: bool
    amg: bool
    openzfs: bool
    openzfs_single_az_2: bool

    def offers(self, instance_type: str) -> bool:
        """Whether the price list has `instance_type` here (PRICES); raises for a type that does not exist."""
        return self.name in _LISTED_IN.get(lookup(instance_type).name, frozenset())


_LOCAL_ZONES: Final = {"us-east-1": ("use1-dfw2-az1",)}  # us-east-1-dfw-2a, Dallas: P6e-GB200 UltraServers


def _region(name: str, slot: int, prefix: str, zones: str, services: str) -> Region:
    has = services.split()
    return Region(
        name=name,
        address_slot=slot,
        zones=tuple(f"{prefix}-az{number}" for number in zones.split()),
        local_zones=_LOCAL_ZONES.get(name, ()),
        cluster="cluster" in has,
        scheduler_config="scheduler" in has,
        compute_quota="quota" in has,
        amp="amp" in has,
        amg="amg" in has,
        openzfs="zfs1" in has or "zfs2" in has,
        openzfs_single_az_2="zfs2" in has,
    )


# Slots are for ever: a new Region takes the next free one. Two are nobody's: 0, because a VPC with a block in
# 10.0.0.0/15 can add none of 10.0.0.0/16 (VPC), and 12, which holds 10.100.0.0/16, that EKS may take for the
# addresses of Kubernetes services (EKS).
# fmt: off
REGIONS: Final[Mapping[str, Region]] = MappingProxyType({each.name: each for each in (
    #        name            slot prefix   zones          services (zfs1: OpenZFS, but no SINGLE_AZ_2)
    _region("us-east-1",       1, "use1",  "1 2 3 4 5 6", "cluster scheduler quota amp amg zfs2"),
    _region("us-east-2",       2, "use2",  "1 2 3",       "cluster           quota amp amg zfs2"),
    _region("us-west-1",       3, "usw1",  "1 2 3",       "cluster scheduler       amp     zfs2"),
    _region("us-west-2",       4, "usw2",  "1 2 3 4",     "cluster           quota amp amg zfs2"),
    _region("ca-central-1",    5, "cac1",  "1 2 4",       "cluster           quota amp     zfs2"),
    _region("sa-east-1",       6, "sae1",  "1 2 3",       "cluster           quota amp     zfs2"),
    _region("eu-central-1",    7, "euc1",  "1 2 3",       "cluster scheduler quota amp amg zfs2"),
    _region("eu-north-1",      8, "eun1",  "1 2 3",       "cluster scheduler       amp     zfs2"),
    _region("eu-south-2",      9, "eus2",  "1 2 3",       "cluster scheduler       amp     zfs2"),
    _region("eu-west-1",      10, "euw1",  "1 2 3",       "cluster           quota amp amg zfs2"),
    _region("eu-west-2",      11, "euw2",  "1 2 3 4",     "cluster           quota amp amg zfs2"),
    _region("ap-northeast-1", 13, "apne1", "1 2 3 4",     "cluster scheduler       amp amg zfs2"),
    _region("ap-northeast-2", 14, "apne2", "1 2 3 4",     "cluster                 amp amg zfs2"),
    _region("ap-south-1",     15, "aps1",  "1 2 3",       "cluster scheduler quota amp     zfs2"),
    _region("ap-south-2",     16, "aps2",  "1 2 3",       "cluster                 amp     zfs2"),
    _region("ap-southeast-1", 17, "apse1", "1 2 3",       "cluster           quota amp amg zfs2"),
    _region("ap-southeast-2", 18, "apse2", "1 2 3",       "cluster           quota amp amg zfs2"),
    _region("ap-southeast-3", 19, "apse3", "1 2 3",       "cluster                 amp     zfs1"),
    _region("ap-southeast-4", 20, "apse4", "1 2 3",       "cluster                 amp     zfs1"),
)})
"""Every Region of this table, by name."""

# Families or single types → the Regions that list them ("but": all but these); a later row wins (PRICES).
_LISTINGS: Final[tuple[tuple[str, str], ...]] = (
    ("c5 c6g c8g i3en m5 m6g m7g m7i m8g r7i t3", "but"),
    ("m5.2xlarge t3.xlarge", "but ap-southeast-3"),
    ("c7g", "but ap-southeast-4"),
    ("m6i", "but ap-southeast-4 eu-south-2"),
    ("m6i.4xlarge", "but ap-southeast-4 eu-south-2 us-west-2"),
    ("c6i m6i.12xlarge r6i", "but ap-southeast-3 ap-southeast-4 eu-south-2"),
    ("c6i.4xlarge", "but ap-southeast-3 ap-southeast-4 eu-south-2 us-west-1"),
    ("c6i.12xlarge", "but ap-southeast-3 ap-southeast-4 eu-south-2 us-east-2"),
    ("r6i.xlarge", "but ap-southeast-3 ap-southeast-4 eu-south-2 us-east-1"),
    ("r6i.4xlarge", "but ap-southeast-3 ap-southeast-4 eu-south-2 us-east-1 us-west-1"),
    ("c6a m6a", "but ap-northeast-2 ap-southeast-3 ap-southeast-4 eu-north-1 eu-south-2"),
    ("r5d", "but ap-south-2 ca-central-1"),
    ("c5n p5.48xlarge", "but ap-south-2 ap-southeast-4 eu-south-2"),
    ("g4dn", "but ap-south-2 ap-southeast-3 ap-southeast-4 eu-south-2"),
    ("g5", "but ap-south-2 ap-southeast-4 eu-south-2 us-west-1"),
    ("g6", "but ap-southeast-1 ap-southeast-3 ap-southeast-4 eu-west-1 us-west-1"),
    ("gr6", "but ap-south-2 ap-southeast-1 ap-southeast-3 ap-southeast-4 eu-west-1 us-west-1"),
    ("g6e",
     "ap-northeast-1 ap-northeast-2 ap-south-2 eu-central-1 eu-north-1 eu-south-2 us-east-1 "
     "us-east-2 us-west-2"),
    ("g7e",
     "ap-northeast-1 ap-northeast-2 eu-central-1 eu-north-1 eu-south-2 eu-west-2 us-east-1 "
     "us-east-2 us-west-2"),
    ("g7", "us-east-1 us-east-2 us-west-2"),
    ("p4d", "but ap-south-2 ap-southeast-3 ap-southeast-4 eu-south-2 us-west-1"),
    ("p4de",
     "but ap-northeast-2 ap-south-2 ap-southeast-3 ap-southeast-4 ca-central-1 eu-south-2 "
     "eu-west-2 us-west-1"),
    ("p5.4xlarge",
     "ap-northeast-1 ap-south-1 ap-southeast-2 ap-southeast-3 eu-west-2 sa-east-1 us-east-1 "
     "us-east-2 us-west-2"),
    ("p5en",
     "ap-northeast-1 ap-northeast-2 ap-south-1 ap-southeast-3 eu-north-1 eu-south-2 us-east-1 "
     "us-east-2 us-west-1 us-west-2"),
    ("p6-b200", "ap-south-1 ap-south-2 us-east-1 us-east-2 us-west-2"),
    ("p6-b300", "ap-south-2 ap-southeast-3 us-east-1 us-west-2"),
    ("trn1 trn1n",
     "but ap-northeast-2 ap-south-2 ap-southeast-3 ca-central-1 eu-south-2 eu-west-2 us-west-1"),
    ("trn2.3xlarge", "ap-southeast-4 eu-west-1 sa-east-1 us-west-2"),
    ("trn2.48xlarge", "us-east-2"),
    ("c8a m8a", "us-east-2 us-west-2"),
)
# fmt: on


def _listed_in() -> Mapping[str, frozenset[str]]:
    listed: dict[str, frozenset[str]] = {}
    for types, regions in _LISTINGS:
        but, *_ = named = regions.split()
        where = frozenset(REGIONS) - frozenset(named) if but == "but" else frozenset(named)
        for each in INSTANCE_TYPES.values():
            if not {each.family, each.name.removeprefix("ml.")}.isdisjoint(types.split()):
                listed[each.name] = where
    return MappingProxyType(listed)


_LISTED_IN: Final = _listed_in()

TRAINING_PLAN_ONLY: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "ml.p5e.48xlarge": frozenset(REGIONS),  # PLANS names no Regions, only that they are "select"
        "ml.p6e-gb200.36xlarge": frozenset({"us-east-1"}),  # PLANS: only in the Dallas Local Zone
    }
)
"""Types that PLANS sells and no Region's price list has → the Regions where a plan may hold them."""

_REGION_OF_ZONE: Final[Mapping[str, str]] = MappingProxyType(
    {zone: region.name for region in REGIONS.values() for zone in (*region.zones, *region.local_zones)}
)


class UnknownRegion(ValueError):  # noqa: N818
    """A Region that `REGIONS` does not hold; the message says what was probably meant."""


def lookup_region(name: str) -> Region:
    """The row of `name` (`us-east-2`); `UnknownRegion` with a way out where there is none."""
    if name in REGIONS:
        return REGIONS[name]
    near = difflib.get_close_matches(name, REGIONS, n=3, cutoff=0.7)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"HyperPod has {', '.join(sorted(REGIONS))}."
    msg = f"Region {name!r} is not one of the {len(REGIONS)} with HyperPod. {hint}"
    raise UnknownRegion(msg)


def region_of_zone(zone_id: str) -> str | None:
    """The Region of a zone id, Local Zones included (`use2-az1` → `us-east-2`); None for an unknown one."""
    return _REGION_OF_ZONE.get(zone_id)


def offering(region: str, instance_type: str) -> Offering:
    """How `instance_type` can be had in `region`: at list price, in a training plan alone, or not at all.

    "listed" is the price list's word (PRICES), not a promise of capacity.
    """
    if lookup_region(region).offers(instance_type):
        return "listed"
    return "training-plan-only" if region in TRAINING_PLAN_ONLY.get(instance_type, ()) else "absent"
