"""Somebody else's VPC: no subnet is planned, every claim is seated in one that is there."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network

from .cidr import page_of
from .model import AddressPlan, Claim, GivenSubnet, SubnetPlan
from .problems import Problem, raise_if
from .space import wanted


def verify(
    claims: Sequence[Claim],
    *,
    blocks: Sequence[IPv4Network],
    subnets: Sequence[GivenSubnet],
    path: str = "network",
) -> tuple[AddressPlan, dict[str, str]]:
    """Seat every claim in somebody else's subnets by their free addresses.

    Returns the plan and each claim's subnet id.

    Raises:
        PlanError: which claim found no seat and by how many addresses the best subnet is short.
    """
    free = {s.id: s.free for s in subnets}
    cells: dict[str, IPv4Network] = {}
    seats: dict[str, str] = {}
    planned: list[SubnetPlan] = []
    problems: list[Problem] = []
    for claim in sorted(claims, key=lambda c: (-wanted(c), c.name)):
        want = wanted(claim)
        near = [s for s in subnets if s.zone == claim.zone and claim.purpose in s.purposes]
        if claim.cell in cells:
            near = [s for s in near if page_of(s.cidr) == cells[claim.cell]]
        fits = [s for s in near if free[s.id] >= want]
        if not fits:
            most = max((free[s.id] for s in near), default=0)
            problems.append(
                Problem(
                    path=claim.path or f"{path}.subnets",
                    given=f"{claim.name} needs {want} free addresses in {claim.zone}",
                    allowed=f"the best of {len(near)} {claim.purpose} subnets there has {most} left "
                    f"(short by {want - most})",
                    fix="; or ".join((f"add a {claim.purpose} subnet in {claim.zone}", *claim.ways_out)),
                )
            )
            continue
        seat = min(fits, key=lambda s: (free[s.id], s.id))
        free[seat.id] -= want
        seats[claim.name] = seat.id
        if claim.cell:
            cells[claim.cell] = page_of(seat.cidr)
        planned.append(
            SubnetPlan(claim=claim.name, zone=claim.zone, purpose=claim.purpose, cidr=seat.cidr,
                       needed=claim.needed, reserved=want)
        )  # fmt: skip
    raise_if(problems)
    return AddressPlan(blocks=tuple(blocks), subnets=tuple(planned)), seats
