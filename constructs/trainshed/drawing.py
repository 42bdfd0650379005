"""Address blocks as SVG. A block is halved as CIDR halves it, so a rectangle's area is its share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from ipaddress import IPv4Network

from .document import SubnetState
from .planning.model import Purpose

WIDTH, LOWEST, HIGHEST = 960, 76, 600
PAGE = 256
LABEL_AREA = 160 * 56
LIE = 2.3
"""Width to height above which a rectangle is cut across: labels want to lie, not to stand."""
NAME_CHARACTER, CHARACTER = 8.6, 7.4


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in the units of its drawing."""

    x: float
    y: float
    width: float
    height: float

    def halves(self, lie: float) -> tuple[Box, Box]:
        """Side by side while wider than `lie` times the height, else one above the other."""
        if self.width > lie * self.height:
            half = self.width / 2
            return Box(self.x, self.y, half, self.height), Box(self.x + half, self.y, half, self.height)
        half = self.height / 2
        return Box(self.x, self.y, self.width, half), Box(self.x, self.y + half, self.width, half)

    def svg(self, inset: float = 0) -> str:
        """Its attributes."""
        width, height = (max(size - 2 * inset, 0.5) for size in (self.width, self.height))
        return f'x="{self.x + inset:g}" y="{self.y + inset:g}" width="{width:g}" height="{height:g}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A subnet as it is drawn; somebody else's may seat several claims."""

    number: int
    cidr: IPv4Network
    claims: tuple[str, ...]
    zone: str
    purpose: Purpose
    state: SubnetState
    needed: int
    reserved: int
    usable: int

    @property
    def name(self) -> str:
        """Its claim, and how many more there are."""
        first, *others = self.claims
        return f"{first} and {len(others)} more" if others else first

    @property
    def sentence(self) -> str:
        """Everything about it."""
        return (
            f"{self.number}. {', '.join(self.claims)}: {self.cidr} for {self.purpose} in {self.zone}, "
            f"{self.state}; {self.needed} of {self.usable} addresses needed now, {self.reserved} at growth"
        )

    def share(self, addresses: int) -> float:
        """Part of the usable addresses, 0 to 1."""
        return min(addresses / self.usable, 1) if self.usable > 0 else 1.0


def page_figure(page: IPv4Network, blocks: Sequence[IPv4Network], cells: Sequence[Cell]) -> str:
    """A /16 in small: where in it the VPC's blocks lie."""
    square = Box(0, 0, PAGE, PAGE)
    drawn = [f'<rect class="space" {square.svg()}/>']
    for cell in cells:
        if cell.cidr.subnet_of(page):
            box = _place(cell.cidr, page, square)
            drawn.append(
                f'<rect class="{cell.purpose} {cell.state}" {box.svg()}>{_title(cell.sentence)}</rect>'
            )
    inside = [block for block in blocks if block.subnet_of(page)]
    drawn += [f'<rect class="block" {_place(b, page, square).svg()}>{_title(str(b))}</rect>' for b in inside]
    caption = f"{page}, of which the VPC has {', '.join(map(str, inside))}"
    return _figure("page", square, "".join(drawn), caption=caption, label=caption)


def block_figure(block: IPv4Network, cells: Sequence[Cell], *, role: str, rest: str) -> str:
    """A VPC block in large; `rest` says what addresses are that no subnet has."""
    inside = {cell.cidr: cell for cell in cells if cell.cidr.subnet_of(block)}
    depth = max((cidr.prefixlen - block.prefixlen for cidr in inside), default=0)
    height = min(max(LABEL_AREA * 2**depth / WIDTH, LOWEST), HIGHEST)
    whole = Box(0, 0, WIDTH, round(height))
    later = 100 * sum(cell.reserved for cell in inside.values()) / block.num_addresses
    return _figure(
        "large",
        whole,
        "".join(_leaves(block, whole, inside, rest)),
        caption=f"{block}, {role} block: {block.num_addresses} addresses, {later:.0f} % used at growth",
        label=f"Subnets of VPC block {block}",
        told="; ".join(cell.sentence for cell in inside.values()) or "no subnets",
    )


def _figure(kind: str, box: Box, drawn: str, *, caption: str, label: str, told: str = "") -> str:
    view = f"0 0 {box.width:g} {box.height:g}"
    return (
        f'<figure class="{kind}"><svg role="img" aria-label="{escape(label)}" viewBox="{view}">'
        f"{_title(label)}<desc>{escape(told or label)}</desc>{drawn}</svg>"
        f"<figcaption>{escape(caption)}</figcaption></figure>\n"
    )


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _place(net: IPv4Network, page: IPv4Network, box: Box) -> Box:
    for prefix in range(page.prefixlen + 1, net.prefixlen + 1):
        box = box.halves(1)[int(net.network_address) >> (32 - prefix) & 1]
    return box


def _leaves(node: IPv4Network, box: Box, cells: Mapping[IPv4Network, Cell], rest: str) -> Iterator[str]:
    if node in cells:
        yield _subnet(cells[node], box)
    elif any(cidr.subnet_of(node) for cidr in cells):
        for half, place in zip(node.subnets(), box.halves(LIE), strict=True):
            yield from _leaves(half, place, cells, rest)
    else:
        words = _text(box, [[f"{node}: {rest}", rest]])
        yield f'<g class="free">{_title(f"{node}: {rest}")}<rect {box.svg(1)}/>{words}</g>'


def _subnet(cell: Cell, box: Box) -> str:
    short = cell.name.rpartition("/")[2] if cell.name.startswith("group/") else cell.name
    numbers = f"{cell.needed} now, {cell.reserved} at growth, {cell.usable} usable"
    words = _text(box, [
        [cell.name, short, _elided(short, box), str(cell.number)],
        [str(cell.cidr)],
        [numbers, f"{cell.needed} / {cell.reserved} / {cell.usable}"],
    ])  # fmt: skip
    bar = _bar(cell, box) if box.height >= 30 and box.width >= 40 else ""
    inside = f"{_title(cell.sentence)}<rect {box.svg(1.5)}/>{words}{bar}"
    return f'<g class="{cell.purpose} {cell.state}">{inside}</g>'


def _text(box: Box, lines: Sequence[Sequence[str]]) -> str:
    """As many lines as the box is high for, each in the first wording that it is wide enough for."""
    name, *others = lines
    title = next((words for words in name if words and len(words) <= _room(box, NAME_CHARACTER)), "")
    if box.height < 24 or box.width < 56:
        title = title or next((words for words in reversed(name) if words), "")
        fits = box.height >= 12 and box.width >= 7 * len(title) + 6
        return (
            f'<text class="small" x="{box.x + 4:g}" y="{box.y + 12:g}">{escape(title)}</text>' if fits else ""
        )
    rows = [("name", title)]
    for line in others:
        fitting = next((words for words in line if len(words) <= _room(box, CHARACTER)), "")
        rows += [("line", fitting)] if fitting and 16 * (len(rows) + 1) + 16 <= box.height else []
    return "".join(
        f'<text class="{kind}" x="{box.x + 9:g}" y="{box.y + 19 + 16 * i:g}">{escape(row)}</text>'
        for i, (kind, row) in enumerate(rows)
    )


def _room(box: Box, character: float) -> int:
    return int((box.width - 14) / character)


def _elided(text: str, box: Box) -> str:
    kept = _room(box, NAME_CHARACTER) - 1
    return f"{text[: kept - kept // 3]}…{text[len(text) - kept // 3 :]}" if kept >= 7 else ""


def _bar(cell: Cell, box: Box) -> str:
    full, y = box.width - 18, box.y + box.height - 13
    parts = {"track": 1.0, "later": cell.share(cell.reserved), "now": cell.share(cell.needed)}
    return "".join(
        f'<rect class="{kind}" {Box(box.x + 9, y, full * share, 6).svg()}/>'
        for kind, share in parts.items()
        if share > 0
    )
