"""Messages of the evaluation queue: what each came to, which to deliver again, and which never will do.

Runs in Lambda; `start` does the work.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import clients
from botocore.exceptions import (  # pyright: ignore[reportMissingTypeStubs]
    ClientError,
    ParamValidationError,
)
from faults import UnfitError, code_of
from start import Starter

# What SageMaker says of a request that is wrong and stays so.
_WRONG = ("ValidationException",)


def handle(
    event: Mapping[str, Any], _context: object, *, starter: Starter | None = None,
    sqs: clients.Sqs | None = None,
) -> dict[str, list[dict[str, str]]]:  # fmt: skip
    """SQS deletes what is not in the answer, and delivers the rest again after its visibility timeout."""
    again: list[dict[str, str]] = []
    for record in event["Records"]:
        try:
            _take(record, starter or _starter(), sqs or clients.sqs())
        # Whatever it is, the other messages of the batch must not suffer from it.
        except Exception as error:
            print(f"[evaluation] later: {type(error).__name__}: {error}")  # noqa: T201
            again.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": again}


def _take(record: Mapping[str, Any], starter: Starter, sqs: clients.Sqs) -> None:
    try:
        print(f"[evaluation] {starter.take(record['body'])}")  # noqa: T201
    except (UnfitError, ParamValidationError, ClientError) as error:
        if isinstance(error, ClientError) and code_of(error) not in _WRONG:
            raise
        reason = " ".join(str(error).split())[:1000]
        print(f"[evaluation] dead letter: {reason}")  # noqa: T201
        letter = error.letter if isinstance(error, UnfitError) else None
        attributes = {"reason": {"DataType": "String", "StringValue": reason}}
        sqs.send_message(
            QueueUrl=os.environ["DEAD_LETTERS"],
            MessageBody=letter or record["body"],
            MessageAttributes=attributes,
        )


@cache
def _starter() -> Starter:
    settings = os.environ
    return Starter(
        request=settings["REQUEST"], prefix=settings["PREFIX"], at_once=int(settings["AT_ONCE"]),
        s3=clients.s3(), sagemaker=clients.sagemaker(),
    )  # fmt: skip
