"""Two deployment files, path by path: what differs, and what that does to what is deployed.

Compared is what each region sees, defaults made plain: where the region's first zone changes, so does
the zone of every group that names none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from .consequences import CONTROLLER_STAYS, ENTRIES, LINKED_TWICE, MEANINGS, MOVED, RULES, Policy
from .deployment import (
    Association,
    Deployment,
    Evaluation,
    GivenSubnetEntry,
    Group,
    Home,
    Lustre,
    Section,
    update_policies,
)
from .loading import Loaded, load
from .planning.model import RegionPlan
from .planning.problems import PlanError
from .planning.regions import REGIONS
from .report import WIDTH, wrapped

_POLICIES = update_policies()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One path that differs. `old` and `new` are plain JSON; `regions` is empty when all of them see it."""

    path: str
    old: object
    new: object
    policy: Policy
    meaning: str
    regions: tuple[str, ...] = ()


def against(path: Path, new: Loaded) -> list[Change]:
    """What changes from an older file to `new`, worst first.

    Raises:
        PlanError: the older file cannot be planned.
    """
    beside = path.with_name(f"{path.stem}.lock.yaml")
    try:
        # The lock says what is deployed; an older file, taken out of version control, rarely brings one.
        old = load(path, lock_path=beside if os.path.lexists(beside) else new.lock_path)
    except PlanError as error:
        raise PlanError(
            replace(problem, path=f"{path}: {problem.path}") for problem in error.problems
        ) from None
    return compare(old, new)


def compare(old: Loaded, new: Loaded) -> list[Change]:
    """Every path that differs, worst first."""
    common = [region for region in new.seen if region in old.seen]
    found: dict[tuple[str, ...], tuple[Change, list[str]]] = {}
    for region in common:
        for change in _sections(_plain(old.seen[region], region), _plain(new.seen[region], region), "", ""):
            same = (change.path, repr(change.old), repr(change.new), change.policy)
            found.setdefault(same, (change, []))[1].append(region)
    merged = [
        c if len(at) == len(common) or c.path.startswith("regions.") else replace(c, regions=tuple(at))
        for c, at in found.values()
    ]
    merged += [
        _gone("regions.*", f"regions.{region}", region) for region in old.seen if region not in new.seen
    ]
    merged += [_come(f"regions.{region}", region) for region in new.seen if region not in old.seen]
    was = {r.region: r for r in old.plan.regions}
    merged += [c for r in new.plan.regions if r.region in was for c in _moves(was[r.region], r)]
    worst_first = list(MEANINGS)
    return sorted(merged, key=lambda c: worst_first.index(c.policy))


def _plain(seen: Deployment, region: str) -> Deployment:
    """The file as one region sees it, with what the planner would fill in."""
    entry = seen.regions[region]
    known = REGIONS.get(region)
    zones = entry.zones or (known.zones[:1] if known else ())
    lustre = seen.storage.lustre
    only = next(iter(lustre)) if len(lustre) == 1 else None

    def placed(thing: Lustre | Group | Home | Evaluation) -> dict[str, object]:
        return {"zone": thing.zone or (zones[0] if zones else None)}

    def plain(group: Group) -> Group:
        types = (group.type,) if isinstance(group.type, str) else group.type
        return group.model_copy(update={**placed(group), "type": types})

    home = seen.storage.home
    storage = seen.storage.model_copy(update={
        "lustre": {name: fs.model_copy(update=placed(fs)) for name, fs in lustre.items()},
        "home": home and home.model_copy(update=placed(home)),
    })  # fmt: skip
    clusters = {
        name: cluster.model_copy(update={
            "lustre": cluster.lustre or only, "home": cluster.home and home is not None,
            "groups": {n: plain(g) for n, g in cluster.groups.items()},
        })
        for name, cluster in seen.clusters.items()
    }  # fmt: skip
    workload = seen.workload
    if workload and (jobs := workload.evaluation):
        workload = workload.model_copy(update={"evaluation": jobs.model_copy(update=placed(jobs))})
    mine = entry.model_copy(update={"zones": zones, "set": {}})
    parts = {"regions": {region: mine}, "storage": storage, "clusters": clusters, "workload": workload}
    return seen.model_copy(update=parts)


def _sections(old: BaseModel, new: BaseModel, at: str, pattern: str) -> Iterator[Change]:
    for field in type(old).model_fields:
        path, general = f"{at}{field}", f"{pattern}{field}"
        was, will = getattr(old, field), getattr(new, field)
        if was == will:
            continue
        before, after = _entries(was), _entries(will)
        if before is not None and after is not None:
            yield from _mappings(before, after, path, general)
        elif isinstance(was, Section) and isinstance(will, Section) and type(was) is type(will):
            yield from _sections(was, will, f"{path}.", f"{general}.")
        elif will is None and general in ENTRIES:
            yield _gone(general, path, was)
        elif was is None and general in ENTRIES:
            yield _come(path, will)
        else:
            policy = cast("Policy", _POLICIES[general][0])
            rule = next((r for r in RULES if r.path == general and r.holds(old, new)), None)
            policy, meaning = (rule.policy, rule.why) if rule else (policy, MEANINGS[policy])
            yield Change(path=path, old=_json(was), new=_json(will), policy=policy, meaning=meaning)


def _entries(value: object) -> dict[str, object] | None:
    """What stands under a name: a list's sections go by what identifies them, so that order is no change."""
    if isinstance(value, dict):
        return cast("dict[str, object]", value)
    items = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (None,)
    named = {_identity(item): item for item in items}
    return None if None in named else cast("dict[str, object]", named)


def _identity(item: object) -> str | None:
    if isinstance(item, Association):
        return item.path
    return item.id if isinstance(item, GivenSubnetEntry) else None


def _mappings(
    old: Mapping[str, object], new: Mapping[str, object], at: str, pattern: str
) -> Iterator[Change]:
    general = f"{pattern}.*"
    freed = [v for name, v in old.items() if name not in new]
    for name in dict.fromkeys((*old, *new)):
        path, was, will = f"{at}.{name}", old.get(name), new.get(name)
        if was == will:
            continue
        if isinstance(was, Section) and isinstance(will, Section):
            yield from _sections(was, will, f"{path}.", f"{general}.")
        elif general not in ENTRIES:
            yield Change(path=path, old=_json(was), new=_json(will), policy="live", meaning=MEANINGS["live"])
        elif will is None:
            yield _gone(general, path, was)
        else:
            taken = any(_overlap(will, link) for link in freed)
            yield _come(path, will, LINKED_TWICE if taken else None)


def _overlap(one: object, other: object) -> bool:
    if not (isinstance(one, Association) and isinstance(other, Association)):
        return False
    prefixes = (f"{a.prefix.strip('/')}/".lstrip("/") for a in (one, other))
    paths = (f"{a.path.strip('/')}/".lstrip("/") for a in (one, other))
    return _nested(*paths) or (one.bucket == other.bucket and _nested(*prefixes))


def _nested(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _come(path: str, will: object, refused: str | None = None) -> Change:
    policy: Policy = "never" if refused else "added"
    return Change(path=path, old=None, new=_json(will), policy=policy, meaning=refused or MEANINGS[policy])


def _gone(general: str, path: str, was: object) -> Change:
    policy, meaning = ENTRIES[general]
    if isinstance(was, Group) and was.role == "controller":
        policy, meaning = "never", CONTROLLER_STAYS
    return Change(path=path, old=_json(was), new=None, policy=policy, meaning=meaning)


def _moves(old: RegionPlan, new: RegionPlan) -> Iterator[Change]:
    """What would not stay where AWS has put it."""

    def moved(what: str, before: object, after: object) -> Change:
        at = f"regions.{new.region} ({what})"
        return Change(path=at, old=before, new=after, policy="never", meaning=MOVED)

    blocks = [str(b) for b in old.addresses.blocks], [str(b) for b in new.addresses.blocks]
    if new.network.vpc_id is None and blocks[1][: len(blocks[0])] != blocks[0]:
        yield moved("VPC blocks", *blocks)
    kept = {s.claim: s for s in old.addresses.subnets}
    for subnet in new.addresses.subnets:
        was = kept.get(subnet.claim)
        if was is None or was.zone != subnet.zone:
            continue
        before = old.given.get(subnet.claim) or str(was.cidr)
        after = new.given.get(subnet.claim) or str(subnet.cidr)
        if before != after:
            yield moved(f"subnet of {subnet.claim}", before, after)


def _json(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True) or value.model_dump(mode="json")
    return to_jsonable_python(value)


def changes_report(changes: Sequence[Change], old: str, new: str) -> str:
    """What differs, worst first, and what each does."""
    lines = [f"{old} -> {new}"]
    counts: list[str] = []
    for policy, meaning in MEANINGS.items():
        same = [change for change in changes if change.policy == policy]
        if not same:
            continue
        counts.append(f"{len(same)} {policy}")
        lines += ["", *wrapped(f"{policy}: {meaning}", "", "    ")]
        for change in same:
            where = f" (in {', '.join(change.regions)})" if change.regions else ""
            text = f"{change.path}{where}: {_shown(change.old)} -> {_shown(change.new)}"
            lines += wrapped(text, "  ", "      ")
            lines += wrapped(change.meaning, "      ", "      ") if change.meaning != meaning else ()
    total = "1 change" if len(changes) == 1 else f"{len(changes)} changes"
    return "\n".join((*lines, "", f"{total}: {', '.join(counts)}" if changes else "no changes"))


def _shown(value: object) -> str:
    text = "nothing" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 2 * WIDTH else f"{text[: 2 * WIDTH]}.."
