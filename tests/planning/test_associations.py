"""Links to S3: which lists of them FSx accepts."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import PurePosixPath

import botocore.session
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainshed.planning import associations
from trainshed.planning.problems import Problem
from trainshed.planning.storage import AssociationPlan, check_associations

AT = "storage.lustre.main.associations"


def link(path: str = "/data", bucket: str = "corpus", prefix: str = "", **rest: object) -> AssociationPlan:
    return AssociationPlan(file_system_path=path, bucket=bucket, prefix=prefix, **rest)


def check(*plans: AssociationPlan, **buckets: str) -> list[Problem]:
    problems = check_associations(plans, path=AT, region="us-east-2", bucket_regions=buckets)
    assert all(part.strip() for p in problems for part in (p.path, p.given, p.allowed, p.fix))
    return problems


def paths(*plans: AssociationPlan, **buckets: str) -> list[str]:
    return [problem.path.removeprefix(f"{AT}.") for problem in check(*plans, **buckets)]


def test_ordinary_links_pass():
    everything = ("NEW", "CHANGED", "DELETED")
    assert check() == []
    assert check(link("/")) == []
    assert check(
        link("/data/text", "corpus", "text", import_events=everything, batch_import=True),
        link("/data/images/", "corpus", "images/", import_events=("NEW",)),
        link("/checkpoints", "runs", export_events=everything, chunk_mib=512_000),
    ) == []  # fmt: skip


def test_the_regions_need_not_be_given():
    plans = [link(import_events=("NEW",))]
    assert check_associations(plans, path=AT, region="us-east-2") == []


def test_eight_is_the_most():
    plans = [link(f"/d{n}", f"b{n}") for n in range(9)]
    assert check(*plans[:8]) == []
    (problem,) = check(*plans)
    assert (problem.path, problem.given) == (AT, "9 associations")


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("", "name the directory"),
        ("data", "write /data"),
        ("data/", "write /data"),
        ("/data//text", "write /data/text"),
        ("//data", "write /data"),
        ("/data/../other", "name the directory"),
        ("/data\n", "name the directory"),
        ("/" + "d" * 4096, "name the directory"),
    ],
)
def test_odd_directories(path: str, fix: str):
    (problem,) = check(link(path))
    assert problem.path == f"{AT}.0.file_system_path"
    assert problem.fix.startswith(fix)


@pytest.mark.parametrize("path", ["/", "/data", "/data/", "/data/text", "/" + "d" * 4095])
def test_plain_directories(path: str):
    assert check(link(path)) == []


@pytest.mark.parametrize("bucket", ["", "s3://corpus", "corpus/text"])
def test_a_bucket_is_a_bare_name(bucket: str):
    assert paths(link(bucket=bucket)) == ["0.bucket"]


@pytest.mark.parametrize("prefix", ["/text", "text//en", "text/../en", "t\r", "x" * 4400])
def test_odd_prefixes(prefix: str):
    assert paths(link(prefix=prefix)) == ["0.prefix"]


@pytest.mark.parametrize("prefix", ["", "text", "text/", "text/en", "v1.0/..en"])
def test_plain_prefixes(prefix: str):
    assert check(link(prefix=prefix)) == []


@pytest.mark.parametrize(
    ("events", "fix"),
    [
        (("NEW", "NEW"), "write [NEW]"),
        (("new", "deleted"), "write [NEW, DELETED]"),
        (("CHANGED", "MOVED"), "write [CHANGED]"),
        (("ALL",), "leave it out"),
    ],
)
@pytest.mark.parametrize("field", ["import_events", "export_events"])
def test_odd_events(field: str, events: tuple[str, ...], fix: str):
    (problem,) = check(link(**{field: events}))
    assert problem.path == f"{AT}.0.{field}"
    assert problem.fix.startswith(fix)


@pytest.mark.parametrize(("mib", "limit"), [(0, 1), (-5, 1), (512_001, 512_000)])
def test_chunks(mib: int, limit: int):
    (problem,) = check(link(chunk_mib=mib))
    assert problem.path == f"{AT}.0.chunk_mib"
    assert f"set chunk_mib to {limit}," in problem.fix
    assert check(link(chunk_mib=limit)) == []


def test_only_import_needs_the_buckets_region():
    abroad = {"corpus": "us-west-2"}
    (problem,) = check(link(import_events=("NEW",)), **abroad)
    assert problem.path == f"{AT}.0.import_events"
    assert "us-west-2" in problem.given
    assert "us-east-2" in problem.allowed
    assert check(link(export_events=("NEW",), batch_import=True), **abroad) == []
    assert check(link(import_events=("NEW",)), corpus="us-east-2") == []


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (link("/a", "x"), link("/a/b", "y"), ["1.file_system_path"]),
        (link("/a/b", "x"), link("/a", "y"), ["1.file_system_path"]),
        (link("/a", "x"), link("/a/", "y"), ["1.file_system_path"]),
        (link("/", "x"), link("/a", "y"), ["1.file_system_path"]),
        (link("/a", "x"), link("/ab", "y"), []),
        (link("/a/b", "x"), link("/a/c", "y"), []),
        (link("/a", "x", "p"), link("/b", "x", "p/q"), ["1.prefix"]),
        (link("/a", "x"), link("/b", "x", "p"), ["1.prefix"]),
        (link("/a", "x", "p/"), link("/b", "x", "p"), ["1.prefix"]),
        (link("/a", "x", "p"), link("/b", "x", "pq"), []),
        (link("/a", "x", "p"), link("/b", "y", "p"), []),
        (link("/a", "x", "p"), link("/a", "x", "p"), ["1.file_system_path", "1.prefix"]),
    ],
)
def test_overlaps(one: AssociationPlan, other: AssociationPlan, expected: list[str]):
    assert paths(one, other) == expected


TREES = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=3).map("/".join)
LISTS = st.lists(st.tuples(TREES, st.sampled_from(["x", "y"]), TREES, st.booleans()), max_size=6)


def nested(one: str, other: str) -> bool:
    left, right = PurePosixPath("/", one), PurePosixPath("/", other)
    return left == right or left in right.parents or right in left.parents


@settings(deadline=None)
@given(LISTS)
def test_overlaps_against_every_ancestor(trees: list[tuple[str, str, str, bool]]):
    plans = [link(f"/{d}" + ("/" if d and slash else ""), b, p) for d, b, p, slash in trees]
    expected: Counter[str] = Counter()
    for (i, one), (j, other) in combinations(enumerate(trees), 2):
        expected[f"{j}.file_system_path by {i}"] += nested(one[0], other[0])
        expected[f"{j}.prefix by {i}"] += one[1] == other[1] and nested(one[2], other[2])
    found = Counter(
        f"{p.path.removeprefix(AT + '.')} by {i}"
        for p in check(*plans)
        for i in range(len(plans))
        if p.allowed.split(";")[0].endswith(f" of {AT}.{i}")
    )
    assert found == +expected
    assert len(check(*plans)) == found.total()


def test_figures_agree_with_the_api():
    fsx = botocore.session.get_session().get_service_model("fsx")
    assert tuple(fsx.shape_for("EventType").enum) == associations.EVENTS
    chunk = fsx.shape_for("Megabytes").metadata
    assert (chunk["min"], chunk["max"]) == associations.CHUNK_MIB
    assert fsx.shape_for("Namespace").metadata["max"] == associations.LONGEST_FILE_SYSTEM_PATH
    assert fsx.shape_for("ArchivePath").metadata["max"] == associations.LONGEST_REPOSITORY_PATH
    text = " ".join(fsx.operation_model("CreateDataRepositoryAssociation").documentation.split())
    assert f"maximum of {associations.MOST_ASSOCIATIONS} data repository associations" in text
