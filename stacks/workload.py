"""What a region's clusters train with: image, recipes and job templates, and a score for each checkpoint."""

from __future__ import annotations

from pathlib import Path

from aws_cdk import CfnOutput
from constructs import Construct

from trainshed.evaluation import EvaluationTrigger
from trainshed.evaluation_job import EvaluationJob
from trainshed.image import TrainerImage
from trainshed.planning.model import PlatformPlan, RegionPlan
from trainshed.planning.workload import WorkloadPlan
from trainshed.workload import WorkloadFiles

from .base import RegionStack
from .network import NetworkStack
from .storage import StorageStack

REPOSITORY = str(Path(__file__).parent.parent)


class WorkloadStack(RegionStack):
    """Nothing in it outlives it but what it has published."""

    def __init__(
        self, scope: Construct, construct_id: str, *, platform: PlatformPlan, plan: RegionPlan,
        workload: WorkloadPlan, network: NetworkStack, storage: StorageStack,
    ) -> None:  # fmt: skip
        super().__init__(scope, construct_id, region=plan.region, account=platform.account)
        self.image = TrainerImage(
            self, "Image", repository=REPOSITORY, base_image=workload.base_image,
            architecture=workload.architecture, uri=workload.image,
        )  # fmt: skip
        WorkloadFiles(
            self, "Files", bucket=storage.datasets, repository=REPOSITORY, image_uri=self.image.uri,
            key=network.key,
        )  # fmt: skip
        CfnOutput(self, "TrainerImage", value=self.image.uri)
        if workload.evaluation is None:
            return
        job = EvaluationJob(
            self, "Job", plan=workload.evaluation, image_uri=self.image.uri,
            repository_arn=self.image.repository_arn, checkpoints=storage.checkpoints,
            datasets=storage.datasets, key=network.key,
            subnet_id=network.subnet_ids[workload.evaluation.claim],
            security_group=network.efa.security_group, tags=platform.all_tags,
        )  # fmt: skip
        evaluation = EvaluationTrigger(
            self, "Evaluation", job=job, prefix=f"{platform.name}-evaluation",
            at_once=workload.evaluation.at_once, checkpoints=storage.checkpoints, key=network.key,
        )  # fmt: skip
        CfnOutput(self, "EvaluationQueue", value=evaluation.queue.queue_arn)
        CfnOutput(self, "EvaluationDeadLetters", value=evaluation.dead_letters.queue_arn)
