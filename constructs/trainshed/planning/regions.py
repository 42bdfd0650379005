"""THE region table: zone ids, a fixed address slot, which services and instance types each HyperPod region has.

The figures are AWS's own lists, pinned; the tests compare them with the data that cfn-lint and moto ship, so that
drift shows as a failing test and not as a failing deployment. That a type is listed says nothing of its capacity.
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
        "HP-REGIONS": "SageMaker AI Developer Guide, Amazon SageMaker HyperPod, AWS Regions supported (18)",
        "CFN": "CloudFormation registry, resource types per Region (read from the schemas cfn-lint ships)",
        "PRICES": "AWS price list, instance types for clusters per Region (read from the enum cfn-lint ships)",
        "ZONES": "AWS Regions and Availability Zones, AWS Availability Zones",
        "LOCAL-ZONES": "AWS Local Zones User Guide, Available Local Zones",
        "PLANS": "SageMaker AI Developer Guide, Reserve Flexible Training Plans for ML workloads",
        "AMG": "Amazon Managed Grafana User Guide, What is Amazon Managed Grafana, Supported Regions",
        "OPENZFS": "FSx for OpenZFS User Guide, Availability by AWS Region",
    }
)
"""Where the figures come from: the key used in this file → the AWS page or data."""

TRAINING_PLAN_ONLY: Final = frozenset({"ml.p5e.48xlarge", "ml.p6e-gb200.36xlarge"})
"""Types that PLANS sells and no Region's price list has (PRICES); in which Region, PLANS does not say."""


@dataclass(frozen=True, slots=True)
class Region:
    """One commercial AWS Region with HyperPod.

    `address_slot` (1 to 31) is assigned once and never reused or reordered: it fixes the Region's private pool,
    10.(8 × slot).0.0/13, so moving a slot moves somebody's network. Slot 0 is no Region's, because a VPC with a
    block in 10.0.0.0/15 cannot take further blocks from 10.0.0.0/16. `zones` are all zone ids (ZONES), ordered;
    an account may see fewer, since AWS closes constrained zones to newcomers. `local_zones` are those where AWS
    sells HyperPod capacity (PLANS). `cluster`, `scheduler_config`, `compute_quota`, `amp`, `amg`: whether
    CloudFormation has AWS::SageMaker::Cluster, ::ClusterSchedulerConfig, ::ComputeQuota, AWS::APS::Workspace and
    AWS::Grafana::Workspace there (CFN). `openzfs`: FSx for OpenZFS is offered; `openzfs_single_az_2`: also its
    second generation, SINGLE_AZ_2 and SINGLE_AZ_HA_2 (OPENZFS).
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
        """Whether the price list has `instance_type` here (PRICES). Presence is not capacity."""
        return self.name in _OFFERED_IN[lookup(instance_type).name]


def _zones(prefix: str, *numbers: int) -> tuple[str, ...]:
    return tuple(f"{prefix}-az{number}" for number in numbers)


def _region(
    name: str, slot: int, zones: tuple[str, ...], services: str, local_zones: tuple[str, ...] = ()
) -> Region:
    has = frozenset(services.split())
    return Region(
        name=name,
        address_slot=slot,
        zones=zones,
        local_zones=local_zones,
        cluster=True,
        scheduler_config="scheduler" in has,
        compute_quota="quota" in has,
        amp=True,
        amg="amg" in has,
        openzfs=True,
        openzfs_single_az_2="zfs2" in has,
    )
