"""Deployment and lock files: read, overridden from context, and refused with messages a person can act on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel, ValidationError

from .asking import platform_of
from .deployment import Deployment
from .planning.model import AddressLock, LockedSubnet, PlatformPlan
from .planning.plan import plan_platform
from .planning.problems import PlanError, Problem, either, raise_if
from .planning.suggest import did_you_mean

LOCK_HEADER = """\
# What every subnet was given. AWS cannot resize or move a subnet, so plans only append here.
# Written by `trainshed plan --lock`; commit it beside the deployment file.
"""
_PURPOSES = ("nodes", "storage", "endpoints", "public")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A deployment file as read: the plan, and whether each region's addresses are locked."""

    plan: PlatformPlan
    locks: Mapping[str, AddressLock]
    lock_path: Path


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key written twice, of which YAML would silently keep the last."""


def _mapping(loader: Any, node: Any) -> dict[Any, Any]:
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool | None):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a plain word", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"`{key}` is written twice", key_node.start_mark)
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)  # type: ignore[no-untyped-call]


def load(path: Path, *, regions: str | None = None, overrides: Iterable[str] = ()) -> Loaded:
    """Read a deployment file and plan it.

    Args:
        path: the YAML file; its lock stands beside it as NAME.lock.yaml.
        regions: comma-separated regions that replace the file's own list.
        overrides: `dotted.path=value` items, the value in YAML.

    Raises:
        PlanError: everything that is wrong, together.
    """
    raw = read_yaml(path, "deployment file")
    for override in overrides:
        for item in split_overrides(override):
            _apply(raw, item)
    seen = _by_region(raw, regions)
    lock_path = path.with_name(f"{path.stem}.lock.yaml")
    locks = read_lock(lock_path)
    return Loaded(plan=plan_platform(platform_of(seen), locks), locks=locks, lock_path=lock_path)


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
            path=str(loaded.lock_path.name), given=f"no entry for {', '.join(r.addresses.unlocked)} in {r.region}",
            allowed="a lock of every subnet in a locked region",
            fix="run `trainshed plan --lock` with the same file and flags, and commit the lock",
        )
        for r in loaded.plan.regions
        if r.addresses.unlocked and loaded.locks.get(r.region)
    )  # fmt: skip
    return tuple(r.region for r in loaded.plan.regions if r.addresses.unlocked)


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """A YAML mapping.

    Raises:
        PlanError: it is missing, unreadable, not YAML, or not a mapping.
    """

    def refuse(given: str, fix: str) -> PlanError:
        return PlanError([Problem(str(path), given, f"a {what} in YAML", fix)])

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        siblings = sorted(p.name for p in path.parent.glob("*.yaml") if not p.name.endswith(".lock.yaml"))
        hint = did_you_mean(path.name, siblings) or (f"there is {either(siblings)}" if siblings else "check the path")
        raise refuse("no such file", hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(str(error), "check the file") from None
    try:
        raw = yaml.load(text, _StrictLoader)  # noqa: S506
    except yaml.YAMLError as error:
        raise refuse(re.sub(r"\s+", " ", str(error)), "correct the YAML there") from None
    except (RecursionError, ValueError, OverflowError) as error:
        raise refuse(f"YAML that cannot be read: {error}", "write it plainly, without references to itself") from None
    if not isinstance(raw, dict):
        raise refuse(f"{type(raw).__name__}", "begin with `name:` and `regions:`")
    return cast("dict[str, Any]", raw)


def _apply(raw: dict[str, Any], item: str) -> None:
    dotted, separator, text = item.partition("=")
    if not separator or not all(dotted.strip().split(".")):
        raise PlanError([Problem("-c set", item, "dotted.path=value", "for example clusters.train.groups.p5.count=32")])
    try:
        value = yaml.load(text, _StrictLoader)  # noqa: S506
    except (yaml.YAMLError, RecursionError, ValueError):
        raise PlanError([Problem(f"-c set {dotted}", text, "a YAML value", "quote it")]) from None
    assign(raw, dotted.strip(), value, origin="-c set")


def assign(raw: dict[str, Any], dotted: str, value: object, *, origin: str) -> None:
    """Set a dotted path in place; every part but the last must be there already.

    Raises:
        PlanError: the path leads nowhere.
    """
    *parents, last = dotted.split(".")
    at: Any = raw
    for depth, key in enumerate(parents):
        where = ".".join(parents[:depth]) or "the file"
        inside = cast("dict[str, Any] | list[Any]", at)
        if isinstance(inside, list) and key.isdigit() and int(key) < len(inside):
            at = inside[int(key)]
        elif isinstance(inside, dict) and key in inside:
            at = inside[key]
        elif isinstance(inside, dict) and _is_field(parents[: depth + 1]):
            at = inside.setdefault(key, {})
        else:
            known = [str(k) for k in inside] if isinstance(inside, dict) else []
            fix = did_you_mean(key, known) or "name something that the file has"
            raise PlanError([Problem(f"{origin} {dotted}", f"`{key}` in {where}", either(known) if known else "nothing there", fix)])
    if isinstance(at, dict):
        cast("dict[str, Any]", at)[last] = value
    elif isinstance(at, list) and last.isdigit() and int(last) < len(cast("list[Any]", at)):
        at[int(last)] = value
    else:
        raise PlanError([Problem(f"{origin} {dotted}", str(value), "a path to a field", "check the path against the file")])


def _is_field(loc: list[str]) -> bool:
    """Whether a path leads to a section of the schema, which may be left out of the file."""
    return bool(_fields_at(Deployment, loc))


def _by_region(raw: dict[str, Any], regions: str | None) -> dict[str, Deployment]:
    entries = raw.get("regions")
    if regions is not None:
        names = list(dict.fromkeys(r.strip() for r in regions.split(",") if r.strip()))
        if not names:
            raise PlanError([Problem("-c regions", regions, "a comma-separated list of regions", "for example us-east-2,us-west-2")])
        given: dict[str, Any] = cast("dict[str, Any]", entries) if isinstance(entries, dict) else {}
        raw = {**raw, "regions": {name: given.get(name) for name in names}}
    if isinstance(raw.get("regions"), dict):
        # `us-east-2:` with nothing behind it reads as null, and means a region with all defaults.
        raw = {**raw, "regions": {k: {} if v is None else v for k, v in cast("dict[Any, Any]", raw["regions"]).items()}}
    whole = validate(raw)
    seen: dict[str, Deployment] = {}
    for name, entry in whole.regions.items():
        mine = _copy(raw)
        for dotted, value in entry.set.items():
            assign(mine, dotted, value, origin=f"regions.{name}.set")
        seen[name] = validate(mine) if entry.set else whole
    return seen


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in cast("dict[Any, Any]", value).items()}
    return [_copy(v) for v in cast("list[Any]", value)] if isinstance(value, list) else value


def validate(raw: Mapping[str, Any]) -> Deployment:
    """The file against its schema.

    Raises:
        PlanError: every error, each with the path in the file.
    """
    try:
        return Deployment.model_validate(raw)
    except ValidationError as error:
        raise PlanError(dict.fromkeys(_problem(cast("dict[str, Any]", e)) for e in error.errors())) from None
    except RecursionError:
        raise PlanError([Problem("the file", "a section that holds itself", "plain sections", "drop the YAML anchor")]) from None


def _problem(error: dict[str, Any]) -> Problem:
    loc = [str(part) for part in error["loc"]]
    ctx = cast("dict[str, Any]", error.get("ctx") or {})
    given = _shown(error.get("input"))
    path = ".".join(p for p in loc if p not in ("[key]", "str") and not p.startswith("tuple[")) or "the file"
    kind = cast("str", error["type"])
    message = cast("str", error["msg"])
    if kind == "extra_forbidden":
        known = _fields_at(Deployment, loc[:-1])
        return Problem(path, f"`{loc[-1]}`", f"one of {', '.join(known)}", did_you_mean(loc[-1], known) or "leave it out")
    if kind == "missing":
        return Problem(path, "nothing", "a value", f"add `{loc[-1]}:`")
    if kind == "literal_error":
        allowed = str(ctx["expected"])
        words = re.findall(r"'([^']+)'", allowed)
        return Problem(path, given, allowed, did_you_mean(str(error.get("input")), words) or "use one of these")
    if kind == "string_pattern_mismatch":
        return Problem(path, given, f"text of the form {ctx['pattern']}", "rename it to match")
    return Problem(path, given, message[:1].lower() + message[1:], "correct the value")


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return f"a {'section' if isinstance(value, dict) else 'list'}"
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _fields_at(model: type[BaseModel], loc: list[str]) -> list[str]:
    """The fields a section may have, by following a path through the schema."""
    here: list[type[BaseModel]] = [model]
    named = False
    for part in loc:
        following: list[type[BaseModel]] = []
        for section in here:
            if part in section.model_fields and not named:
                annotation = section.model_fields[part].annotation
                following += _models_in(annotation)
                mapped = _is_container(annotation)
                break
        else:
            following, mapped = here, False
        if not following:
            return []
        here, named = following, mapped
    return list(here[0].model_fields) if here else []


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)]


def _is_container(annotation: object) -> bool:
    if getattr(annotation, "__origin__", None) in (dict, tuple):
        return True
    return any(_is_container(part) for part in getattr(annotation, "__args__", ()))


def read_lock(path: Path) -> dict[str, AddressLock]:
    """Locks by region; none when there is no file.

    Raises:
        PlanError: the file is damaged.
    """
    if not path.exists():
        return {}
    raw = read_yaml(path, "lock file")
    try:
        locks: dict[str, AddressLock] = {}
        for region, entry in cast("dict[str, dict[str, Any]]", raw["regions"]).items():
            subnets = {
                str(name): LockedSubnet(zone=s["zone"], purpose=s["purpose"], cidr=IPv4Network(s["cidr"]))
                for name, s in cast("dict[str, dict[str, Any]]", entry["subnets"]).items()
            }
            if any(s.purpose not in _PURPOSES or not isinstance(s.zone, str) for s in subnets.values()):
                raise ValueError("a subnet's purpose or zone is not known")
            locks[str(region)] = AddressLock(blocks=tuple(IPv4Network(b) for b in entry["blocks"]), subnets=subnets)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanError([Problem(
            str(path), f"a damaged lock ({error})", "what `trainshed plan --lock` wrote",
            "restore it from version control: it says what is deployed",
        )]) from None  # fmt: skip
    return locks


def write_lock(path: Path, locks: Mapping[str, AddressLock]) -> None:
    """Write locks so that an interrupted write loses nothing."""
    body = {
        "version": 1,
        "regions": {
            region: {
                "blocks": [str(b) for b in lock.blocks],
                "subnets": {
                    name: {"zone": s.zone, "purpose": s.purpose, "cidr": str(s.cidr)}
                    for name, s in sorted(lock.subnets.items())
                },
            }
            for region, lock in sorted(locks.items())
        },
    }
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(LOCK_HEADER + yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    fresh.replace(path)
