"""From a valid deployment file to what the planner is asked: one region at a time, defaults made plain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from ipaddress import IPv4Network
from math import ceil

from .deployment import (
    Cluster,
    Deployment,
    ExistingVpc,
    Group,
    Lustre,
    Nodes,
    PatchingEntry,
    RegionEntry,
    Workload,
)
from .planning.addressing import check_pool
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
from .planning.nodes import Directory, LogDestination, MetricsDestination, NodeServices
from .planning.problems import Problem
from .planning.regions import REGIONS, Region
from .planning.storage import (
    LEAST_THROUGHPUT_MBPS,
    AssociationPlan,
    LustrePlan,
    OpenZfsDeployment,
    OpenZfsPlan,
    ReadCache,
    capacity_neighbours,
    gib_from_tib,
)
from .planning.suggest import did_you_mean
from .planning.workload import BUILD, EvaluationPlan, WorkloadPlan

GROWTH = Decimal("1.5")


def platform_of(regions: dict[str, Deployment]) -> tuple[PlatformPlan, list[Problem]]:
    """What to plan, from the file as each region sees it (its `set` applied), and what cannot be read.

    The plan is asked without what cannot be read, so that one run reports everything.
    """
    first = next(iter(regions.values()))
    wrong: list[Problem] = []
    asked = PlatformPlan(
        name=first.name,
        account=first.account,
        protect=first.protect,
        tags=dict(first.tags),
        regions=tuple(_region(name, seen, wrong) for name, seen in regions.items()),
    )
    return asked, wrong


def _region(name: str, seen: Deployment, wrong: list[Problem]) -> RegionPlan:
    entry = seen.regions[name]
    known = REGIONS.get(name)
    zones = entry.zones or (known.zones[:1] if known else ())
    default = zones[0] if zones else ""
    warnings = () if entry.zones else (
        f"no zones given: {default} was taken; capacity is sold by zone, so pin regions.{name}.zones",
    )  # fmt: skip
    lustre = tuple(_lustre(fs_name, fs, default, wrong) for fs_name, fs in seen.storage.lustre.items())
    home = seen.storage.home
    newer = known is None or known.openzfs_single_az_2
    kind: OpenZfsDeployment = "SINGLE_AZ_HA_2" if newer else "SINGLE_AZ_HA_1"
    return RegionPlan(
        region=name,
        zones=zones,
        network=_network(seen, entry, name, wrong),
        buckets=BucketsPlan(**seen.storage.buckets.model_dump()),
        lustre=lustre,
        lustre_grow_to={n: _grow_to(n, fs, wrong) for n, fs in seen.storage.lustre.items()},
        home=home and OpenZfsPlan(
            name="home", zone=home.zone or default, capacity_gib=home.capacity_gib,
            deployment=kind, backup_days=home.backup_days,
            throughput_mbps=home.throughput_mbps or LEAST_THROUGHPUT_MBPS[kind],
        ),
        clusters=tuple(_cluster(n, c, seen, default) for n, c in seen.clusters.items()),
        workload=seen.workload and _workload(seen.workload, default),
        warnings=warnings,
    )  # fmt: skip


def _networks(values: tuple[str, ...], path: str, wrong: list[Problem]) -> tuple[IPv4Network, ...]:
    found: list[IPv4Network] = []
    for value in values:
        try:
            found.append(IPv4Network(value))
        except ValueError as error:
            allowed = "a CIDR such as 10.64.0.0/14, host bits zero"
            wrong.append(Problem(path, value or "nothing", allowed, str(error) or "write it so"))
    return tuple(found)


def _network(seen: Deployment, entry: RegionEntry, region: str, wrong: list[Problem]) -> NetworkPlan:
    at, given = f"regions.{region}", entry.vpc
    pool = _networks(entry.pool, f"{at}.pool", wrong)
    refused = check_pool(pool, path=f"{at}.pool") if pool else []
    wrong += refused
    return NetworkPlan(
        egress=seen.network.egress,
        egress_ports=tuple(dict.fromkeys((*seen.network.egress_ports, *_ports_out(seen)))),
        endpoints=seen.network.endpoints,
        flow_log_retention_days=seen.network.flow_log_retention_days,
        block_quota=seen.network.block_quota,
        pool=() if refused else pool,
        vpc_id=given.id if given else None,
        given_blocks=_networks(given.cidrs, f"{at}.vpc.cidrs", wrong) if given else (),
        given_subnets=_given(given, f"{at}.vpc", REGIONS.get(region), wrong) if given else (),
    )


def _given(vpc: ExistingVpc, at: str, known: Region | None, wrong: list[Problem]) -> tuple[GivenSubnet, ...]:
    """Somebody else's subnets, which must be of that VPC and of this region."""
    blocks = _networks(vpc.cidrs, f"{at}.cidrs", [])
    wrong += [
        Problem(f"{at}.cidrs", str(block), "blocks from /16 to /28, as AWS has them", "correct the value")
        for block in blocks if not 16 <= block.prefixlen <= 28
    ]  # fmt: skip
    found: list[GivenSubnet] = []
    for index, entry in enumerate(vpc.subnets):
        path = f"{at}.subnets.{index}"
        zones = (*known.zones, *known.local_zones) if known else (entry.zone,)
        if entry.zone not in zones:
            fix = did_you_mean(entry.zone, zones) or "write the zone's id, not its name"
            wrong.append(Problem(f"{path}.zone", entry.zone or "nothing", ", ".join(zones), fix))
        for net in _networks((entry.cidr,), f"{path}.cidr", wrong):
            most = max(0, net.num_addresses - 5)
            free = most if entry.free is None else entry.free
            subnet = GivenSubnet(id=entry.id, zone=entry.zone, cidr=net, free=free, purposes=entry.purposes)
            wrong += _check_given(subnet, path, most=most, blocks=blocks, others=found)
            found.append(subnet)
    return tuple(found)


def _check_given(
    subnet: GivenSubnet, path: str, *, most: int, blocks: Sequence[IPv4Network], others: Sequence[GivenSubnet]
) -> Iterator[Problem]:
    net = str(subnet.cidr)
    if not any(subnet.cidr.subnet_of(block) for block in blocks):
        allowed = f"a part of {', '.join(map(str, blocks)) or 'the VPC'}"
        yield Problem(f"{path}.cidr", net, allowed, "correct it, or add the VPC's block to cidrs")
    for other in others:
        if other.id == subnet.id or other.cidr.overlaps(subnet.cidr):
            allowed = f"a subnet apart from {other.id} {other.cidr}"
            yield Problem(path, f"{subnet.id} {net}", allowed, "drop one of the two")
    if subnet.free > most:
        yield Problem(f"{path}.free", str(subnet.free), f"0 to {most}, all that {net} holds", "lower it")


def _ports_out(seen: Deployment) -> Iterator[int]:
    """TCP ports nodes need besides: what they are told to talk to lies outside their security group."""
    for cluster in seen.clusters.values():
        if cluster.orchestrator.accounting:
            yield cluster.orchestrator.accounting.port
        if cluster.nodes.logs and cluster.nodes.logs.to == "syslog":
            yield cluster.nodes.logs.port
        for url in (
            cluster.nodes.ldap and cluster.nodes.ldap.uri,
            cluster.nodes.metrics and cluster.nodes.metrics.url,
        ):
            if url:
                scheme, _, rest = url.partition("://")
                port = rest.partition("/")[0].rpartition(":")[2]
                yield (
                    int(port) if port.isdigit() else {"http": 80, "ldap": 389, "ldaps": 636}.get(scheme, 443)
                )


def _gib(tib: Decimal, path: str, wrong: list[Problem]) -> int:
    gib = gib_from_tib(tib)
    if gib is None:
        allowed = "FSx TiB with at most three decimals (1.2 is 1200 GiB)"
        wrong.append(Problem(path, f"{tib} TiB", allowed, "round it"))
    return gib or 0


def _lustre(name: str, fs: Lustre, default: str, wrong: list[Problem]) -> LustrePlan:
    path = f"storage.lustre.{name}"
    capacity = None if fs.capacity_tib is None else _gib(fs.capacity_tib, f"{path}.capacity_tib", wrong)
    return LustrePlan(
        name=name,
        zone=fs.zone or default,
        storage_class=fs.storage_class,
        capacity_gib=capacity,
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


def _grow_to(name: str, fs: Lustre, wrong: list[Problem]) -> int:
    """GiB, or MB/s for intelligent-tiering: whatever the servers are counted by."""
    path = f"storage.lustre.{name}.grow_to_tib"
    if fs.grow_to_tib is not None and fs.storage_class != "ssd":
        allowed = f"nothing: {fs.storage_class} has no size"
        wrong.append(Problem(path, f"{fs.grow_to_tib} TiB", allowed, "leave it out"))
    elif fs.grow_to_tib is not None:
        return _gib(fs.grow_to_tib, path, wrong)
    if fs.storage_class == "intelligent-tiering":
        return ceil((fs.throughput_mbps or 0) * GROWTH)
    if fs.capacity_tib is None:
        return 0
    try:
        wish = ceil(fs.capacity_tib * 1000 * GROWTH)
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
        log_retention_days=cluster.log_retention_days,
        accounting=accounting and AccountingDatabase(**accounting.model_dump()),
        nodes=_nodes(cluster.nodes),
    )


def _nodes(entry: Nodes) -> NodeServices:
    return NodeServices(
        site=entry.site,
        certificates_secret_arn=entry.certificates_secret_arn,
        ldap=entry.ldap and Directory(**entry.ldap.model_dump()),
        metrics=entry.metrics and MetricsDestination(**entry.metrics.model_dump()),
        logs=entry.logs and LogDestination(**entry.logs.model_dump()),
        containers=entry.containers,
        clock=entry.clock,
        xids=dict(entry.xids),
    )


def _group(cluster: str, name: str, group: Group, path: str, default: str) -> InstanceGroupPlan:
    grows = group.count > 1 or group.role == "worker"
    grow_to = ceil(group.count * GROWTH) if grows else group.count
    plan = group.training_plan
    return InstanceGroupPlan(
        name=name,
        role=group.role,
        instance_types=(group.type,) if isinstance(group.type, str) else group.type,
        count=group.count,
        grow_to=grow_to if group.grow_to is None else group.grow_to,
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


def _workload(entry: Workload, default: str) -> WorkloadPlan:
    jobs = entry.evaluation
    return WorkloadPlan(
        image=None if entry.image == BUILD else entry.image,
        base_image=entry.base_image,
        architecture=entry.architecture,
        evaluation=jobs and EvaluationPlan(
            instance_type=jobs.instance_type, zone=jobs.zone or default, at_once=jobs.at_once,
            max_hours=jobs.max_hours, volume_gb=jobs.volume_gb, data=jobs.data, tokenizer=jobs.tokenizer,
        ),
    )  # fmt: skip
