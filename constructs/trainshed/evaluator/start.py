"""Starts one SageMaker Processing job for each published checkpoint, whatever is delivered twice.

A checkpoint is its marker: the job's name is made of the marker's bytes, and SageMaker takes a name once.
Runs in Lambda with the standard library and boto3 alone; messages come from SQS.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from botocore.exceptions import ClientError  # pyright: ignore[reportMissingTypeStubs]
from clients import S3, SageMaker
from faults import NotYetError, UnfitError, code_of

ATTEMPTS = 3
FORMAT = "trainshed-checkpoint-1"
_MARKER = re.compile(r"(?P<run>(?:.*/)?)(?P<name>step-(?P<step>\d{8,}))/_PUBLISHED\.json")
_STATE_CHANGE = "SageMaker Processing Job State Change"
_LONGEST_ARGUMENT = 256
# The API's reference names the first, the service has been seen to answer the second.
_NO_SUCH_JOB = ("ResourceNotFound", "ValidationException")


class Starter:
    """`request` as `EvaluationJob` makes it; `prefix` begins the jobs' names, of which `at_once` may run."""

    def __init__(
        self, *, request: str, prefix: str, at_once: int, s3: S3, sagemaker: SageMaker
    ) -> None:  # fmt: skip
        self.request, self.prefix, self.at_once = request, prefix, at_once
        self.s3, self.sagemaker = s3, sagemaker

    def take(self, body: str) -> str:
        """Do what a message asks for: a line that says what was done."""
        try:
            event = json.loads(body)
            detail = event["detail"]
            if event["detail-type"] == _STATE_CHANGE:
                return self._failed(str(detail["ProcessingJobName"]))
            bucket, key = detail["bucket"]["name"], detail["object"]["key"]
        except (ValueError, KeyError, TypeError) as error:
            raise UnfitError(f"not an event of S3 nor of a job: {type(error).__name__} {error}") from None
        if not (isinstance(bucket, str) and isinstance(key, str)):
            raise UnfitError("not an event of S3: bucket and key are no text")
        match = _MARKER.fullmatch(key)
        return self._score(bucket, key, match) if match else f"{key}: no checkpoint's marker"

    def _score(self, bucket: str, key: str, match: re.Match[str]) -> str:
        run, name = match["run"], match["name"]
        folder, out = f"s3://{bucket}/{run}{name}", f"{run}evaluations/{name}"
        marker = self._marker(bucket, key)
        if marker is None:
            return f"{folder}: removed since"
        results = self._sizes(bucket, out)
        if f"{out}.json" in results or f"{out}/evaluation.json" in results:
            return f"{folder}: has a result"
        self._check_whole(bucket, f"{run}{name}/", marker)
        digest = hashlib.sha256(f"{bucket}/{key}\n".encode() + marker).hexdigest()[:16]
        request = self._request(folder, f"s3://{bucket}/{out}", {"BUCKET": bucket, "KEY": key})
        job = f"{self.prefix}-{int(match['step'])}-{digest}"
        return f"{folder}: {self._start(job, request)}"

    def _failed(self, name: str) -> str:
        """A failure is for a human to judge, unless its checkpoint was removed under it."""
        job = self.sagemaker.describe_processing_job(ProcessingJobName=name)
        bucket, key = (str(job["Environment"][part]) for part in ("BUCKET", "KEY"))
        if self._marker(bucket, key) is None:
            return f"{name}: s3://{bucket}/{key} was removed before it was done"
        reason = f"{name} failed: {job.get('FailureReason', 'no reason given')}"
        detail = {"bucket": {"name": bucket}, "object": {"key": key}}
        raise UnfitError(reason, json.dumps({"detail-type": "Object Created", "detail": detail}))

    def _marker(self, bucket: str, key: str) -> bytes | None:
        try:
            return self.s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        except self.s3.exceptions.NoSuchKey:
            return None

    def _sizes(self, bucket: str, prefix: str) -> dict[str, int]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {found["Key"]: found["Size"] for page in pages for found in page.get("Contents", [])}

    def _check_whole(self, bucket: str, prefix: str, marker: bytes) -> None:
        """FSx exports files in no order, so the marker may be there before what it speaks of."""
        try:
            content = json.loads(marker)
            wanted: dict[str, int] = {name: file["bytes"] for name, file in content["files"].items()}
            if content["format"] != FORMAT:
                raise UnfitError(f"format is {content['format']!r}; allowed: {FORMAT}")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UnfitError(f"s3://{bucket}/{prefix}_PUBLISHED.json is no marker of {FORMAT}") from None
        there = self._sizes(bucket, prefix)
        missing = [name for name, size in wanted.items() if there.get(prefix + name) != size]
        if f"{prefix}.metadata" not in there:
            missing.append(".metadata")
        if missing:
            raise NotYetError(f"{len(missing)} files of s3://{bucket}/{prefix} are yet to come: {missing[0]}")

    def _request(self, checkpoint: str, out: str, environment: dict[str, str]) -> dict[str, Any]:
        request = json.loads(self.request)
        given: list[str] = request["AppSpecification"]["ContainerArguments"]
        filled = [{"{checkpoint}": checkpoint, "{out}": out}.get(argument, argument) for argument in given]
        if longest := max((len(a) for a in filled if len(a) > _LONGEST_ARGUMENT), default=0):
            most = f"SageMaker takes {_LONGEST_ARGUMENT}; shorten the run's folder"
            raise UnfitError(f"{checkpoint}: an address of {longest} characters; {most}")
        request["AppSpecification"]["ContainerArguments"] = filled
        return {**request, "Environment": environment}

    def _start(self, name: str, request: dict[str, Any]) -> str:
        """A running or completed job is never joined by another; a failed one may be tried again."""
        for attempt in range(1, ATTEMPTS + 1):
            this = name if attempt == 1 else f"{name}-{attempt}"
            status = self._status(this)
            if status is None:
                return self._create(this, request)
            if status != "Failed":
                return f"has the job {this}, {status}"
        raise UnfitError(f"{name} failed {ATTEMPTS} times")

    def _create(self, name: str, request: dict[str, Any]) -> str:
        pages = self.sagemaker.get_paginator("list_processing_jobs")
        found = pages.paginate(NameContains=f"{self.prefix}-", StatusEquals="InProgress")
        names = [job["ProcessingJobName"] for page in found for job in page["ProcessingJobSummaries"]]
        if sum(other.startswith(f"{self.prefix}-") for other in names) >= self.at_once:
            raise NotYetError(f"{self.at_once} jobs are running, as many as may at once")
        try:
            self.sagemaker.create_processing_job(ProcessingJobName=name, **request)
        except self.sagemaker.exceptions.ResourceInUse:  # another delivery was faster
            return f"has the job {name}"
        return f"started {name}"

    def _status(self, name: str) -> str | None:
        try:
            return self.sagemaker.describe_processing_job(ProcessingJobName=name)["ProcessingJobStatus"]
        except ClientError as error:
            if code_of(error) in _NO_SUCH_JOB:
                return None
            raise
