"""What is used of boto3's clients, which have no types of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, cast

import boto3  # pyright: ignore[reportMissingTypeStubs]


class Pages(Protocol):
    """A paginator."""

    def paginate(self, **request: object) -> Iterable[dict[str, Any]]:
        """Answers, one after the other."""
        ...


class _Client(Protocol):
    exceptions: Any

    def get_paginator(self, operation_name: str, /) -> Pages:
        """Pages of an operation."""
        ...


class S3(_Client, Protocol):
    """Markers and results."""

    def get_object(self, **request: object) -> dict[str, Any]:
        """GetObject."""
        ...


class SageMaker(_Client, Protocol):
    """Jobs."""

    def create_processing_job(self, **request: object) -> object:
        """CreateProcessingJob."""

    def describe_processing_job(self, **request: object) -> dict[str, Any]:
        """DescribeProcessingJob."""
        ...


class Sqs(Protocol):
    """Dead letters."""

    def send_message(self, **request: object) -> object:
        """SendMessage."""


def s3() -> S3:
    """A client of this region."""
    return cast("S3", _client("s3"))


def sagemaker() -> SageMaker:
    """A client of this region."""
    return cast("SageMaker", _client("sagemaker"))


def sqs() -> Sqs:
    """A client of this region."""
    return cast("Sqs", _client("sqs"))


def _client(service: str) -> object:
    return boto3.client(service)  # pyright: ignore
