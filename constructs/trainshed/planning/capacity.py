"""Rules of HyperPod clusters and instance groups, checked before AWS is asked.

Sources: SageMaker API reference (CreateCluster) and the HyperPod pages on Slurm clusters,
continuous provisioning, deep health checks and training plans.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .instances import EXCLUDED, INSTANCE_TYPES
from .model import ClusterPlan, InstanceGroupPlan, RegionPlan
from .nodes import check_nodes
from .problems import Problem
from .regions import REGIONS, offering
from .suggest import did_you_mean

CONTROLLER_COUNT = 1
STACKS = ("network", "storage", "observability", "workload", "replication", "grafana")
"""A region's other stacks: a cluster's own is called after the cluster."""


def check_cluster(region: RegionPlan, cluster: ClusterPlan) -> list[Problem]:
    """Everything about one cluster that CreateCluster, or a night, would refuse."""
    problems = [p for group in cluster.groups for p in _check_group(region, cluster, group)]
    problems += _check_roles(cluster)
    problems += check_nodes(cluster.nodes, path=f"{cluster.path}.nodes")
    if cluster.name in STACKS:
        problems.append(Problem(
            path=cluster.path, given=cluster.name,
            allowed=f"any name but {', '.join(STACKS)}, which other stacks have",
            fix="call it after what it does, for example train",
        ))  # fmt: skip
    if cluster.accounting and not cluster.continuous_provisioning:
        problems.append(Problem(
            path=f"{cluster.path}.orchestrator.accounting",
            given="an external database without continuous provisioning",
            allowed="both together", fix=f"set {cluster.path}.continuous_provisioning to true",
        ))  # fmt: skip
    names = [f.name for f in region.lustre]
    if cluster.lustre is not None and cluster.lustre not in names:
        problems.append(Problem(
            path=f"{cluster.path}.lustre", given=cluster.lustre,
            allowed=", ".join(names) or "none is defined",
            fix=did_you_mean(cluster.lustre, names) or "define it under storage.lustre",
        ))  # fmt: skip
    if cluster.lustre is None and len(names) > 1:
        problems.append(Problem(
            path=f"{cluster.path}.lustre", given="nothing", allowed=", ".join(names),
            fix="say which file system is mounted at /fsx",
        ))  # fmt: skip
    return problems


def _check_roles(cluster: ClusterPlan) -> Iterator[Problem]:
    by_role = {
        role: [g for g in cluster.groups if g.role == role] for role in ("controller", "login", "worker")
    }
    controllers, logins = by_role["controller"], by_role["login"]
    if len(controllers) != 1:
        yield Problem(
            path=f"{cluster.path}.groups", given=f"{len(controllers)} controller groups",
            allowed="exactly one",
            fix="give one group `role: controller`",
        )  # fmt: skip
    if len(logins) > 1:
        yield Problem(
            path=f"{cluster.path}.groups", given=f"login groups {', '.join(g.name for g in logins)}",
            allowed="at most one", fix="raise one group's count instead",
        )  # fmt: skip
    local = {g.zone for g in cluster.groups if g.zone not in _zones_of_parent(g.zone)}
    for group in controllers:
        if local and group.zone not in local:
            yield Problem(
                path=f"{group.path}.zone",
                given=f"{group.zone}, with workers in local zone {', '.join(sorted(local))}",
                allowed="the workers' zone",
                fix="a controller apart from Local Zone workers fails silently: move it",
            )  # fmt: skip


def _zones_of_parent(zone: str) -> tuple[str, ...]:
    return next((r.zones for r in REGIONS.values() if zone in (*r.zones, *r.local_zones)), (zone,))


def _check_group(region: RegionPlan, cluster: ClusterPlan, group: InstanceGroupPlan) -> Iterator[Problem]:
    yield from _check_types(region, cluster, group)
    yield from _check_counts(cluster, group)
    yield from _check_zone(region, group)
    yield from _check_plan_and_role(region, group)
    yield from _check_patching(group)


def _check_types(region: RegionPlan, cluster: ClusterPlan, group: InstanceGroupPlan) -> Iterator[Problem]:
    path = f"{group.path}.type"
    if len(group.instance_types) > 1 and cluster.orchestrator == "slurm":
        yield Problem(
            path=path, given=", ".join(group.instance_types),
            allowed="one type: HyperPod takes lists on EKS only",
            fix="make a group for each type; they can share a partition",
        )  # fmt: skip
    for name in group.instance_types:
        kind = INSTANCE_TYPES.get(name)
        if kind is None:
            reason = EXCLUDED.get(name)
            yield Problem(
                path=path, given=name, allowed="an instance type of HyperPod (`trainshed instances`)",
                fix=reason or did_you_mean(name, INSTANCE_TYPES) or "choose one of the list",
            )  # fmt: skip
            continue
        if offering(region.region, name) == "absent":
            others = [r for r in REGIONS if offering(r, name) == "listed"]
            yield Problem(
                path=path, given=f"{name} in {region.region}",
                allowed=f"{', '.join(others) or 'no region'} for this type",
                fix="choose another type or region",
            )  # fmt: skip
        if group.interface == "efa-only" and not kind.efa_interfaces:
            yield Problem(
                path=f"{group.path}.interface", given=f"efa-only on {name}",
                allowed="efa-only on types with EFA",
                fix="leave `interface` out",
            )  # fmt: skip
        if group.deep_health_checks and not kind.runs_deep_health_checks(cluster.orchestrator):
            yield Problem(
                path=f"{group.path}.deep_health_checks", given=name,
                allowed="GPU types that HyperPod can stress",
                fix="leave deep_health_checks out",
            )  # fmt: skip


def _check_counts(cluster: ClusterPlan, group: InstanceGroupPlan) -> Iterator[Problem]:
    if group.grow_to < group.count:
        yield Problem(
            path=f"{group.path}.grow_to", given=str(group.grow_to),
            allowed=f"{group.count} (the count) or more",
            fix="raise grow_to: addresses are kept for that many nodes",
        )  # fmt: skip
    if group.role == "controller" and group.count != CONTROLLER_COUNT:
        yield Problem(
            path=f"{group.path}.count", given=str(group.count), allowed=str(CONTROLLER_COUNT),
            fix="HyperPod runs one controller when provisioning is continuous",
        )  # fmt: skip
    if group.minimum is not None and not cluster.continuous_provisioning:
        yield Problem(
            path=f"{group.path}.minimum", given=str(group.minimum),
            allowed="nothing without continuous provisioning",
            fix=f"set {cluster.path}.continuous_provisioning to true",
        )  # fmt: skip
    if group.minimum is not None and group.minimum > group.count:
        yield Problem(
            path=f"{group.path}.minimum", given=str(group.minimum), allowed=f"0 to {group.count} (the count)",
            fix="lower minimum or raise count",
        )  # fmt: skip


def _check_zone(region: RegionPlan, group: InstanceGroupPlan) -> Iterator[Problem]:
    if group.zone not in region.zones:
        yield Problem(
            path=f"{group.path}.zone", given=group.zone, allowed=", ".join(region.zones),
            fix=did_you_mean(group.zone, region.zones)
            or f"add it to regions.{region.region}.zones, or set another under regions.{region.region}.set",
        )  # fmt: skip


def _check_plan_and_role(region: RegionPlan, group: InstanceGroupPlan) -> Iterator[Problem]:
    if group.role == "worker" and not group.partition:
        yield Problem(
            path=f"{group.path}.partition", given="nothing", allowed="a Slurm partition",
            fix=f"write `partition: {re.sub(r'[^a-zA-Z0-9-]', '', group.name)}`",
        )  # fmt: skip
    if group.role != "worker":
        for field, value in (("partition", group.partition), ("deep_health_checks", group.deep_health_checks),
                             ("capacity", "spot" if group.capacity == "spot" else None)):  # fmt: skip
            if value:
                yield Problem(
                    path=f"{group.path}.{field}", given=f"{value} on a {group.role} group",
                    allowed="workers only",
                    fix=f"leave `{field}` out",
                )  # fmt: skip
    if group.training_plan_arn is None:
        return
    plan_region = group.training_plan_arn.split(":")[3]
    if plan_region != region.region:
        yield Problem(
            path=f"{group.path}.training_plan.arn", given=f"a plan of {plan_region}",
            allowed=f"a plan of {region.region}", fix=f"set it under regions.{region.region}.set",
        )  # fmt: skip
    if group.training_plan_zone != group.zone:
        yield Problem(
            path=f"{group.path}.training_plan.zone", given=f"a plan in {group.training_plan_zone}",
            allowed=f"{group.zone}, where the group is", fix="put the group into the plan's zone",
        )  # fmt: skip
    if group.capacity == "spot":
        yield Problem(
            path=f"{group.path}.capacity", given="spot beside a training plan", allowed="one of the two",
            fix="leave `capacity` out",
        )  # fmt: skip


_CRON = re.compile(r"^cron\(\S+ \S+ \S+ \S+ \S+ \S+\)$")


def _check_patching(group: InstanceGroupPlan) -> Iterator[Problem]:
    patching = group.patching
    if patching is None:
        return
    path = f"{group.path}.patching"
    if (patching.schedule is None) == (patching.strategy is None):
        given = "neither" if patching.schedule is None else "both"
        yield Problem(
            path=path, given=given, allowed="`schedule` or `strategy`", fix="keep one of the two",
        )  # fmt: skip
    if patching.schedule is not None and not _CRON.match(patching.schedule):
        yield Problem(
            path=f"{path}.schedule", given=patching.schedule,
            allowed="cron(minutes hours day month weekday year)",
            fix="for example cron(0 3 ? * SUN *)",
        )  # fmt: skip
    if patching.rolling and patching.rolling.batch_is_percent and patching.rolling.batch > 100:
        yield Problem(
            path=f"{path}.rolling.batch", given=f"{patching.rolling.batch} percent", allowed="1 to 100",
            fix="lower it, or leave `percent` out",
        )  # fmt: skip
