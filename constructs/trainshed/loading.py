"""A deployment file with its overrides and its lock: read, validated, planned for each region, or refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from .asking import platform_of
from .deployment import Deployment
from .locking import read_lock
from .planning.model import AddressLock, PlatformPlan
from .planning.plan import plan_platform
from .planning.problems import PlanError, Problem, either, raise_if
from .planning.suggest import did_you_mean
from .reading import read_value, read_yaml
from .site import with_sites
from .validating import fields_at, shown, validate

_REGIONAL = ("network", "storage", "clusters", "workload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A deployment file as read: the plan, and whether each region's addresses are locked.

    `seen` is the file as each region sees it, with that region's `set` applied.
    """

    plan: PlatformPlan
    seen: Mapping[str, Deployment]
    locks: Mapping[str, AddressLock]
    lock_path: Path


def load(
    path: Path, *, regions: str | None = None, overrides: Iterable[str] = (), lock_path: Path | None = None
) -> Loaded:
    """Read a deployment file and plan it.

    Args:
        path: the YAML file.
        regions: comma-separated regions that replace the file's own list.
        overrides: `dotted.path=value` items, the value in YAML.
        lock_path: its lock; default: NAME.lock.yaml beside it.

    Raises:
        PlanError: everything that is wrong, together.
    """
    raw = read_yaml(path, "deployment file")
    flags = [item for override in overrides for item in split_overrides(override)]
    for item in flags:
        _apply(raw, item)
    seen = _by_region(raw, regions, flags)
    lock_path = lock_path or path.with_name(f"{path.stem}.lock.yaml")
    locks = read_lock(lock_path)
    plan = with_sites(_planned(seen, locks), path.parent)
    return Loaded(plan=plan, seen=seen, locks=locks, lock_path=lock_path)


def _planned(seen: dict[str, Deployment], locks: Mapping[str, AddressLock]) -> PlatformPlan:
    asked, problems = platform_of(seen)
    # Somebody else's subnets are seats: with one unread, all that follows would be about the wrong thing.
    raise_if(problems if any(".vpc." in p.path for p in problems) else ())
    told = {p.path for p in problems}
    try:
        plan = plan_platform(asked, locks)
    except PlanError as error:
        problems += [p for p in map(_in_the_files_words, error.problems) if p.path not in told]
        raise PlanError(dict.fromkeys(problems)) from None
    raise_if(dict.fromkeys(problems))
    return plan


# The planner speaks of AWS's values by its own names, an operator of the file's.
_NAMES = {
    "throughput_mbps_per_tib": "throughput_per_tib",
    "no_squash_nids": "root_squash.no_squash_nids",
    "root_squash": "root_squash.user",
    "file_system_path": "path",
}


def _in_the_files_words(problem: Problem) -> Problem:
    def said(text: str) -> str:
        return re.sub(rf"(?<!\w)({'|'.join(_NAMES)})(?!\w)", lambda m: _NAMES[m[1]], text)

    return Problem(said(problem.path), shown(problem.given), said(problem.allowed), said(problem.fix))


def split_overrides(text: str) -> list[str]:
    """`a.b=1,c=[2,3]` as its items: a comma separates only where another path follows."""
    return [item for item in re.split(r",(?=[A-Za-z_][\w.\-]*=)", text) if item.strip()]


def require_locked(loaded: Loaded) -> tuple[str, ...]:
    """Regions without a lock, for a warning.

    Raises:
        PlanError: a region is locked in part, so that its next plan could move what is new.
    """
    raise_if(
        Problem(
            path=loaded.lock_path.name,
            given=f"no entry for {', '.join(r.addresses.unlocked)} in {r.region}",
            allowed="a lock of every subnet in a locked region",
            fix="run `trainshed plan --lock` with the same file and flags, and commit the lock",
        )
        for r in loaded.plan.regions
        if r.addresses.unlocked and loaded.locks.get(r.region)
    )  # fmt: skip
    return tuple(r.region for r in loaded.plan.regions if r.addresses.unlocked)


def _apply(raw: dict[str, Any], item: str) -> None:
    dotted, separator, text = item.partition("=")
    if not separator or not all(dotted.strip().split(".")):
        raise PlanError(
            [Problem("set", item, "dotted.path=value", "for example clusters.train.groups.p5.count=32")]
        )
    value = read_value(text, f"set {dotted}")
    assign(raw, dotted.strip(), value, origin="set")


def assign(raw: dict[str, Any], dotted: str, value: object, *, origin: str) -> None:
    """Set a dotted path; every part but the last must be there already, or be a section that may be left out.

    Sections on the way are replaced by copies, because YAML's aliases make two places share one.

    Raises:
        PlanError: the path leads nowhere.
    """
    *parents, last = dotted.split(".")
    at = cast("dict[Any, Any]", raw)
    for depth, part in enumerate(parents):
        key = _key(at, part)
        known = _keys(at)
        if key is not None and at[key] is not None:
            at[key] = copy(at[key])
        elif known is not None and part in fields_at(parents[:depth]):
            key, at[part] = part, {}
        else:
            where = ".".join(parents[:depth]) or "the file"
            fix = did_you_mean(part, known or ()) or "name something that the file has"
            allowed = either(known) if known else "nothing there"
            raise PlanError([Problem(f"{origin} {dotted}", f"`{part}` in {where}", allowed, fix)])
        at = at[key]
    key = last if _keys(at) is not None else _key(at, last)
    if key is None:
        fix = "check the path against the file"
        raise PlanError([Problem(f"{origin} {dotted}", shown(value), "a path to a field", fix)])
    at[key] = value


def _keys(inside: object) -> list[str] | None:
    """The keys of a section; None for what is no section."""
    return [str(key) for key in cast("dict[object, object]", inside)] if isinstance(inside, dict) else None


def _key(inside: object, part: str) -> str | int | None:
    """How a section or a list holds what a path calls `part`; None when it does not."""
    if isinstance(inside, dict):
        return part if part in inside else None
    if isinstance(inside, list) and re.fullmatch("[0-9]{1,4}", part):
        return int(part) if int(part) < len(cast("list[object]", inside)) else None
    return None


def _by_region(raw: dict[str, Any], regions: str | None, flags: Sequence[str]) -> dict[str, Deployment]:
    entries = raw.get("regions")
    if regions is not None:
        names = list(dict.fromkeys(r.strip() for r in regions.split(",") if r.strip()))
        if not names:
            allowed = "a comma-separated list of regions"
            raise PlanError([Problem("regions", shown(regions), allowed, "for example us-east-2,us-west-2")])
        given: dict[str, Any] = cast("dict[str, Any]", entries) if isinstance(entries, dict) else {}
        raw = {**raw, "regions": {name: given.get(name) for name in names}}
    if isinstance(raw.get("regions"), dict):
        # `us-east-2:` with nothing behind it reads as null, and means a region with all defaults.
        entries = cast("dict[object, object]", raw["regions"])
        raw = {**raw, "regions": {name: {} if entry is None else entry for name, entry in entries.items()}}
    whole = validate(raw)
    seen: dict[str, Deployment] = {}
    for name, entry in whole.regions.items():
        mine = dict(raw)
        for dotted, value in entry.set.items():
            if dotted.partition(".")[0] not in _REGIONAL:
                raise PlanError([_not_regional(name, dotted)])
            assign(mine, dotted, value, origin=f"regions.{name}.set")
        if entry.set:
            # What is typed now wins over what the file says of one region.
            for item in flags:
                _apply(mine, item)
        seen[name] = validate(mine) if entry.set else whole
    return seen


def _not_regional(region: str, dotted: str) -> Problem:
    return Problem(
        f"regions.{region}.set", f"`{dotted}`", f"paths under {either(_REGIONAL)}",
        "write it where it stands in the file: it holds for every region",
    )  # fmt: skip
