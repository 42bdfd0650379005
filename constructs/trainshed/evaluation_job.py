"""A SageMaker Processing job that scores one checkpoint: what is asked of the API, and the job's role."""

from __future__ import annotations

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from .image import pull_from
from .node_policy import CREATE_INTERFACES, DESCRIBE_NETWORK, WRITE_LOGS, allow
from .place import place_of
from .planning.workload import TOKENIZER, EvaluationPlan, evaluation_arguments
from .principals import service

PYTHON = ("/opt/trainer/bin/python", "-m")
_LOGS = "/aws/sagemaker/ProcessingJobs"


class EvaluationJob(Construct):
    """`request`: CreateProcessingJob's parameters but the name, `{checkpoint}` and `{out}` left to fill in.

    The job is in the VPC, where S3's gateway endpoint is its way out, so network isolation is off.

    Args:
        plan: type, limits and data.
        image_uri: the trainer's image.
        repository_arn: where it is pulled from.
        checkpoints: read; only `evaluations` in it are written.
        datasets: read.
        key: decrypts both, and encrypts the job's volume where it is not a local disk.
        subnet_id: the job's.
        security_group: the job's.
        tags: what the jobs are found by; CloudFormation does not make them, so no stack's tags reach them.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, plan: EvaluationPlan, image_uri: str,
        repository_arn: str, checkpoints: s3.IBucket, datasets: s3.IBucket, key: kms.IKey, subnet_id: str,
        security_group: ec2.ISecurityGroup, tags: Mapping[str, str],
    ) -> None:  # fmt: skip
        super().__init__(scope, construct_id)
        group = security_group.security_group_id
        statements = [
            *pull_from(repository_arn),
            *_data(checkpoints, datasets),
            allow(["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey"], [key.key_arn]),
            *_service(cdk.Stack.of(self), subnet_id, group),
        ]
        document = iam.PolicyDocument.from_json({"Version": "2012-10-17", "Statement": statements})
        role = iam.Role(
            self, "Role", assumed_by=service("sagemaker.amazonaws.com"),
            managed_policies=[iam.ManagedPolicy(self, "Policy", document=document)],
        )  # fmt: skip
        self.role_arn = role.role_arn
        root = f"s3://{datasets.bucket_name}"
        self.volume_has_key = not plan.has_own_disks
        volume_key = {"VolumeKmsKeyId": key.key_arn} if self.volume_has_key else {}
        inputs = {"InputName": "tokenizer", "S3Input": {
            "S3Uri": f"{root}/{plan.tokenizer}/", "LocalPath": TOKENIZER, "S3DataType": "S3Prefix",
            "S3InputMode": "File",
        }}  # fmt: skip
        self.request: dict[str, object] = {
            "RoleArn": self.role_arn,
            "AppSpecification": {
                "ImageUri": image_uri,
                "ContainerEntrypoint": [*PYTHON],
                "ContainerArguments": evaluation_arguments(plan, data=root),
            },
            "ProcessingResources": {"ClusterConfig": {
                "InstanceCount": 1, "InstanceType": plan.instance_type, "VolumeSizeInGB": plan.volume_gb,
                **volume_key,
            }},
            "NetworkConfig": {
                "EnableNetworkIsolation": False,
                "VpcConfig": {"Subnets": [subnet_id], "SecurityGroupIds": [group]},
            },
            "StoppingCondition": {"MaxRuntimeInSeconds": plan.max_hours * 3600},
            "ProcessingInputs": [inputs] if plan.tokenizer else [],
            "Tags": [{"Key": name, "Value": value} for name, value in tags.items()],
        }  # fmt: skip


def _data(checkpoints: s3.IBucket, datasets: s3.IBucket) -> list[dict[str, object]]:
    buckets = (checkpoints, datasets)
    return [
        allow(["s3:ListBucket"], [bucket.bucket_arn for bucket in buckets]),
        allow(["s3:GetObject"], [bucket.arn_for_objects("*") for bucket in buckets]),
        allow(["s3:PutObject"], [checkpoints.arn_for_objects("*evaluations/step-*")]),
    ]


def _service(stack: cdk.Stack, subnet_id: str, security_group_id: str) -> list[dict[str, object]]:
    """What SageMaker does in the role's name: logs, metrics, interfaces in the VPC."""
    place = place_of(stack)
    logs = place.arn("logs", f"log-group:{_LOGS}")
    interfaces = [
        place.arn("ec2", name)
        for name in ("network-interface/*", f"subnet/{subnet_id}", f"security-group/{security_group_id}")
    ]
    namespace = {"cloudwatch:namespace": _LOGS}
    return [
        allow(WRITE_LOGS, [logs, f"{logs}:log-stream:*"]),
        allow(["cloudwatch:PutMetricData"], ["*"], {"StringEquals": namespace}),
        allow(CREATE_INTERFACES, interfaces),
        allow(DESCRIBE_NETWORK, ["*"]),
    ]
