"""Where a stack is deployed, as ARNs say it. CDK is asked once, for it never changes."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import aws_cdk as cdk


class Place(NamedTuple):
    """A stack's environment, in tokens where it is known only at deployment."""

    partition: str
    region: str
    account: str

    def arn(self, service: str, resource: str) -> str:
        """An ARN in this place."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"


@cache
def place_of(stack: cdk.Stack) -> Place:
    """The place of a stack."""
    return Place(stack.partition, stack.region, stack.account)
