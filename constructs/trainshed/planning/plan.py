"""From what was asked to what will be deployed: checks, then addresses, for each region by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import IPv4Network

from .addressing import allocate
from .capacity import check_cluster
from .demand import claims_of
from .endpoints import INTERFACE_ENDPOINTS
from .model import AddressLock, PlatformPlan, RegionPlan
from .notices import warnings_of
from .problems import PlanError, Problem, raise_if
from .regions import REGIONS, Region
from .seating import verify
from .storage import check_associations, check_lustre, check_openzfs, quota_warnings
from .suggest import did_you_mean
from .workload import check_workload


def plan_platform(asked: PlatformPlan, locks: Mapping[str, AddressLock] | None = None) -> PlatformPlan:
    """Check everything, then give every region its addresses.

    Args:
        asked: the platform without addresses.
        locks: what earlier plans gave out, by region.

    Raises:
        PlanError: every problem of every region together.
    """
    problems: list[Problem] = []
    regions: list[RegionPlan] = []
    for region in asked.regions:
        try:
            regions.append(plan_region(region, (locks or {}).get(region.region)))
        except PlanError as error:
            problems += error.problems
    # The same section of the file is read once a region: say the same thing once.
    raise_if(dict.fromkeys(problems))
    return replace(asked, regions=tuple(regions))


def plan_region(region: RegionPlan, lock: AddressLock | None = None) -> RegionPlan:
    """One region, checked and with addresses.

    Raises:
        PlanError: every problem of the region.
    """
    known = REGIONS.get(region.region)
    if known is None:
        raise PlanError([_unknown_region(region.region)])
    problems = [*_check_region(region, known)]
    problems += [p for cluster in region.clusters for p in check_cluster(region, cluster)]
    raise_if(problems)
    where = f"regions.{region.region}"
    claims = claims_of(region)
    if region.network.vpc_id is None:
        pool = region.network.pool or (default_pool(known),)
        addresses = allocate(
            claims, pool=pool, lock=lock, block_quota=region.network.block_quota, path="network"
        )
        given: dict[str, str] = {}
    else:
        network = region.network
        addresses, given = verify(
            claims, blocks=network.given_blocks, subnets=network.given_subnets, path=f"{where}.vpc"
        )
    planned = replace(region, addresses=addresses, given=given)
    said = [str(p) for p in quota_warnings(region.lustre, path="storage.lustre")]
    return replace(planned, warnings=(*region.warnings, *said, *warnings_of(planned)))


def default_pool(region: Region) -> IPv4Network:
    """The /13 that belongs to a region by its slot, so that no two regions ever overlap."""
    return IPv4Network(f"10.{8 * region.address_slot}.0.0/13")


def _unknown_region(name: str) -> Problem:
    return Problem(
        path="regions", given=name, allowed=f"a HyperPod region: {', '.join(sorted(REGIONS))}",
        fix=did_you_mean(name, REGIONS) or "choose one of them",
    )  # fmt: skip


def _check_region(region: RegionPlan, known: Region) -> Iterator[Problem]:
    zones = (*known.zones, *known.local_zones)
    for zone in region.zones:
        if zone not in zones:
            yield Problem(
                path=f"regions.{region.region}.zones", given=zone, allowed=", ".join(zones),
                fix=did_you_mean(zone, zones)
                or "zone ids are not zone names: `aws ec2 describe-availability-zones`",
            )  # fmt: skip
    for name in region.network.endpoints:
        if name not in INTERFACE_ENDPOINTS:
            yield Problem(
                path="network.endpoints", given=name, allowed=", ".join(INTERFACE_ENDPOINTS),
                fix=did_you_mean(name, INTERFACE_ENDPOINTS) or "leave it out",
            )  # fmt: skip
    for fs in region.lustre:
        path = f"storage.lustre.{fs.name}"
        yield from _check_home_zone(region, fs.zone, f"{path}.zone")
        yield from check_lustre(fs, path=path, in_local_zone=fs.zone in known.local_zones)
        yield from check_associations(fs.associations, path=f"{path}.associations", region=region.region)
    if region.home:
        yield from _check_home_zone(region, region.home.zone, "storage.home.zone")
        yield from check_openzfs(region.home, path="storage.home")
        if not known.openzfs:
            yield Problem(
                path="storage.home", given=f"OpenZFS in {region.region}",
                allowed="regions that have FSx for OpenZFS",
                fix=f"set storage.home to null under regions.{region.region}.set",
            )  # fmt: skip
    if region.workload:
        yield from _check_workload(region, known)
    yield from _check_efa_zones(region)


def _check_workload(region: RegionPlan, known: Region) -> Iterator[Problem]:
    links = {
        f"storage.lustre.{fs.name}.associations.{number}": link
        for fs in region.lustre
        for number, link in enumerate(fs.associations)
    }
    workload = region.workload
    if workload and workload.evaluation:
        yield from _check_home_zone(region, workload.evaluation.zone, "workload.evaluation.zone")
    if workload:
        yield from check_workload(
            workload, region=region.region, local_zones=known.local_zones, links=links
        )  # fmt: skip


def _check_home_zone(region: RegionPlan, zone: str, path: str) -> Iterator[Problem]:
    if zone not in region.zones:
        yield Problem(
            path=path, given=zone, allowed=", ".join(region.zones),
            fix=f"add it to regions.{region.region}.zones, or set another under regions.{region.region}.set",
        )  # fmt: skip


def _check_efa_zones(region: RegionPlan) -> Iterator[Problem]:
    by_name = {fs.name: fs for fs in region.lustre}
    for cluster in region.clusters:
        fs = by_name.get(cluster.lustre or "")
        for group in cluster.groups if fs and fs.efa else ():
            if fs and group.has_efa and group.zone != fs.zone:
                yield Problem(
                    path=f"{group.path}.zone", given=f"{group.zone}, while {fs.name} serves EFA in {fs.zone}",
                    allowed=fs.zone,
                    fix="EFA does not cross zones: put both in one zone, or give the cluster another system",
                )  # fmt: skip
