"""The address map as one HTML page: no script, nothing fetched, readable in light and dark.

Each /16 is drawn small, to say where the VPC's blocks lie, and each block large; a table says the same
in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING

from .document import lock_state, subnet_state, usable
from .drawing import Cell, block_figure, page_figure
from .planning.model import Purpose, RegionPlan, SubnetPlan

if TYPE_CHECKING:
    from .loading import Loaded

PURPOSES: tuple[Purpose, ...] = ("nodes", "storage", "endpoints", "public")
STATES = {"locked": "locked", "new": "new, not locked yet", "retired": "retired: no tenant left"}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_HATCH = (
    '<svg class="away" aria-hidden="true"><defs><pattern id="hatch" width="6" height="6" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="gap" width="6" height="6"/>'
    '<path class="stroke" d="M0 0V6"/></pattern></defs></svg>\n'
)


def picture(loaded: Loaded) -> str:
    """The page."""
    title = f"{escape(loaded.plan.name)}: address map"
    style = Path(__file__).with_name("picture.css").read_text(encoding="utf-8")
    regions = "".join(_region(region) for region in loaded.plan.regions)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f"{_legend()}{_HATCH}<main>\n{regions}</main>\n</body>\n</html>\n"
    )


def _legend() -> str:
    keys = [(purpose, purpose) for purpose in PURPOSES] + list(STATES.items())
    items = "".join(f'<li><span class="key {kind}"></span>{text}</li>' for kind, text in keys)
    bar = f"<li>{_bar(30, 70)}now / at growth / usable addresses</li>"
    return f'<ul class="legend" aria-label="Legend">{items}{bar}</ul>\n'


def _region(region: RegionPlan) -> str:
    cells, blocks, given = _cells(region), region.addresses.blocks, region.network.vpc_id
    pages = dict.fromkeys(b.supernet(new_prefix=16) for b in blocks if b.prefixlen > 16)
    small = "".join(page_figure(page, blocks, cells) for page in pages)
    rest = "not ours" if given else "free"
    large = "".join(
        block_figure(block, cells, role="secondary" if i else "primary", rest=rest)
        for i, block in enumerate(blocks)
    )
    total, later = region.addresses.reserved_addresses, sum(cell.reserved for cell in cells)
    state = {"given VPC": f"in {given}, which is not ours", "in part": "locked in part"}
    words = (
        f"{total} addresses in {len(blocks)} {'block' if len(blocks) == 1 else 'blocks'}, "
        f"{later} used at growth; {state.get(lock_state(region), lock_state(region))}"
    )
    name = escape(region.region)
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{name}</h2>\n<p>{escape(words)}</p>\n'
        f'<div class="pages">{small}</div>\n{large}{_table(name, cells)}</section>\n'
    )


def _cells(region: RegionPlan) -> list[Cell]:
    seats: dict[IPv4Network, list[SubnetPlan]] = {}
    for subnet in sorted(region.addresses.subnets, key=lambda s: s.cidr):
        seats.setdefault(subnet.cidr, []).append(subnet)
    return [
        Cell(
            number=number,
            cidr=cidr,
            claims=tuple(s.claim for s in tenants),
            zone=tenants[0].zone,
            purpose=tenants[0].purpose,
            state=subnet_state(tenants[0], region),
            needed=sum(s.needed for s in tenants),
            reserved=sum(s.reserved for s in tenants),
            usable=usable(tenants[0], region),
        )
        for number, (cidr, tenants) in enumerate(seats.items(), 1)
    ]


def _table(region: str, cells: Sequence[Cell]) -> str:
    names = ("", "subnet of", "purpose", "zone", "CIDR", "state", "now", "growth", "usable", "filled")
    head = "".join(
        f'<th scope="col"{" class=n" if 6 <= i <= 8 else ""}>{n}</th>' for i, n in enumerate(names)
    )
    rows = "".join(_row(cell) for cell in cells)
    return (
        f'<div class="wide"><table><caption>Subnets of {region}</caption>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}</tbody></table></div>\n"
    )


def _row(cell: Cell) -> str:
    claims = "<br>".join(escape(claim) for claim in cell.claims)
    words = "".join(f"<td>{escape(w)}</td>" for w in (cell.purpose, cell.zone, str(cell.cidr), cell.state))
    numbers = "".join(f"<td class=n>{n}</td>" for n in (cell.needed, cell.reserved, cell.usable))
    now, later = (round(100 * cell.share(n)) for n in (cell.needed, cell.reserved))
    return (
        f'<tr><td class=n><span class="key {cell.purpose} {cell.state}">{cell.number}</span></td>'
        f'<th scope="row">{claims}</th>{words}{numbers}<td>{_bar(now, later)}</td></tr>\n'
    )


def _bar(now: int, later: int) -> str:
    return (
        f'<span class="bar" role="img" aria-label="{now} % now, {later} % at growth">'
        f'<i class="later" style="width:{later}%"></i><i class="now" style="width:{now}%"></i></span>'
    )
