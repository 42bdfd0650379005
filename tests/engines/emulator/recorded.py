"""Types of which nothing is enforced but their schema: recorded, with plausible ids and attributes."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from ministack.core.responses import get_account_id

from .kinds import Change, Properties, Provided

Identify = Callable[[Change, str], str]
Describe = Callable[[str, Properties, str], dict[str, Any]]


class Recorded(Provided):
    """A type described by two functions."""

    def __init__(self, kind: str, identify: Identify, describe: Describe) -> None:
        self.type = kind
        self._identify = identify
        self._describe = describe

    def create(self, change: Change) -> str:
        """The physical id."""
        return self._identify(change, get_account_id())

    def attributes(self, physical_id: str, properties: Properties, region: str) -> dict[str, Any]:
        """Read-only properties."""
        return self._describe(physical_id, properties, region)


def _workspace(arn: str, properties: Properties, region: str) -> dict[str, Any]:
    workspace = arn.rpartition("/")[2]
    endpoint = f"https://aps-workspaces.{region}.amazonaws.com/workspaces/{workspace}/"
    return {"Arn": arn, "WorkspaceId": workspace, "PrometheusEndpoint": endpoint}


RECORDED = [
    Recorded(
        "AWS::APS::Workspace",
        lambda change, account: f"arn:aws:aps:{change.region}:{account}:workspace/ws-{secrets.token_hex(8)}",
        _workspace,
    ),
    Recorded(
        "AWS::APS::RuleGroupsNamespace",
        lambda change, account: "/".join(
            (
                change.properties["Workspace"].replace(":workspace/", ":rulegroupsnamespace/"),
                change.properties["Name"],
            )
        ),
        lambda physical_id, properties, region: {"Arn": physical_id},
    ),
    Recorded(
        "AWS::Grafana::Workspace",
        lambda change, account: f"g-{secrets.token_hex(5)}",
        lambda physical_id, properties, region: {
            "Id": physical_id,
            "Endpoint": f"{physical_id}.grafana-workspace.{region}.amazonaws.com",
            "Status": "ACTIVE",
        },
    ),
]
