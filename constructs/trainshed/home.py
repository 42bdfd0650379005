"""Shared home directories on FSx for OpenZFS."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_kms as kms
from constructs import Construct

from .planning.storage import OpenZfsPlan


class OpenZfsHome(Construct):
    """A highly available OpenZFS file system for /home that survives its stack.

    Args:
        plan: a plan that `check_openzfs` accepts.
        subnet_id: its subnet.
        security_group: must let NFS through to itself.
        key: encrypts the data.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        plan: OpenZfsPlan,
        subnet_id: str,
        security_group: ec2.ISecurityGroup,
        key: kms.IKey,
    ) -> None:
        super().__init__(scope, construct_id)
        prop = fsx.CfnFileSystem
        self.cfn = prop(
            self,
            "FileSystem",
            file_system_type="OPENZFS",
            storage_capacity=plan.capacity_gib,
            storage_type="SSD",
            subnet_ids=[subnet_id],
            security_group_ids=[security_group.security_group_id],
            kms_key_id=key.key_arn,
            open_zfs_configuration=prop.OpenZFSConfigurationProperty(
                deployment_type=plan.deployment,
                throughput_capacity=plan.throughput_mbps,
                automatic_backup_retention_days=plan.backup_days,
                copy_tags_to_backups=True,
                weekly_maintenance_start_time=plan.maintenance,
                root_volume_configuration=prop.RootVolumeConfigurationProperty(
                    data_compression_type=plan.compression.upper(),
                    nfs_exports=[prop.NfsExportsProperty(client_configurations=[
                        prop.ClientConfigurationsProperty(clients="*", options=["rw", "crossmnt"])
                    ])],
                ),
            ),
        )  # fmt: skip
        self.cfn.apply_removal_policy(cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE)

    @property
    def dns_name(self) -> str:
        """Host that clients mount."""
        return self.cfn.attr_dns_name
