"""What the validation plugins find and we accept: where, which rule, and why."""

from __future__ import annotations

from collections.abc import Mapping

from constructs import Construct

from trainshed.findings import Accepted, Acknowledgements

from .base import RegionStack
from .cluster import ClusterStack
from .network import NetworkStack
from .storage import StorageStack
from .workload import WorkloadStack

NIST = "NIST.800.53.R5"
IAM5 = "AwsSolutions-IAM5"
NODES = "ControllerRole/Policy LoginRole/Policy WorkerRole/Policy"
UPLOAD = "Custom::CDKBucketDeployment8693BB64968944B69AAFB0CC9EB8756C512MiB"
USERS = "LoginRole/Policy WorkerRole/Policy"


def _called_by_cloudformation(path: str, calls: str) -> tuple[Accepted, ...]:
    return (
        Accepted(path, f"{NIST}-LambdaConcurrency",
            "{name} runs once a deploy; reserving would take from the account's pool, in which may be 10"),
        Accepted(path, f"{NIST}-LambdaDLQ",
            "{name} tells CloudFormation of its failures, which rolls back; nobody would read a queue"),
        Accepted(path, f"{NIST}-LambdaInsideVPC", f"{{name}} calls {calls} and nothing inside the VPC"),
    )  # fmt: skip


def _uploaded_by_cdk(grants: str, bucket: str) -> tuple[Accepted, ...]:
    return (
        Accepted(UPLOAD, "AwsSolutions-L1", "{name} is CDK's own, and so is the choice of its runtime"),
        *_called_by_cloudformation(UPLOAD, "the API of S3"),
        Accepted(grants, f"{NIST}-IAMNoInlinePolicy", "DefaultPolicy is what CDK grants, always inline"),
        Accepted(grants, f"{IAM5}[Action::…]", "DefaultPolicy has what CDK means by reading and writing"),
        Accepted(grants, f"{IAM5}[Resource::…-assets-…/*]", "DefaultPolicy reads assets, named by hash"),
        Accepted(grants, f"{IAM5}[Resource::…{bucket}…/*]", f"DefaultPolicy fills the {bucket} bucket"),
    )


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
        *_uploaded_by_cdk("Lifecycle/Identity/Role/DefaultPolicy", "Lifecycle"),
        *_called_by_cloudformation("Logs/Function", "the API of CloudWatch Logs"),
        Accepted("Logs/Identity/Policy", f"{IAM5}[Resource::…:log-group:/aws/sagemaker/Clusters/…/*]",
            "{name} ends the logs of its cluster, under an id that HyperPod makes up"),
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
    WorkloadStack: (
        *_uploaded_by_cdk("Files/Identity/Role/DefaultPolicy", "Datasets"),
        Accepted("Evaluation/Function", f"{NIST}-LambdaConcurrency",
            "{name} has two pollers of its queue at most; reserving would take from the account's pool"),
        Accepted("Evaluation/Function", f"{NIST}-LambdaDLQ",
            "{name} is called from a queue, which has dead letters of its own"),
        Accepted("Evaluation/Function", f"{NIST}-LambdaInsideVPC",
            "{name} calls the APIs of S3, SageMaker and SQS and nothing inside the VPC"),
        Accepted("Evaluation/Unscored", f"{NIST}-CloudWatchAlarmAction",
            "Unscored is for who runs the platform to subscribe to: nobody's address is known here"),
        Accepted("Evaluation/Identity/Policy", f"{IAM5}[Resource::*]",
            "{name} counts jobs, which ListProcessingJobs allows for all or none"),
        Accepted("Evaluation/Identity/Policy", f"{IAM5}[Resource::…:processing-job/…-evaluation-*]",
            "{name} starts jobs named after checkpoints"),
        Accepted("Evaluation/Identity/Policy", f"{IAM5}[Resource::…Checkpoints…/*/_PUBLISHED.json]",
            "{name} reads the marker of any checkpoint"),
        Accepted("Job/Policy", f"{IAM5}[Resource::*]",
            "{name} lets SageMaker describe the VPC, send metrics and get a token: none knows a resource"),
        Accepted("Job/Policy", f"{IAM5}[Resource::…:log-group:/aws/sagemaker/ProcessingJobs:log-stream:*]",
            "{name} writes to streams that SageMaker names after its jobs"),
        Accepted("Job/Policy", f"{IAM5}[Resource::…:network-interface/*]",
            "{name} lets SageMaker make and remove network interfaces, whose ids nobody knows before"),
        Accepted("Job/Policy", f"{IAM5}[Resource::…Datasets…/*]", "{name} reads all objects in Datasets"),
        Accepted("Job/Policy", f"{IAM5}[Resource::…Checkpoints…/*]", "{name} reads all runs in Checkpoints"),
        Accepted("Job/Policy", f"{IAM5}[Resource::…Checkpoints…/*evaluations/step-*]",
            "{name} writes the results of any run in Checkpoints"),
    ),
}  # fmt: skip


def acknowledge(scope: Construct) -> None:
    """Accept the table's findings in the stacks of a scope."""
    stacks = [child for child in scope.node.children if isinstance(child, RegionStack)]
    scope.node.add_validation(Acknowledgements({stack: TABLE.get(type(stack), ()) for stack in stacks}))
