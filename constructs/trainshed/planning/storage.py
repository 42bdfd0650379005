"""Storage planning in one import: Lustre, its links to S3, and the OpenZFS home."""

from __future__ import annotations

from .associations import AssociationPlan, check_associations
from .lustre import (
    LustrePlan,
    ReadCache,
    automatic_metadata_iops,
    capacity_neighbours,
    capacity_step_gib,
    gib_from_tib,
    tib_from_gib,
)
from .lustre_rules import check_lustre, quota_warnings
from .openzfs import LEAST_THROUGHPUT_MBPS, OpenZfsDeployment, OpenZfsPlan, check_openzfs

__all__ = [
    "LEAST_THROUGHPUT_MBPS",
    "AssociationPlan",
    "LustrePlan",
    "OpenZfsDeployment",
    "OpenZfsPlan",
    "ReadCache",
    "automatic_metadata_iops",
    "capacity_neighbours",
    "capacity_step_gib",
    "check_associations",
    "check_lustre",
    "check_openzfs",
    "gib_from_tib",
    "quota_warnings",
    "tib_from_gib",
]
