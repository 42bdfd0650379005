"""What outlives clusters: buckets and file systems."""

from __future__ import annotations

from aws_cdk import CfnOutput
from constructs import Construct

from trainshed.buckets import AccessLogBucket, DatasetBucket, LifecycleBucket
from trainshed.home import OpenZfsHome
from trainshed.planning.demand import HOME_CLAIM, lustre_claim
from trainshed.planning.model import PlatformPlan, RegionPlan
from trainshed.storage import LustreFileSystem

from .base import RegionStack
from .network import NetworkStack


class StorageStack(RegionStack):
    """Dataset, checkpoint and lifecycle buckets; Lustre and home file systems."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        platform: PlatformPlan,
        plan: RegionPlan,
        network: NetworkStack,
    ) -> None:
        super().__init__(
            scope, construct_id, region=plan.region, account=platform.account, protect=platform.protect
        )
        ages = plan.buckets
        access_logs = AccessLogBucket(self, "AccessLogs", expire_after_days=ages.access_log_expire_after_days)
        self.datasets = DatasetBucket(
            self,
            "Datasets",
            key=network.key,
            access_logs=access_logs,
            noncurrent_expire_after_days=ages.noncurrent_expire_after_days,
            infrequent_access_after_days=ages.dataset_infrequent_after_days,
        )
        self.checkpoints = DatasetBucket(
            self,
            "Checkpoints",
            key=network.key,
            access_logs=access_logs,
            noncurrent_expire_after_days=ages.noncurrent_expire_after_days,
            events=bool(plan.workload and plan.workload.evaluation),
        )
        self.lifecycle = LifecycleBucket(
            self, "Lifecycle", platform=platform.name, key=network.key, access_logs=access_logs
        )
        self.lustre = {
            fs.name: LustreFileSystem(
                self,
                f"Lustre{fs.name.title()}",
                plan=fs,
                platform=platform.name,
                subnet_id=network.subnet_ids[lustre_claim(fs.name)],
                security_group=network.efa.security_group,
                rules=network.efa.rules,
                key=network.key,
                buckets={"datasets": self.datasets, "checkpoints": self.checkpoints},
            )
            for fs in plan.lustre
        }
        self.home = plan.home and OpenZfsHome(
            self,
            "Home",
            plan=plan.home,
            subnet_id=network.subnet_ids[HOME_CLAIM],
            security_group=network.efa.security_group,
            key=network.key,
        )
        CfnOutput(self, "DatasetsBucket", value=self.datasets.bucket_name)
        CfnOutput(self, "CheckpointsBucket", value=self.checkpoints.bucket_name)
