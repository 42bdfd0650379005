"""What an IAM role of the emulator may do: enough to catch a missing grant, or one that comes too late."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from ministack.services import iam

IN_VPC = (
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeVpcs",
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeSubnets",
    "ec2:DescribeSecurityGroups",
    "ec2:DetachNetworkInterface",
)
"""What a node's role needs in a VPC. Source: SageMaker AI Developer Guide, "IAM role for HyperPod"."""

_NODE_POLICY = "AmazonSageMakerClusterInstanceRolePolicy"
_NODE_POLICY_BUCKETS = "arn:aws:s3:::sagemaker-*"

Refuse = Callable[[str], Exception]


def require_trust(arn: str, service: str, refuse: Refuse) -> None:
    """The role exists and the service may assume it."""
    if service not in _role(arn, refuse)["AssumeRolePolicyDocument"]:
        message = (
            f"Could not assume role {arn}. Please ensure that it exists and allows principal '{service}'"
        )
        raise refuse(message)


def require(arn: str, action: str, resource: str, refuse: Refuse) -> None:
    """A statement of the role allows the action on the resource, conditions aside."""
    if not any(_allows(s, action, resource) for s in _statements(_role(arn, refuse))):
        raise refuse(f"Role {arn} is not authorized to perform: {action} on resource: {resource}")


def _role(arn: str, refuse: Refuse) -> dict[str, Any]:
    role = iam._roles.get(arn.rpartition("/")[2])
    if role is None:
        raise refuse(f"Could not assume role {arn}. Please ensure that the role exists")
    return role


def _statements(role: dict[str, Any]) -> Iterator[dict[str, Any]]:
    documents = list(role["InlinePolicies"].values())
    for attached in role["AttachedPolicies"]:
        policy = iam._policies.get(attached)
        if policy:
            documents.append(policy["Versions"][policy["DefaultVersionId"]]["Document"])
        elif attached.endswith(_NODE_POLICY):
            yield {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": [f"{_NODE_POLICY_BUCKETS}/*"]}
            yield {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [_NODE_POLICY_BUCKETS]}
    for document in documents:
        parsed = json.loads(document) if isinstance(document, str) else document
        yield from _list(parsed["Statement"])


def _allows(statement: dict[str, Any], action: str, resource: str) -> bool:
    if statement.get("Effect") != "Allow":
        return False
    actions = (pattern.lower() for pattern in _list(statement.get("Action", [])))
    if not any(fnmatchcase(action.lower(), pattern) for pattern in actions):
        return False
    # An action without resource-level permissions is granted on "*" alone, so a narrow grant is not one.
    patterns = _list(statement.get("Resource", []))
    return any(fnmatchcase(resource, pattern) for pattern in patterns)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
