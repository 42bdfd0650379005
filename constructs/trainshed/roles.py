"""Execution roles of HyperPod nodes: one a node role, each with what that role does and no more.

Written out after AWS's managed policy AmazonSageMakerClusterInstanceRolePolicy and the Slurm-in-a-VPC
page ("IAM for HyperPod"), narrowed to this cluster's logs, folder, security group and key.
"""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from .image import pull_from
from .node_policy import allow, everywhere, list_bucket, read_objects, use_key
from .planning.model import NodeRole
from .planning.nodes import MIRROR
from .principals import service


class NodeExecutionRole(Construct):
    """The role that nodes of one kind run under.

    Args:
        node_role: controller, login or worker.
        cluster_name: whose logs it writes.
        security_group: the only one its network interfaces may be in.
        lifecycle_bucket: where the boot scripts lie.
        prefix: the cluster's folder in it.
        key: decrypts scripts and data.
        datasets: readable from login and worker nodes.
        checkpoints: written by worker nodes, readable from login nodes.
        secrets: what nodes of this kind read, by ARN.
        workspace_arn: the AMP workspace that nodes write metrics to.
        watches_alarms: scheduled updates with rollback need to read alarms.
        pulls_from: ARN of the repository that login and worker nodes pull the workload's image from.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        node_role: NodeRole,
        cluster_name: str,
        security_group: ec2.ISecurityGroup,
        lifecycle_bucket: s3.IBucket,
        prefix: str,
        key: kms.IKey,
        datasets: s3.IBucket,
        checkpoints: s3.IBucket,
        secrets: Sequence[str] = (),
        workspace_arn: str | None = None,
        watches_alarms: bool = False,
        pulls_from: str | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        scripts = lifecycle_bucket.bucket_arn
        statements = [
            *everywhere(cdk.Stack.of(self), cluster_name, security_group.security_group_id),
            list_bucket(scripts, prefix),
            read_objects(scripts, prefix, MIRROR),
            use_key(key, write=node_role == "worker"),
        ]
        if node_role != "controller":
            data, runs = datasets.bucket_arn, checkpoints.bucket_arn
            statements += [list_bucket(data), read_objects(data), list_bucket(runs), read_objects(runs)]
            statements += pull_from(pulls_from) if pulls_from else ()
            if node_role == "worker":
                write = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
                statements.append(allow(write, [f"{runs}/*"]))
        if secrets:
            statements.append(allow(["secretsmanager:GetSecretValue"], secrets))
        if workspace_arn:
            statements.append(allow(["aps:RemoteWrite"], [workspace_arn]))
        if watches_alarms:
            statements.append(allow(["cloudwatch:DescribeAlarms"], ["*"]))
        document = iam.PolicyDocument.from_json({"Version": "2012-10-17", "Statement": statements})
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=service("sagemaker.amazonaws.com"),
            managed_policies=[iam.ManagedPolicy(self, "Policy", document=document)],
        )
        self.role_arn = self.role.role_arn
