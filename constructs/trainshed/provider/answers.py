"""Doing a custom resource's work, and telling CloudFormation how it went."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

Send = Callable[[Mapping[str, Any], str, str, str], None]


def properties_of(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the template gives the resource; every value is text."""
    return event.get("ResourceProperties", {})


def do(
    event: Mapping[str, Any], work: Callable[[Mapping[str, Any]], None], physical_id: str, send: Send
) -> None:
    """Work on create and update; on delete leave what was done, for it outlives the stack."""
    status, reason = "SUCCESS", ""
    try:
        if event["RequestType"] != "Delete":
            work(properties_of(event))
    # Whatever it is, CloudFormation must hear of it, or it waits for an hour.
    except Exception as error:
        status, reason = "FAILED", f"{type(error).__name__}: {error}"
    send(event, status, reason, event.get("PhysicalResourceId") or physical_id)


def respond(event: Mapping[str, Any], status: str, reason: str, physical_id: str) -> None:
    """Answer CloudFormation's pre-signed URL."""
    body = json.dumps(
        {
            "Status": status,
            "Reason": reason[:1000],
            "PhysicalResourceId": physical_id,
            "StackId": event["StackId"],
            "RequestId": event["RequestId"],
            "LogicalResourceId": event["LogicalResourceId"],
        }
    ).encode()
    request = urllib.request.Request(  # noqa: S310
        event["ResponseURL"], data=body, method="PUT", headers={"Content-Type": ""}
    )
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310
        pass
