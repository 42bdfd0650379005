"""CIDR arithmetic and what AWS accepts of a VPC's blocks and subnets.

Sizes are IPv4 address counts and powers of two. Sources: Amazon VPC User Guide, "VPC CIDR blocks"
and "Subnet sizing for IPv4"; the 172.17.0.0/16 ban is on the same page ("Amazon SageMaker AI").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from ipaddress import IPv4Network

LARGEST = 1 << 16
SMALLEST = 1 << 4
RESERVED_PER_SUBNET = 5
DEFAULT_BLOCK_QUOTA = 5
LARGEST_BLOCK_QUOTA = 50

DOCKER_BRIDGE = IPv4Network("172.17.0.0/16")
_TEN = IPv4Network("10.0.0.0/8")
_SEVENTEEN_TWO = IPv4Network("172.16.0.0/12")
_ONE_NINE_TWO = IPv4Network("192.168.0.0/16")
SHARED = IPv4Network("100.64.0.0/10")
PRIVATE = (_TEN, _SEVENTEEN_TWO, _ONE_NINE_TWO, SHARED)
NO_SECONDARY_BESIDE_TEN = IPv4Network("10.0.0.0/16")
NO_SECONDARY_BESIDE_172 = IPv4Network("172.31.0.0/16")
NEVER_SECONDARY = (NO_SECONDARY_BESIDE_TEN, NO_SECONDARY_BESIDE_172)
_BENCHMARK = IPv4Network("198.19.0.0/16")


def network(start: int, size: int) -> IPv4Network:
    """The network that begins at an address and holds `size` of them."""
    return IPv4Network((start, 33 - size.bit_length()))


def start_of(net: IPv4Network) -> int:
    """The first address as a number."""
    return int(net.network_address)


def subnet_size(addresses: int) -> int | None:
    """The smallest legal subnet size for so many tenants' addresses; None above a /16."""
    size = max(SMALLEST, 1 << (addresses + RESERVED_PER_SUBNET - 1).bit_length())
    return size if size <= LARGEST else None


def page_of(net: IPv4Network) -> IPv4Network:
    """The /16 an address block lies in."""
    return net.supernet(new_prefix=16) if net.prefixlen > 16 else network(start_of(net), LARGEST)


def family(net: IPv4Network) -> IPv4Network | None:
    """The private range a block lies in, or None."""
    return next((f for f in PRIVATE if net.subnet_of(f)), None)


def accepts_secondary(primary: IPv4Network, secondary: IPv4Network) -> bool:
    """Whether AWS lets a block be added to a VPC with this primary block."""
    theirs, ours = family(primary), family(secondary)
    if ours is SHARED or ours is None:
        return not secondary.overlaps(_BENCHMARK) or primary.subnet_of(_BENCHMARK)
    if theirs is _TEN and ours is _TEN:
        in_fifteen = primary.subnet_of(IPv4Network("10.0.0.0/15"))
        return not (in_fifteen and secondary.overlaps(NO_SECONDARY_BESIDE_TEN))
    if theirs is _SEVENTEEN_TWO and ours is _SEVENTEEN_TWO:
        return not secondary.overlaps(NO_SECONDARY_BESIDE_172)
    return theirs is ours


def cover(
    root: IPv4Network, ranges: Sequence[IPv4Network], usable: Sequence[IPv4Network],
    taken: Sequence[IPv4Network], most: int,
) -> tuple[IPv4Network, ...] | None:  # fmt: skip
    """The fewest-address set of at most `most` blocks that holds all ranges; None if there is none.

    Blocks lie inside `root` and inside one of `usable`, and overlap none of `taken`.
    """

    @cache
    def best(node: IPv4Network, budget: int) -> tuple[int, tuple[IPv4Network, ...]] | None:
        inside = [r for r in ranges if r.overlaps(node)]
        if not inside:
            return 0, ()
        if budget == 0:
            return None
        whole = node.prefixlen >= 16 and any(node.subnet_of(u) for u in usable)
        whole = whole and not any(node.overlaps(t) for t in taken)
        options: list[tuple[int, tuple[IPv4Network, ...]]] = [(node.num_addresses, (node,))] if whole else []
        full = whole and sum(r.num_addresses for r in inside) == node.num_addresses
        if not full and node.prefixlen < 28 and not any(node.subnet_of(r) for r in inside):
            low, high = node.subnets()
            for share in range(budget + 1):
                left, right = best(low, share), best(high, budget - share)
                if left is not None and right is not None:
                    options.append((left[0] + right[0], (*left[1], *right[1])))
        return min(options, key=lambda o: (o[0], len(o[1]), o[1]), default=None)

    found = best(root, most)
    return None if found is None else found[1]


def free_space(
    roots: Iterable[IPv4Network], blocks: Sequence[IPv4Network], used: Sequence[IPv4Network]
) -> list[tuple[bool, IPv4Network]]:
    """Maximal aligned free networks, each with whether it lies inside one of the VPC's blocks."""
    found: list[tuple[bool, IPv4Network]] = []
    stack = [(root, list(blocks), list(used)) for root in roots]
    while stack:
        node, near_blocks, near_used = stack.pop()
        near_used = [u for u in near_used if u.overlaps(node)]
        near_blocks = [b for b in near_blocks if b.overlaps(node)]
        if any(node.subnet_of(u) for u in near_used):
            continue
        inside = any(node.subnet_of(b) for b in near_blocks)
        if not near_used and (inside or not near_blocks):
            found.append((inside, node))
        elif node.prefixlen < 28:
            stack.extend((half, near_blocks, near_used) for half in node.subnets())
    return sorted(found, key=lambda f: f[1])
