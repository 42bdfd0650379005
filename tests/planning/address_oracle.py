"""AWS's address rules told a second time, with plain integers and exhaustive search.

Nothing here uses the planner's arithmetic, only its value types, so that an error in one is not an error
in both. Source: Amazon VPC User Guide, "VPC CIDR blocks" and "Subnet CIDR blocks".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from ipaddress import IPv4Network
from itertools import combinations, pairwise

from trainshed.planning.model import AddressLock, AddressPlan, Claim

Span = tuple[int, int]
"""First address and the one after the last."""

UNIT = 16
"""Addresses of a /28: every boundary that AWS knows is a multiple of it."""


def span(net: IPv4Network) -> Span:
    return int(net.network_address), int(net.broadcast_address) + 1


def _range(first: str, last: str) -> Span:
    def number(dotted: str) -> int:
        a, b, c, d = map(int, dotted.split("."))
        return ((a * 256 + b) * 256 + c) * 256 + d

    return number(first), number(last) + 1


TEN = _range("10.0.0.0", "10.255.255.255")
SEVENTEEN_TWO = _range("172.16.0.0", "172.31.255.255")
ONE_NINE_TWO = _range("192.168.0.0", "192.168.255.255")
TEN_FIFTEEN = _range("10.0.0.0", "10.1.255.255")
TEN_SIXTEEN = _range("10.0.0.0", "10.0.255.255")
DEFAULT_VPC = _range("172.31.0.0", "172.31.255.255")
BENCHMARK = _range("198.19.0.0", "198.19.255.255")
DOCKER = _range("172.17.0.0", "172.17.255.255")


def meet(a: Span, b: Span) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def holds(outer: Span, inner: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def size_of(it: Span) -> int:
    return it[1] - it[0]


def page(it: Span) -> int:
    return it[0] // 65536


def usable(count: int) -> int:
    """AWS keeps the first four addresses of a subnet and the last."""
    return len(range(4, count - 1))


def smallest_subnet(addresses: int) -> int | None:
    """Tries every netmask from /28 to /16."""
    return next((2**bits for bits in range(4, 17) if usable(2**bits) >= addresses), None)


def want(claim: Claim) -> int:
    return claim.reserved if claim.reserved > claim.needed else claim.needed


def may_join(existing: Sequence[Span], new: Span) -> bool:
    """AWS's table of association restrictions; its rows speak of the primary block, which comes first."""
    primary = existing[0]
    if holds(TEN, primary):
        banned = [SEVENTEEN_TWO, ONE_NINE_TWO, BENCHMARK]
    elif holds(SEVENTEEN_TWO, primary):
        banned = [TEN, ONE_NINE_TWO, DEFAULT_VPC, BENCHMARK]
    elif holds(ONE_NINE_TWO, primary):
        banned = [TEN, SEVENTEEN_TWO, BENCHMARK]
    elif holds(BENCHMARK, primary):
        banned = [TEN, SEVENTEEN_TWO, ONE_NINE_TWO]
    else:
        banned = [TEN, SEVENTEEN_TWO, ONE_NINE_TWO, BENCHMARK]
    # Of all restrictions only this one looks at every block of the VPC.
    if any(meet(old, TEN_FIFTEEN) for old in existing):
        banned.append(TEN_SIXTEEN)
    return not any(meet(new, ban) for ban in banned)


def apart(spans: Iterable[Span]) -> bool:
    row = sorted(spans)
    return all(a[1] <= b[0] for a, b in pairwise(row))


def _inside(it: Span, pool: Iterable[Span]) -> bool:
    """Whether networks that do not overlap cover it together."""
    return sum(max(0, min(it[1], p[1]) - max(it[0], p[0])) for p in pool) == size_of(it)


def faults(
    plan: AddressPlan,
    claims: Sequence[Claim],
    *,
    pool: Sequence[IPv4Network],
    lock: AddressLock | None = None,
    quota: int = 5,
) -> list[str]:
    """Everything wrong with a plan; none for a good one."""
    lock = lock or AddressLock()
    return [
        *_block_faults(plan, pool, lock, quota),
        *_subnet_faults(plan, claims, lock),
        *_seat_faults(plan, claims, lock),
    ]


def _block_faults(
    plan: AddressPlan, pool: Sequence[IPv4Network], lock: AddressLock, quota: int
) -> Iterator[str]:
    blocks = [span(b) for b in plan.blocks]
    pools = [span(p) for p in pool]
    if plan.blocks[: len(lock.blocks)] != lock.blocks:
        yield f"locked blocks {lock.blocks} became {plan.blocks}"
    if len(blocks) > quota:
        yield f"{len(blocks)} blocks, quota {quota}"
    if not apart(blocks):
        yield f"blocks overlap: {plan.blocks}"
    for i, block in enumerate(blocks):
        name = plan.blocks[i]
        if size_of(block) not in [2**bits for bits in range(4, 17)] or block[0] % size_of(block):
            yield f"{name} is no block from /16 to /28"
        if i >= len(lock.blocks) and not _inside(block, pools):
            yield f"{name} is outside the pool"
        if i and not may_join(blocks[:i], block):
            yield f"{name} may not join {plan.blocks[:i]}"
        if meet(block, DOCKER):
            yield f"{name} is the container bridge's"


def _subnet_faults(plan: AddressPlan, claims: Sequence[Claim], lock: AddressLock) -> Iterator[str]:
    names = sorted(s.claim for s in plan.subnets)
    if names != sorted({c.name for c in claims} | set(lock.subnets)):
        yield f"planned {names}"
    if not apart(span(s.cidr) for s in plan.subnets):
        yield "subnets overlap"
    blocks = [span(b) for b in plan.blocks]
    for subnet in plan.subnets:
        here = span(subnet.cidr)
        if sum(meet(b, here) for b in blocks) != 1 or not any(holds(b, here) for b in blocks):
            yield f"{subnet.cidr} lies in no one block of {plan.blocks}"
        if subnet.claim in lock.subnets and lock.subnets[subnet.claim].cidr != subnet.cidr:
            yield f"{subnet.claim} moved from {lock.subnets[subnet.claim].cidr} to {subnet.cidr}"


def _seat_faults(plan: AddressPlan, claims: Sequence[Claim], lock: AddressLock) -> Iterator[str]:
    seats = {s.claim: s for s in plan.subnets}
    cells: dict[str, set[int]] = {}
    for claim in claims:
        seat = seats.pop(claim.name)
        count = size_of(span(seat.cidr))
        if (seat.zone, seat.purpose, seat.retired) != (claim.zone, claim.purpose, False):
            yield f"{claim.name} is seated as {seat}"
        if (seat.needed, seat.reserved) != (claim.needed, want(claim)):
            yield f"{claim.name} asked {claim.needed}, {want(claim)}; the plan says {seat}"
        if seat.usable != usable(count) or usable(count) < claim.needed:
            yield f"{claim.name} needs {claim.needed}, {seat.cidr} has {usable(count)}"
        if claim.name not in lock.subnets and count != smallest_subnet(want(claim)):
            yield f"{claim.name} wants {want(claim)} and got {seat.cidr}"
        if claim.cell:
            cells.setdefault(claim.cell, set()).add(page(span(seat.cidr)))
    yield from (f"cell {name} lies in {len(pages)} /16s" for name, pages in cells.items() if len(pages) > 1)
    yield from (f"{name} has no tenant and is not retired" for name, s in seats.items() if not s.retired)
    fresh = tuple(sorted({c.name for c in claims} - set(lock.subnets)))
    if plan.unlocked != fresh:
        yield f"unlocked {plan.unlocked}, not {fresh}"


def outgrown(claims: Iterable[Claim], lock: AddressLock) -> list[str]:
    return [
        c.name
        for c in claims
        if c.name in lock.subnets
        and (c.zone, c.purpose) == (lock.subnets[c.name].zone, lock.subnets[c.name].purpose)
        and c.needed > usable(size_of(span(lock.subnets[c.name].cidr)))
    ]


def moved(claims: Iterable[Claim], lock: AddressLock) -> list[str]:
    return [
        c.name
        for c in claims
        if c.name in lock.subnets
        and (c.zone, c.purpose) != (lock.subnets[c.name].zone, lock.subnets[c.name].purpose)
    ]


def torn(claims: Iterable[Claim], lock: AddressLock) -> list[str]:
    """Cells whose locked members lie in several /16s."""
    pages: dict[str, set[int]] = {}
    for c in claims:
        if c.cell and c.name in lock.subnets:
            pages.setdefault(c.cell, set()).add(page(span(lock.subnets[c.name].cidr)))
    return [cell for cell, found in pages.items() if len(found) > 1]


def packs(claims: Sequence[Claim], pool: Sequence[IPv4Network], lock: AddressLock | None = None) -> bool:
    """Whether some seating of the claims without a lock exists: tries them all, so keep the pool tiny."""
    lock = lock or AddressLock()
    held = [span(b) for b in lock.blocks]
    used = {u for s in lock.subnets.values() for u in _units(span(s.cidr))}
    room = sorted({u for s in (*map(span, pool), *held) for u in _units(s)} - used)
    bit = {unit: 1 << i for i, unit in enumerate(room)}
    places: dict[int, list[tuple[int, int]]] = {}
    for bits in range(13):
        count = 1 << bits
        for first in room if count <= len(room) else ():
            run = range(first, first + count)
            owners = {next((b for b in held if b[0] // UNIT <= u < b[1] // UNIT), None) for u in run}
            # A subnet may lie in a block or beside all of them, never across a block's border.
            if first % count == 0 and len(owners) == 1 and all(u in bit for u in run):
                places.setdefault(count, []).append((sum(bit[u] for u in run), first * UNIT // 65536))
    todo: list[tuple[int, str | None]] = []
    for c in claims:
        if c.name not in lock.subnets:
            count = smallest_subnet(want(c))
            if count is None:
                return False
            todo.append((count // UNIT, c.cell))
    todo.sort(key=lambda t: (-t[0], t[1] or ""))
    homes = {
        c.cell: page(span(lock.subnets[c.name].cidr)) for c in claims if c.cell and c.name in lock.subnets
    }

    @cache
    def seat(i: int, free: int, home: tuple[tuple[str, int], ...]) -> bool:
        if i == len(todo):
            return True
        if sum(count for count, _ in todo[i:]) > free.bit_count():
            return False
        count, cell = todo[i]
        at = dict(home)
        return any(
            seat(i + 1, free & ~mask, tuple(sorted({**at, cell: where}.items())) if cell else home)
            for mask, where in places.get(count, [])
            if free & mask == mask and at.get(cell or "", where) == where
        )

    return seat(0, (1 << len(room)) - 1, tuple(sorted(homes.items())))


def _units(it: Span) -> range:
    return range(it[0] // UNIT, it[1] // UNIT)


def blocks_within(pool: Sequence[IPv4Network]) -> list[Span]:
    """Every block from /16 to /28 that lies in the pool."""
    pools = [span(p) for p in pool]
    return [
        (first, first + 2**bits)
        for bits in range(4, 17)
        for p in pools
        for first in range(p[0], p[1], UNIT)
        if first % 2**bits == 0 and _inside((first, first + 2**bits), pools)
    ]


def tightest_block(claims: Sequence[Claim], pool: Sequence[IPv4Network]) -> int | None:
    """Addresses of the smallest single block of the pool that seats every claim; None without one."""
    firsts = {size_of(b): b[0] for b in blocks_within(pool)}
    # Empty blocks of one size seat the same claims, so one of each size stands for all.
    sizes = (
        size
        for size in sorted(firsts)
        if packs(claims, [IPv4Network((firsts[size], 33 - size.bit_length()))])
    )
    return next(sizes, None)


def least_cover(spans: Sequence[Span], choice: Sequence[Span], most: int) -> int | None:
    """Fewest addresses of at most `most` blocks, apart from each other, that hold all the spans."""
    useful = [b for b in choice if any(holds(b, s) for s in spans)]
    totals = [
        sum(map(size_of, some))
        for count in range(most + 1)
        for some in combinations(useful, count)
        if all(any(holds(b, s) for b in some) for s in spans) and apart(some)
    ]
    return min(totals, default=None)
