"""The life of a platform on the emulator: deployed, unchanged, grown, guarded, repaired, torn down."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.verdicts import compare

from .emulator.client import ROOT, Emulator, EmulatorError, missing

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))
TABLES = ROOT / "constructs/trainshed/planning/instances.py"
DEPLOYMENT = ROOT / "deployments/slurm-production.yaml"
REGION = "us-west-2"
STACKS = [f"fleet-{REGION}-{name}" for name in ("network", "storage", "train")]
JOB = "AWS::SageMaker::ProcessingJob"
WORKLOAD = f"fleet-{REGION}-workload"


class Workplace:
    """One emulator, and the deployment as it is edited along the way."""

    def __init__(self, emulator: Emulator, folder: Path) -> None:
        self.emulator = emulator
        self.folder = folder

    def synth(self, name: str, *overrides: str) -> Path:
        assembly = self.folder / name
        if not assembly.exists():
            context = ["-c", f"deployment={self.folder / 'fleet.yaml'}", "-c", f"regions={REGION}"]
            chosen = ["-c", f"set={','.join(overrides)}"] if overrides else []
            self.emulator.cdk(
                "synth", "--quiet", "--no-validation", "--output", str(assembly), *context, *chosen
            )
        return assembly

    def deploy(self, assembly: Path, *arguments: str) -> str:
        common = ("--require-approval", "never", "--method", "direct")
        self.emulator.push_images(assembly)
        return self.emulator.cdk("deploy", "--app", str(assembly), *(arguments or ("--all",)), *common).stdout

    def diff(self, assembly: Path) -> int:
        return self.emulator.cdk("diff", "--app", str(assembly), "--all", "--fail", check=False).returncode

    def one(self, kind: str) -> dict[str, object]:
        (record,) = self.emulator.inventory(kind)
        return record

    def count(self, group: str) -> int:
        groups = self.one("AWS::SageMaker::Cluster")["properties"]["InstanceGroups"]  # type: ignore[index]
        return next(int(g["InstanceCount"]) for g in groups if g["InstanceGroupName"] == group)

    def output(self, stack: str, name: str) -> str:
        cloudformation = self.emulator.client("cloudformation")
        outputs = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["Outputs"]
        return next(o["OutputValue"] for o in outputs if o["OutputKey"] == name)

    def publish(self, bucket: str, folder: str, *, whole: bool = True) -> bytes:
        """A checkpoint as the trainer leaves it, as far as the marker tells; the marker comes last."""
        s3, files = self.emulator.client("s3"), {"__0_0.distcp": b"weights", ".metadata": b"where"}
        marker = {
            "format": "trainshed-checkpoint-1",
            "files": {
                name: {"bytes": len(data), "crc32": 0} for name, data in files.items() if name != ".metadata"
            },
        }
        for name, data in files.items() if whole else ():
            s3.put_object(Bucket=bucket, Key=f"{folder}/{name}", Body=data)
        body = json.dumps(marker).encode()
        s3.put_object(Bucket=bucket, Key=f"{folder}/_PUBLISHED.json", Body=body)
        return body

    def jobs(self) -> list[dict[str, Any]]:
        return [r["properties"] for r in self.emulator.inventory(JOB)]

    def send(self, queue: str, body: str) -> None:
        sqs = self.emulator.client("sqs")
        sqs.send_message(QueueUrl=sqs.get_queue_url(QueueName=queue)["QueueUrl"], MessageBody=body)

    def letters(self, queue: str, kind: str = "") -> int:
        """Messages in a queue: those that wait, or with `NotVisible` those at work."""
        sqs, name = self.emulator.client("sqs"), f"ApproximateNumberOfMessages{kind}"
        url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        return int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])

    def settled(self, holds: Callable[[], bool], timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, "it never came to that"
            time.sleep(0.5)

    def status(self, stack: str) -> str:
        cloudformation = self.emulator.client("cloudformation")
        return cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("deploy")
    shutil.copy(DEPLOYMENT, folder / "fleet.yaml")
    plan = ("plan", str(folder / "fleet.yaml"), "--regions", REGION, "--lock")
    subprocess.run([sys.executable, "-m", "trainshed", *plan], check=True, capture_output=True)
    with Emulator(region=REGION, tables=TABLES) as emulator:
        emulator.bootstrap()
        yield Workplace(emulator, folder)


def test_interrupted_deploy_is_taken_up_again(place: Workplace) -> None:
    place.emulator.faults({"type": "AWS::FSx::FileSystem", "action": "create", "times": 1, "delay_s": 20})
    assembly = place.synth("first")
    place.emulator.push_images(assembly)
    running = place.emulator.start_cdk(
        "deploy", "--app", str(assembly), "--all", "--require-approval", "never", "--method", "direct"
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not _exists(place, STACKS[1]):
        time.sleep(0.5)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    place.emulator.faults()
    assert not place.emulator.inventory("AWS::SageMaker::Cluster")
    _settle(place, STACKS[1])

    place.deploy(assembly)

    assert [place.status(s) for s in STACKS[2:]] == ["CREATE_COMPLETE"]
    assert place.count("p5en") == 8


def test_deployed_platform_is_what_was_planned(place: Workplace) -> None:
    systems = Counter(
        r["properties"]["FileSystemType"] for r in place.emulator.inventory("AWS::FSx::FileSystem")
    )
    assert systems == {"LUSTRE": 1, "OPENZFS": 1}
    lustre = next(
        r
        for r in place.emulator.inventory("AWS::FSx::FileSystem")
        if r["properties"]["FileSystemType"] == "LUSTRE"
    )
    seen = place.emulator.client("fsx").describe_file_systems(FileSystemIds=[lustre["physical_id"]])
    squash = seen["FileSystems"][0]["LustreConfiguration"]["RootSquashConfiguration"]
    assert squash["RootSquash"] == "65534:65534", "the custom resource reached the file system"
    bucket = next(
        r["physical_id"]
        for r in place.emulator.inventory("AWS::S3::Bucket")
        if r["physical_id"].startswith("sagemaker-")
    )
    s3 = place.emulator.client("s3")
    settings = json.loads(s3.get_object(Bucket=bucket, Key="train/settings.json")["Body"].read())
    assert settings["lustre"]["dns_name"].startswith(lustre["physical_id"])
    assert settings["lustre"]["efa"] is True
    assert (
        s3.get_object(Bucket=bucket, Key="train/on_init_complete.sh")["Body"].read()
        == (ROOT / "lifecycle/on_init_complete.sh").read_bytes()
    )


def test_logs_that_hyperpod_makes_for_itself_get_an_end(place: Workplace) -> None:
    cluster = place.one("AWS::SageMaker::Cluster")
    name = f"/aws/sagemaker/Clusters/fleet-train/{cluster['physical_id'].rpartition('/')[2]}"
    groups = place.emulator.client("logs").describe_log_groups(logGroupNamePrefix=name)["logGroups"]
    assert [(g["logGroupName"], g.get("retentionInDays")) for g in groups] == [(name, 90)]


def test_recipes_and_the_images_address_are_published(place: Workplace) -> None:
    s3, bucket = place.emulator.client("s3"), place.output(STACKS[1], "DatasetsBucket")
    found = {o["Key"] for o in s3.list_objects_v2(Bucket=bucket, Prefix="trainshed/")["Contents"]}
    recipes = {f"trainshed/recipes/{p.name}" for p in (ROOT / "trainer/recipes").glob("*.yaml")}
    jobs = {f"trainshed/jobs/{p.name}" for p in (ROOT / "lifecycle/jobs").glob("*") if p.is_file()}
    assert found == {"trainshed/image.json", *recipes, *jobs}
    told = json.loads(s3.get_object(Bucket=bucket, Key="trainshed/image.json")["Body"].read())
    assert told == {"uri": place.output(WORKLOAD, "TrainerImage")}


def test_each_published_checkpoint_gets_one_job(place: Workplace) -> None:
    """Bucket, EventBridge, queue and function as deployed; the job itself is only recorded."""
    bucket = place.output(STACKS[1], "CheckpointsBucket")
    markers = {step: place.publish(bucket, f"exp/run/step-{step:08d}") for step in (20, 40)}
    for step, marker in markers.items():  # the same marker again: an event of its own, delivered twice
        place.emulator.client("s3").put_object(
            Bucket=bucket, Key=f"exp/run/step-{step:08d}/_PUBLISHED.json", Body=marker
        )
    place.settled(lambda: len(place.jobs()) == 2)
    queue = place.output(WORKLOAD, "EvaluationQueue").rpartition(":")[2]
    dead = place.output(WORKLOAD, "EvaluationDeadLetters").rpartition(":")[2]
    place.send(queue, "no event at all")
    place.settled(lambda: place.letters(dead) == 1 and place.letters(queue) == 0)
    jobs = place.jobs()
    for step, job in zip((20, 40), sorted(jobs, key=lambda j: str(j["ProcessingJobName"])), strict=True):
        assert job["ProcessingJobName"].startswith(f"fleet-evaluation-{step}-")
        arguments = job["AppSpecification"]["ContainerArguments"]
        assert arguments[arguments.index("--checkpoint") + 1] == f"s3://{bucket}/exp/run/step-{step:08d}"
        assert arguments[arguments.index("--out") + 1] == f"s3://{bucket}/exp/run/evaluations/step-{step:08d}"
        assert job["AppSpecification"]["ImageUri"] == place.output(WORKLOAD, "TrainerImage")


def test_a_failed_job_is_a_dead_letter_that_starts_the_next_attempt(place: Workplace) -> None:
    bucket = place.output(STACKS[1], "CheckpointsBucket")
    queue, dead = (
        place.output(WORKLOAD, n).rpartition(":")[2] for n in ("EvaluationQueue", "EvaluationDeadLetters")
    )
    place.emulator.faults({"type": JOB, "action": "run", "times": 1, "message": "CapacityError"})
    place.publish(bucket, "unlucky/step-00000080")
    place.settled(lambda: place.letters(dead) == 2)
    (failed,) = [j for j in place.jobs() if j["ProcessingJobStatus"] == "Failed"]
    sqs = place.emulator.client("sqs")
    url = sqs.get_queue_url(QueueName=dead)["QueueUrl"]
    bodies = [m["Body"] for m in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]]
    (letter,) = [body for body in bodies if "unlucky/step-00000080" in body]
    place.send(queue, letter)
    place.settled(lambda: len(place.jobs()) == 4)
    (second,) = [j for j in place.jobs() if j["ProcessingJobName"] == f"{failed['ProcessingJobName']}-2"]
    assert second["ProcessingJobStatus"] == "InProgress"


def test_a_marker_that_came_before_its_files_waits(place: Workplace) -> None:
    """FSx exports in no order; the function's answer makes the queue deliver the message again."""
    bucket = place.output(STACKS[1], "CheckpointsBucket")
    queue = place.output(WORKLOAD, "EvaluationQueue").rpartition(":")[2]
    place.publish(bucket, "early/step-00000060", whole=False)
    place.settled(lambda: place.letters(queue, "NotVisible") == 1)
    time.sleep(2)
    assert place.letters(queue, "NotVisible") == 1, "it was deleted"
    assert len(place.jobs()) == 4


def test_diff_is_clean_after_deploy(place: Workplace) -> None:
    assert place.diff(place.synth("first")) == 0


def test_group_grows_in_place_and_rolls_back_when_it_cannot(place: Workplace) -> None:
    cluster, subnets = place.one("AWS::SageMaker::Cluster")["physical_id"], _subnets(place)
    grown = place.synth("grown", "clusters.train.groups.p5en.count=12")
    place.emulator.faults(
        {"type": "AWS::SageMaker::Cluster", "action": "update", "times": 1, "message": "no capacity"}
    )
    with pytest.raises(EmulatorError, match="no capacity"):
        place.deploy(grown, STACKS[2])
    assert place.status(STACKS[2]) == "UPDATE_ROLLBACK_COMPLETE"
    assert place.count("p5en") == 8

    place.deploy(grown, STACKS[2])

    assert place.count("p5en") == 12
    assert place.one("AWS::SageMaker::Cluster")["physical_id"] == cluster
    assert _subnets(place) == subnets


def test_gate_stops_a_replacement_before_it_is_deployed(place: Workplace) -> None:
    stacks = STACKS[:2]
    deployed = {s: json.loads((place.synth("grown") / f"{s}.template.json").read_text()) for s in stacks}
    changed = copy.deepcopy(deployed)
    system = _lustre(changed[STACKS[1]]["Resources"].values())
    system["Properties"]["KmsKeyId"] = "arn:aws:kms:us-west-2:000000000000:key/another"

    refused = [change for change in compare(changed, deployed) if change.instead]

    # Its links to S3 would go with the file system.
    (system_change,) = [c for c in refused if c.kind == "AWS::FSx::FileSystem"]
    assert "KmsKeyId" in " ".join(system_change.details)
    assert {c.kind for c in refused} <= {"AWS::FSx::FileSystem", "AWS::FSx::DataRepositoryAssociation"}
    assert not compare(deployed, deployed)


def test_destroy_refuses_while_protected(place: Workplace) -> None:
    refused = place.emulator.cdk(
        "destroy", "--app", str(place.synth("grown")), STACKS[1], "--exclusively", "--force", check=False
    )
    assert refused.returncode != 0
    assert place.status(STACKS[1]) in ("CREATE_COMPLETE", "UPDATE_COMPLETE")


def test_destroy_keeps_the_data_and_drops_what_costs(place: Workplace) -> None:
    loose = place.synth("loose", "clusters.train.groups.p5en.count=12", "protect=false")
    place.deploy(loose)
    place.emulator.cdk("destroy", "--app", str(loose), "--all", "--force")
    left = Counter(r["type"] for r in place.emulator.inventory() if r["stack"].startswith("fleet-"))
    assert left["AWS::FSx::FileSystem"] == 2
    assert left["AWS::FSx::DataRepositoryAssociation"] == 2
    assert left["AWS::S3::Bucket"] == 3
    assert left["AWS::KMS::Key"] == 1
    for kind in (
        "AWS::SageMaker::Cluster",
        "AWS::IAM::Role",
        "AWS::EC2::VPCEndpoint",
        "AWS::Lambda::Function",
    ):
        assert not left[kind], kind


def _lustre(resources: Iterable[dict[str, Any]]) -> dict[str, Any]:
    systems = (r for r in resources if r["Type"] == "AWS::FSx::FileSystem")
    return next(s for s in systems if s["Properties"]["FileSystemType"] == "LUSTRE")


def _subnets(place: Workplace) -> set[object]:
    return {r["physical_id"] for r in place.emulator.inventory("AWS::EC2::Subnet")}


def _exists(place: Workplace, stack: str) -> bool:
    cloudformation = place.emulator.client("cloudformation")
    return any(s["StackName"] == stack for s in cloudformation.describe_stacks()["Stacks"])


def _settle(place: Workplace, stack: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and place.status(stack).endswith("IN_PROGRESS"):
        time.sleep(0.5)
