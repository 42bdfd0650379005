"""Each published checkpoint scored once, off the cluster: marker in S3 → EventBridge → SQS → one job."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from .evaluation_job import EvaluationJob
from .function_role import FunctionRole
from .place import place_of

MARKER_SUFFIX = "/_PUBLISHED.json"
_SAGEMAKER = "sagemaker.amazonaws.com"
_TIMEOUT = cdk.Duration.minutes(1)
# AWS's advice is six times the function's limit. It is also the pause before a message that must wait comes
# again; a hundred of them, a day, is how long files, a quota or a free place may be waited for.
_VISIBILITY = cdk.Duration.minutes(15)
_DELIVERIES = 100


class EvaluationTrigger(Construct):
    """Starts `job` for each marker that appears in the bucket, whose notifications go to EventBridge.

    The queues are encrypted by SQS's own key: messages hold names of objects and no data, and a key of ours
    would have to admit EventBridge as a whole.

    Args:
        job: what is started.
        prefix: begins the jobs' names.
        at_once: jobs that may run at a time.
        checkpoints: the bucket.
        key: decrypts the markers, encrypts the function's logs.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, job: EvaluationJob, prefix: str, at_once: int,
        checkpoints: s3.IBucket, key: kms.IKey,
    ) -> None:  # fmt: skip
        super().__init__(scope, construct_id)
        self.dead_letters = sqs.Queue(
            self, "DeadLetters", encryption=sqs.QueueEncryption.SQS_MANAGED, enforce_ssl=True,
            retention_period=cdk.Duration.days(14),
        )  # fmt: skip
        self.queue = sqs.Queue(
            self, "Queue", encryption=sqs.QueueEncryption.SQS_MANAGED, enforce_ssl=True,
            visibility_timeout=_VISIBILITY, retention_period=cdk.Duration.days(14),
            dead_letter_queue=sqs.DeadLetterQueue(queue=self.dead_letters, max_receive_count=_DELIVERIES),
        )  # fmt: skip
        to_queue = cast(
            "events.IRuleTarget", targets.SqsQueue(self.queue, dead_letter_queue=self.dead_letters)
        )
        events.Rule(
            self, "Published", description="A checkpoint's marker appeared",
            event_pattern=events.EventPattern(
                source=["aws.s3"], detail_type=["Object Created"],
                detail={
                    "bucket": {"name": [checkpoints.bucket_name]},
                    "object": {"key": [{"suffix": MARKER_SUFFIX}]},
                },
            ),
            targets=[to_queue],
        )  # fmt: skip
        events.Rule(
            self, "Failed", description="An evaluation job failed",
            event_pattern=events.EventPattern(
                source=["aws.sagemaker"], detail_type=["SageMaker Processing Job State Change"],
                detail={
                    "ProcessingJobStatus": ["Failed"],
                    "ProcessingJobName": [{"prefix": f"{prefix}-"}],
                },
            ),
            targets=[to_queue],
        )  # fmt: skip
        cloudwatch.Alarm(
            self, "Unscored", alarm_description="Checkpoints without a score: see the dead letters",
            metric=self.dead_letters.metric_approximate_number_of_messages_visible(statistic="Maximum"),
            threshold=1, evaluation_periods=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )  # fmt: skip
        self._function(job, prefix=prefix, at_once=at_once, checkpoints=checkpoints, key=key)

    def _function(
        self, job: EvaluationJob, *, prefix: str, at_once: int, checkpoints: s3.IBucket, key: kms.IKey
    ) -> None:
        stack = cdk.Stack.of(self)
        identity = FunctionRole(self, "Identity", key=key)
        named = place_of(stack).arn("sagemaker", f"processing-job/{prefix}-*")
        identity.policy.add_statements(
            _allow(["s3:ListBucket"], checkpoints.bucket_arn),
            _allow(["s3:GetObject"], checkpoints.arn_for_objects(f"*{MARKER_SUFFIX}")),
            _allow(["kms:Decrypt"], key.key_arn),
            _allow(["sagemaker:CreateProcessingJob", "sagemaker:DescribeProcessingJob"], named),
            _allow(["sagemaker:AddTags"], named),
            _allow(["sagemaker:ListProcessingJobs"], "*"),
            _allow(["iam:PassRole"], job.role_arn, StringEquals={"iam:PassedToService": _SAGEMAKER}),
            _allow(["sqs:SendMessage"], self.dead_letters.queue_arn),
            _allow(
                ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"], self.queue.queue_arn
            ),
        )
        if job.volume_has_key:
            # SageMaker makes the volume in the caller's name.
            identity.policy.add_statements(
                _allow(["kms:DescribeKey"], key.key_arn),
                _allow(["kms:CreateGrant"], key.key_arn, Bool={"kms:GrantIsForAWSResource": "true"}),
            )
        function = lambda_.Function(
            self,
            "Function",
            runtime=lambda_.Runtime.PYTHON_3_14,
            handler="messages.handle",
            code=lambda_.Code.from_asset(str(Path(__file__).parent / "evaluator"), exclude=["__pycache__"]),
            timeout=_TIMEOUT,
            description="Starts one evaluation job for each published checkpoint",
            role=identity.role,
            log_group=identity.log_group,
            environment={
                "REQUEST": stack.to_json_string(job.request), "PREFIX": prefix, "AT_ONCE": str(at_once),
                "DEAD_LETTERS": self.dead_letters.queue_url,
            },
        )  # fmt: skip
        # One by one, because each message may look at a hundred objects; two at a time is SQS's least.
        lambda_.EventSourceMapping(
            self, "Messages", target=cast("lambda_.IFunction", function), batch_size=1, max_concurrency=2,
            event_source_arn=self.queue.queue_arn, report_batch_item_failures=True,
        )  # fmt: skip


def _allow(actions: list[str], resource: str, **conditions: object) -> iam.PolicyStatement:
    return iam.PolicyStatement(actions=actions, resources=[resource], conditions=conditions or None)
