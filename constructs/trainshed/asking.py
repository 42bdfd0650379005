"""From a valid deployment file to what the planner is asked: one region at a time, defaults made plain."""

from __future__ import annotations

from ipaddress import IPv4Network
from math import ceil

from .deployment import Cluster, Deployment, Group, Lustre, PatchingEntry, RegionEntry
from .planning.demand import group_claim
from .planning.model import (
    AccountingDatabase,
    BucketsPlan,
    ClusterPlan,
    GivenSubnet,
    InstanceGroupPlan,
    NetworkPlan,
    Patching,
    PlatformPlan,
    RegionPlan,
    RollingUpdate,
)
from .planning.problems import Problem, raise_if
from .planning.regions import REGIONS
from .planning.storage import (
    AssociationPlan,
    LustrePlan,
    OpenZfsPlan,
    ReadCache,
    capacity_neighbours,
    gib_from_tib,
)

GROWTH = 1.5


def platform_of(regions: dict[str, Deployment]) -> PlatformPlan:
    """What to plan, from the file as each region sees it (its `set` applied).

    Raises:
        PlanError: addresses or sizes that cannot be read.
    """
    first = next(iter(regions.values()))
    return PlatformPlan(
        name=first.name,
        account=first.account,
        protect=first.protect,
        tags=dict(first.tags),
        regions=tuple(_region(name, seen) for name, seen in regions.items()),
    )


def _region(name: str, seen: Deployment) -> RegionPlan:
    entry = seen.regions[name]
    known = REGIONS.get(name)
    zones = entry.zones or (known.zones[:1] if known else ())
    default = zones[0] if zones else ""
    warnings = () if entry.zones else (
        f"no zones given: {default} was taken; capacity is sold by zone, so pin regions.{name}.zones",
    )  # fmt: skip
    lustre = tuple(_lustre(fs_name, fs, default) for fs_name, fs in seen.storage.lustre.items())
    home = seen.storage.home
    return RegionPlan(
        region=name,
        zones=zones,
        network=_network(seen, entry, name),
        buckets=BucketsPlan(**seen.storage.buckets.model_dump()),
        lustre=lustre,
        lustre_grow_to={n: _grow_to(n, fs) for n, fs in seen.storage.lustre.items()},
        home=home and OpenZfsPlan(
            name="home", zone=home.zone or default, capacity_gib=home.capacity_gib,
            deployment="SINGLE_AZ_HA_2" if known is None or known.openzfs_single_az_2 else "SINGLE_AZ_HA_1",
            throughput_mbps=home.throughput_mbps, backup_days=home.backup_days,
        ),
        clusters=tuple(_cluster(n, c, seen, default) for n, c in seen.clusters.items()),
        warnings=warnings,
    )  # fmt: skip


def networks(values: tuple[str, ...], path: str) -> tuple[IPv4Network, ...]:
    """CIDRs as networks.

    Raises:
        PlanError: what is not a CIDR.
    """
    found: list[IPv4Network] = []
    problems: list[Problem] = []
    for value in values:
        try:
            found.append(IPv4Network(value))
        except ValueError as error:
            problems.append(Problem(path, value, "a CIDR such as 10.64.0.0/14, host bits zero", str(error)))
    raise_if(problems)
    return tuple(found)


def _network(seen: Deployment, entry: RegionEntry, region: str) -> NetworkPlan:
    given = entry.vpc
    at = f"regions.{region}"
    subnets = [
        (s, networks((s.cidr,), f"{at}.vpc.subnets.{i}.cidr")[0]) for i, s in enumerate(given.subnets if given else ())
    ]
    return NetworkPlan(
        egress=seen.network.egress,
        egress_ports=seen.network.egress_ports,
        endpoints=seen.network.endpoints,
        flow_log_retention_days=seen.network.flow_log_retention_days,
        block_quota=seen.network.block_quota,
        pool=networks(entry.pool, f"{at}.pool"),
        vpc_id=given.id if given else None,
        given_blocks=networks(given.cidrs, f"{at}.vpc.cidrs") if given else (),
        given_subnets=tuple(
            GivenSubnet(id=s.id, zone=s.zone, cidr=net, purposes=s.purposes,
                        free=max(0, net.num_addresses - 5) if s.free is None else s.free)
            for s, net in subnets
        ),
    )  # fmt: skip


def _gib(tib: object, path: str) -> int:
    gib = gib_from_tib(tib)  # pyright: ignore[reportArgumentType]
    if gib is None:
        raise_if([Problem(path, f"{tib} TiB", "FSx TiB with at most two decimals (1.2 is 1200 GiB)", "round it")])
    return gib or 0


def _lustre(name: str, fs: Lustre, default: str) -> LustrePlan:
    path = f"storage.lustre.{name}"
    return LustrePlan(
        name=name,
        zone=fs.zone or default,
        storage_class=fs.storage_class,
        capacity_gib=None if fs.capacity_tib is None else _gib(fs.capacity_tib, f"{path}.capacity_tib"),
        throughput_mbps_per_tib=fs.throughput_per_tib,
        throughput_mbps=fs.throughput_mbps,
        read_cache=fs.read_cache and ReadCache(mode=fs.read_cache.mode, size_gib=fs.read_cache.size_gib),
        efa=fs.efa,
        metadata_iops=fs.metadata_iops,
        compression=fs.compression,
        backup_days=fs.backup_days,
        root_squash=fs.root_squash.user if fs.root_squash else None,
        no_squash_nids=fs.root_squash.no_squash_nids if fs.root_squash else (),
        maintenance=fs.maintenance,
        associations=tuple(
            AssociationPlan(
                file_system_path=a.path, bucket=a.bucket, prefix=a.prefix, import_events=a.import_events,
                export_events=a.export_events, batch_import=a.batch_import, chunk_mib=a.chunk_mib,
            )
            for a in fs.associations
        ),
    )  # fmt: skip


def _grow_to(name: str, fs: Lustre) -> int:
    """GiB, or MB/s for intelligent-tiering: whatever the servers are counted by."""
    path = f"storage.lustre.{name}.grow_to_tib"
    if fs.grow_to_tib is not None:
        return _gib(fs.grow_to_tib, path)
    if fs.storage_class == "intelligent-tiering":
        return ceil((fs.throughput_mbps or 0) * GROWTH)
    if fs.capacity_tib is None:
        return 0
    wish = ceil(fs.capacity_tib * 1000 * 3 / 2) if fs.capacity_tib.is_finite() else 0
    try:
        return max(capacity_neighbours(wish, efa=fs.efa, tier=fs.throughput_per_tib))
    except ValueError:
        return 0  # an illegal tier, which its own check reports


def _cluster(name: str, cluster: Cluster, seen: Deployment, default: str) -> ClusterPlan:
    path = f"clusters.{name}"
    only = next(iter(seen.storage.lustre)) if len(seen.storage.lustre) == 1 else None
    accounting = cluster.orchestrator.accounting
    return ClusterPlan(
        name=name,
        orchestrator=cluster.orchestrator.kind,
        groups=tuple(_group(name, n, g, f"{path}.groups.{n}", default) for n, g in cluster.groups.items()),
        path=path,
        lustre=cluster.lustre or only,
        home=cluster.home and seen.storage.home is not None,
        continuous_provisioning=cluster.continuous_provisioning,
        node_recovery=cluster.node_recovery,
        accounting=accounting and AccountingDatabase(**accounting.model_dump()),
    )


def _group(cluster: str, name: str, group: Group, path: str, default: str) -> InstanceGroupPlan:
    grows = group.count > 1 or group.role == "worker"
    plan = group.training_plan
    return InstanceGroupPlan(
        name=name,
        role=group.role,
        instance_types=(group.type,) if isinstance(group.type, str) else group.type,
        count=group.count,
        grow_to=group.grow_to if group.grow_to is not None else ceil(group.count * GROWTH) if grows else group.count,
        zone=group.zone or default,
        claim=group_claim(cluster, name),
        path=path,
        minimum=group.minimum,
        partition=group.partition,
        interface=group.interface,
        capacity=group.capacity,
        training_plan_arn=plan.arn if plan else None,
        training_plan_zone=plan.zone if plan else None,
        threads_per_core=group.threads_per_core,
        scratch_gb=group.scratch_gb,
        deep_health_checks=group.deep_health_checks,
        patching=_patching(group.patching),
        image_id=group.image_id,
    )


def _patching(entry: PatchingEntry | None) -> Patching | None:
    if entry is None:
        return None
    rolling = entry.rolling and RollingUpdate(
        batch=entry.rolling.batch,
        batch_is_percent=entry.rolling.percent,
        wait_seconds=entry.rolling.wait_seconds,
        rollback_alarms=entry.rolling.rollback_alarms,
    )
    return Patching(schedule=entry.schedule, strategy=entry.strategy, rolling=rolling)
