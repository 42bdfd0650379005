"""Failures and delays on order, from `faults.json`: a list that a test writes and the server uses up.

Each entry is `{"type", "logical_id_contains", "action", "times", "message", "delay_s"}`. `action` is create,
update or delete; without `message` the entry only delays. What is left out matches everything, once.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from .kinds import Change


class Faults:
    """The list of orders; the first one that matches is used, and used up after `times`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def delays(self, kind: str) -> bool:
        """Whether a resource of this type may sleep, and so must not run on the server's event loop."""
        return any(order.get("delay_s") and order.get("type", kind) == kind for order in self._read())

    def strike(self, change: Change, action: str) -> None:
        """Sleep or fail if someone ordered it."""
        orders = self._read()
        for order in orders:
            if not _matches(order, change, action):
                continue
            order["times"] = order.get("times", 1) - 1
            self._write([o for o in orders if o.get("times", 1) > 0])
            time.sleep(order.get("delay_s", 0))
            if order.get("message"):
                raise RuntimeError(order["message"])
            return

    def _read(self) -> list[dict[str, Any]]:
        return json.loads(self._path.read_text()) if self._path.exists() else []

    def _write(self, orders: list[dict[str, Any]]) -> None:
        draft = self._path.with_suffix(".tmp")
        draft.write_text(json.dumps(orders))
        draft.replace(self._path)


def _matches(order: dict[str, Any], change: Change, action: str) -> bool:
    return (
        order.get("type", change.type) == change.type
        and order.get("action", action) == action
        and order.get("logical_id_contains", "") in change.logical_id
    )
