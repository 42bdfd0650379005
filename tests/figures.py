"""Figures of a bench: one claim each, against a named rival, as a table and between a file's markers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured claim. `met` is None where there is nothing to meet."""

    name: str
    ours: float
    rival: float | None
    unit: str
    ratio: float | None
    target: str
    met: bool | None


def figure(
    name: str, ours: float, rival: float | None, unit: str, target: str = "", *, met: bool | None = None
) -> Figure:
    """A figure with its ratio."""
    ratio = None if not rival else float(f"{ours / rival:.4g}")
    return Figure(name=name, ours=ours, rival=rival, unit=unit, ratio=ratio, target=target, met=met)


def table(figures: Sequence[Figure]) -> str:
    """The figures in Markdown."""
    head = ("figure", "ours", "rival", "unit", "ours / rival", "target", "met")
    rows = [
        (f.name, f"{f.ours:g}", "" if f.rival is None else f"{f.rival:g}", f.unit,
         "" if f.ratio is None else f"{f.ratio:.2g}" if f.ratio < 0.1 else f"{f.ratio:.2f}",
         f.target, {None: "", True: "yes", False: "**no**"}[f.met])
        for f in figures
    ]  # fmt: skip
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows))


def dump(figures: Sequence[Figure], path: Path) -> None:
    """The figures in JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(f) for f in figures], indent=1, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")


def missed(figures: Sequence[Figure]) -> str:
    """The last lines of a bench."""
    lines = "".join(f"\n  missed: {f.name}" for f in figures if f.met is False)
    return f"bench: {len(figures)} figures{lines}"


def write_between(path: Path, name: str, text: str) -> None:
    """Put text between a file's markers of that name, or at its end when it has none."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if begin not in old:
        old = f"{old.rstrip()}\n\n{begin}\n{end}\n".lstrip()
    before, _, rest = old.partition(begin)
    path.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")
