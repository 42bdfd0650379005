"""EFA-aware address plan: every claim gets one subnet, the VPC gets the few blocks that hold them.

A subnet cannot be resized, so what was given out is locked and plans only append. Sizes are powers
of two, placed largest first, which packs free space perfectly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network
from itertools import pairwise

from .cidr import (
    DEFAULT_BLOCK_QUOTA,
    DOCKER_BRIDGE,
    LARGEST_BLOCK_QUOTA,
    NEVER_SECONDARY,
    SHARED,
    accepts_secondary,
    family,
    page_of,
    subnet_size,
)
from .model import AddressLock, AddressPlan, Claim, LockedSubnet, SubnetPlan
from .problems import Problem, raise_if
from .space import Space, wanted


def allocate(
    claims: Sequence[Claim],
    *,
    pool: Sequence[IPv4Network],
    lock: AddressLock | None = None,
    block_quota: int = DEFAULT_BLOCK_QUOTA,
    path: str = "network",
) -> AddressPlan:
    """Give each claim a subnet, keeping every locked one where it is.

    Args:
        claims: tenants; names are unique.
        pool: private networks to draw from, in order of preference.
        lock: what earlier plans gave out.
        block_quota: IPv4 blocks the VPC may have (AWS: 5 by default, 50 on request).
        path: where the deployment file says so, for messages.

    Raises:
        PlanError: what does not fit, each with the shortfall and ways out.
    """
    lock = lock or AddressLock()
    raise_if([*check_pool(pool, path=f"{path}.pool"), *_check_lock(lock, path=path)])
    kept, warnings, problems = _keep(claims, lock)
    fresh = [claim for claim in claims if claim.name not in lock.subnets]
    pinned, split = _pins(claims, lock)
    space = Space(pool, lock)
    raise_if([*problems, *split, *space.assign(_units(fresh), pinned)])
    placed = space.place()
    blocks = space.blocks(placed, block_quota)
    raise_if(_check_blocks(blocks, block_quota, path))
    subnets = kept + [
        SubnetPlan(claim=c.name, zone=c.zone, purpose=c.purpose, cidr=placed[c.name],
                   needed=c.needed, reserved=wanted(c))
        for c in fresh
    ]  # fmt: skip
    return AddressPlan(
        blocks=blocks,
        subnets=tuple(sorted(subnets, key=lambda s: s.cidr)),
        unlocked=tuple(sorted(c.name for c in fresh)),
        warnings=tuple(warnings),
    )


def lock_of(plan: AddressPlan, *, prune: bool = False) -> AddressLock:
    """The lock that keeps a plan. `prune` forgets subnets without a tenant."""
    return AddressLock(
        blocks=plan.blocks,
        subnets={
            s.claim: LockedSubnet(zone=s.zone, purpose=s.purpose, cidr=s.cidr)
            for s in sorted(plan.subnets, key=lambda s: s.claim)
            if not (prune and s.retired)
        },
    )


def check_pool(pool: Sequence[IPv4Network], *, path: str) -> list[Problem]:
    """Refuse pools that AWS or SageMaker would refuse or break on."""
    problems: list[Problem] = []

    def refuse(given: object, allowed: str, fix: str) -> None:
        problems.append(Problem(path=path, given=str(given), allowed=allowed, fix=fix))

    if not pool:
        refuse("no network", "at least one private network", "leave `pool` out for the region's own /13")
    for i, net in enumerate(pool):
        if family(net) is None:
            private = "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10"
            refuse(net, private, "choose a private network")
        elif net.prefixlen > 28:
            refuse(net, "a /28 or larger", "AWS has no smaller subnet")
        elif net.subnet_of(DOCKER_BRIDGE):
            why = "SageMaker's container bridge owns that range: choose another"
            refuse(net, "anything but 172.17.0.0/16", why)
        elif closed := next((n for n in NEVER_SECONDARY if net.subnet_of(n)), None):
            why = "AWS adds no second block from there: choose another, to grow"
            refuse(net, f"anything but {closed}", why)
        if any(net.overlaps(other) for other in pool[:i]):
            refuse(net, "networks that do not overlap", "drop one of the two")
    families = {f for f in map(family, pool) if f not in (None, SHARED)}
    if len(families) > 1:
        allowed = "one of the private ranges, with 100.64.0.0/10 beside it if need be"
        why = "AWS does not join 10/8, 172.16/12 and 192.168/16 in one VPC"
        refuse(", ".join(map(str, pool)), allowed, why)
    return problems


def _check_lock(lock: AddressLock, *, path: str) -> list[Problem]:
    nets = sorted(s.cidr for s in lock.subnets.values())
    rows = (nets, sorted(lock.blocks))
    clash = [f"{a} and {b}" for row in rows for a, b in pairwise(row) if a.overlaps(b)]
    stray = [str(n) for n in nets if not any(n.subnet_of(b) for b in lock.blocks)]
    wrong = [*(f"{c} overlap" for c in clash), *(f"{s} lies in no locked block" for s in stray)]
    fix = "restore the lock file from version control: it must say what is deployed"
    allowed = "subnets inside the locked blocks, apart from each other"
    return [Problem(path=f"{path} (lock file)", given=w, allowed=allowed, fix=fix) for w in wrong]


def _check_blocks(blocks: Sequence[IPv4Network], quota: int, path: str) -> list[Problem]:
    problems: list[Problem] = []
    most = min(quota, LARGEST_BLOCK_QUOTA)
    if len(blocks) > most:
        problems.append(Problem(
            path=f"{path}.block_quota", given=f"a plan of {len(blocks)} VPC blocks", allowed=f"{most}",
            fix=f"ask for more 'IPv4 CIDR blocks per VPC' (up to {LARGEST_BLOCK_QUOTA}) and raise "
                "block_quota; or plan fewer, larger groups",
        ))  # fmt: skip
    problems += [
        Problem(path=f"{path}.pool", given=f"{block} beside the primary block {blocks[0]}",
                allowed="a secondary block that AWS accepts beside it",
                fix="draw the pool from one private range")
        for block in blocks[1:] if not accepts_secondary(blocks[0], block)
    ]  # fmt: skip
    return problems


def _keep(claims: Iterable[Claim], lock: AddressLock) -> tuple[list[SubnetPlan], list[str], list[Problem]]:
    """Locked subnets with their present tenants; what has outgrown or left its subnet is a problem."""
    by_name = {c.name: c for c in claims}
    kept: list[SubnetPlan] = []
    warnings: list[str] = []
    problems: list[Problem] = []
    for name, locked in lock.subnets.items():
        claim = by_name.get(name)
        needed, reserved = (claim.needed, wanted(claim)) if claim else (0, 0)
        kept.append(SubnetPlan(claim=name, zone=locked.zone, purpose=locked.purpose, cidr=locked.cidr,
                               needed=needed, reserved=reserved, retired=claim is None))  # fmt: skip
        if claim is None:
            then = "deploy, then `trainshed plan --lock --prune`"
            warnings.append(f"{locked.cidr} ({name}) has no tenant: {then}")
            continue
        usable = kept[-1].usable
        if (claim.zone, claim.purpose) != (locked.zone, locked.purpose):
            problems.append(Problem(
                path=claim.path, given=f"{name} as {claim.purpose} in {claim.zone}",
                allowed=f"{locked.purpose} in {locked.zone}, where {locked.cidr} is locked",
                fix="a subnet cannot move: give it a new name, so that it gets a new subnet",
            ))  # fmt: skip
        elif needed > usable:
            problems.append(Problem(
                path=claim.path, given=f"{name} needs {needed} addresses",
                allowed=f"{usable} in its locked subnet {locked.cidr} (short by {needed - usable})",
                fix="; or ".join(
                    ("a subnet cannot grow: put the further nodes into a second group", *claim.ways_out)
                ),
            ))  # fmt: skip
        elif reserved > usable:
            short = f"{reserved} addresses asked, {locked.cidr} has {usable}"
            warnings.append(f"{name} may not grow as declared: {short}")
    return kept, warnings, problems


def _units(claims: Iterable[Claim]) -> list[list[Claim]]:
    """Claims that must share a /16, largest unit first."""
    units: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        units[f"cell {claim.cell}" if claim.cell else f"claim {claim.name}"].append(claim)
    for unit in units.values():
        unit.sort(key=lambda c: c.name)
    return sorted(units.values(), key=lambda u: (-sum(subnet_size(wanted(c)) or 0 for c in u), u[0].name))


def _pins(claims: Iterable[Claim], lock: AddressLock) -> tuple[dict[str, IPv4Network], list[Problem]]:
    """The /16 each cell is locked to; a cell that is locked to two of them is a problem."""
    pins: dict[str, IPv4Network] = {}
    problems: list[Problem] = []
    for claim in claims:
        if not claim.cell or claim.name not in lock.subnets:
            continue
        page = page_of(lock.subnets[claim.name].cidr)
        if pins.setdefault(claim.cell, page) != page:
            problems.append(Problem(
                path=claim.path, given=f"{claim.name} is locked in {page}",
                allowed=f"{pins[claim.cell]}, where its cell is",
                fix="an EFA file system and its clients share a /16: give it a new name, "
                    "or turn the file system's efa off",
            ))  # fmt: skip
    return pins, problems
