"""Root squash of FSx for Lustre: root on a client becomes somebody else on the file system."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .problems import Problem

MOST_NO_SQUASH_NIDS = 64
LARGEST_ID = 4_294_967_294
"""Source: FSx API, LustreRootSquashConfiguration. 0:0 is off; one zero alone is refused."""

_SQUASH = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")
_NID = re.compile(r"(?=.{11,43}$)([0-9\[\]\-]*\.){3}([0-9\[\]\-]*)@tcp")
"""LustreNoSquashNid of the FSx API: an address or a range of them, always over tcp."""
_NOBODY = 'set root_squash to "65534:65534"'


def check_root_squash(squash: str | None, nids: Sequence[str], *, path: str) -> list[Problem]:
    """Refuse a malformed "uid:gid" and client lists FSx would refuse; None is off.

    `path` is the file system's dotted path.
    """
    problems: list[Problem] = []
    at = f"{path}.no_squash_nids"
    if squash is not None and not _is_squash(squash):
        allowed = f"uid:gid, both 1 to {LARGEST_ID}, or 0:0 for off"
        problems.append(Problem(f"{path}.root_squash", repr(squash), allowed, _NOBODY))
    if nids and _is_off(squash):
        fix = f"{_NOBODY}, or drop no_squash_nids"
        problems.append(Problem(at, ", ".join(nids), "none while root squash is off", fix))
    if len(nids) > MOST_NO_SQUASH_NIDS:
        fix = "write neighbouring addresses as one range, such as 10.0.1.[2-10]@tcp"
        problems.append(Problem(at, f"{len(nids)} clients", f"at most {MOST_NO_SQUASH_NIDS}", fix))
    for index, nid in enumerate(nids):
        problems += _check_nid(nid, f"{at}.{index}")
    return problems


def _is_squash(text: str) -> bool:
    match = _SQUASH.fullmatch(text)
    if match is None:
        return False
    uid, gid = int(match[1]), int(match[2])
    return max(uid, gid) <= LARGEST_ID and (uid == 0) == (gid == 0)


def _is_off(squash: str | None) -> bool:
    return squash is None or not squash.strip("0:")


def _check_nid(nid: str, at: str) -> list[Problem]:
    if _NID.fullmatch(nid):
        return []
    allowed = "an address or a range of them over tcp, 11 to 43 characters"
    return [Problem(at, repr(nid), allowed, "write it as 10.0.1.6@tcp or 10.0.[2-10].[1-255]@tcp")]
