"""Every resource any stack has created and nobody deleted, retained ones included.

Written to `inventory.json` after each change, by rename, so that a reader never sees half a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LIVE, RETAINED = "live", "retained"


@dataclass
class Record:
    """One physical resource. `state` is what its API changed outside CloudFormation."""

    type: str
    physical_id: str
    logical_id: str
    stack: str
    region: str
    properties: Mapping[str, Any]
    attributes: Mapping[str, Any]
    status: str = LIVE
    state: dict[str, Any] = field(default_factory=dict)


class Inventory:
    """The records by region, type and physical id."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[tuple[str, str, str], Record] = {}
        self.save()

    def put(self, record: Record) -> None:
        """Add a record, or renew the one with the same identity and keep its state."""
        key = (record.region, record.type, record.physical_id)
        if key in self._records:
            record.state = self._records[key].state
        self._records[key] = record
        self.save()

    def drop(self, region: str, kind: str, physical_id: str) -> None:
        """Forget a deleted resource; unknown ones were created before a rollback recorded them."""
        self._records.pop((region, kind, physical_id), None)
        self.save()

    def retain(self, region: str, kind: str, physical_id: str) -> None:
        """Mark what CloudFormation let go of and left standing."""
        record = self.get(region, kind, physical_id)
        if record:
            record.status = RETAINED
            self.save()

    def get(self, region: str, kind: str, physical_id: str) -> Record | None:
        """The record of one physical resource."""
        return self._records.get((region, kind, physical_id))

    def records(self, region: str, kind: str | None = None) -> Iterator[Record]:
        """What exists in a region, of one type or of all."""
        return (r for r in list(self._records.values()) if r.region == region and kind in (None, r.type))

    def save(self) -> None:
        """Write the file."""
        draft = self._path.with_suffix(".tmp")
        draft.write_text(json.dumps([asdict(r) for r in self._records.values()], indent=1, default=str))
        draft.replace(self._path)
