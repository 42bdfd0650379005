"""A plan as one JSON document, for programs: `trainshed plan FILE --json`.

Keys are the fields of `planning.model` and `planning.storage` by their own names, units included; CIDRs
are strings. What those values derive stands beside them under the name of their property.
`tests/test_cli.py` pins the keys: a new one may come within `format` 1, none is renamed or dropped.

Top level: `format`, the fields of PlatformPlan, `warnings`, `lock` (`path`, and by region `state`:
"locked", "in part", "not locked" or "given VPC", the claims that are `new` or `retired`), `changes`
(with `--against`: `path`, `old`, `new`, `policy`, `meaning`, `regions`).
Region: RegionPlan, `endpoints` (interface endpoints). Subnet: SubnetPlan, `usable`, `state`.
Group: InstanceGroupPlan, `surge_nodes`, `addresses_per_node`, `addresses_are_published`,
`efa_interfaces`, `accelerator`, `accelerators`, `accelerator_memory_gib` (of each).
Lustre: LustrePlan, `object_servers`, `metadata_servers`, `addresses`, `aggregate_throughput_mbps`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any, Literal, cast

from .planning.endpoints import endpoints_for
from .planning.instances import INSTANCE_TYPES, InstanceType, Orchestrator
from .planning.model import AddressPlan, InstanceGroupPlan, RegionPlan, SubnetPlan
from .planning.storage import LustrePlan, OpenZfsPlan

if TYPE_CHECKING:
    from .loading import Loaded

FORMAT = 1
SubnetState = Literal["locked", "new", "retired", "given"]


def document(loaded: Loaded, changes: Sequence[object] | None = None) -> dict[str, object]:
    """The plan, and with `changes` (of `comparing`) what it does to what is deployed."""
    plan = loaded.plan
    regions = [_region(region) for region in plan.regions]
    body = {"format": FORMAT, **_fields(plan), "regions": regions, "warnings": plan.warnings}
    lock = {
        "path": str(loaded.lock_path),
        "regions": {
            r.region: {
                "state": lock_state(r),
                "new": r.addresses.unlocked,
                "retired": [s.claim for s in r.addresses.subnets if s.retired],
            }
            for r in plan.regions
        },
    }
    said = {} if changes is None else {"changes": [asdict(cast("Any", change)) for change in changes]}
    return cast("dict[str, object]", _plain({**body, "lock": lock, **said}))


def lock_state(region: RegionPlan) -> Literal["given VPC", "not locked", "in part", "locked"]:
    """How much of a region's addresses the lock holds."""
    addresses = region.addresses
    if region.network.vpc_id is not None:
        return "given VPC"
    if not addresses.unlocked:
        return "locked"
    return "not locked" if len(addresses.unlocked) == len(addresses.subnets) else "in part"


def subnet_state(subnet: SubnetPlan, region: RegionPlan) -> SubnetState:
    """Whether a subnet stands already, is new, or has lost its tenant."""
    if region.network.vpc_id is not None:
        return "given"
    if subnet.retired:
        return "retired"
    return "new" if subnet.claim in region.addresses.unlocked else "locked"


def usable(subnet: SubnetPlan, region: RegionPlan) -> int:
    """Addresses a subnet has for us: all but AWS's five, or what somebody else's subnet has left."""
    seat = region.given.get(subnet.claim)
    return next((s.free for s in region.network.given_subnets if s.id == seat), subnet.usable)


def types_of(group: InstanceGroupPlan) -> list[InstanceType]:
    """The rows of the instance table that a group may use."""
    return [INSTANCE_TYPES[name] for name in group.instance_types]


def addresses_per_node(group: InstanceGroupPlan, orchestrator: Orchestrator) -> int:
    """Addresses a node of a group takes, of its hungriest type."""
    return max(kind.addresses_per_node(orchestrator, group.interface) for kind in types_of(group))


def addresses_are_published(group: InstanceGroupPlan, orchestrator: Orchestrator) -> bool:
    """Whether AWS itself states that figure."""
    return all(kind.addresses_are_published(orchestrator, group.interface) for kind in types_of(group))


def _region(region: RegionPlan) -> dict[str, object]:
    network = region.network
    return {
        **_fields(region),
        "addresses": _addresses(region.addresses, region),
        "lustre": [_lustre(fs) for fs in region.lustre],
        "home": region.home and _home(region.home),
        "clusters": [
            {**_fields(c), "groups": [_group(g, c.orchestrator) for g in c.groups]} for c in region.clusters
        ],
        "endpoints": endpoints_for(network.egress, network.endpoints) if network.vpc_id is None else (),
    }


def _addresses(plan: AddressPlan, region: RegionPlan) -> dict[str, object]:
    subnets = [
        {**_fields(s), "usable": usable(s, region), "state": subnet_state(s, region)} for s in plan.subnets
    ]
    return {
        **_fields(plan),
        "subnets": subnets,
        "reserved_addresses": plan.reserved_addresses,
        "needed_addresses": plan.needed_addresses,
    }


def _lustre(fs: LustrePlan) -> dict[str, object]:
    derived = ("object_servers", "metadata_servers", "addresses", "aggregate_throughput_mbps")
    return {**_fields(fs), **{name: getattr(fs, name) for name in derived}}


def _home(home: OpenZfsPlan) -> dict[str, object]:
    return {**_fields(home), "addresses": home.addresses}


def _group(group: InstanceGroupPlan, orchestrator: Orchestrator) -> dict[str, object]:
    kind = types_of(group)[0]
    return {
        **_fields(group),
        "surge_nodes": group.surge_nodes,
        "addresses_per_node": addresses_per_node(group, orchestrator),
        "addresses_are_published": addresses_are_published(group, orchestrator),
        "efa_interfaces": kind.efa_interfaces,
        "accelerator": kind.accelerator,
        "accelerators": kind.accelerators,
        "accelerator_memory_gib": kind.accelerator_memory_gib,
    }


def _fields(value: Any) -> dict[str, object]:  # noqa: ANN401
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _plain(value: object) -> object:
    if is_dataclass(value):
        return _plain(_fields(value))
    if isinstance(value, IPv4Network):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in cast("Sequence[object]", value)]
    return value
