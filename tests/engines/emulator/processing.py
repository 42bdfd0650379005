"""The part of the SageMaker API that starts Processing jobs: they are recorded and stay in progress.

Names are taken once, as on AWS. The role must trust SageMaker, and the image must have been pushed. A fault
ordered for the action `run` makes a job fail, which EventBridge is told.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from ministack.core.responses import get_account_id, get_region
from ministack.services import ec2, ecr, eventbridge

from . import roles, shapes
from .faults import Faults
from .inventory import Inventory, Record
from .kinds import Change

JOB = "AWS::SageMaker::ProcessingJob"
Response = tuple[int, dict[str, str], bytes]


class JobError(Exception):
    """An error in the shape of the SageMaker API."""

    def __init__(self, message: str, code: str = "ValidationException") -> None:
        super().__init__(message)
        self.code = code


class ProcessingApi:
    """Answers `SageMaker.…` requests about Processing jobs."""

    def __init__(self, inventory: Inventory, faults: Faults) -> None:
        self._inventory, self._faults = inventory, faults
        self._actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "CreateProcessingJob": self._create,
            "DescribeProcessingJob": lambda request: self._described(request["ProcessingJobName"]),
            "ListProcessingJobs": self._list,
        }

    async def handle(
        self, method: str, path: str, headers: dict[str, str], body: bytes, query: Any
    ) -> Response:
        """The signature of a ministack service."""
        name = headers.get("x-amz-target", "").rpartition(".")[2]
        try:
            if name not in self._actions:
                raise JobError(f"The emulator does not answer {name}", "UnknownOperationException")
            return self._answer(200, self._actions[name](json.loads(body or b"{}")))
        except JobError as error:
            return self._answer(400, {"__type": error.code, "message": str(error)})

    def _answer(self, status: int, content: dict[str, Any]) -> Response:
        return status, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(content).encode()

    def _described(self, name: str) -> dict[str, Any]:
        record = self._inventory.get(get_region(), JOB, name)
        if record is None:
            raise JobError(f"Could not find requested job with name: {name}")
        return dict(record.properties)

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        shapes.check("sagemaker", "CreateProcessingJob", request, JobError)
        name = request["ProcessingJobName"]
        if self._inventory.get(get_region(), JOB, name):
            message = f"Job name must be unique within an AWS account and region, and {name} is taken"
            raise JobError(message, "ResourceInUse")
        roles.require_trust(request["RoleArn"], "sagemaker.amazonaws.com", JobError)
        _check_image(request["AppSpecification"]["ImageUri"])
        for subnet in request["NetworkConfig"]["VpcConfig"]["Subnets"]:
            if subnet not in ec2._subnets:
                raise JobError(f"The subnet ID '{subnet}' does not exist")
        arn = f"arn:aws:sagemaker:{get_region()}:{get_account_id()}:processing-job/{name}"
        job = {
            **request, "ProcessingJobArn": arn, "ProcessingJobStatus": "InProgress",
            "CreationTime": int(time.time()),
        }  # fmt: skip
        try:
            self._faults.strike(Change(JOB, name, "", get_region(), job), "run")
        except RuntimeError as error:
            job |= {"ProcessingJobStatus": "Failed", "FailureReason": str(error)}
        self._inventory.put(Record(JOB, name, name, "", get_region(), job, {"Arn": arn}))
        if job["ProcessingJobStatus"] == "Failed":
            _tell_eventbridge(job)
        return {"ProcessingJobArn": arn}

    def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        found = self._matching(request.get("NameContains", ""), request.get("StatusEquals"))
        return {"ProcessingJobSummaries": list(found)}

    def _matching(self, part: str, status: str | None) -> Iterator[dict[str, Any]]:
        fields = ("ProcessingJobName", "ProcessingJobArn", "ProcessingJobStatus", "CreationTime")
        for record in self._inventory.records(get_region(), JOB):
            job = record.properties
            if part in job["ProcessingJobName"] and status in (None, job["ProcessingJobStatus"]):
                yield {name: job[name] for name in fields}


def _tell_eventbridge(job: dict[str, Any]) -> None:
    eventbridge._dispatch_event({
        "EventId": job["ProcessingJobName"], "Source": "aws.sagemaker", "EventBusName": "default",
        "DetailType": "SageMaker Processing Job State Change", "Detail": json.dumps(job),
        "Time": int(time.time()), "Resources": [job["ProcessingJobArn"]], "Account": get_account_id(),
        "Region": get_region(),
    })  # fmt: skip


def _check_image(uri: str) -> None:
    registry, _, rest = uri.partition("/")
    repository, _, tag = rest.partition(":")
    images = ecr._images.get(repository, [])
    if not registry.startswith(f"{get_account_id()}.dkr.ecr.{get_region()}."):
        raise JobError(f"{uri} is not in a repository of this account and region")
    if not any(tag in image.get("imageTags", []) for image in images):
        raise JobError(f"No image {tag} in repository {repository}")
