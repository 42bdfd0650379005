"""The optional home directory: FSx for OpenZFS in one zone, mounted by HyperPod at /home.

Only the single-zone deployments are planned: a multi-zone one wants a second subnet and the route
tables, and nodes of a cluster sit in one zone anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from .fsx import check_backup_days, check_maintenance
from .problems import Problem, either, nearest

OpenZfsDeployment = Literal["SINGLE_AZ_HA_2", "SINGLE_AZ_HA_1", "SINGLE_AZ_2", "SINGLE_AZ_1"]
OpenZfsCompression = Literal["lz4", "zstd", "none"]

_LADDER_1 = (64, 128, 256, 512, 1024, 2048, 3072, 4096)
_LADDER_2 = (160, 320, 640, 1280, 2560, 3840, 5120, 7680, 10240)

THROUGHPUT_MBPS: dict[str, tuple[int, ...]] = {
    "SINGLE_AZ_HA_2": _LADDER_2,
    "SINGLE_AZ_HA_1": _LADDER_1,
    "SINGLE_AZ_2": _LADDER_2,
    "SINGLE_AZ_1": _LADDER_1,
}
"""ThroughputCapacity by deployment. Source: FSx API, CreateFileSystemOpenZFSConfiguration, which
lists the steps of SINGLE_AZ_1 and SINGLE_AZ_2 and gives the HA types the same range."""

LEAST_THROUGHPUT_MBPS: dict[str, int] = {
    kind: next(step for step in ladder if step >= 128) for kind, ladder in THROUGHPUT_MBPS.items()
}
"""What a file system gets that asks for nothing: the first step that serves a few dozen users' homes."""

ADDRESSES: dict[str, int] = {"SINGLE_AZ_HA_2": 3, "SINGLE_AZ_HA_1": 3, "SINGLE_AZ_2": 1, "SINGLE_AZ_1": 1}
"""IPv4 addresses in the subnet: two servers and the floating one between them, or one server.
Source: FSx for OpenZFS User Guide, "Availability and durability", table of file system resources."""

CAPACITY_GIB = (64, 524_288)
"""Smallest and largest. Source: FSx API, CreateFileSystem; cfn-lint E3725. The `_1` types end lower
where throughput is small, by region (User Guide, "Quotas"): that is not checked here."""

COMPRESSIONS: tuple[str, ...] = ("lz4", "zstd", "none")
"""Source: FSx API, OpenZFSDataCompressionType."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenZfsPlan:
    """A home directory file system; its root volume has no user or group quotas.

    `zone` is a zone id, `capacity_gib` in GiB, `throughput_mbps` in MB/s. `deployment` defaults to
    SINGLE_AZ_HA_2, which AWS recommends for most uses; where a region does not sell it AWS has
    SINGLE_AZ_HA_1 or the non-HA types. `backup_days` defaults to 30, as in the API; `maintenance`
    is `d:HH:MM` in UTC, None for AWS's choice.
    """

    mount_path: ClassVar[str] = "/home"

    name: str
    zone: str
    capacity_gib: int
    throughput_mbps: int
    deployment: OpenZfsDeployment = "SINGLE_AZ_HA_2"
    compression: OpenZfsCompression = "lz4"
    backup_days: int = 30
    maintenance: str | None = None

    @property
    def addresses(self) -> int:
        """IPv4 addresses it takes in its subnet; growing it takes no more."""
        return ADDRESSES[self.deployment]


def check_openzfs(plan: OpenZfsPlan, *, path: str) -> list[Problem]:
    """Refuse what FSx refuses; `path` is the file system's dotted path in the deployment file."""
    return [
        *_check_capacity(plan.capacity_gib, f"{path}.capacity_gib"),
        *_check_deployment(plan, path),
        *_check_compression(plan.compression, f"{path}.compression"),
        *check_backup_days(plan.backup_days, path=f"{path}.backup_days"),
        *check_maintenance(plan.maintenance, path=f"{path}.maintenance"),
    ]


def _check_capacity(gib: int, at: str) -> list[Problem]:
    smallest, largest = CAPACITY_GIB
    if smallest <= gib <= largest:
        return []
    (limit,) = nearest(gib, CAPACITY_GIB)
    return [Problem(at, f"{gib} GiB", f"{smallest} to {largest} GiB", f"set capacity_gib to {limit}")]


def _check_deployment(plan: OpenZfsPlan, path: str) -> list[Problem]:
    ladder = THROUGHPUT_MBPS.get(plan.deployment)
    if ladder is None:
        allowed = f"{either(tuple(THROUGHPUT_MBPS))} (one zone, as the cluster's nodes are)"
        return [Problem(f"{path}.deployment", plan.deployment, allowed, "set deployment to SINGLE_AZ_HA_2")]
    if plan.throughput_mbps in ladder:
        return []
    around = nearest(plan.throughput_mbps, ladder)
    allowed = f"{either(around)} MB/s ({plan.deployment} offers {either(ladder)})"
    fix = f"set throughput_mbps to {around[-1]}"
    return [Problem(f"{path}.throughput_mbps", f"{plan.throughput_mbps} MB/s", allowed, fix)]


def _check_compression(compression: str, at: str) -> list[Problem]:
    if compression in COMPRESSIONS:
        return []
    return [Problem(at, repr(compression), either(COMPRESSIONS), "set compression to lz4, or leave it out")]
