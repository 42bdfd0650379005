"""Links between directories of a Lustre file system and S3 (data repository associations).

AWS refuses a bad link only after the file system stands, and then rolls the stack back: everything
it would refuse is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from .problems import Problem, either, nearest

Event = Literal["NEW", "CHANGED", "DELETED"]

EVENTS: tuple[str, ...] = ("NEW", "CHANGED", "DELETED")
"""Source: FSx API, EventType."""
MOST_ASSOCIATIONS = 8
"""Per file system. Source: FSx API, CreateDataRepositoryAssociation."""
CHUNK_MIB = (1, 512_000)
"""ImportedFileChunkSize, smallest and largest. Source: FSx API, Megabytes."""
LONGEST_FILE_SYSTEM_PATH = 4096
"""Source: FSx API, Namespace."""
LONGEST_REPOSITORY_PATH = 4357
"""`s3://bucket/prefix` in all. Source: FSx API, ArchivePath."""

_UNPRINTABLE = re.compile("[\x00\x85\u2028\u2029\r\n]")


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociationPlan:
    """One directory of the file system, tied one to one to a bucket or a prefix of it.

    `bucket` is a dataset's name or a literal bucket name; `prefix` is empty for the whole bucket.
    `import_events` and `export_events` say which changes cross by themselves (default: none, as in
    the API). `batch_import` loads the listing once, at creation (default: no). `chunk_mib` is how
    much of an imported file lies on one disk, in MiB (default 1024, as in the API).
    """

    file_system_path: str
    bucket: str
    prefix: str = ""
    import_events: tuple[Event, ...] = ()
    export_events: tuple[Event, ...] = ()
    batch_import: bool = False
    chunk_mib: int = 1024


def check_associations(
    plans: Sequence[AssociationPlan],
    *,
    path: str,
    region: str,
    bucket_regions: Mapping[str, str] | None = None,
) -> list[Problem]:
    """Refuse what FSx refuses of one file system's associations.

    `path` is the list's dotted path, `region` the file system's. A bucket that `bucket_regions` does
    not name counts as being in that region. Buckets are compared by the name given: give a bucket
    one name only, or overlaps go unseen. Rules from the FSx API and the FSx for Lustre User Guide,
    "Linking your file system to an S3 bucket".
    """
    problems: list[Problem] = []
    if len(plans) > MOST_ASSOCIATIONS:
        allowed = f"at most {MOST_ASSOCIATIONS} per file system"
        fix = "link parent directories instead of their children, or add a second file system"
        problems.append(Problem(path, f"{len(plans)} associations", allowed, fix))
    for index, plan in enumerate(plans):
        at = f"{path}.{index}"
        problems += _check_file_system_path(plan.file_system_path, f"{at}.file_system_path")
        problems += _check_bucket(plan.bucket, f"{at}.bucket")
        problems += _check_prefix(plan, f"{at}.prefix")
        problems += _check_events(plan.import_events, f"{at}.import_events")
        problems += _check_events(plan.export_events, f"{at}.export_events")
        problems += _check_chunk(plan.chunk_mib, f"{at}.chunk_mib")
        home = (bucket_regions or {}).get(plan.bucket, region)
        problems += _check_import_region(plan, f"{at}.import_events", region=region, home=home)
    return problems + list(_overlaps(plans, path))


def _segments(path: str) -> tuple[str, ...]:
    return tuple(segment for segment in path.split("/") if segment)


def _nested(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def _is_plain(path: str) -> bool:
    odd = "//" in path or bool(_UNPRINTABLE.search(path))
    return not odd and not {".", ".."}.intersection(_segments(path))


def _is_directory(path: str) -> bool:
    return path.startswith("/") and _is_plain(path) and len(path) <= LONGEST_FILE_SYSTEM_PATH


def _check_file_system_path(path: str, at: str) -> list[Problem]:
    if _is_directory(path):
        return []
    given = repr(path) if path else "nothing"
    allowed = "an absolute directory such as /datasets, or / when it is the only association"
    repaired = "/" + "/".join(_segments(path))
    fix = "name the directory from the root, with one slash between names"
    if repaired != "/" and _is_directory(repaired):
        fix = f"write {repaired}"
    return [Problem(at, given, allowed, fix)]


def _check_bucket(bucket: str, at: str) -> list[Problem]:
    if bucket and "/" not in bucket:
        return []
    allowed = "a dataset's name or a bucket's name alone"
    if not bucket:
        return [Problem(at, "nothing", allowed, "name the dataset or the bucket to link")]
    return [Problem(at, repr(bucket), allowed, "keep the bare name here and put what follows it into prefix")]


def _check_prefix(plan: AssociationPlan, at: str) -> list[Problem]:
    whole = f"s3://{plan.bucket}/{plan.prefix}"
    if not plan.prefix.startswith("/") and _is_plain(plan.prefix) and len(whole) <= LONGEST_REPOSITORY_PATH:
        return []
    allowed = f"names with one slash between them, none in front, {LONGEST_REPOSITORY_PATH} characters in all"
    return [Problem(at, repr(plan.prefix), allowed, "write it as datasets/text, or leave it out")]


def _check_events(events: Sequence[str], at: str) -> list[Problem]:
    if set(events) <= set(EVENTS) and len(set(events)) == len(events):
        return []
    kept = [event for event in EVENTS if event in {given.upper() for given in events}]
    allowed = f"any of {either(EVENTS, last='and')}, each once"
    fix = f"write [{', '.join(kept)}]" if kept else "leave it out, or name the events"
    return [Problem(at, f"[{', '.join(events)}]", allowed, fix)]


def _check_chunk(mib: int, at: str) -> list[Problem]:
    smallest, largest = CHUNK_MIB
    if smallest <= mib <= largest:
        return []
    (limit,) = nearest(mib, CHUNK_MIB)
    allowed = f"{smallest} to {largest} MiB"
    return [Problem(at, f"{mib} MiB", allowed, f"set chunk_mib to {limit}, or leave it out for 1024")]


def _check_import_region(plan: AssociationPlan, at: str, *, region: str, home: str) -> list[Problem]:
    if home == region or not plan.import_events:
        return []
    given = f"[{', '.join(plan.import_events)}] from bucket {plan.bucket} in {home}"
    allowed = f"no automatic import across regions (the file system is in {region}); export may cross them"
    fix = f"link a replica of the bucket in {region}, or drop import_events and set batch_import"
    return [Problem(at, given, allowed, fix)]


def _overlaps(plans: Sequence[AssociationPlan], path: str) -> Iterator[Problem]:
    for (first, one), (second, other) in combinations(enumerate(plans), 2):
        at, rival = f"{path}.{second}", f"{path}.{first}"
        absolute = one.file_system_path.startswith("/") and other.file_system_path.startswith("/")
        if absolute and _nested(_segments(one.file_system_path), _segments(other.file_system_path)):
            yield Problem(
                f"{at}.file_system_path",
                other.file_system_path,
                f"a directory apart from {one.file_system_path} of {rival}; / leaves room for no other",
                "give each association its own directory, none inside another",
            )
        same_bucket = bool(one.bucket) and one.bucket == other.bucket
        if same_bucket and _nested(_segments(one.prefix), _segments(other.prefix)):
            yield Problem(
                f"{at}.prefix",
                f"s3://{other.bucket}/{other.prefix}",
                f"a prefix apart from s3://{one.bucket}/{one.prefix} of {rival}",
                "give each association its own prefix, none inside another",
            )
