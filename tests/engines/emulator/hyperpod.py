"""AWS::SageMaker::Cluster: the order and the shapes HyperPod insists on.

Source: SageMaker AI Developer Guide, "Prerequisites for using SageMaker HyperPod", "Slurm configuration", and
the CreateCluster and UpdateCluster references.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ministack.core.responses import get_account_id, get_region
from ministack.services import s3

from . import roles, security_groups, shapes
from .addresses import Occupancy, subnet
from .inventory import Inventory
from .kinds import Change, Properties, Provided, Refused

Addresses = Callable[[str, str, str], int]
"""Instance type, orchestrator, interface type: addresses of one node."""


def refuse(message: str, code: str = "ValidationException") -> Refused:
    """SageMaker says no."""
    return Refused(message, service="SageMaker", code=code)


class Cluster(Provided):
    """A cluster: its groups' nodes, addresses, scripts and roles."""

    type = "AWS::SageMaker::Cluster"

    def __init__(
        self, inventory: Inventory, occupancy: Occupancy, per_node: Addresses, has_efa: Callable[[str], bool]
    ) -> None:
        self._inventory = inventory
        self._occupancy = occupancy
        self._per_node = per_node
        self._has_efa = has_efa

    def check(self, change: Change) -> None:
        """Shape, then what each group refers to, then network and room."""
        p = change.properties
        shapes.check("sagemaker", "CreateCluster", p, refuse)
        self._check_name(change)
        _check_modes(p)
        if "Slurm" in p.get("Orchestrator", {}) and _is_configured(p):
            _check_slurm(p["InstanceGroups"])
        if change.previous:
            _check_immutable(change.previous, p)
        for group in p["InstanceGroups"]:
            _check_scripts(group, orchestrator=_orchestrator(p))
            _check_role(group, in_vpc=bool(_vpc(p, group)))
            self._check_storage(change.region, group, in_vpc=bool(_vpc(p, group)))
            self._check_network(p, group)
        self._occupancy.demand(dict(self.addresses(p)), besides=change.physical_id, service="SageMaker")

    def _check_name(self, change: Change) -> None:
        name = change.properties.get("ClusterName")
        taken = (
            r
            for r in self._inventory.records(change.region, self.type)
            if r.properties.get("ClusterName") == name
        )
        if name and any(r.physical_id != change.physical_id for r in taken):
            raise refuse(f"Cluster with name {name} already exists", "ResourceInUse")

    def _check_storage(self, region: str, group: Properties, *, in_vpc: bool) -> None:
        live = [r.attributes for r in self._inventory.records(region, "AWS::FSx::FileSystem")]
        for storage in group.get("InstanceStorageConfigs", []):
            mounted = storage.get("FsxLustreConfig") or storage.get("FsxOpenZfsConfig")
            if mounted is None:
                continue
            if not in_vpc:
                raise refuse("FSx configurations are only supported for Custom VPC")
            names = {"DnsName": "DNSName", "MountName": "LustreMountName"}
            wanted = {attribute: mounted[key] for key, attribute in names.items() if key in mounted}
            if not any(wanted.items() <= attributes.items() for attributes in live):
                raise refuse(
                    f"FSx file system {mounted['DnsName']} ({mounted.get('MountName')}) was not found"
                )

    def _check_network(self, properties: Properties, group: Properties) -> None:
        vpc = _vpc(properties, group)
        if not vpc:
            return
        for subnet_id in vpc["Subnets"]:
            record = subnet(subnet_id, service="SageMaker")
            if record.get("MapPublicIpOnLaunch"):
                raise refuse(f"Subnet {subnet_id} must be private: it assigns public addresses")
            security_groups.require_groups(vpc["SecurityGroupIds"], record["VpcId"], service="SageMaker")
        if self._has_efa(group.get("InstanceType", "")) and not security_groups.permits_efa(
            vpc["SecurityGroupIds"]
        ):
            message = (
                "EFA health checks did not run successfully. Ensure that your VPC and security groups are "
                "properly configured before attempting to create a new cluster. "
                f"(instance group {group['InstanceGroupName']})"
            )
            raise refuse(message)

    def create(self, change: Change) -> str:
        """Ref is the ARN."""
        return f"arn:aws:sagemaker:{change.region}:{get_account_id()}:cluster/{secrets.token_hex(6)}"

    def attributes(self, physical_id: str, properties: Properties, region: str) -> dict[str, Any]:
        """A cluster that has come up."""
        return {
            "ClusterArn": physical_id,
            "ClusterStatus": "InService",
            "CreationTime": "2026-01-01T00:00:00Z",
        }

    def addresses(self, properties: Properties) -> Iterable[tuple[str, int]]:
        """All of a group's nodes in one subnet: HyperPod picks one, here the first."""
        taken: Counter[str] = Counter()
        for group in properties["InstanceGroups"]:
            vpc = _vpc(properties, group)
            if vpc:
                interface = group.get("NetworkInterface", {}).get("InterfaceType", "efa")
                each = self._per_node(group.get("InstanceType", ""), _orchestrator(properties), interface)
                taken[vpc["Subnets"][0]] += each * int(group["InstanceCount"])
        return taken.items()

    def security_groups(self, properties: Properties) -> Iterable[str]:
        """Those of every group's interfaces."""
        return {
            g
            for group in properties["InstanceGroups"]
            for g in _vpc(properties, group).get("SecurityGroupIds", [])
        }


def _orchestrator(properties: Properties) -> str:
    return "eks" if "Eks" in properties.get("Orchestrator", {}) else "slurm"


def _vpc(properties: Properties, group: Properties) -> dict[str, Any]:
    return group.get("OverrideVpcConfig") or properties.get("VpcConfig") or {}


def _is_configured(properties: Properties) -> bool:
    continuous = properties.get("NodeProvisioningMode") == "Continuous"
    return continuous or any("SlurmConfig" in g for g in properties["InstanceGroups"])


def _check_modes(properties: Properties) -> None:
    slurm = properties.get("Orchestrator", {}).get("Slurm", {})
    continuous = properties.get("NodeProvisioningMode") == "Continuous"
    if continuous and "SlurmConfigStrategy" in slurm:
        raise refuse("SlurmConfigStrategy is not supported for clusters with NodeProvisioningMode Continuous")
    if "AccountingDatabase" in slurm and not continuous:
        raise refuse("AccountingDatabase is only supported for clusters with NodeProvisioningMode Continuous")
    names = Counter(g["InstanceGroupName"] for g in properties["InstanceGroups"])
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise refuse(f"Instance group names must be unique: {twice[0]}")
    for group in properties["InstanceGroups"]:
        if "MinInstanceCount" in group and not continuous:
            raise refuse("MinInstanceCount is only supported with NodeProvisioningMode Continuous")
    if _orchestrator(properties) == "eks" and not properties.get("VpcConfig"):
        raise refuse("VpcConfig is required for clusters orchestrated by EKS")


def _check_slurm(groups: Iterable[Properties]) -> None:
    kinds = Counter(g.get("SlurmConfig", {}).get("NodeType") for g in groups)
    if kinds["Controller"] != 1:
        raise refuse("Cluster must have exactly one InstanceGroup with Controller node type")
    if kinds["Login"] > 1:
        raise refuse("Cluster can have at most one InstanceGroup with Login node type")
    for group in groups:
        name, slurm = group["InstanceGroupName"], group.get("SlurmConfig")
        if slurm is None:
            raise refuse(f"SlurmConfig is required for instance group {name}")
        if slurm["NodeType"] == "Compute" and not slurm.get("PartitionNames"):
            raise refuse(f"PartitionNames is required for Compute instance group {name}")
        if slurm["NodeType"] != "Compute" and slurm.get("PartitionNames"):
            raise refuse("Partitions can only be assigned to Compute node types")


def _check_immutable(old: Properties, new: Properties) -> None:
    before = {g["InstanceGroupName"]: g for g in old["InstanceGroups"]}
    for group in new["InstanceGroups"]:
        was = before.get(group["InstanceGroupName"], group)
        for path in ("InstanceType", "OverrideVpcConfig", "SlurmConfig.NodeType"):
            if _member(was, path) != _member(group, path):
                raise refuse(f"{path} of instance group {group['InstanceGroupName']} is immutable")


def _member(group: Properties, path: str) -> Any:
    name, _, inner = path.partition(".")
    value = group.get(name)
    return value.get(inner) if inner and isinstance(value, dict) else value


def _check_scripts(group: Properties, *, orchestrator: str) -> None:
    life = group.get("LifeCycleConfig")
    name = group["InstanceGroupName"]
    if orchestrator == "eks" and not (life and "OnCreate" in life):
        raise refuse(f"LifeCycleConfig is required for instance group {name}")
    if not life:
        return
    if ("OnCreate" in life) == ("OnInitComplete" in life):
        raise refuse(f"Exactly one of OnCreate and OnInitComplete must be given for instance group {name}")
    bucket, _, prefix = life["SourceS3Uri"].split("://", 1)[1].partition("/")
    script = life.get("OnCreate") or life["OnInitComplete"]
    key = "/".join(part for part in (prefix.strip("/"), script) if part)
    if key not in s3._buckets.get(bucket, {}).get("objects", {}):
        raise refuse(f"Lifecycle script s3://{bucket}/{key} of instance group {name} does not exist")
    roles.require(group["ExecutionRole"], "s3:GetObject", f"arn:aws:s3:::{bucket}/{key}", refuse)
    roles.require(group["ExecutionRole"], "s3:ListBucket", f"arn:aws:s3:::{bucket}", refuse)


def _check_role(group: Properties, *, in_vpc: bool) -> None:
    role = group["ExecutionRole"]
    roles.require_trust(role, "sagemaker.amazonaws.com", refuse)
    interface = f"arn:aws:ec2:{get_region()}:{get_account_id()}:network-interface/eni-1"
    for action in roles.IN_VPC if in_vpc else ():
        roles.require(role, action, "*" if ":Describe" in action else interface, refuse)
    if any("FsxLustreConfig" in storage for storage in group.get("InstanceStorageConfigs", [])):
        # AWS creates the cluster, and the client falls back from EFA to TCP without a word.
        roles.require(role, "fsx:DescribeFileSystems", "*", refuse)
