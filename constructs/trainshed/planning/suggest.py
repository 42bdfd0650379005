"""The closest known word to a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A question that names the closest known word, or nothing when none is close."""
    close = get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""
