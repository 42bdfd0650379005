"""What every regional stack has in common."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import Construct


class RegionStack(cdk.Stack):
    """A stack in one region of the platform. Account and zones are never looked up."""

    def __init__(
        self, scope: Construct, construct_id: str, *, region: str, account: str | None, protect: bool = False
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            env=cdk.Environment(account=account, region=region),
            termination_protection=protect,
        )
