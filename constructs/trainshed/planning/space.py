"""A region's address space while a plan is made: which /16 takes a claim, and which block holds it."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network, collapse_addresses

from .cidr import (
    DOCKER_BRIDGE,
    LARGEST,
    NEVER_SECONDARY,
    RESERVED_PER_SUBNET,
    SHARED,
    SMALLEST,
    accepts_secondary,
    cover,
    family,
    free_space,
    network,
    page_of,
    start_of,
    subnet_size,
)
from .model import AddressLock, Claim
from .problems import Problem

_INSIDE, _OPENED, _UNTOUCHED = range(3)
_Heaps = dict[tuple[int, int], list[int]]
_SIZES = [LARGEST >> shift for shift in range(LARGEST.bit_length() - SMALLEST.bit_length() + 1)]


def wanted(claim: Claim) -> int:
    """Addresses to set aside for a claim."""
    return max(claim.needed, claim.reserved)


class Space:
    """Free space by /16 page. First `assign` every unit of claims, then `place`, then `blocks`."""

    def __init__(self, pool: Sequence[IPv4Network], lock: AddressLock) -> None:
        pieces: dict[IPv4Network, list[IPv4Network]] = defaultdict(list)
        for net in (*lock.blocks, *pool):
            for part in net.subnets(new_prefix=16) if net.prefixlen < 16 else (net,):
                if part.overlaps(DOCKER_BRIDGE):
                    continue
                closed = any(part.overlaps(never) for never in NEVER_SECONDARY)
                joins = not lock.blocks or accepts_secondary(lock.blocks[0], part)
                if part in lock.blocks or (joins and not closed):
                    pieces[page_of(part)].append(part)
        self._pieces = {page: list(collapse_addresses(parts)) for page, parts in pieces.items()}
        self._lock = lock
        self._pending: dict[IPv4Network, list[Claim]] = defaultdict(list)
        self._pending_sizes: dict[IPv4Network, Counter[int]] = defaultdict(Counter)
        self._free: dict[IPv4Network, list[tuple[bool, IPv4Network]]] = {}

    def assign(self, units: Iterable[Sequence[Claim]], pinned: Mapping[str, IPv4Network]) -> list[Problem]:
        """Choose each unit's /16: the one its cell is pinned to, else the first that has room."""
        problems: list[Problem] = []
        # Who has no choice of a /16 goes first, so that nobody with a choice takes its place.
        for unit in sorted(units, key=lambda u: (u[0].cell or "") not in pinned):
            too_large = [c for c in unit if subnet_size(wanted(c)) is None]
            problems += [_beyond_a_subnet(c) for c in too_large]
            if too_large:
                continue
            pin = pinned.get(unit[0].cell or "")
            pages = list(self._pieces) if pin is None else [pin]
            sizes = Counter(subnet_size(wanted(c)) or 0 for c in unit)
            page = next((p for p in pages if self._fits(p, sizes)), None)
            if page is None:
                problems.append(self._no_room(unit, pages))
                continue
            self._pending[page].extend(unit)
            self._pending_sizes[page].update(sizes)
        return problems

    def place(self) -> dict[str, IPv4Network]:
        """Seat the assigned claims, largest first, preferring what the VPC's blocks already hold.

        What they do not hold goes side by side where one block has room to double the VPC: a block in
        each small gap between others would soon use up the quota.
        """
        placed: dict[str, IPv4Network] = {}
        held = sum(b.num_addresses for b in self._lock.blocks)
        for page, claims in self._pending.items():
            heaps: _Heaps = defaultdict(list)
            for inside, net in self._free_in(page):
                heapq.heappush(heaps[_INSIDE if inside else _UNTOUCHED, net.num_addresses], start_of(net))
            rest = sum(subnet_size(wanted(c)) or 0 for c in claims)
            for claim in sorted(claims, key=lambda c: (-wanted(c), c.name)):
                size = subnet_size(wanted(claim)) or 0
                placed[claim.name] = network(_take(heaps, size, max(rest, held)), size)
                rest -= size
        return placed

    def blocks(self, placed: Mapping[str, IPv4Network], quota: int) -> tuple[IPv4Network, ...]:
        """The VPC's blocks: the locked ones in order, then those that hold the newly placed subnets."""
        held = self._lock.blocks
        outside: dict[IPv4Network, list[IPv4Network]] = defaultdict(list)
        for net in sorted(placed.values()):
            if not any(net.subnet_of(b) for b in held):
                outside[page_of(net)].append(net)
        # A new VPC may take two blocks a page, which wastes least; later ones double the VPC instead,
        # so that the quota lasts.
        budget = 2 if not held and 2 * len(outside) < quota else 1
        new: list[IPv4Network] = []
        for page, ranges in outside.items():
            found = None
            for most in range(budget, len(ranges) + 2):
                found = cover(page, ranges, self._pieces[page], held, most)
                if found is not None:
                    break
            found = found or tuple(ranges)
            new += self._doubled(page, found) if held else found
        if not held:
            # AWS joins 100.64.0.0/10 to a private primary block, never the other way round.
            new.sort(key=lambda b: (family(b) is SHARED, -b.num_addresses, b))
        return (*held, *new)

    def _doubled(self, page: IPv4Network, found: Sequence[IPv4Network]) -> list[IPv4Network]:
        held = self._lock.blocks
        total = sum(b.num_addresses for b in held)
        grown = list(found)
        for i in range(len(found)):
            while grown[i].prefixlen > 16 and 2 * grown[i].num_addresses <= total:
                parent = grown[i].supernet()
                others = (*held, *(b for j, b in enumerate(grown) if j != i))
                usable = any(parent.subnet_of(p) for p in self._pieces[page])
                if not usable or any(parent.overlaps(o) for o in others):
                    break
                grown[i] = parent
        return grown

    def _free_in(self, page: IPv4Network) -> list[tuple[bool, IPv4Network]]:
        if page not in self._free:
            used = [s.cidr for s in self._lock.subnets.values() if s.cidr.overlaps(page)]
            blocks = [b for b in self._lock.blocks if b.overlaps(page)]
            self._free[page] = free_space(self._pieces.get(page, ()), blocks, used)
        return self._free[page]

    def _fits(self, page: IPv4Network, sizes: Counter[int]) -> bool:
        free = Counter(net.num_addresses for _, net in self._free_in(page))
        slots = 0
        for size in _SIZES:
            slots = 2 * slots + free[size] - self._pending_sizes[page][size] - sizes[size]
            if slots < 0:
                return False
        return True

    def _no_room(self, unit: Sequence[Claim], pages: Sequence[IPv4Network]) -> Problem:
        largest = max(unit, key=wanted)
        total = sum(subnet_size(wanted(c)) or 0 for c in unit)
        left = [
            sum(n.num_addresses for _, n in self._free_in(p))
            - sum(s * n for s, n in self._pending_sizes[p].items())
            for p in pages
        ]
        most = max(left, default=0)
        together = (
            f" with {', '.join(c.name for c in unit if c is not largest)} in one /16" if len(unit) > 1 else ""
        )
        room = f"{most} left in the emptiest /16 of the pool"
        return Problem(
            path=largest.path,
            given=f"{largest.name}{together} takes {total} addresses in {largest.zone}",
            allowed=f"{room} (short by {total - most})" if total > most else f"{room}, in pieces too small",
            fix="; or ".join((*largest.ways_out, "a larger `pool`")),
        )


def _take(heaps: _Heaps, size: int, hoped: int) -> int:
    fitting = [s for s in reversed(_SIZES) if s >= size]
    for rank in (_INSIDE, _OPENED, _UNTOUCHED):
        if rank == _UNTOUCHED:
            fitting.sort(key=lambda s: (s < hoped, s if s >= hoped else -s))
        for larger in fitting:
            if heaps[rank, larger]:
                start, half = heapq.heappop(heaps[rank, larger]), larger
                while half > size:
                    half //= 2
                    heapq.heappush(heaps[min(rank, _OPENED), half], start + half)
                return start
    raise AssertionError("assign() admitted a claim that place() cannot seat")


def _beyond_a_subnet(claim: Claim) -> Problem:
    most = LARGEST - RESERVED_PER_SUBNET
    return Problem(
        path=claim.path,
        given=f"{claim.name} needs {wanted(claim)} addresses in {claim.zone}",
        allowed=f"{most}, the largest subnet (/16) (short by {wanted(claim) - most})",
        fix="; or ".join(claim.ways_out) or "split it",
    )
