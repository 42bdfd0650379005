"""Who needs addresses in a region, and how many: the claims that the address plan seats."""

from __future__ import annotations

from collections.abc import Iterator

from .endpoints import INTERFACE_ENDPOINTS, endpoints_for
from .instances import INSTANCE_TYPES
from .model import Claim, ClusterPlan, InstanceGroupPlan, RegionPlan
from .storage import LustrePlan
from .workload import ADDRESSES_PER_JOB


def group_claim(cluster: str, group: str) -> str:
    """Name of a group's claim."""
    return f"group/{cluster}/{group}"


def lustre_claim(name: str) -> str:
    """Name of a Lustre file system's claim."""
    return f"lustre/{name}"


HOME_CLAIM = "home"


def claims_of(region: RegionPlan) -> list[Claim]:
    """Every claim of a region; groups of unknown types claim nothing, their own check reports them."""
    claims = [c for cluster in region.clusters for g in cluster.groups for c in _group(region, cluster, g)]
    claims += [_lustre(region, fs) for fs in region.lustre]
    if region.home:
        needed = region.home.addresses
        claims.append(Claim(
            name=HOME_CLAIM, zone=region.home.zone, purpose="storage", needed=needed, reserved=needed,
            path="storage.home",
        ))  # fmt: skip
    if region.workload and (jobs := region.workload.evaluation):
        needed = jobs.at_once * ADDRESSES_PER_JOB
        claims.append(Claim(
            name=jobs.claim, zone=jobs.zone, purpose="nodes", needed=needed, reserved=needed,
            path="workload.evaluation.at_once", ways_out=("a smaller at_once",),
        ))  # fmt: skip
    if region.network.vpc_id is None:
        claims += _shared(region, sorted({c.zone for c in claims}))
    return claims


def _group(region: RegionPlan, cluster: ClusterPlan, group: InstanceGroupPlan) -> Iterator[Claim]:
    kinds = [INSTANCE_TYPES[t] for t in group.instance_types if t in INSTANCE_TYPES]
    if not kinds or (group.interface == "efa-only" and not all(k.efa_interfaces for k in kinds)):
        return
    per_node = max(k.addresses_per_node(cluster.orchestrator, group.interface) for k in kinds)
    ways_out = [f"fewer nodes (each takes {per_node})", "another zone"]
    if group.has_efa and group.interface == "efa" and per_node > 1:
        least = kinds[0].addresses_per_node(cluster.orchestrator, "efa-only")
        ways_out.insert(0, f"`interface: efa-only` ({least} a node instead of {per_node})")
    yield Claim(
        name=group.claim, zone=group.zone, purpose="nodes", path=group.path,
        needed=(group.count + group.surge_nodes) * per_node,
        reserved=(max(group.grow_to, group.count) + group.surge_nodes) * per_node,
        cell=_cell(region, cluster, group), ways_out=tuple(ways_out),
    )  # fmt: skip


def _cell(region: RegionPlan, cluster: ClusterPlan, group: InstanceGroupPlan) -> str | None:
    """EFA clients and their EFA file system share a /16 (FSx for Lustre User Guide, EFA file systems)."""
    for fs in region.lustre:
        if fs.name == cluster.lustre and fs.efa and group.has_efa:
            return lustre_claim(fs.name)
    return None


def _lustre(region: RegionPlan, fs: LustrePlan) -> Claim:
    path = f"storage.lustre.{fs.name}"
    try:
        needed = fs.addresses
        size = region.lustre_grow_to.get(fs.name)
        reserved = fs.addresses_at(size) if size else needed
    except ValueError:
        needed = reserved = 1
    fewer = "more throughput per TiB (fewer, stronger servers)" if fs.efa else "`efa: true` (fewer servers)"
    return Claim(
        name=lustre_claim(fs.name), zone=fs.zone, purpose="storage", path=path, needed=needed,
        reserved=reserved, cell=lustre_claim(fs.name) if fs.efa else None,
        ways_out=("a smaller grow_to_tib", fewer),
    )  # fmt: skip


def _shared(region: RegionPlan, zones: list[str]) -> Iterator[Claim]:
    """Endpoints keep room for the whole catalogue: adding one must not need a new subnet."""
    names = endpoints_for(region.network.egress, region.network.endpoints)
    for zone in zones:
        if region.network.egress == "nat":
            yield Claim(
                name=f"nat/{zone}", zone=zone, purpose="public", needed=1, reserved=1, path="network.egress"
            )
        if names:
            yield Claim(
                name=f"endpoints/{zone}", zone=zone, purpose="endpoints", needed=len(names),
                reserved=len(INTERFACE_ENDPOINTS), path="network.endpoints",
            )  # fmt: skip
