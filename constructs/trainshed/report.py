"""A plan and the instance table as plain text, readable at 100 columns."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .document import addresses_are_published, addresses_per_node, lock_state, subnet_state, types_of, usable
from .planning.demand import group_claim
from .planning.endpoints import endpoints_for
from .planning.instances import INSTANCE_TYPES, InstanceType, InterfaceType, Orchestrator
from .planning.model import ClusterPlan, InstanceGroupPlan, RegionPlan
from .planning.storage import LustrePlan, tib_from_gib
from .planning.workload import WorkloadPlan

if TYPE_CHECKING:
    from .loading import Loaded

WIDTH = 100
NARROWEST = 12
ORCHESTRATORS: tuple[Orchestrator, ...] = ("slurm", "eks")
INTERFACES: tuple[InterfaceType, ...] = ("efa", "efa-only")


def plan_report(loaded: Loaded, command: str) -> str:
    """Everything that was decided; the last line says what is locked and what comes next.

    `command` is what printed it.
    """
    plan = loaded.plan
    groups = [g for r in plan.regions for c in r.clusters for g in c.groups]
    now, later = sum(g.count for g in groups), sum(g.grow_to for g in groups)
    names = ", ".join(r.region for r in plan.regions)
    lines = wrapped(f"{plan.name}: {now} nodes now, {later} at the declared growth, in {names}")
    for region in plan.regions:
        lines += ["", *_region(region)]
    if plan.warnings:
        lines += ["", "Warnings"]
        lines += [line for w in plan.warnings for line in wrapped(w, "  - ", "    ")]
    return "\n".join((*lines, "", _next(loaded, command)))


def instances_report() -> str:
    """The instance table: what each type has and how many addresses a node of it takes."""
    kinds: list[tuple[Orchestrator, InterfaceType]] = [(o, i) for o in ORCHESTRATORS for i in INTERFACES]
    head = ("type", "accelerators", "EFA", "slurm: efa", "efa-only", "eks: efa", "efa-only", "published")
    rows = [
        (
            k.name,
            _accelerators(k),
            str(k.efa_interfaces),
            *(str(_addresses(k, *kind) or "-") for kind in kinds),
            ", ".join(orchestrator for orchestrator in ORCHESTRATORS if _is_published(k, orchestrator))
            or "-",
        )
        for k in INSTANCE_TYPES.values()
    ]
    note = (
        "Addresses are IPv4 a node. AWS publishes those of `efa` for the orchestrators in the last column; "
        "the others are derived by the same formula."
    )
    return "\n".join((*table(head, rows, right=range(2, 7), indent=""), "", *wrapped(note)))


def instances_document() -> str:
    """The same as JSON: one object a type; addresses are null where a type cannot have the interface."""

    def addresses(kind: InstanceType, orchestrator: Orchestrator) -> dict[str, int | None]:
        return {interface: _addresses(kind, orchestrator, interface) for interface in INTERFACES}

    rows = [
        {
            "type": k.name,
            "accelerator": k.accelerator,
            "accelerators": k.accelerators,
            "accelerator_memory_gib": k.accelerator_memory_gib,
            "vcpus": k.vcpus,
            "memory_gib": k.memory_gib,
            "network_cards": k.network_cards,
            "efa_interfaces": k.efa_interfaces,
            "addresses_per_node": {o: addresses(k, o) for o in ORCHESTRATORS},
            "published": [o for o in ORCHESTRATORS if _is_published(k, o)],
        }
        for k in INSTANCE_TYPES.values()
    ]
    return json.dumps(rows, indent=2)


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Iterable[int] = (), indent: str = "  "
) -> list[str]:
    """Aligned columns; the longest cells lose their middle where a line would pass `WIDTH`."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    while len(indent) + sum(widths) + 2 * (len(widths) - 1) > WIDTH and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    flush = set(right)
    return [
        (indent + "  ".join(_cell(text, widths[i], i in flush) for i, text in enumerate(line))).rstrip()
        for line in lines
    ]


def _cell(text: str, width: int, is_right: bool) -> str:
    if len(text) > width:
        kept = width - 2
        text = f"{text[: kept // 2]}..{text[len(text) - (kept - kept // 2) :]}"
    return text.rjust(width) if is_right else text.ljust(width)


def _region(region: RegionPlan) -> Iterator[str]:
    addresses, given = region.addresses, region.network.vpc_id
    yield f"{region.region} ({', '.join(region.zones)})" + (
        f" in {given}, which is not ours" if given else ""
    )
    rows: list[tuple[str, ...]] = []
    for i, block in enumerate(addresses.blocks):
        inside = [s for s in addresses.subnets if s.cidr.subnet_of(block)]
        held = sum(cidr.num_addresses for cidr in {s.cidr for s in inside})
        share = 100 * sum(s.reserved for s in inside) / block.num_addresses
        role = "secondary" if i else "primary"
        rows.append((str(block), role, str(block.num_addresses), str(held), f"{share:.0f} %"))
    yield from (
        "",
        *table(("VPC block", "", "addresses", "in subnets", "used at growth"), rows, right=(2, 3, 4)),
    )
    yield from ("", *_subnets(region))
    for cluster in region.clusters:
        yield from ("", *_cluster(cluster))
    if region.lustre or region.home:
        yield from ("", "  Storage", *_storage(region))
    if region.workload:
        yield from ("", *wrapped(f"Workload: {_workload(region.workload)}", "  ", "    "))
    names = endpoints_for(region.network.egress, region.network.endpoints)
    ours = f"Endpoints ({region.network.egress}): gateway s3; interface {', '.join(names) or 'none'}"
    yield from ("", *wrapped("Endpoints: those of the given VPC" if given else ours, "  ", "    "))


def _subnets(region: RegionPlan) -> list[str]:
    head = ("subnet of", "zone", "CIDR", "usable", "now", "growth", "fits", "state")
    groups: dict[str, tuple[InstanceGroupPlan, Orchestrator]] = {
        group_claim(cluster.name, group.name): (group, cluster.orchestrator)
        for cluster in region.clusters
        for group in cluster.groups
    }
    rows: list[tuple[str, ...]] = []
    for s in region.addresses.subnets:
        state = region.given.get(s.claim) or subnet_state(s, region)
        room = usable(s, region)
        alone = s.claim in groups and s.claim not in region.given
        fits = f"{_fits(*groups[s.claim], room)} nodes" if alone else "-"
        rows.append((s.claim, s.zone, str(s.cidr), *map(str, (room, s.needed, s.reserved)), fits, state))
    return table(head, rows, right=(3, 4, 5, 6))


def _fits(group: InstanceGroupPlan, orchestrator: Orchestrator, room: int) -> int:
    """Nodes that so many addresses are enough for, beside those that replace them meanwhile."""
    return room // addresses_per_node(group, orchestrator) - group.surge_nodes


def _cluster(cluster: ClusterPlan) -> Iterator[str]:
    yield f"  Cluster {cluster.name}: {cluster.orchestrator}, /fsx is {cluster.lustre or 'not mounted'}"
    head = ("group", "role", "type", "nodes", "grow to", "addresses", "EFA", "accelerators")
    yield from table(head, [_group(g, cluster.orchestrator) for g in cluster.groups], right=(3, 4, 6))


def _group(group: InstanceGroupPlan, orchestrator: Orchestrator) -> tuple[str, ...]:
    kind = types_of(group)[0]
    source = "published" if addresses_are_published(group, orchestrator) else "derived"
    bought = ", plan" if group.training_plan_arn else ", spot" if group.capacity == "spot" else ""
    return (
        group.name,
        f"{group.role}{bought}",
        ", ".join(group.instance_types),
        str(group.count),
        str(group.grow_to),
        f"{addresses_per_node(group, orchestrator)} {source}",
        str(kind.efa_interfaces),
        _accelerators(kind),
    )


def _storage(region: RegionPlan) -> Iterator[str]:
    for fs in region.lustre:
        text = _lustre(fs, region.lustre_grow_to.get(fs.name, 0))
        yield from wrapped(f"{fs.name}: {text}", "  ", "    ")
        rows: list[tuple[str, ...]] = []
        for link in fs.associations:
            imports, exports = (
                ", ".join(events) or "-" for events in (link.import_events, link.export_events)
            )
            rows.append((link.file_system_path, f"{link.bucket}/{link.prefix}", imports, exports))
        yield from table(("path", "bucket", "imports", "exports"), rows, indent="    ") if rows else ()
    if region.home:
        home = region.home
        yield f"  /home: OpenZFS in {home.zone}, {home.capacity_gib} GiB, {home.throughput_mbps} MB/s"


def _lustre(fs: LustrePlan, grow_to: int) -> str:
    servers = f"{fs.object_servers} object and {fs.metadata_servers} metadata servers"
    if fs.storage_class == "ssd":
        size = f"ssd {tib_from_gib(fs.capacity_gib or 0)} TiB with room for {tib_from_gib(grow_to)}"
        speed = f"{fs.aggregate_throughput_mbps} MB/s ({fs.throughput_mbps_per_tib} a TiB)"
    else:
        size, speed = fs.storage_class, f"{fs.throughput_mbps} MB/s with room for {grow_to}"
    return f"Lustre in {fs.zone}, {size}, {speed}, {servers}, {'EFA' if fs.efa else 'TCP'}"


def _workload(plan: WorkloadPlan) -> str:
    built = f"built for {plan.architecture} from {plan.base_image or 'the default base'}"
    image, jobs = f"image {plan.image or built}", plan.evaluation
    if jobs is None:
        return f"{image}; checkpoints are not scored"
    kind, hours = jobs.instance_type, jobs.max_hours
    return f"{image}; checkpoints scored by at most {jobs.at_once} x {kind} in {jobs.zone}, {hours} h each"


def _next(loaded: Loaded, command: str) -> str:
    regions = loaded.plan.regions
    new = sum(len(r.addresses.unlocked) for r in regions)
    retired = sum(s.retired for r in regions for s in r.addresses.subnets)
    if new:
        state = "Locked in part" if any(lock_state(r) != "not locked" for r in regions) else "Not locked"
        return f"{state} ({new} new subnets). Next: `{command} --lock`."
    if retired:
        return f"Locked ({retired} retired subnets). Next: deploy, then `{command} --lock --prune`."
    if all(r.network.vpc_id for r in regions):
        return "Nothing to lock: the VPC is given. Next: `npx cdk diff`."
    return f"Locked in {loaded.lock_path.name}. Next: `npx cdk diff`."


def wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    """A paragraph in lines of at most `WIDTH`."""
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _accelerators(kind: InstanceType) -> str:
    memory = f"{kind.accelerator_memory_gib} GiB"
    return f"{kind.accelerators} x {kind.accelerator} {memory}" if kind.accelerators else "-"


def _is_published(kind: InstanceType, orchestrator: Orchestrator) -> bool:
    return kind.addresses_are_published(orchestrator, "efa")


def _addresses(kind: InstanceType, orchestrator: Orchestrator, interface: InterfaceType) -> int | None:
    if interface == "efa-only" and not kind.efa_interfaces:
        return None
    return kind.addresses_per_node(orchestrator, interface)
