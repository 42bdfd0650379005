"""Custom resource: the FSx settings that CloudFormation does not know (root squash).

Runs in Lambda with the standard library and boto3 alone.
"""

import json
import time
import urllib.request

import boto3

PATIENCE_SECONDS = 840
PAUSE_SECONDS = 10
OVER = {"COMPLETED", "FAILED", "CANCELLED"}


def root_squash(event, context, *, client=None, clock=time, send=None):
    """Set root squash on create and update; on delete leave it: the file system outlives the stack."""
    props = event.get("ResourceProperties", {})
    status, reason = "SUCCESS", ""
    try:
        if event["RequestType"] != "Delete":
            apply_root_squash(client or boto3.client("fsx"), props, clock)
    except Exception as error:  # noqa: BLE001 - CloudFormation must hear of it, or it waits for an hour
        status, reason = "FAILED", f"{type(error).__name__}: {error}"
    physical_id = event.get("PhysicalResourceId") or f"{props.get('FileSystemId')}/root-squash"
    (send or respond)(event, status, reason, physical_id)


def apply_root_squash(fsx, props, clock):
    """Update the file system and wait until its administrative action is over."""
    name = props["FileSystemId"]
    squash = {"RootSquash": props["RootSquash"], "NoSquashNids": props.get("NoSquashNids", [])}
    deadline = clock.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            fsx.update_file_system(
                FileSystemId=name, LustreConfiguration={"RootSquashConfiguration": squash}
            )
            break
        except fsx.exceptions.BadRequest as error:
            # FSx takes one update at a time; data repository associations may still be in the making.
            if "in progress" not in str(error).lower() or clock.monotonic() > deadline:
                raise
            clock.sleep(PAUSE_SECONDS)
    while True:
        system = fsx.describe_file_systems(FileSystemIds=[name])["FileSystems"][0]
        actions = filter(_is_ours, system.get("AdministrativeActions", []))
        latest = max(actions, key=lambda action: str(action["RequestTime"]), default={})
        state = latest.get("Status", "COMPLETED")
        # What is set already starts no action, so the latest may be an earlier one that failed.
        if state in OVER and _squash_of(system) == squash:
            return
        if state in OVER - {"COMPLETED"}:
            raise RuntimeError(latest.get("FailureDetails", {}).get("Message", f"the update is {state}; FSx gave no reason"))
        if clock.monotonic() > deadline:
            raise TimeoutError(f"root squash of {name} is still {state} after {PATIENCE_SECONDS} s")
        clock.sleep(PAUSE_SECONDS)


def _is_ours(action):
    target = action.get("TargetFileSystemValues", {}).get("LustreConfiguration", {})
    return action["AdministrativeActionType"] == "FILE_SYSTEM_UPDATE" and "RootSquashConfiguration" in target


def _squash_of(system):
    found = system["LustreConfiguration"].get("RootSquashConfiguration", {})
    return {"RootSquash": found.get("RootSquash"), "NoSquashNids": found.get("NoSquashNids", [])}


def respond(event, status, reason, physical_id):
    """Answer CloudFormation's pre-signed URL."""
    body = json.dumps({
        "Status": status,
        "Reason": reason[:1000],
        "PhysicalResourceId": physical_id,
        "StackId": event["StackId"],
        "RequestId": event["RequestId"],
        "LogicalResourceId": event["LogicalResourceId"],
    }).encode()  # fmt: skip
    request = urllib.request.Request(event["ResponseURL"], data=body, method="PUT", headers={"Content-Type": ""})  # noqa: S310
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310
        pass
