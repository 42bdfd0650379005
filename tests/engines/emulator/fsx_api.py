"""The part of the FSx API that deployments and operators call, over the inventory.

What CloudFormation cannot set (root squash, error logging) goes through UpdateFileSystem. An update finishes
on the second look: the first DescribeFileSystems after it still says UPDATING, so that a caller has to wait.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

from ministack.core.responses import get_account_id, get_region
from ministack.services import cloudwatch_logs

from .filesystems import FileSystem
from .inventory import Inventory, Record

_IDS = "[0-9]{1,10}:[0-9]{1,10}"
_MOST_NIDS = 64
Response = tuple[int, dict[str, str], bytes]


class FsxError(Exception):
    """An error in the shape of the FSx API."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class FsxApi:
    """Answers `AWSSimbaAPIService_v20180301` requests."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "DescribeFileSystems": self._describe,
            "UpdateFileSystem": self._update,
            "DescribeDataRepositoryAssociations": self._associations,
        }

    async def handle(
        self, method: str, path: str, headers: dict[str, str], body: bytes, query: Any
    ) -> Response:
        """The signature of a ministack service."""
        name = headers.get("x-amz-target", "").rpartition(".")[2]
        try:
            if name not in self._actions:
                raise FsxError("UnsupportedOperation", f"The emulator does not answer {name}")
            return self._answer(200, self._actions[name](json.loads(body or b"{}")))
        except FsxError as error:
            return self._answer(400, {"__type": error.code, "Message": str(error)})

    def _answer(self, status: int, content: dict[str, Any]) -> Response:
        return status, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(content).encode()

    def _find(self, file_system_id: str) -> Record:
        record = self._inventory.get(get_region(), FileSystem.type, file_system_id)
        if record is None:
            raise FsxError("FileSystemNotFound", f"File system '{file_system_id}' does not exist.")
        return record

    def _describe(self, request: dict[str, Any]) -> dict[str, Any]:
        wanted = request.get("FileSystemIds")
        if wanted:
            records = [self._find(i) for i in wanted]
        else:
            records = list(self._inventory.records(get_region(), FileSystem.type))
        shapes = [_shape(r) for r in records]
        for record in records:
            for action in record.state.get("AdministrativeActions", []):
                action["Status"] = "COMPLETED"
        self._inventory.save()
        return {"FileSystems": shapes}

    def _update(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._find(request.get("FileSystemId", ""))
        wanted = request.get("LustreConfiguration", {})
        _check_squash(wanted.get("RootSquashConfiguration", {}))
        _check_log(wanted.get("LogConfiguration", {}))
        actions = record.state.setdefault("AdministrativeActions", [])
        if any(a["Status"] == "IN_PROGRESS" for a in actions):
            raise FsxError("BadRequest", "Unable to perform the update: another update is in progress.")
        record.state.setdefault("LustreConfiguration", {}).update(wanted)
        actions.insert(
            0,
            {
                "AdministrativeActionType": "FILE_SYSTEM_UPDATE",
                "RequestTime": int(time.time()),
                "Status": "IN_PROGRESS",
                "TargetFileSystemValues": {"LustreConfiguration": wanted},
            },
        )
        self._inventory.save()
        return {"FileSystem": _shape(record)}

    def _associations(self, request: dict[str, Any]) -> dict[str, Any]:
        file_systems = {
            value
            for f in request.get("Filters", [])
            if f["Name"] == "file-system-id"
            for value in f["Values"]
        }
        wanted = set(request.get("AssociationIds", []))
        return {
            "Associations": [
                {**r.properties, **r.attributes, "Lifecycle": "AVAILABLE"}
                for r in self._inventory.records(get_region(), "AWS::FSx::DataRepositoryAssociation")
                if (not file_systems or r.properties["FileSystemId"] in file_systems)
                and (not wanted or r.physical_id in wanted)
            ]
        }


def _shape(record: Record) -> dict[str, Any]:
    actions = record.state.get("AdministrativeActions", [])
    busy = any(a["Status"] == "IN_PROGRESS" for a in actions)
    lustre = {
        **record.properties.get("LustreConfiguration", {}),
        "MountName": record.attributes.get("LustreMountName"),
        **record.state.get("LustreConfiguration", {}),
    }
    return {
        "OwnerId": get_account_id(),
        "FileSystemId": record.physical_id,
        "FileSystemType": record.properties["FileSystemType"],
        "Lifecycle": "UPDATING" if busy else "AVAILABLE",
        "StorageCapacity": record.properties.get("StorageCapacity"),
        "SubnetIds": record.properties["SubnetIds"],
        "DNSName": record.attributes["DNSName"],
        "ResourceARN": record.attributes["ResourceARN"],
        "Tags": record.properties.get("Tags", []),
        "LustreConfiguration": lustre,
        "AdministrativeActions": [dict(a) for a in actions],
    }


def _check_squash(squash: dict[str, Any]) -> None:
    ids = squash.get("RootSquash", "0:0")
    if not re.fullmatch(_IDS, ids) or any(int(i) > 2**32 - 1 for i in ids.split(":")):
        raise FsxError("BadRequest", f"Invalid RootSquash: {ids}. The format is UID:GID.")
    if len(squash.get("NoSquashNids", [])) > _MOST_NIDS:
        raise FsxError("BadRequest", f"At most {_MOST_NIDS} NoSquashNids can be given.")


def _check_log(log: dict[str, Any]) -> None:
    destination = log.get("Destination")
    if not destination:
        return
    group = destination.split(":log-group:")[-1].split(":")[0]
    if not group.startswith("/aws/fsx") or group not in cloudwatch_logs._log_groups:
        message = f"Log group {group} does not exist, or its name does not begin with /aws/fsx"
        raise FsxError("BadRequest", message)
