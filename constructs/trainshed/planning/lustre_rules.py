"""Which Lustre plans AWS would refuse, each with its legal neighbours.

The rules are per file system; the file system's links to S3 have theirs in `associations`.
"""

from __future__ import annotations

from collections.abc import Iterable

from .fsx import check_backup_days, check_maintenance
from .lustre import (
    CACHE_GIB_PER_1000_MBPS,
    COMPRESSIONS,
    LOCAL_ZONE_TIERS,
    METADATA_IOPS,
    METADATA_IOPS_PER_SERVER,
    SSD_STEP_GIB,
    TIERING_MOST_MBPS,
    TIERING_STEP_MBPS,
    TIERS_MBPS_PER_TIB,
    LustrePlan,
    ReadCache,
    automatic_metadata_iops,
    capacity_neighbours,
    capacity_step_gib,
    tib_from_gib,
)
from .problems import Problem, either, nearest
from .root_squash import check_root_squash

QUOTA_FILE_SYSTEMS = 100
QUOTA_SSD_GIB = 100_800
QUOTA_TIERING_MBPS = 100_000
"""Per account and region, PERSISTENT_2, adjustable. Source: User Guide, "Quotas"."""

_CACHE_MODES: tuple[str, ...] = ("no-cache", "proportional", "user")


def check_lustre(plan: LustrePlan, *, path: str, in_local_zone: bool = False) -> list[Problem]:
    """Refuse every combination FSx refuses; `path` is the file system's dotted path.

    `in_local_zone` is for Local Zones and for the regions the User Guide marks with the same limits
    (SSD at 125 or 250 MB/s/TiB, no EFA). Associations are checked only against this file system:
    `check_associations` checks them themselves.
    """
    if plan.storage_class not in METADATA_IOPS:
        fix = "set storage_class to ssd, or leave it out"
        return [Problem(f"{path}.storage_class", plan.storage_class, either(tuple(METADATA_IOPS)), fix)]
    check_class = _check_ssd if plan.storage_class == "ssd" else _check_tiering
    return [
        *check_class(plan, path, in_local_zone),
        *_check_metadata(plan, f"{path}.metadata_iops"),
        *_check_backups(plan, path),
        *check_root_squash(plan.root_squash, plan.no_squash_nids, path=path),
        *_check_compression(plan.compression, f"{path}.compression"),
        *check_maintenance(plan.maintenance, path=f"{path}.maintenance"),
    ]


def quota_warnings(plans: Iterable[LustrePlan], *, path: str) -> list[Problem]:
    """What one region's file systems need beyond the default quotas, in the shape of problems.

    They are warnings: AWS raises these quotas on request. `path` names the list of file systems.
    """
    region = tuple(plans)
    gib = sum(plan.capacity_gib or 0 for plan in region)
    mbps = sum(plan.throughput_mbps or 0 for plan in region)
    needs = (
        (len(region), QUOTA_FILE_SYSTEMS, "file systems"),
        (gib, QUOTA_SSD_GIB, "GiB of Persistent 2 SSD"),
        (mbps, QUOTA_TIERING_MBPS, "MB/s of Intelligent-Tiering"),
    )
    return [
        Problem(
            path,
            f"{need} {unit}",
            f"{quota} {unit} per account and region by default",
            f"ask Service Quotas (Amazon FSx) for {need} before deploying, unless that was granted",
        )
        for need, quota, unit in needs
        if need > quota
    ]


def _foreign(at: str, given: object, *, owner: str) -> list[Problem]:
    if given is None:
        return []
    field = at.rpartition(".")[2]
    allowed = f"nothing: {field} belongs to storage class {owner}"
    return [Problem(at, str(given), allowed, f"drop {field}, or set storage_class to {owner}")]


def _cache_text(cache: ReadCache | None) -> str | None:
    return None if cache is None else f"mode {cache.mode}"


def _check_ssd(plan: LustrePlan, path: str, in_local_zone: bool) -> list[Problem]:
    tiers = LOCAL_ZONE_TIERS if in_local_zone else TIERS_MBPS_PER_TIB
    problems = _foreign(f"{path}.throughput_mbps", plan.throughput_mbps, owner="intelligent-tiering")
    problems += _foreign(f"{path}.read_cache", _cache_text(plan.read_cache), owner="intelligent-tiering")
    if plan.efa and in_local_zone:
        fix = "set efa to false, or place the file system in a zone of the parent region"
        problems.append(Problem(f"{path}.efa", "true", "false: no EFA in a Local Zone", fix))
    problems += _check_tier(plan.throughput_mbps_per_tib, f"{path}.throughput_mbps_per_tib", tiers)
    return problems + _check_capacity(plan, f"{path}.capacity_tib", efa=plan.efa and not in_local_zone)


def _check_tier(tier: int | None, at: str, tiers: tuple[int, ...]) -> list[Problem]:
    if tier in tiers:
        return []
    where = " in a Local Zone" if tiers is LOCAL_ZONE_TIERS else ""
    allowed = f"{either(tiers)} MB/s/TiB (Persistent 2 SSD{where})"
    best = tiers[0] if tier is None else nearest(tier, tiers)[-1]
    given = "nothing" if tier is None else f"{tier} MB/s/TiB"
    return [Problem(at, given, allowed, f"set throughput_mbps_per_tib to {best}")]


def _check_capacity(plan: LustrePlan, at: str, *, efa: bool) -> list[Problem]:
    tier, gib = plan.throughput_mbps_per_tib, plan.capacity_gib
    if efa and tier not in TIERS_MBPS_PER_TIB:
        return []  # the steps follow from the tier, which has its own problem
    around = capacity_neighbours(gib or 0, efa=efa, tier=tier)
    if around == (gib,):
        return []
    step = tib_from_gib(capacity_step_gib(efa=efa, tier=tier))
    legal = [tib_from_gib(neighbour) for neighbour in around]
    rule = f"EFA at {tier} MB/s/TiB comes in steps of {step} TiB"
    if not efa:
        rule = f"SSD without EFA comes in 1.2, 2.4 and then steps of {step} TiB"
    fix = f"set capacity_tib to {legal[-1]}"
    if efa:
        fix += f", or set efa to false for steps of {tib_from_gib(SSD_STEP_GIB)} TiB"
    given = "nothing" if gib is None else tib_from_gib(gib)
    more = "" if len(legal) > 1 else " or more"
    return [Problem(at, given, f"{either(legal)}{more} ({rule})", fix)]


def _check_tiering(plan: LustrePlan, path: str, in_local_zone: bool) -> list[Problem]:
    capacity = None if plan.capacity_gib is None else tib_from_gib(plan.capacity_gib)
    problems = _foreign(f"{path}.capacity_tib", capacity, owner="ssd")
    tier = plan.throughput_mbps_per_tib
    problems += _foreign(f"{path}.throughput_mbps_per_tib", tier, owner="ssd")
    problems += _check_throughput(plan, f"{path}.throughput_mbps")
    problems += _check_cache(plan, f"{path}.read_cache")
    if in_local_zone:
        allowed = f"ssd at {either(LOCAL_ZONE_TIERS)} MB/s/TiB in a Local Zone"
        fix = "set storage_class to ssd, or place it in a zone of the parent region"
        problems.append(Problem(f"{path}.storage_class", plan.storage_class, allowed, fix))
    if plan.associations:
        given = f"{len(plan.associations)} on intelligent-tiering"
        allowed = "none: Intelligent-Tiering cannot be linked to S3 (User Guide, Getting started)"
        fix = "drop the associations, or set storage_class to ssd"
        problems.append(Problem(f"{path}.associations", given, allowed, fix))
    return problems


def _check_throughput(plan: LustrePlan, at: str) -> list[Problem]:
    mbps = plan.throughput_mbps
    around = nearest(mbps or 0, range(TIERING_STEP_MBPS, TIERING_MOST_MBPS + 1, TIERING_STEP_MBPS))
    if around == (mbps,):
        return []
    efa = ", which EFA needs too" if plan.efa else ""
    rule = f"multiples of {TIERING_STEP_MBPS} up to {TIERING_MOST_MBPS}{efa}"
    given = "nothing" if mbps is None else f"{mbps} MB/s"
    allowed = f"{either(around)} MB/s (Intelligent-Tiering comes in {rule})"
    return [Problem(at, given, allowed, f"set throughput_mbps to {around[-1]}")]


def _check_cache(plan: LustrePlan, at: str) -> list[Problem]:
    cache = plan.read_cache
    if cache is None or cache.mode not in _CACHE_MODES:
        given = "nothing" if cache is None else str(cache.mode)
        allowed = f"{either(_CACHE_MODES)}: Intelligent-Tiering must say how it caches reads"
        return [Problem(f"{at}.mode", given, allowed, "set read_cache.mode to proportional")]
    if cache.mode != "user":
        given = f"{cache.size_gib} GiB with mode {cache.mode}"
        fix = "drop size_gib, or set read_cache.mode to user"
        wrong = [Problem(f"{at}.size_gib", given, "a size with mode user only", fix)]
        return wrong if cache.size_gib is not None else []
    units = (plan.throughput_mbps or TIERING_STEP_MBPS) / 1000
    smallest, largest = (int(bound * units) for bound in CACHE_GIB_PER_1000_MBPS)
    if cache.size_gib is not None and smallest <= cache.size_gib <= largest:
        return []
    given = "nothing" if cache.size_gib is None else f"{cache.size_gib} GiB"
    allowed = f"{smallest} to {largest} GiB (8 to 32768 for each 1000 MB/s)"
    limit = nearest(cache.size_gib or 0, (smallest, largest))[0]
    fix = f"set read_cache.size_gib to {limit}, or read_cache.mode to proportional"
    return [Problem(f"{at}.size_gib", given, allowed, fix)]


def _check_metadata(plan: LustrePlan, at: str) -> list[Problem]:
    iops, ladder = plan.metadata_iops, METADATA_IOPS[plan.storage_class]
    ssd = plan.storage_class == "ssd"
    least = automatic_metadata_iops(plan.capacity_gib) if ssd and plan.capacity_gib else 0
    if iops is None:
        allowed = f"{ladder[0]} or a multiple of 12000: Intelligent-Tiering has no automatic mode"
        fix = f"set metadata_iops to {ladder[0]}"
        return [] if ssd else [Problem(at, "nothing", allowed, fix)]
    if iops not in ladder:
        around = nearest(iops, ladder)
        first = either([step for step in ladder if step <= METADATA_IOPS_PER_SERVER], last="and")
        allowed = f"{either(around)} (the steps are {first}, then multiples of 12000 up to {ladder[-1]})"
        return [Problem(at, f"{iops}", allowed, f"set metadata_iops to {around[-1]}")]
    if iops < least:
        allowed = f"{least} or more: automatic mode provisions that for this capacity, and less is refused"
        return [Problem(at, f"{iops}", allowed, f"set metadata_iops to {least}, or leave it out")]
    return []


def _check_backups(plan: LustrePlan, path: str) -> list[Problem]:
    at = f"{path}.backup_days"
    if plan.associations and plan.backup_days:
        allowed = "0: FSx takes no backups of a file system linked to S3"
        fix = "set backup_days to 0 and let export_events keep the data in S3, or drop the associations"
        return [Problem(at, f"{plan.backup_days} days", allowed, fix)]
    return check_backup_days(plan.backup_days, path=at)


def _check_compression(compression: str, at: str) -> list[Problem]:
    if compression in COMPRESSIONS:
        return []
    return [Problem(at, repr(compression), either(COMPRESSIONS), "set compression to lz4, or leave it out")]
