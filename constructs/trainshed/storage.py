"""FSx for Lustre and its ties to S3.

Built on the L1: the L2 knows neither EFA nor metadata configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct, IDependable

from .encryption import log_group
from .planning.storage import AssociationPlan, LustrePlan
from .settings_function import FileSystemSettings

LOG_RETENTION_DAYS = 90
_PROPORTIONAL = "PROPORTIONAL_TO_THROUGHPUT_CAPACITY"
_CACHE_MODES = {"no-cache": "NO_CACHE", "proportional": _PROPORTIONAL, "user": "USER_PROVISIONED"}


class LustreFileSystem(Construct):
    """A PERSISTENT_2 file system at Lustre 2.15 that survives its stack.

    Args:
        plan: a plan that `check_lustre` accepts.
        platform: prefix of the log group's name, which FSx wants to begin with /aws/fsx.
        subnet_id: its only subnet, in the zone of its clients.
        security_group: must let Lustre, or EFA, through to itself.
        rules: the group's rules. FSx looks for them at creation, so it waits for them.
        key: encrypts data and logs.
        buckets: buckets by the names that associations use; other names are taken literally.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        plan: LustrePlan,
        platform: str,
        subnet_id: str,
        security_group: ec2.ISecurityGroup,
        rules: Sequence[IDependable],
        key: kms.IKey,
        buckets: Mapping[str, s3.IBucket],
    ) -> None:
        super().__init__(scope, construct_id)
        self.plan = plan
        name = f"/aws/fsx/{platform}/{plan.name}"
        logs = log_group(self, "Logs", key=key, retention_days=LOG_RETENTION_DAYS, name=name)
        self.cfn = fsx.CfnFileSystem(
            self,
            "FileSystem",
            file_system_type="LUSTRE",
            file_system_type_version=plan.version,
            storage_type="INTELLIGENT_TIERING" if plan.storage_class == "intelligent-tiering" else "SSD",
            storage_capacity=plan.capacity_gib,
            subnet_ids=[subnet_id],
            security_group_ids=[security_group.security_group_id],
            kms_key_id=key.key_arn,
            lustre_configuration=_configuration(plan, logs.attr_arn),
            tags=[cdk.CfnTag(key="Name", value=f"{platform}-{plan.name}")],
        )
        self.cfn.apply_removal_policy(cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE)
        self.cfn.node.add_dependency(*rules)
        self.associations = [self._associate(a, buckets) for a in plan.associations]
        if plan.root_squash:
            self._squash_root(plan, key)

    @property
    def dns_name(self) -> str:
        """Host that clients mount."""
        return self.cfn.attr_dns_name

    @property
    def mount_name(self) -> str:
        """Lustre's own name of the file system."""
        return self.cfn.attr_lustre_mount_name

    def _associate(
        self, plan: AssociationPlan, buckets: Mapping[str, s3.IBucket]
    ) -> fsx.CfnDataRepositoryAssociation:
        bucket = buckets[plan.bucket].bucket_name if plan.bucket in buckets else plan.bucket
        prefix = f"{plan.prefix.strip('/')}/" if plan.prefix.strip("/") else ""
        events = fsx.CfnDataRepositoryAssociation
        association = events(
            self,
            f"Link{plan.file_system_path}",
            file_system_id=self.cfn.ref,
            file_system_path=plan.file_system_path,
            data_repository_path=f"s3://{bucket}/{prefix}",
            batch_import_meta_data_on_create=plan.batch_import,
            imported_file_chunk_size=plan.chunk_mib,
            s3=events.S3Property(
                auto_import_policy=events.AutoImportPolicyProperty(events=list(plan.import_events)),
                auto_export_policy=events.AutoExportPolicyProperty(events=list(plan.export_events)),
            ),
        )
        association.apply_removal_policy(cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE)
        return association

    def _squash_root(self, plan: LustrePlan, key: kms.IKey) -> None:
        squash = cdk.CustomResource(
            self,
            "RootSquash",
            service_token=FileSystemSettings.of(self, key=key).serve(self.cfn),
            service_timeout=cdk.Duration.minutes(15),
            resource_type="Custom::LustreRootSquash",
            properties={
                "FileSystemId": self.cfn.ref,
                "RootSquash": plan.root_squash,
                "NoSquashNids": list(plan.no_squash_nids),
            },
        )
        squash.node.add_dependency(*self.associations)


def _configuration(plan: LustrePlan, log_group_arn: str) -> fsx.CfnFileSystem.LustreConfigurationProperty:
    prop = fsx.CfnFileSystem
    by_class: dict[str, Any]
    if plan.storage_class == "ssd":
        by_class = {"per_unit_storage_throughput": plan.throughput_mbps_per_tib}
    else:
        cache = plan.read_cache
        by_class = {
            "throughput_capacity": plan.throughput_mbps,
            "data_read_cache_configuration": cache and prop.DataReadCacheConfigurationProperty(
                sizing_mode=_CACHE_MODES[cache.mode], size_gib=cache.size_gib
            ),
        }  # fmt: skip
    return prop.LustreConfigurationProperty(
        deployment_type=plan.deployment_type,
        efa_enabled=plan.efa,
        data_compression_type=plan.compression.upper(),
        automatic_backup_retention_days=plan.backup_days,
        weekly_maintenance_start_time=plan.maintenance,
        metadata_configuration=prop.MetadataConfigurationProperty(
            mode="AUTOMATIC" if plan.metadata_iops is None else "USER_PROVISIONED", iops=plan.metadata_iops
        ),
        log_configuration=prop.LogConfigurationProperty(level="WARN_ERROR", destination=log_group_arn),
        **by_class,
    )
