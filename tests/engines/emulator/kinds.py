"""What the emulator knows about a resource type beyond its schema, and how it says no.

A `Kind` guards a type that ministack already provides; a `Provided` kind is one ministack lacks. Both see a
`Change` and raise `Refused`, whose text becomes the resource's status reason, as a service's message would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Properties = Mapping[str, Any]


class Refused(Exception):
    """The service refuses; shaped as CloudFormation reports it."""

    def __init__(self, message: str, *, service: str, code: str) -> None:
        super().__init__(
            f'Resource handler returned message: "{message} (Service: {service}, Status Code: 400, '
            f'Error Code: {code})" (HandlerErrorCode: InvalidRequest)'
        )


@dataclass(frozen=True)
class Change:
    """One create, in-place update or delete of one resource."""

    type: str
    logical_id: str
    stack: str
    region: str
    properties: Properties
    physical_id: str | None = None
    previous: Properties | None = None

    @property
    def creates(self) -> bool:
        """True when a new physical resource comes into being."""
        return self.physical_id is None


class Kind:
    """The defaults allow everything and use nothing."""

    type: str

    def check(self, change: Change) -> None:
        """Refuse a create or an in-place update."""

    def release(self, change: Change) -> None:
        """Refuse a delete."""

    def apply(self, physical_id: str, properties: Properties) -> None:
        """Make ministack's stores show what was created or updated, where its own handler does not."""

    def attributes(self, physical_id: str, properties: Properties, region: str) -> dict[str, Any]:
        """Attributes that ministack's own handler does not answer."""
        return {}

    def addresses(self, properties: Properties) -> Iterable[tuple[str, int]]:
        """Subnets the resource takes addresses from, and how many."""
        return ()

    def security_groups(self, properties: Properties) -> Iterable[str]:
        """Security groups its network interfaces carry."""
        return ()


class Provided(Kind):
    """A type ministack lacks: `create` names it, `remove` takes it out of ministack's stores."""

    def create(self, change: Change) -> str:
        """Return the new physical id."""
        raise NotImplementedError

    def remove(self, physical_id: str, properties: Properties) -> None:
        """Take a deleted resource out of ministack's stores."""
