"""Which VPC endpoints a region needs, and why.

Sources: the HyperPod and Systems Manager pages on closed networks; each interface endpoint takes one
address in each of its zones (AWS PrivateLink Guide).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

INTERFACE_ENDPOINTS: Mapping[str, str] = MappingProxyType({
    "ec2": "HyperPod's agent describes interfaces",
    "ecr.api": "image manifests",
    "ecr.dkr": "image layers' addresses",
    "eks": "cluster discovery",
    "eks-auth": "pod identity",
    "ec2messages": "Systems Manager, older agents",
    "events": "evaluation triggers",
    "fsx": "the Lustre client asks whether the file system speaks EFA",
    "kms": "decrypting volumes and objects",
    "lambda": "custom logic of the firm",
    "logs": "lifecycle and job logs",
    "monitoring": "CloudWatch metrics",
    "aps-workspaces": "remote write to Amazon Managed Service for Prometheus",
    "sagemaker.api": "node and cluster calls",
    "secretsmanager": "accounting credentials and certificates",
    "sqs": "evaluation queue",
    "ssm": "shell access without SSH",
    "ssmmessages": "shell access without SSH",
    "sts": "role credentials",
})  # fmt: skip

CLOSED_NETWORK: tuple[str, ...] = (
    "aps-workspaces", "ec2", "ec2messages", "ecr.api", "ecr.dkr", "fsx", "kms", "logs", "monitoring",
    "sagemaker.api", "secretsmanager", "ssm", "ssmmessages", "sts",
)  # fmt: skip


def endpoints_for(egress: str, extra: tuple[str, ...]) -> tuple[str, ...]:
    """Interface endpoints of a region; S3 always comes as a gateway endpoint, which takes no address."""
    return tuple(sorted({*(CLOSED_NETWORK if egress == "closed" else ()), *extra}))
