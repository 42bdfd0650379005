"""A HyperPod cluster: instance groups in planned subnets, over one file system and one set of scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct, IDependable

from .lifecycle import LifecycleScripts
from .patching import auto_patch, scheduled_update
from .planning.model import ClusterPlan, InstanceGroupPlan, NodeRole
from .slurm import SlurmOrchestrator

_cfn = sagemaker.CfnCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file system as nodes mount it. `mount_name` is Lustre's own; OpenZFS has none."""

    dns_name: str
    mount_path: str
    mount_name: str | None = None


class HyperPodCluster(Construct):
    """A cluster whose every group sits in its own subnet.

    Args:
        plan: what `trainshed.planning` has checked.
        name: the cluster's name in AWS, 1 to 63 letters, digits and hyphens; it can never change.
        subnet_ids: by claim name.
        security_group: lets EFA through to itself.
        rules: the group's rules; nodes fail their EFA check when they come up first.
        roles: execution role ARN by node role.
        scripts: uploaded before any node starts.
        orchestrator: who schedules.
        mounts: file systems that HyperPod itself mounts on every node.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        plan: ClusterPlan,
        name: str,
        subnet_ids: Mapping[str, str],
        security_group: ec2.ISecurityGroup,
        rules: Sequence[IDependable],
        roles: Mapping[NodeRole, str],
        scripts: LifecycleScripts,
        orchestrator: SlurmOrchestrator,
        mounts: Sequence[Mount] = (),
    ) -> None:
        super().__init__(scope, construct_id)
        self._security_group_ids = [security_group.security_group_id]
        self._subnet_ids = subnet_ids
        first = next((g for g in plan.groups if g.role == "controller"), plan.groups[0])
        groups = [self._group(g, roles[g.role], scripts, orchestrator, mounts) for g in plan.groups]
        self.cfn = _cfn(
            self,
            "Cluster",
            cluster_name=name,
            # Fixed for life, like the controller's subnet; groups say their own.
            vpc_config=self._vpc_config(first.claim),
            orchestrator=orchestrator.orchestrator(),
            instance_groups=groups,
            node_recovery="Automatic" if plan.node_recovery else "None",
            node_provisioning_mode="Continuous" if plan.continuous_provisioning else None,
        )
        self.cfn.node.add_dependency(*rules, scripts.upload)
        self.cluster_arn = self.cfn.attr_cluster_arn

    def _vpc_config(self, claim: str) -> sagemaker.CfnCluster.VpcConfigProperty:
        return _cfn.VpcConfigProperty(
            subnets=[self._subnet_ids[claim]], security_group_ids=self._security_group_ids
        )

    def _group(
        self,
        plan: InstanceGroupPlan,
        role_arn: str,
        scripts: LifecycleScripts,
        orchestrator: SlurmOrchestrator,
        mounts: Sequence[Mount],
    ) -> sagemaker.CfnCluster.ClusterInstanceGroupProperty:
        several = len(plan.instance_types) > 1
        hook = {orchestrator.lifecycle_hook: scripts.entry}
        return _cfn.ClusterInstanceGroupProperty(
            instance_group_name=plan.name,
            instance_count=plan.count,
            min_instance_count=plan.minimum,
            instance_type=None if several else plan.instance_type,
            instance_requirements=(
                _cfn.InstanceRequirementsProperty(instance_types=list(plan.instance_types))
                if several
                else None
            ),
            execution_role=role_arn,
            life_cycle_config=_cfn.ClusterLifeCycleConfigProperty(
                source_s3_uri=scripts.source_s3_uri, **hook
            ),
            override_vpc_config=self._vpc_config(plan.claim),
            network_interface=(
                _cfn.ClusterNetworkInterfaceProperty(interface_type=plan.interface) if plan.has_efa else None
            ),
            instance_storage_configs=_storage(plan, mounts) or None,
            capacity_requirements=_cfn.ClusterCapacityRequirementsProperty(spot={})
            if plan.capacity == "spot"
            else None,
            training_plan_arn=plan.training_plan_arn,
            threads_per_core=plan.threads_per_core,
            on_start_deep_health_checks=list(plan.deep_health_checks) or None,
            slurm_config=orchestrator.group(plan),
            image_id=plan.image_id,
            scheduled_update_config=scheduled_update(plan.patching),
            auto_patch_config=auto_patch(plan.patching),
        )


def _storage(
    plan: InstanceGroupPlan, mounts: Sequence[Mount]
) -> list[sagemaker.CfnCluster.ClusterInstanceStorageConfigProperty]:
    config = _cfn.ClusterInstanceStorageConfigProperty
    found = [
        config(fsx_lustre_config=_cfn.ClusterFsxLustreConfigProperty(
            dns_name=m.dns_name, mount_name=m.mount_name, mount_path=m.mount_path,
        ))
        if m.mount_name
        else config(fsx_open_zfs_config=_cfn.ClusterFsxOpenZfsConfigProperty(
            dns_name=m.dns_name, mount_path=m.mount_path,
        ))
        for m in mounts
    ]  # fmt: skip
    if plan.scratch_gb:
        found.append(
            config(ebs_volume_config=_cfn.ClusterEbsVolumeConfigProperty(volume_size_in_gb=plan.scratch_gb))
        )
    return found
