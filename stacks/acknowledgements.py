"""What the validation plugins find and we accept: where, which rule, and why."""

from __future__ import annotations

from collections.abc import Mapping

from constructs import Construct

from trainshed.findings import Accepted, Acknowledgements

from .base import RegionStack
from .cluster import ClusterStack
from .network import NetworkStack
from .storage import StorageStack

NIST = "NIST.800.53.R5"
IAM5 = "AwsSolutions-IAM5"
NODES = "ControllerRole/Policy LoginRole/Policy WorkerRole/Policy"
UPLOAD = "Custom::CDKBucketDeployment8693BB64968944B69AAFB0CC9EB8756C512MiB"
USERS = "LoginRole/Policy WorkerRole/Policy"
GRANTS = "Lifecycle/Identity/Role/DefaultPolicy"


def _called_by_cloudformation(path: str, calls: str) -> tuple[Accepted, ...]:
    return (
        Accepted(path, f"{NIST}-LambdaConcurrency",
            "{name} runs once a deploy; reserving would take from the account's pool, in which may be 10"),
        Accepted(path, f"{NIST}-LambdaDLQ",
            "{name} tells CloudFormation of its failures, which rolls back; nobody would read a queue"),
        Accepted(path, f"{NIST}-LambdaInsideVPC", f"{{name}} calls {calls} and nothing inside the VPC"),
    )  # fmt: skip


TABLE: Mapping[type[RegionStack], tuple[Accepted, ...]] = {
    NetworkStack: (
        Accepted("Vpc/Vpc", f"{NIST}-VPCDefaultSecurityGroupClosed",
            "CloudFormation cannot empty the default group of Vpc; every interface is put in another"),
        Accepted("Vpc/PublicRoute", f"{NIST}-VPCNoUnrestrictedRouteToIGW",
            "PublicRoute leads NAT gateways out; subnets of nodes and file systems have no such route"),
        Accepted("Efa/SelfIngress", f"{NIST}-EC2RestrictedCommonPorts",
            "EFA needs all traffic let in; SelfIngress lets it in from members of its own group"),
    ),
    StorageStack: (
        Accepted("AccessLogs", f"{NIST}-S3DefaultEncryptionKMS",
            "AccessLogs has SSE-S3, because S3 delivers access logs to no other kind of bucket"),
        Accepted("AccessLogs", f"{NIST}-S3BucketReplicationEnabled",
            "AccessLogs records the requests of this region, until they are old enough to go"),
        Accepted("Datasets Checkpoints", f"{NIST}-S3BucketReplicationEnabled",
            "{name} is versioned and retained; to pay for a copy in another region is its owner's choice"),
        Accepted("Lifecycle", f"{NIST}-S3BucketReplicationEnabled",
            "Lifecycle is filled from the repository at each deploy"),
        *_called_by_cloudformation("FileSystemSettings/Function", "the API of FSx"),
    ),
    ClusterStack: (
        Accepted("HyperPod/Cluster", "CloudFormation-Validate::E3644",
            "The planner checked where Cluster's instance types are sold; the engine's list lags behind"),
        Accepted(UPLOAD, "AwsSolutions-L1", "{name} is CDK's own, and so is the choice of its runtime"),
        *_called_by_cloudformation(UPLOAD, "the API of S3"),
        *_called_by_cloudformation("Logs/Function", "the API of CloudWatch Logs"),
        Accepted("Logs/Identity/Policy", f"{IAM5}[Resource::…:log-group:/aws/sagemaker/Clusters/…/*]",
            "{name} ends the logs of its cluster, under an id that HyperPod makes up"),
        Accepted(GRANTS, f"{NIST}-IAMNoInlinePolicy", "DefaultPolicy is what CDK grants, always inline"),
        Accepted(GRANTS, f"{IAM5}[Action::…]", "DefaultPolicy has what CDK means by reading and writing"),
        Accepted(GRANTS, f"{IAM5}[Resource::…-assets-…/*]", "DefaultPolicy reads assets, named by hash"),
        Accepted(GRANTS, f"{IAM5}[Resource::…Lifecycle…/*]", "DefaultPolicy fills the Lifecycle bucket"),
        Accepted(NODES, f"{IAM5}[Resource::*]",
            "{name} opens Session Manager channels, sends metrics and describes: none knows a resource"),
        Accepted(NODES, f"{IAM5}[Resource::…:log-group:/aws/sagemaker/Clusters/…/*…]",
            "{name} writes its cluster's logs, under an id that HyperPod makes up"),
        Accepted(NODES, f"{IAM5}[Resource::…:network-interface/*]",
            "{name} lets HyperPod make and remove network interfaces, whose ids nobody knows before"),
        Accepted(NODES, f"{IAM5}[Resource::…:subnet/*]",
            "{name} lets HyperPod use each group's subnet; a policy cannot hold a hundred of them"),
        Accepted(NODES, f"{IAM5}[Resource::…Lifecycle…/*]", "{name} reads its folder in Lifecycle"),
        Accepted(USERS, f"{IAM5}[Resource::…Datasets…/*]", "{name} reads all objects in Datasets"),
        Accepted(USERS, f"{IAM5}[Resource::…Checkpoints…/*]", "{name} works on all runs in Checkpoints"),
    ),
}  # fmt: skip


def acknowledge(scope: Construct) -> None:
    """Accept the table's findings in the stacks of a scope."""
    stacks = [child for child in scope.node.children if isinstance(child, RegionStack)]
    scope.node.add_validation(Acknowledgements({stack: TABLE.get(type(stack), ()) for stack in stacks}))
