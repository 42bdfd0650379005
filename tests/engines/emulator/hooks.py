"""Between ministack's stack engine and its handlers: faults, schema, rules, inventory, replacement.

Every function replaced here is private to ministack, so `server` refuses to start on any other version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ministack.core.responses import get_region
from ministack.services import ec2
from ministack.services.cloudformation import provisioners, stacks

from . import schemas
from .addresses import Occupancy
from .faults import Faults
from .inventory import Inventory, Record
from .kinds import Change, Kind, Properties, Provided
from .subnets import zone_name

Created = tuple[str, dict[str, Any]]


class Hooks:
    """Wraps the three verbs of the engine."""

    def __init__(
        self, kinds: Mapping[str, Kind], inventory: Inventory, occupancy: Occupancy, faults: Faults
    ) -> None:
        self._kinds = kinds
        self._inventory = inventory
        self._occupancy = occupancy
        self._faults = faults

    def install(self) -> None:
        """Patch ministack."""
        for kind in self._kinds.values():
            if isinstance(kind, Provided):
                provisioners._RESOURCE_HANDLERS[kind.type] = _handlers(kind)
        for name in schemas.known_types():
            top, nested = [], []
            for path in schemas.create_only(name):
                (nested if "/" in path else top).append(path.split("/")[0])
            provisioners._REPLACING_PROPERTIES[name] = tuple(top)
            provisioners._CONDITIONALLY_REPLACING_PROPERTIES[name] = tuple(nested)
        self._wrap("_provision_resource", self._provision)
        self._wrap("_update_resource", self._update)
        self._wrap("_delete_resource", self._delete)
        self._wrap("_replacing_change", _replacing)
        self._wrap("_add_event", self._event)
        self._wrap("_runs_on_worker_thread", self._on_thread)
        ec2._zone_name_for_az_id = zone_name

    def _wrap(self, name: str, wrapper: Callable[..., Any]) -> None:
        for module in (provisioners, stacks):
            if hasattr(module, name):
                original = getattr(module, name)
                setattr(module, name, lambda *args, _o=original, **kw: wrapper(_o, *args, **kw))

    def _provision(
        self, original: Callable[..., Created], kind: str, lid: str, props: Properties, stack: str
    ) -> Created:
        change = Change(kind, lid, stack, get_region(), props)
        self._admit(change, "create")
        physical_id, attributes = original(kind, lid, props, stack)
        return physical_id, self._record(change, physical_id, attributes)

    def _update(
        self,
        original: Callable[..., Created],
        kind: str,
        pid: str,
        old: Properties,
        new: Properties,
        stack: str,
        lid: str | None = None,
        attrs: dict[str, Any] | None = None,
    ) -> Created:
        if old == new or _replacing(provisioners._replacing_change, kind, old, new):
            return original(kind, pid, old, new, stack, lid, attrs)
        change = Change(kind, lid or pid, stack, get_region(), new, pid, old)
        self._admit(change, "update")
        physical_id, attributes = original(kind, pid, old, new, stack, lid, attrs)
        return physical_id, self._record(change, physical_id, attributes)

    def _delete(
        self,
        original: Callable[..., None],
        kind: str,
        pid: str,
        props: Properties,
        stack: str | None = None,
        lid: str | None = None,
    ) -> None:
        change = Change(kind, lid or pid, stack or "", get_region(), props, pid)
        self._faults.strike(change, "delete")
        self._kind(kind).release(change)
        original(kind, pid, props, stack, lid)
        self._inventory.drop(change.region, kind, pid)
        self._occupancy.publish()

    def _admit(self, change: Change, action: str) -> None:
        self._faults.strike(change, action)
        if change.type.startswith("AWS::") and change.type != "AWS::CDK::Metadata":
            schemas.validate(change)
        self._kind(change.type).check(change)

    def _record(self, change: Change, physical_id: str, attributes: dict[str, Any]) -> dict[str, Any]:
        kind = self._kind(change.type)
        kind.apply(physical_id, change.properties)
        more = kind.attributes(physical_id, change.properties, change.region)
        known = {**more, **(attributes or {})}
        self._inventory.put(
            Record(
                change.type,
                physical_id,
                change.logical_id,
                change.stack,
                change.region,
                change.properties,
                known,
            )
        )
        self._occupancy.publish()
        return known

    def _event(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        stack_id, _, _, kind, status = args[:5]
        if status == "DELETE_SKIPPED":
            physical_id = kwargs.get("physical_id") or args[6]
            self._inventory.retain(stack_id.split(":")[3], kind, physical_id)

    def _on_thread(self, original: Callable[[str], bool], kind: str) -> bool:
        return original(kind) or self._faults.delays(kind)

    def _kind(self, name: str) -> Kind:
        return self._kinds.get(name, _ANY)


_ANY = Kind()


def _replacing(original: Callable[..., bool], kind: str, old: Properties, new: Properties) -> bool:
    return original(kind, old, new) or schemas.replaces(kind, old, new)


def _handlers(kind: Provided) -> dict[str, Any]:
    def create(lid: str, props: Properties, stack: str) -> Created:
        return kind.create(Change(kind.type, lid, stack, get_region(), props)), {}

    def update(pid: str, old: Properties, new: Properties, stack: str) -> Created:
        return pid, {}

    return {"create": create, "update": update, "delete": kind.remove}
