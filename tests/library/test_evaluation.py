"""One job for each published checkpoint: what is deployed, and the function against AWS's own API shapes."""

from __future__ import annotations

import io
import json
from importlib import import_module

import boto3
import pytest
from botocore.response import StreamingBody
from botocore.stub import ANY, Stubber

from tests.support import (
    ROOT,
    actions_of,
    allowed,
    listed,
    of_type,
    only,
    resources_for,
    shown,
    statements_of,
)
from trainshed.planning.instances import INSTANCE_TYPES
from trainshed.planning.workload import PROCESSING_FAMILIES, EvaluationPlan, evaluation_arguments

STACK, REGION = "fleet-us-west-2-workload", "us-west-2"
BUCKET, KEY = "checkpoints-bucket", "exp/run/step-00000020/_PUBLISHED.json"
FOLDER = "exp/run/step-00000020"
OTHER = "exp/run/step-00000040/_PUBLISHED.json"
DATA = {"__0_0.distcp": 700}
FILES = {**DATA, ".metadata": 30}
MARKER = json.dumps(
    {
        "format": "trainshed-checkpoint-1",
        "files": {name: {"bytes": size, "crc32": 1} for name, size in DATA.items()},
    }
).encode()
REQUEST = {
    "RoleArn": "arn:aws:iam::111122223333:role/job",
    "AppSpecification": {
        "ImageUri": "111122223333.dkr.ecr.us-west-2.amazonaws.com/trainer:1",
        "ContainerArguments": ["-m", "trainer.evaluate", "--checkpoint", "{checkpoint}", "--out", "{out}"],
    },
    "ProcessingResources": {
        "ClusterConfig": {"InstanceCount": 1, "InstanceType": "ml.g6.12xlarge", "VolumeSizeInGB": 100}
    },
}
DEAD = "https://sqs.us-west-2.amazonaws.com/111122223333/dead"


@pytest.fixture(scope="module")
def modules():
    """The function's modules as Lambda loads them: their folder is the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "constructs/trainshed/evaluator"))
        patch.setenv("DEAD_LETTERS", DEAD)
        yield import_module("start"), import_module("messages")


class Cloud:
    """Three clients that answer what the test says, in its order, and note what was asked of SageMaker."""

    def __init__(self, modules, at_once: int = 2) -> None:
        self.start, self.messages = modules
        made = {
            name: boto3.client(name, region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x")
            for name in ("s3", "sagemaker", "sqs")
        }
        self.stubs = {name: Stubber(client) for name, client in made.items()}
        for stub in self.stubs.values():
            stub.activate()
        self.asked: list[tuple[str, dict]] = []
        self.letters: list[dict] = []
        made["sqs"].meta.events.register(
            "before-parameter-build.sqs.SendMessage", lambda params, **_: self.letters.append(dict(params))
        )
        made["sagemaker"].meta.events.register("before-parameter-build.sagemaker", self._note)
        self.sqs = made["sqs"]
        self.starter = self.start.Starter(
            request=json.dumps(REQUEST), prefix="fleet-evaluation", at_once=at_once, s3=made["s3"],
            sagemaker=made["sagemaker"],
        )  # fmt: skip

    def _note(self, params, model, **_: object) -> None:
        self.asked.append((model.name, dict(params)))

    def created(self) -> list[dict]:
        return [params for name, params in self.asked if name == "CreateProcessingJob"]

    def deliver(self, *bodies: str) -> list[str]:
        """The messages that SQS delivers again."""
        records = [{"messageId": f"m{number}", "body": body} for number, body in enumerate(bodies)]
        answer = self.messages.handle({"Records": records}, None, starter=self.starter, sqs=self.sqs)
        for stub in self.stubs.values():
            stub.assert_no_pending_responses()
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]

    def says(self, service: str, operation: str, answer: dict, **expected: object) -> None:
        self.stubs[service].add_response(operation, answer, {**expected} if expected else None)

    def fails(self, service: str, operation: str, code: str) -> None:
        self.stubs[service].add_client_error(operation, code, f"{code} it was")

    # What is looked at, in the order in which it is.
    def marker(self, key: str = KEY, content: bytes = MARKER) -> None:
        body = StreamingBody(io.BytesIO(content), len(content))
        self.says("s3", "get_object", {"Body": body}, Bucket=BUCKET, Key=key)

    def objects(self, prefix: str, sizes: dict[str, int]) -> None:
        contents = [{"Key": prefix + name, "Size": size} for name, size in sizes.items()]
        self.says("s3", "list_objects_v2", {"Contents": contents}, Bucket=BUCKET, Prefix=prefix)

    def whole(self, key: str = KEY, results: dict[str, int] | None = None) -> None:
        folder = key.removesuffix("_PUBLISHED.json")
        self.marker(key)
        self.objects(folder.replace("/step-", "/evaluations/step-").removesuffix("/"), results or {})
        if results is None:
            self.objects(folder, {**FILES, "_PUBLISHED.json": 9})

    def no_job(self, code: str = "ResourceNotFound") -> None:
        self.fails("sagemaker", "describe_processing_job", code)

    def job(self, status: str, **more: object) -> None:
        answer = {
            "ProcessingJobName": "any", "ProcessingJobArn": "arn", "ProcessingJobStatus": status,
            "CreationTime": 0, "AppSpecification": {"ImageUri": "x"},
            "ProcessingResources": REQUEST["ProcessingResources"], **more,
        }  # fmt: skip
        self.says("sagemaker", "describe_processing_job", answer)

    def running(self, *names: str) -> None:
        rest = {"ProcessingJobArn": "arn", "ProcessingJobStatus": "InProgress", "CreationTime": 0}
        summaries = [{"ProcessingJobName": name, **rest} for name in names]
        self.says(
            "sagemaker", "list_processing_jobs", {"ProcessingJobSummaries": summaries},
            NameContains="fleet-evaluation-", StatusEquals="InProgress",
        )  # fmt: skip

    def takes(self) -> None:
        self.says("sagemaker", "create_processing_job", {"ProcessingJobArn": "arn"})

    def buries(self) -> None:
        self.says("sqs", "send_message", {}, QueueUrl=DEAD, MessageBody=ANY, MessageAttributes=ANY)


@pytest.fixture
def cloud(modules):
    return Cloud(modules)


def published(key: str = KEY, bucket: str = BUCKET) -> str:
    """As S3 sends it through EventBridge."""
    detail = {"version": "0", "bucket": {"name": bucket}, "object": {"key": key, "size": 9, "etag": "e"}}
    return json.dumps({"source": "aws.s3", "detail-type": "Object Created", "detail": detail})


def started(cloud, key: str = KEY) -> None:
    cloud.whole(key)
    cloud.no_job()
    cloud.running()
    cloud.takes()


def test_a_published_checkpoint_starts_the_job(cloud, capsys) -> None:
    started(cloud)
    assert cloud.deliver(published()) == []
    (request,) = cloud.created()
    assert request["AppSpecification"]["ContainerArguments"][2:] == [
        "--checkpoint", f"s3://{BUCKET}/{FOLDER}", "--out", f"s3://{BUCKET}/exp/run/evaluations/step-00000020",
    ]  # fmt: skip
    assert request["RoleArn"] == REQUEST["RoleArn"]
    assert request["ProcessingResources"] == REQUEST["ProcessingResources"]
    name = request["ProcessingJobName"]
    assert name.startswith("fleet-evaluation-20-")
    assert f"[evaluation] s3://{BUCKET}/{FOLDER}: started {name}" in capsys.readouterr().out


def test_a_run_at_the_root_of_the_bucket(cloud) -> None:
    key = "step-00000020/_PUBLISHED.json"
    cloud.marker(key)
    cloud.objects("evaluations/step-00000020", {})
    cloud.objects("step-00000020/", FILES)
    cloud.no_job()
    cloud.running()
    cloud.takes()
    assert cloud.deliver(published(key)) == []
    assert f"s3://{BUCKET}/step-00000020" in cloud.created()[0]["AppSpecification"]["ContainerArguments"]


@pytest.mark.parametrize("status", ["InProgress", "Completed", "Stopping", "Stopped"])
def test_a_redelivered_event_starts_nothing(cloud, status: str) -> None:
    started(cloud)
    cloud.deliver(published())
    cloud.whole()
    cloud.job(status)
    assert cloud.deliver(published()) == []
    assert len(cloud.created()) == 1
    asked = [params["ProcessingJobName"] for name, params in cloud.asked if name == "DescribeProcessingJob"]
    assert asked == [cloud.created()[0]["ProcessingJobName"]] * 2


def test_two_that_are_equally_fast_start_one(cloud) -> None:
    cloud.whole()
    cloud.no_job("ValidationException")
    cloud.running()
    cloud.fails("sagemaker", "create_processing_job", "ResourceInUse")
    assert cloud.deliver(published()) == []


def test_two_checkpoints_have_two_jobs(cloud) -> None:
    for key in (KEY, OTHER):
        started(cloud, key)
    assert cloud.deliver(published(), published(OTHER)) == []
    names = [request["ProcessingJobName"] for request in cloud.created()]
    assert len(set(names)) == 2
    assert [name.split("-")[2] for name in names] == ["20", "40"]


def test_the_same_step_of_another_run_or_published_anew_is_another_checkpoint(cloud) -> None:
    started(cloud)
    cloud.deliver(published())
    elsewhere = KEY.replace("run", "run2")
    started(cloud, elsewhere)
    cloud.deliver(published(elsewhere))
    anew = MARKER.replace(b'"crc32": 1', b'"crc32": 2')
    cloud.marker(content=anew)
    cloud.objects("exp/run/evaluations/step-00000020", {})
    cloud.objects(f"{FOLDER}/", FILES)
    cloud.no_job()
    cloud.running()
    cloud.takes()
    cloud.deliver(published())
    assert len({request["ProcessingJobName"] for request in cloud.created()}) == 3


@pytest.mark.parametrize("result", [".json", "/evaluation.json"], ids=["by the cluster", "by a job"])
def test_what_has_a_result_needs_no_job(cloud, result: str) -> None:
    cloud.whole(results={result: 100})
    assert cloud.deliver(published()) == []
    assert not cloud.asked


def test_a_claim_or_a_picture_is_no_result(cloud) -> None:
    cloud.marker()
    cloud.objects("exp/run/evaluations/step-00000020", {".claim-0001": 9, ".png": 9, "0.json": 9})
    cloud.objects(f"{FOLDER}/", FILES)
    cloud.no_job()
    cloud.running()
    cloud.takes()
    cloud.deliver(published())
    assert len(cloud.created()) == 1


@pytest.mark.parametrize(
    "key", ["exp/notes/_PUBLISHED.json", "step-20/_PUBLISHED.json", f"{FOLDER}/other.json"]
)
def test_other_keys_are_passed_over(cloud, key: str) -> None:
    assert cloud.deliver(published(key)) == []
    assert not cloud.asked


def test_a_checkpoint_that_was_removed_since_is_passed_over(cloud) -> None:
    cloud.fails("s3", "get_object", "NoSuchKey")
    assert cloud.deliver(published()) == []
    assert not cloud.asked


@pytest.mark.parametrize(
    "there",
    [{".metadata": 30}, {"__0_0.distcp": 699, ".metadata": 30}, {"__0_0.distcp": 700}],
    ids=["missing", "cut", "no metadata"],
)
def test_a_marker_that_came_before_its_files_is_delivered_again(cloud, there, capsys) -> None:
    """FSx exports in no order."""
    cloud.marker()
    cloud.objects("exp/run/evaluations/step-00000020", {})
    cloud.objects(f"{FOLDER}/", there)
    assert cloud.deliver(published()) == ["m0"]
    assert "yet to come" in capsys.readouterr().out
    assert not cloud.asked


@pytest.mark.parametrize("code", ["ThrottlingException", "ResourceLimitExceeded", "AccessDeniedException"])
def test_what_may_pass_is_delivered_again_and_the_rest_of_the_batch_is_not(cloud, code: str) -> None:
    cloud.whole()
    cloud.no_job()
    cloud.running()
    cloud.fails("sagemaker", "create_processing_job", code)
    started(cloud, OTHER)
    assert cloud.deliver(published(), published(OTHER)) == ["m0"]


def test_a_failing_store_is_no_missing_marker(cloud) -> None:
    cloud.fails("s3", "get_object", "SlowDown")
    assert cloud.deliver(published()) == ["m0"]


def test_no_more_jobs_than_may_run_at_once(cloud, capsys) -> None:
    cloud.whole()
    cloud.no_job()
    cloud.running("fleet-evaluation-1-a", "fleet-evaluation-2-b", "my-fleet-evaluation-3-c")
    assert cloud.deliver(published()) == ["m0"]
    assert "2 jobs are running" in capsys.readouterr().out
    cloud.whole()
    cloud.no_job()
    cloud.running("fleet-evaluation-1-a", "my-fleet-evaluation-3-c")
    cloud.takes()
    assert cloud.deliver(published()) == []


def object_event(found: object) -> str:
    return json.dumps({"detail-type": "x", "detail": {"bucket": {"name": "b"}, "object": found}})


MALFORMED = {
    "no JSON": "oops", "a list": "[]", "nothing": "{}", "null": "null", "a number": "7",
    "no key": object_event({}), "key of another type": object_event({"key": 7}),
}  # fmt: skip
NO_MARKERS = (
    b"{", b"[]", b"{}", b'{"files": {"a": 1}, "format": "x"}', b'{"files": {}, "format": "other"}'
)  # fmt: skip


@pytest.mark.parametrize("body", MALFORMED.values(), ids=list(MALFORMED))
def test_a_malformed_event_is_a_dead_letter_with_one_line(cloud, body: str, capsys) -> None:
    cloud.buries()
    assert cloud.deliver(body) == []
    assert [letter["MessageBody"] for letter in cloud.letters] == [body]
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("[evaluation] dead letter: not an event of S3")


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"{}", b'{"files": {"a": 1}, "format": "x"}', b'{"files": {}, "format": "other"}'],
)
def test_a_marker_that_is_none_is_a_dead_letter(cloud, content: bytes, capsys) -> None:
    cloud.marker(content=content)
    cloud.objects("exp/run/evaluations/step-00000020", {})
    cloud.buries()
    assert cloud.deliver(published()) == []
    assert "trainshed-checkpoint-1" in capsys.readouterr().out


def test_a_request_that_is_wrong_for_good_is_a_dead_letter(cloud, capsys) -> None:
    cloud.whole()
    cloud.no_job()
    cloud.running()
    cloud.fails("sagemaker", "create_processing_job", "ValidationException")
    cloud.buries()
    assert cloud.deliver(published()) == []
    assert "ValidationException it was" in capsys.readouterr().out


def test_an_address_that_sagemaker_does_not_take_is_told_in_a_line(cloud, capsys) -> None:
    key = f"{'x' * 230}/step-00000020/_PUBLISHED.json"
    cloud.marker(key)
    cloud.objects(f"{'x' * 230}/evaluations/step-00000020", {})
    cloud.objects(f"{'x' * 230}/step-00000020/", FILES)
    cloud.buries()
    assert cloud.deliver(published(key)) == []
    assert "SageMaker takes 256; shorten the run's folder" in capsys.readouterr().out


def failed(name: str) -> str:
    detail = {"ProcessingJobName": name, "ProcessingJobStatus": "Failed"}
    kind = "SageMaker Processing Job State Change"
    return json.dumps({"source": "aws.sagemaker", "detail-type": kind, "detail": detail})


def test_a_failed_job_is_a_dead_letter_that_starts_the_next_when_it_is_moved_back(cloud, capsys) -> None:
    """Its name is taken for good, so the next has a name of its own."""
    started(cloud)
    cloud.deliver(published())
    (first,) = cloud.created()
    name = first["ProcessingJobName"]
    cloud.job("Failed", Environment=first["Environment"], FailureReason="CapacityError")
    cloud.marker()
    cloud.buries()
    capsys.readouterr()
    assert cloud.deliver(failed(name)) == []
    assert capsys.readouterr().out == f"[evaluation] dead letter: {name} failed: CapacityError\n"
    assert len(cloud.created()) == 1
    cloud.whole()
    cloud.job("Failed")
    cloud.no_job()
    cloud.running()
    cloud.takes()
    (letter,) = cloud.letters
    assert cloud.deliver(letter["MessageBody"]) == []
    second = cloud.created()[1]
    assert second["ProcessingJobName"] == f"{name}-2"
    assert {**second, "ProcessingJobName": ""} == {**first, "ProcessingJobName": ""}


def test_a_job_that_failed_because_its_checkpoint_was_removed_is_no_letter(cloud, capsys) -> None:
    """Retention goes on while jobs wait for an instance."""
    cloud.job("Failed", Environment={"BUCKET": BUCKET, "KEY": KEY})
    cloud.fails("s3", "get_object", "NoSuchKey")
    assert cloud.deliver(failed("fleet-evaluation-20-a")) == []
    assert "was removed before it was done" in capsys.readouterr().out


def test_after_three_a_human_must_look(cloud, capsys) -> None:
    cloud.whole()
    for _ in range(3):
        cloud.job("Failed")
    cloud.buries()
    assert cloud.deliver(published()) == []
    assert "failed 3 times" in capsys.readouterr().out


def test_names_fit_sagemaker(cloud) -> None:
    """At their longest: a platform of 20 characters, a step of 12 digits, a third attempt."""
    cloud.starter.prefix = f"{'p' * 20}-evaluation"
    key = KEY.replace("00000020", "9" * 12)
    cloud.whole(key)
    cloud.job("Failed")
    cloud.job("Failed")
    cloud.no_job()
    cloud.says("sagemaker", "list_processing_jobs", {"ProcessingJobSummaries": []})
    cloud.takes()
    assert cloud.deliver(published(key)) == []
    assert len(cloud.created()[0]["ProcessingJobName"]) <= 63


# What is deployed.


@pytest.fixture(scope="module")
def template(templates):
    return templates("slurm-production")[STACK]


def queues(template):
    (queue,) = [q for n, q in of_type(template, "AWS::SQS::Queue").items() if n.startswith("EvaluationQueue")]
    (dead,) = [n for n in of_type(template, "AWS::SQS::Queue") if n.startswith("EvaluationDeadLetters")]
    return queue["Properties"], dead


def function(template):
    ((name, found),) = [
        (n, f) for n, f in of_type(template, "AWS::Lambda::Function").items() if n.startswith("Evaluation")
    ]
    return name, found["Properties"]


def request_of(template) -> dict:
    """The request that the function is given, tokens written as their last name."""
    parts = function(template)[1]["Environment"]["Variables"]["REQUEST"]["Fn::Join"][1]
    return json.loads("".join(p if isinstance(p, str) else "<token>" for p in parts))


def test_messages_outlive_the_function_many_times_over(template) -> None:
    """AWS: a visibility timeout of at least six times the function's limit."""
    queue, dead = queues(template)
    timeout = function(template)[1]["Timeout"]
    assert queue["VisibilityTimeout"] >= 6 * timeout
    redrive = queue["RedrivePolicy"]
    assert redrive["deadLetterTargetArn"] == {"Fn::GetAtt": [dead, "Arn"]}
    waited = redrive["maxReceiveCount"] * queue["VisibilityTimeout"]
    assert 24 * 3600 <= waited < queue["MessageRetentionPeriod"]


def test_queues_are_encrypted_and_take_tls_alone(template) -> None:
    for name, queue in of_type(template, "AWS::SQS::Queue").items():
        assert queue["Properties"]["SqsManagedSseEnabled"] is True
        (policy,) = [
            p["Properties"]["PolicyDocument"]["Statement"]
            for p in of_type(template, "AWS::SQS::QueuePolicy").values()
            if {"Ref": name} in p["Properties"]["Queues"]
        ]
        (deny,) = [s for s in policy if s["Effect"] == "Deny"]
        assert deny["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        for statement in policy:
            if statement["Effect"] == "Allow":
                assert statement["Principal"] == {"Service": "events.amazonaws.com"}
                assert "aws:SourceArn" in shown(statement["Condition"])


def test_the_rules_let_through_markers_of_this_bucket_and_failures_of_these_jobs(template) -> None:
    rules = {
        r["Properties"]["EventPattern"]["source"][0]: r["Properties"]
        for r in of_type(template, "AWS::Events::Rule").values()
    }
    pattern = rules["aws.s3"]["EventPattern"]
    assert pattern["detail-type"] == ["Object Created"]
    assert "Checkpoints" in shown(pattern["detail"]["bucket"])
    assert pattern["detail"]["object"]["key"] == [{"suffix": "/_PUBLISHED.json"}]
    _, dead = queues(template)
    (target,) = rules["aws.s3"]["Targets"]
    assert target["Arn"]["Fn::GetAtt"][0].startswith("EvaluationQueue")
    assert target["DeadLetterConfig"] == {"Arn": {"Fn::GetAtt": [dead, "Arn"]}}
    failures = rules["aws.sagemaker"]
    assert failures["EventPattern"]["detail"] == {
        "ProcessingJobStatus": ["Failed"], "ProcessingJobName": [{"prefix": "fleet-evaluation-"}],
    }  # fmt: skip
    (target,) = failures["Targets"]
    assert target["Arn"]["Fn::GetAtt"][0].startswith("EvaluationQueue")


def test_somebody_is_told_of_dead_letters(template) -> None:
    alarm = only(template, "AWS::CloudWatch::Alarm")[1]["Properties"]
    _, dead = queues(template)
    assert alarm["Dimensions"] == [{"Name": "QueueName", "Value": {"Fn::GetAtt": [dead, "QueueName"]}}]
    assert (alarm["Threshold"], alarm["ComparisonOperator"]) == (1, "GreaterThanOrEqualToThreshold")


def test_the_function_reports_single_messages_and_two_at_most_poll(template) -> None:
    mapping = only(template, "AWS::Lambda::EventSourceMapping")[1]["Properties"]
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert mapping["ScalingConfig"] == {"MaximumConcurrency": 2}
    handler = function(template)[1]["Handler"]
    module, _, name = handler.partition(".")
    assert f"def {name}(" in (ROOT / f"constructs/trainshed/evaluator/{module}.py").read_text(
        encoding="utf-8"
    )


def test_the_function_may_do_what_it_does_and_no_more(template) -> None:
    statements = statements_of(template, function(template)[1]["Role"]["Fn::GetAtt"][0])
    assert actions_of(statements) == {
        "logs:CreateLogStream", "logs:PutLogEvents", "s3:ListBucket", "s3:GetObject", "kms:Decrypt",
        "sagemaker:CreateProcessingJob", "sagemaker:DescribeProcessingJob", "sagemaker:AddTags",
        "sagemaker:ListProcessingJobs", "iam:PassRole", "sqs:SendMessage", "sqs:ReceiveMessage",
        "sqs:DeleteMessage", "sqs:GetQueueAttributes",
    }  # fmt: skip
    (read,) = resources_for(statements, "s3:GetObject")
    assert shown(read).endswith('/*/_PUBLISHED.json"]]}')
    (named,) = resources_for(statements, "sagemaker:CreateProcessingJob")
    assert ":processing-job/fleet-evaluation-*" in shown(named)
    (passing,) = allowed(statements, "iam:PassRole")
    assert passing["Condition"] == {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    (role,) = listed(passing["Resource"])
    assert role["Fn::GetAtt"][0].startswith("JobRole")
    assert [s for s in statements if "*" in listed(s["Resource"])] == allowed(
        statements, "sagemaker:ListProcessingJobs"
    )


def test_the_job_reads_both_buckets_and_writes_results_alone(template) -> None:
    (role,) = [n for n in of_type(template, "AWS::IAM::Role") if n.startswith("JobRole")]
    statements = statements_of(template, role)
    (write,) = resources_for(statements, "s3:PutObject")
    assert "Checkpoints" in shown(write)
    assert shown(write).endswith('/*evaluations/step-*"]]}')
    assert not {a for a in actions_of(statements) if a.startswith("s3:Delete")}
    assert len(resources_for(statements, "s3:GetObject")) == 2
    (image,) = resources_for(statements, "ecr:BatchGetImage")
    assert "container-assets" in shown(image)
    everywhere = {a for s in statements if "*" in listed(s["Resource"]) for a in listed(s["Action"])}
    described = {a for a in everywhere if a.startswith("ec2:Describe")}
    assert everywhere - described == {"ecr:GetAuthorizationToken", "cloudwatch:PutMetricData"}
    (made,) = allowed(statements, "ec2:CreateNetworkInterface")
    assert "subnet/" in shown(made)
    assert "subnet/*" not in shown(made)


def test_the_request_is_one_that_sagemaker_takes(template) -> None:
    """By AWS's own model of the API; placeholders of CloudFormation stand in for ids."""
    request = request_of(template)
    request["RoleArn"] = "arn:aws:iam::111122223333:role/job"
    request["NetworkConfig"]["VpcConfig"] = {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}
    client = boto3.client("sagemaker", region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stub:
        stub.add_response("create_processing_job", {"ProcessingJobArn": "arn"})
        client.create_processing_job(ProcessingJobName="fleet-evaluation-1", **request)
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 2 * 3600}
    assert request["NetworkConfig"]["EnableNetworkIsolation"] is False
    assert {"Key": "trainshed", "Value": "fleet"} in request["Tags"]
    (tokenizer,) = request["ProcessingInputs"]
    assert tokenizer["S3Input"]["S3Uri"] == "s3://<token>/models/Qwen3-VL-4B-Instruct/"


def test_the_function_s_environment_fits_lambda(template) -> None:
    """4 KiB; ids and ARNs that CloudFormation puts in have at most 200 characters each."""
    variables = function(template)[1]["Environment"]["Variables"]
    tokens = sum(not isinstance(p, str) for p in variables["REQUEST"]["Fn::Join"][1]) + 1
    assert len(json.dumps(request_of(template))) + tokens * 200 < 4096


def test_jobs_have_a_subnet_of_their_own(templates) -> None:
    """Addresses that jobs took from a group's subnet would be missing when the group grows."""
    network = templates("slurm-production")["fleet-us-west-2-network"]
    subnets = [n for n in of_type(network, "AWS::EC2::Subnet") if "Evaluation" in n]
    assert len(subnets) == 1
    assert subnets[0] in shown(function(templates("slurm-production")[STACK])[1])


def test_local_disks_have_no_key_and_volumes_have_one(templates, template) -> None:
    """SageMaker refuses a key for instances with local disks, whose hardware encrypts."""
    assert INSTANCE_TYPES["ml.g6.12xlarge"].nvme_disks
    config = request_of(template)["ProcessingResources"]["ClusterConfig"]
    assert "VolumeKmsKeyId" not in config
    other = templates(
        "slurm-production", set="workload.evaluation.instance_type=ml.m7i.4xlarge", regions=REGION
    )[STACK]
    assert request_of(other)["ProcessingResources"]["ClusterConfig"]["VolumeKmsKeyId"] == "<token>"
    statements = statements_of(other, function(other)[1]["Role"]["Fn::GetAtt"][0])
    (grant,) = allowed(statements, "kms:CreateGrant")
    assert grant["Condition"] == {"Bool": {"kms:GrantIsForAWSResource": "true"}}


def plan(**more: object) -> EvaluationPlan:
    return EvaluationPlan(**{
        "instance_type": "ml.g6.12xlarge", "zone": "use2-az1", "at_once": 1, "max_hours": 1, "volume_gb": 100,
        **more,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "processes"), [("ml.g6.12xlarge", "4"), ("ml.g6.xlarge", "1"), ("ml.m7i.large", "1")]
)
def test_a_process_for_each_gpu(kind: str, processes: str) -> None:
    given = evaluation_arguments(plan(instance_type=kind), data="s3://data")
    assert given[given.index("--nproc-per-node") + 1] == processes


def test_data_and_tokenizer_may_be_the_recipe_s_own() -> None:
    given = evaluation_arguments(plan(), data="s3://data")
    assert "--data" not in given
    assert not [argument for argument in given if "tokenizer" in argument]


def test_every_size_of_the_families_is_one_of_sagemaker_processing() -> None:
    """botocore's list of AWS's API."""
    model = boto3.client("sagemaker", region_name=REGION).meta.service_model
    shape = model.operation_model("CreateProcessingJob").input_shape.members["ProcessingResources"]
    legal = shape.members["ClusterConfig"].members["InstanceType"].enum
    ours = {name for name, kind in INSTANCE_TYPES.items() if kind.family in PROCESSING_FAMILIES}
    assert ours <= set(legal)
    assert {INSTANCE_TYPES[name].family for name in ours} == PROCESSING_FAMILIES


def test_without_evaluation_nothing_listens(templates) -> None:
    made = templates("slurm-production", set="workload.evaluation=null", regions=REGION)
    kinds = {r["Type"] for r in made[STACK]["Resources"].values()}
    assert not kinds & {"AWS::SQS::Queue", "AWS::Events::Rule", "AWS::Lambda::EventSourceMapping"}
    storage = made["fleet-us-west-2-storage"]
    assert not [
        b
        for b in of_type(storage, "AWS::S3::Bucket").values()
        if "NotificationConfiguration" in b["Properties"]
    ]


def test_the_checkpoint_bucket_tells_eventbridge_and_no_function_is_needed_for_it(templates) -> None:
    storage = templates("slurm-production")["fleet-us-west-2-storage"]
    telling = {
        name: bucket["Properties"]["NotificationConfiguration"]
        for name, bucket in of_type(storage, "AWS::S3::Bucket").items()
        if "NotificationConfiguration" in bucket["Properties"]
    }
    assert telling == {"Checkpoints620E2F20": {"EventBridgeConfiguration": {"EventBridgeEnabled": True}}}
    assert not of_type(storage, "Custom::S3BucketNotifications")
