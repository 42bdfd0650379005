"""One HyperPod cluster over a region's network and storage."""

from __future__ import annotations

from pathlib import Path

from aws_cdk import CfnOutput
from constructs import Construct

from trainshed.cluster_logs import ClusterLogs
from trainshed.hyperpod import HyperPodCluster, Mount
from trainshed.lifecycle import LifecycleScripts
from trainshed.node_services import NodeLogs, workspace_arn
from trainshed.planning.model import ClusterPlan, NodeRole, PlatformPlan, RegionPlan
from trainshed.roles import NodeExecutionRole
from trainshed.settings import settings_of
from trainshed.slurm import SlurmOrchestrator

from .base import RegionStack
from .network import NetworkStack
from .storage import StorageStack

LIFECYCLE = Path(__file__).parent.parent / "lifecycle"


class ClusterStack(RegionStack):
    """Scripts, roles and the cluster itself; nothing in it outlives it."""

    def __init__(
        self, scope: Construct, construct_id: str, *, platform: PlatformPlan, plan: RegionPlan,
        cluster: ClusterPlan, network: NetworkStack, storage: StorageStack, pulls_from: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(scope, construct_id, region=plan.region, account=platform.account)
        name = f"{platform.name}-{cluster.name}"
        lustre = storage.lustre.get(cluster.lustre or "")
        home = storage.home if cluster.home else None
        logs = NodeLogs(self, "NodeLogs", cluster_name=name, plan=cluster, key=network.key)
        mounts: list[Mount] = []
        if lustre:
            mounts.append(Mount(dns_name=lustre.dns_name, mount_name=lustre.mount_name, mount_path="/fsx"))
        if home:
            mounts.append(Mount(dns_name=home.dns_name, mount_path="/home"))
        scripts = LifecycleScripts(
            self, "Lifecycle", bucket=storage.lifecycle, prefix=cluster.name, folder=str(LIFECYCLE),
            entry="on_init_complete.sh", key=network.key, site=cluster.nodes.site,
            settings=settings_of(
                platform=platform.name, region=plan.region, cluster=cluster, mounts=mounts,
                lustre_efa=bool(lustre and lustre.plan.efa), log_group=logs.name,
                buckets={
                    "datasets": storage.datasets.bucket_name,
                    "checkpoints": storage.checkpoints.bucket_name,
                    "lifecycle": storage.lifecycle.bucket_name,
                },
            ),
        )  # fmt: skip
        kinds: dict[NodeRole, None] = {group.role: None for group in cluster.groups}
        roles: dict[NodeRole, str] = {
            role: NodeExecutionRole(
                self, f"{role.title()}Role", node_role=role, cluster_name=name, prefix=cluster.name,
                security_group=network.efa.security_group, lifecycle_bucket=storage.lifecycle,
                key=network.key, datasets=storage.datasets, checkpoints=storage.checkpoints,
                secrets=cluster.secrets(role), workspace_arn=workspace_arn(self, cluster.nodes.metrics),
                pulls_from=pulls_from,
                watches_alarms=any(g.watches_alarms for g in cluster.groups if g.role == role),
            ).role_arn
            for role in kinds
        }  # fmt: skip
        hyperpod = HyperPodCluster(
            self, "HyperPod", plan=cluster, name=name, subnet_ids=network.subnet_ids,
            security_group=network.efa.security_group, rules=network.efa.rules, roles=roles, scripts=scripts,
            orchestrator=SlurmOrchestrator(accounting=cluster.accounting), mounts=mounts,
        )  # fmt: skip
        ClusterLogs(
            self, "Logs", cluster_name=name, cluster_arn=hyperpod.cluster_arn,
            retention_days=cluster.log_retention_days, key=network.key,
        )  # fmt: skip
        CfnOutput(self, "ClusterArn", value=hyperpod.cluster_arn)
