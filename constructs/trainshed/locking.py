"""The address lock beside a deployment file: what every subnet was given, for good."""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import yaml

from .planning.addressing import lock_of
from .planning.model import AddressLock, LockedSubnet, PlatformPlan
from .planning.problems import PlanError, Problem
from .reading import read_yaml

LOCK_HEADER = """\
# What every subnet was given. AWS cannot resize or move a subnet, so plans only append here.
# Written by `trainshed plan --lock`; commit it beside the deployment file.
"""
_PURPOSES = ("nodes", "storage", "endpoints", "public")
_LARGEST_PREFIX, _SMALLEST_PREFIX = 16, 28


def read_lock(path: Path) -> dict[str, AddressLock]:
    """Locks by region; none when there is no file.

    Raises:
        PlanError: the file is damaged.
    """
    if not os.path.lexists(path):
        return {}
    raw = read_yaml(path, "lock file")
    try:
        if raw["version"] != 1:
            raise ValueError("its version is not 1")
        return {str(region): _locked(entry) for region, entry in raw["regions"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanError([Problem(
            str(path), f"a damaged lock ({error})", "what `trainshed plan --lock` wrote",
            "restore it from version control: it says what is deployed",
        )]) from None  # fmt: skip


def _locked(entry: Mapping[str, Any]) -> AddressLock:
    subnets: dict[str, LockedSubnet] = {}
    for name, given in entry["subnets"].items():
        purpose, zone = given["purpose"], given["zone"]
        if purpose not in _PURPOSES or not isinstance(zone, str):
            raise ValueError(f"the purpose or zone of {name} is not known")
        subnets[str(name)] = LockedSubnet(zone=zone, purpose=purpose, cidr=_network(given["cidr"]))
    return AddressLock(blocks=tuple(_network(block) for block in entry["blocks"]), subnets=subnets)


def _network(given: object) -> IPv4Network:
    found = IPv4Network(str(given))
    if not _SMALLEST_PREFIX >= found.prefixlen >= _LARGEST_PREFIX:
        raise ValueError(f"{found} is no size of AWS's, /{_LARGEST_PREFIX} to /{_SMALLEST_PREFIX}")
    return found


def write_lock(path: Path, locks: Mapping[str, AddressLock]) -> None:
    """Write locks so that an interrupted write loses nothing.

    Raises:
        PlanError: the file cannot be written.
    """
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
    try:
        fresh.write_text(LOCK_HEADER + yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        given = error.strerror or str(error)
        fix = "let the folder be written to: the lock stands beside the deployment file"
        raise PlanError([Problem(str(path), given, "a file that can be written", fix)]) from None
    finally:
        fresh.unlink(missing_ok=True)


def locked(
    plan: PlatformPlan, locks: Mapping[str, AddressLock], *, prune: bool = False
) -> tuple[dict[str, AddressLock], list[str]]:
    """The locks with a plan's subnets appended, other regions' kept, and what was done in words."""
    said: list[str] = []
    after = dict(locks)
    for region in plan.regions:
        name, addresses = region.region, region.addresses
        if region.network.vpc_id is not None:
            said.append(f"nothing to lock in {name}: {region.network.vpc_id} is given")
            continue
        after[name] = lock_of(addresses, prune=prune)
        fresh = len(addresses.unlocked)
        said.append(
            f"locked {fresh} new {_subnets(fresh)} in {name}" if fresh else f"no new subnets in {name}"
        )
        gone = [f"{s.claim} ({s.cidr})" for s in addresses.subnets if s.retired]
        if gone:
            verb = "forgot" if prune else "kept"
            hint = "" if prune else "; --prune forgets them"
            said.append(
                f"{verb} {len(gone)} retired {_subnets(len(gone))} in {name}: {', '.join(gone)}{hint}"
            )
    return after, said


def _subnets(count: int) -> str:
    return "subnet" if count == 1 else "subnets"
