"""What counts as a checkpoint, and what is deleted when."""

from __future__ import annotations

import hashlib
import json
import zlib
from contextlib import suppress
from dataclasses import asdict

import pytest

from tests.trainer.buckets import s3_server
from trainer.folders import open_folder
from trainer.publish import MARKER, METADATA, File, name_of, newest_whole, publish, step_of
from trainer.retention import expired, remove, retain

DATA = {"__0_0.distcp": b"weights" * 100, "__1_0.distcp": b"moments" * 50}


@pytest.fixture(scope="module")
def bucket():
    with s3_server("published") as (url, _):
        yield url


@pytest.fixture(params=["posix", "s3"])
def folder(request, tmp_path):
    if request.param == "posix":
        return open_folder(str(tmp_path / "run"))
    return open_folder(f"{request.getfixturevalue('bucket')}/{tmp_path.name}")


def write(folder, step: int, *, run: str = "a") -> str:
    name = name_of(step)
    for file, content in {**DATA, METADATA: b"plan"}.items():
        folder.put(f"{name}/{file}", content)
    digests = {file: File(len(content), zlib.crc32(content)) for file, content in DATA.items()}
    publish(folder, step, run=run, world=2, files=digests)
    return name


def reasons(folder, **options) -> tuple[int | None, dict[str, str]]:
    marker, skipped = newest_whole(folder, **options)
    return marker and marker.step, {entry.name: entry.reason for entry in skipped}


def test_the_newest_published_one_counts(folder):
    assert reasons(folder) == (None, {})
    write(folder, 10)
    write(folder, 9)
    marker, skipped = newest_whole(folder, run="a")
    assert (marker.step, marker.world, skipped) == (10, 2, [])
    assert marker.files["__1_0.distcp"].bytes == 350


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda f, n: f.remove(n, [MARKER]), "not published"),
        (lambda f, n: f.put(f"{n}/{MARKER}", b'{"form'), "torn: _PUBLISHED.json is not JSON"),
        (lambda f, n: f.put(f"{n}/{MARKER}", b"[]"), "foreign: format"),
        (
            lambda f, n: f.put(f"{n}/{MARKER}", b'{"format": "trainshed-checkpoint-1"}'),
            "torn: _PUBLISHED.json lacks",
        ),
        (lambda f, n: f.remove(n, ["__1_0.distcp"]), "torn: __1_0.distcp is missing"),
        (
            lambda f, n: f.put(f"{n}/__0_0.distcp", DATA["__0_0.distcp"][:-9]),
            "truncated: __0_0.distcp has 691 of 700",
        ),
        (lambda f, n: f.put(f"{n}/__0_0.distcp", b"x" * 700), "corrupt: __0_0.distcp has CRC"),
        (lambda f, n: f.put(f"{n}/{METADATA}", b"plan of another"), "torn: .metadata differs"),
        (lambda f, n: f.remove(n, [METADATA]), "torn: .metadata is missing"),
    ],
)
def test_a_damaged_one_is_skipped_with_its_reason(folder, damage, reason):
    write(folder, 10)
    damage(folder, write(folder, 20))
    step, skipped = reasons(folder, run="a")
    assert step == 10
    assert skipped["step-00000020"].startswith(reason), skipped


def test_checkpoints_of_others_do_not_count(folder):
    write(folder, 10)
    write(folder, 20, run="b")
    folder.put("step-9/x", b"")  # not our way to write numbers
    folder.put("notes/x", b"")
    moved = json.loads(b"".join(folder.chunks(f"{name_of(10)}/{MARKER}")))
    folder.put(f"{name_of(30)}/{MARKER}", json.dumps(moved).encode())
    assert reasons(folder, run="a") == (
        10,
        {
            "step-00000030": "foreign: holds step 10",
            "step-00000020": "foreign: written by run 'b', this is 'a'",
        },
    )


def test_what_storage_does_not_hold_is_not_published(folder):
    folder.put(f"{name_of(1)}/{METADATA}", b"plan")
    folder.put(f"{name_of(1)}/a", b"12")
    with pytest.raises(Exception, match="a has 2 bytes, 3 were written"):
        publish(folder, 1, run="a", world=1, files={"a": File(3, 0)})
    assert reasons(folder)[0] is None


def test_names():
    assert step_of(name_of(7)) == 7
    assert step_of(name_of(10**9)) == 10**9
    assert [step_of(name) for name in ("step-7", "step-0000000x", "tmp")] == [None, None, None]


def test_which_ones_expire():
    steps = [10, 20, 30, 40, 50, 60]
    assert expired(steps, keep=2, keep_every=None) == [10, 20, 30, 40]
    assert expired(steps, keep=2, keep_every=30) == [10, 20, 40]
    assert expired(steps, keep=9, keep_every=None) == []
    assert expired([60], keep=1, keep_every=None) == []


def test_retention_deletes_rests_and_what_expired(folder):
    for step in (10, 20, 30):
        write(folder, step)
    folder.remove(name_of(20), [MARKER])  # a removal that was cut
    folder.put(f"{name_of(40)}/__0_0.distcp", b"being written")
    assert retain(folder, 30, keep=1, keep_every=None) == ["step-00000020", "step-00000010"]
    assert folder.names() == ["step-00000030", "step-00000040"]
    assert retain(folder, 40, keep=1, keep_every=None) == []  # 40 is not published: nothing is touched


def test_a_crash_at_any_point_of_a_removal_leaves_a_whole_one_or_a_skipped_one(folder):
    """The removal is cut after each of its storage calls."""
    write(folder, 10)
    write(folder, 20)

    class Cut(Exception):
        pass

    plain, allowed = folder.remove, 0

    def cut_remove(name, files):
        for file in files:
            nonlocal allowed
            if allowed == 0:
                raise Cut
            allowed -= 1
            plain(name, [file])

    folder.remove = cut_remove
    for calls in range(5):
        allowed = calls
        with suppress(Cut):
            remove(folder, name_of(10))
        step, skipped = reasons(folder)
        assert step == 20, "the newest is never touched"
        if calls and name_of(10) in folder.names():
            assert MARKER not in folder.files(name_of(10))
            assert not skipped  # older than the newest: nobody looks
    allowed = 99
    assert retain(folder, 20, keep=1, keep_every=None) in ([name_of(10)], [])
    assert folder.names() == ["step-00000020"]


def test_the_marker_tells_how_to_verify_by_hand(folder):
    name = write(folder, 5)
    marker = json.loads(b"".join(folder.chunks(f"{name}/{MARKER}")))
    assert marker["metadata_sha256"] == hashlib.sha256(b"plan").hexdigest()
    assert marker["files"] == {f: asdict(File(len(c), zlib.crc32(c))) for f, c in DATA.items()}
