"""The frozen values that pass from the deployment file to the stacks.

Units stand in the names. A value here is already decided: constructs read it, they never compute
from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Literal

from .instances import INSTANCE_TYPES, InterfaceType, Orchestrator
from .nodes import NodeServices
from .storage import LustrePlan, OpenZfsPlan
from .workload import WorkloadPlan

Purpose = Literal["nodes", "storage", "endpoints", "public"]
NodeRole = Literal["controller", "login", "worker"]
Egress = Literal["nat", "closed"]
CapacityKind = Literal["on-demand", "spot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one tenant needs of one subnet.

    `needed` is what the present counts take (surge included), `reserved` what the declared growth
    takes; both in IPv4 addresses, AWS's own five not counted. Claims with the same `cell` must
    share a /16: FSx demands it of an EFA file system and its clients.
    """

    name: str
    zone: str
    purpose: Purpose
    needed: int
    reserved: int
    cell: str | None = None
    path: str = ""
    ways_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetPlan:
    """One subnet. `claim` is its tenant; `retired` ones have none left and wait to be pruned."""

    claim: str
    zone: str
    purpose: Purpose
    cidr: IPv4Network
    needed: int
    reserved: int
    retired: bool = False

    @property
    def usable(self) -> int:
        """Addresses a tenant can use (AWS keeps the first four and the last)."""
        return self.cidr.num_addresses - 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressPlan:
    """A region's VPC blocks (the first is the primary one) and subnets."""

    blocks: tuple[IPv4Network, ...]
    subnets: tuple[SubnetPlan, ...]
    unlocked: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def subnet(self, claim: str) -> SubnetPlan:
        """The subnet of a claim; KeyError when no such claim was planned."""
        for subnet in self.subnets:
            if subnet.claim == claim:
                return subnet
        raise KeyError(claim)

    @property
    def reserved_addresses(self) -> int:
        """Addresses that the VPC's blocks take from the pool."""
        return sum(block.num_addresses for block in self.blocks)

    @property
    def needed_addresses(self) -> int:
        """Addresses the tenants take at the declared growth."""
        return sum(subnet.reserved for subnet in self.subnets)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSubnet:
    """A subnet as the lock file holds it."""

    zone: str
    purpose: Purpose
    cidr: IPv4Network


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressLock:
    """What a region has already been given. Blocks keep their order; the first is the primary one."""

    blocks: tuple[IPv4Network, ...] = ()
    subnets: dict[str, LockedSubnet] = field(default_factory=dict[str, LockedSubnet])


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSubnet:
    """A subnet of somebody else's VPC. `free` is its count of free addresses."""

    id: str
    zone: str
    cidr: IPv4Network
    free: int
    purposes: tuple[Purpose, ...] = ("nodes", "storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingUpdate:
    """How AMI updates roll through a group: batch in nodes or percent, wait in seconds."""

    batch: int
    batch_is_percent: bool = False
    wait_seconds: int = 0
    rollback_alarms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Patching:
    """When AMIs change: a cron schedule, or by itself when nodes are idle; never both."""

    schedule: str | None = None
    strategy: Literal["WhenIdle", "WhenAllIdle"] | None = None
    rolling: RollingUpdate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroupPlan:
    """One HyperPod instance group."""

    name: str
    role: NodeRole
    instance_types: tuple[str, ...]
    count: int
    grow_to: int
    zone: str
    claim: str
    path: str
    minimum: int | None = None
    partition: str | None = None
    interface: InterfaceType = "efa"
    capacity: CapacityKind = "on-demand"
    training_plan_arn: str | None = None
    training_plan_zone: str | None = None
    threads_per_core: int | None = None
    scratch_gb: int | None = None
    deep_health_checks: tuple[Literal["InstanceStress", "InstanceConnectivity"], ...] = ()
    patching: Patching | None = None
    image_id: str | None = None

    @property
    def has_efa(self) -> bool:
        """Whether the nodes speak EFA, so that their security group must let it through."""
        kind = INSTANCE_TYPES.get(self.instance_type)
        return kind is not None and kind.efa_interfaces > 0

    @property
    def instance_type(self) -> str:
        """The type, or the first choice of a flexible group."""
        return self.instance_types[0]

    @property
    def watches_alarms(self) -> bool:
        """Whether its updates roll back on alarms."""
        return bool(self.patching and self.patching.rolling and self.patching.rolling.rollback_alarms)

    @property
    def surge_nodes(self) -> int:
        """Nodes that may hold addresses twice while being replaced or updated."""
        rolling = self.patching.rolling if self.patching else None
        if rolling is None:
            return 1
        if rolling.batch_is_percent:
            return max(1, -(-self.grow_to * rolling.batch // 100))
        return max(1, rolling.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingDatabase:
    """An external MySQL-compatible database for slurmdbd."""

    endpoint: str
    secret_arn: str
    port: int = 3306
    database: str = "slurm_acct_db"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """One HyperPod cluster with its instance groups."""

    name: str
    orchestrator: Orchestrator
    groups: tuple[InstanceGroupPlan, ...]
    path: str
    lustre: str | None = None
    home: bool = False
    continuous_provisioning: bool = True
    node_recovery: bool = True
    log_retention_days: int = 90
    accounting: AccountingDatabase | None = None
    nodes: NodeServices = field(default_factory=NodeServices)

    def secrets(self, role: NodeRole) -> tuple[str, ...]:
        """ARNs of the secrets that nodes of a role read."""
        own = (self.accounting.secret_arn,) if self.accounting and role == "controller" else ()
        return (*own, *self.nodes.secrets)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """How a region's VPC talks to the world. `egress_ports` are TCP ports nodes may reach outside."""

    egress: Egress = "nat"
    egress_ports: tuple[int, ...] = (443,)
    endpoints: tuple[str, ...] = ()
    flow_log_retention_days: int = 90
    pool: tuple[IPv4Network, ...] = ()
    block_quota: int = 5
    vpc_id: str | None = None
    given_blocks: tuple[IPv4Network, ...] = ()
    given_subnets: tuple[GivenSubnet, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketsPlan:
    """Ages, in days, after which dataset versions and checkpoints are thinned out."""

    dataset_infrequent_after_days: int = 90
    noncurrent_expire_after_days: int = 30
    access_log_expire_after_days: int = 365


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPlan:
    """Everything one region holds. `addresses` is empty until `plan()` has allocated."""

    region: str
    zones: tuple[str, ...]
    network: NetworkPlan
    buckets: BucketsPlan
    lustre: tuple[LustrePlan, ...]
    lustre_grow_to: dict[str, int]
    home: OpenZfsPlan | None
    clusters: tuple[ClusterPlan, ...]
    workload: WorkloadPlan | None = None
    addresses: AddressPlan = field(default_factory=lambda: AddressPlan(blocks=(), subnets=()))
    given: dict[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformPlan:
    """The whole deployment: one name, several regions."""

    name: str
    account: str | None
    protect: bool
    tags: dict[str, str]
    regions: tuple[RegionPlan, ...]

    @property
    def all_tags(self) -> dict[str, str]:
        """What every resource is found by."""
        return {"trainshed": self.name, **self.tags}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Every region's warnings, in order."""
        return tuple(f"{r.region}: {w}" for r in self.regions for w in (*r.warnings, *r.addresses.warnings))
