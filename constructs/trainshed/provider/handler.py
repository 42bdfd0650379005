"""Custom resources: what CloudFormation does not know of FSx (root squash) and of HyperPod (its logs' end).

Runs in Lambda with the standard library and boto3 alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol, cast

import boto3  # pyright: ignore[reportMissingTypeStubs]
from answers import Send, do, properties_of, respond

PATIENCE_SECONDS = 840
PAUSE_SECONDS = 10
OVER = {"COMPLETED", "FAILED", "CANCELLED"}


class Fsx(Protocol):
    """What is used of boto3's client."""

    exceptions: Any

    def update_file_system(self, **request: object) -> object:
        """UpdateFileSystem."""

    def describe_file_systems(self, **request: object) -> dict[str, Any]:
        """DescribeFileSystems."""
        ...


class Logs(Protocol):
    """What is used of boto3's client."""

    exceptions: Any

    def create_log_group(self, **request: object) -> object:
        """CreateLogGroup."""

    def put_retention_policy(self, **request: object) -> object:
        """PutRetentionPolicy."""


class Clock(Protocol):
    """What is used of the module `time`."""

    def monotonic(self) -> float:
        """Seconds, from anywhere."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Wait."""


def root_squash(
    event: Mapping[str, Any],
    _context: object,
    *,
    client: Fsx | None = None,
    clock: Clock = time,
    send: Send | None = None,
) -> None:
    """Set root squash on FSx for Lustre."""

    def work(props: Mapping[str, Any]) -> None:
        apply_root_squash(client or cast("Fsx", _client("fsx")), props, clock)

    do(event, work, f"{properties_of(event).get('FileSystemId')}/root-squash", send or respond)


def log_retention(
    event: Mapping[str, Any], _context: object, *, client: Logs | None = None, send: Send | None = None
) -> None:
    """Give a log group that a service makes an end."""

    def work(props: Mapping[str, Any]) -> None:
        logs = client or cast("Logs", _client("logs"))
        name: str = props["LogGroupName"]
        with suppress(logs.exceptions.ResourceAlreadyExistsException):
            logs.create_log_group(logGroupName=name)
        logs.put_retention_policy(logGroupName=name, retentionInDays=int(props["RetentionInDays"]))

    do(event, work, str(properties_of(event).get("LogGroupName")), send or respond)


def _client(service: str) -> object:
    return boto3.client(service)  # pyright: ignore


def apply_root_squash(fsx: Fsx, props: Mapping[str, Any], clock: Clock) -> None:
    """Update the file system and wait until its administrative action is over."""
    name: str = props["FileSystemId"]
    wanted: dict[str, Any] = {
        "RootSquash": props["RootSquash"],
        "NoSquashNids": props.get("NoSquashNids", []),
    }
    deadline = clock.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            fsx.update_file_system(FileSystemId=name, LustreConfiguration={"RootSquashConfiguration": wanted})
            break
        except fsx.exceptions.BadRequest as error:
            # FSx takes one update at a time; data repository associations may still be in the making.
            if "in progress" not in str(error).lower() or clock.monotonic() > deadline:
                raise
            clock.sleep(PAUSE_SECONDS)
    while True:
        system: dict[str, Any] = fsx.describe_file_systems(FileSystemIds=[name])["FileSystems"][0]
        latest = _latest(system)
        state: str = latest.get("Status", "COMPLETED")
        # What is set already starts no action, so the latest may be an earlier one that failed.
        if state in OVER and _is_set(system, wanted):
            return
        if state in OVER - {"COMPLETED"}:
            given: dict[str, str] = latest.get("FailureDetails", {})
            raise RuntimeError(given.get("Message", f"the update is {state}; FSx gave no reason"))
        if clock.monotonic() > deadline:
            raise TimeoutError(f"root squash of {name} is still {state} after {PATIENCE_SECONDS} s")
        clock.sleep(PAUSE_SECONDS)


def _latest(system: dict[str, Any]) -> dict[str, Any]:
    """The newest update of root squash; FSx promises no order."""
    actions: list[dict[str, Any]] = system.get("AdministrativeActions", [])
    ours = [action for action in actions if _is_ours(action)]
    none: dict[str, Any] = {}
    return max(ours, key=lambda action: str(action["RequestTime"]), default=none)


def _is_ours(action: dict[str, Any]) -> bool:
    target = action.get("TargetFileSystemValues", {}).get("LustreConfiguration", {})
    return action["AdministrativeActionType"] == "FILE_SYSTEM_UPDATE" and "RootSquashConfiguration" in target


def _is_set(system: dict[str, Any], wanted: dict[str, Any]) -> bool:
    found: dict[str, Any] = system["LustreConfiguration"].get("RootSquashConfiguration", {})
    nids = sorted(found.get("NoSquashNids", [])) == sorted(wanted["NoSquashNids"])
    return nids and found.get("RootSquash") == wanted["RootSquash"]
