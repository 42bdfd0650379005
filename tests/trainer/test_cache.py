"""The cache: never beyond its limit, whatever dies; stores: whole files or a clear error."""

import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.trainer.buckets import s3_server
from trainer.cache import Cache, CacheConfig
from trainer.errors import TrainerError
from trainer.stores import MissingError, open_store

KIB = 1024


@pytest.fixture(scope="module")
def bucket():
    with s3_server("cache-test") as (url, _):
        yield url


def make(tmp_path, limit=10 * KIB, run="r", **more) -> Cache:
    return Cache(CacheConfig(directory=str(tmp_path / "c"), limit_bytes=limit, run=run), **more)


def fill(size):
    return lambda into: into.write_bytes(b"x" * size)


def on_disk(root: Path) -> int:
    total = 0
    for entry in os.scandir(root):
        if not entry.name.startswith((".ledger", ".stripe")):
            try:
                total += entry.stat().st_size
            except FileNotFoundError:
                continue
    return total


def test_least_recently_used_goes_first(tmp_path):
    cache = make(tmp_path)
    for key in "abc":
        with cache.hold(key, 3 * KIB, fill(3 * KIB)) as path:
            assert path.stat().st_size == 3 * KIB
    with cache.hold("a", 3 * KIB, None):
        pass
    with cache.hold("d", 3 * KIB, fill(3 * KIB)):
        pass
    assert sorted(p.name for p in cache.root.glob("[a-z]")) == ["a", "c", "d"]
    assert on_disk(cache.root) == cache.used() == 9 * KIB


def test_held_files_stay_and_waiting_ends(tmp_path):
    cache = make(tmp_path, wait_s=0.1)
    with (
        cache.hold("a", 6 * KIB, fill(6 * KIB)),
        pytest.raises(TrainerError, match="every file in use"),
        cache.hold("b", 6 * KIB, fill(6 * KIB)),
    ):
        pass
    with cache.hold("b", 6 * KIB, fill(6 * KIB)):
        assert on_disk(cache.root) == 6 * KIB


def test_refuses_a_limit_that_cannot_work(tmp_path):
    with pytest.raises(TrainerError, match=r"cache\.limit_bytes: given 10240; allowed at least 12288"):
        make(tmp_path).expect("s", 10**6, 6 * KIB)


def test_failed_download_gives_its_room_back(tmp_path):
    cache = make(tmp_path)

    def broken(into):
        into.write_bytes(b"y" * KIB)
        raise TrainerError("store", "x", "y", "z")

    for _ in range(20):
        with pytest.raises(TrainerError), cache.hold("a", 9 * KIB, broken):
            pass
    assert cache.used() == on_disk(cache.root) == 0


def _hammer(directory, limit, seed, peak, times):
    cache = Cache(CacheConfig(directory=directory, limit_bytes=limit, run="r"))
    for turn in range(times):
        number = (seed * 7 + turn * 3) % 12

        def slowly(into):
            into.write_bytes(b"z" * KIB)
            with into.open("ab") as file:
                file.write(b"z" * KIB)
            peak.value = max(peak.value, on_disk(cache.root))

        with cache.hold(f"k{number}", 2 * KIB, slowly, overhead=KIB) as path:
            assert path.stat().st_size == 2 * KIB
            peak.value = max(peak.value, on_disk(cache.root))


def test_limit_holds_across_processes(tmp_path):
    context = multiprocessing.get_context("fork")
    peak = context.Value("l", 0)
    limit = 9 * KIB
    workers = [context.Process(target=_hammer, args=(str(tmp_path), limit, n, peak, 40)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert 4 * KIB <= peak.value <= limit


def _stuck(directory, ready):
    cache = Cache(CacheConfig(directory=directory, limit_bytes=10 * KIB, run="r"))

    def forever(into):
        into.write_bytes(b"p" * 5 * KIB)
        ready.set()
        time.sleep(60)

    with cache.hold("a", 8 * KIB, forever):
        pass


def test_kill_9_during_a_download_leaves_nothing_behind(tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    worker = context.Process(target=_stuck, args=(str(tmp_path / "c"), ready))
    worker.start()
    assert ready.wait(20)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    cache = make(tmp_path)
    assert cache.used() == on_disk(cache.root) == 0
    with cache.hold("a", 9 * KIB, fill(9 * KIB)) as path:
        assert path.stat().st_size == 9 * KIB


def test_users_and_runs_do_not_meet(tmp_path):
    """M4: no two users or runs share a directory, and nobody else may look into ours."""
    one, two = make(tmp_path, run="one"), make(tmp_path, run="two")
    assert one.root != two.root
    assert one.root.parent.name
    assert oct(one.root.stat().st_mode)[-3:] == "700"
    assert oct((tmp_path / "c").stat().st_mode)[-4:] == "1777", "other users make theirs beside it"


def test_unusable_directories_are_one_message(tmp_path):
    blocked = Path("/proc/trainshed")
    with pytest.raises((TrainerError, FileNotFoundError)):
        Cache(CacheConfig(directory=str(blocked)))
    mount = tmp_path / "tiny"
    mount.mkdir()
    cache = make(tmp_path)

    def full(into):
        raise OSError(28, "No space left on device", str(into))

    with pytest.raises(TrainerError, match="no space left"), cache.hold("a", KIB, full):
        pass

    def read_only(into):
        raise OSError(30, "Read-only file system", str(into))

    with pytest.raises(TrainerError, match="read-only file system"), cache.hold("a", KIB, read_only):
        pass


def test_directory_store(tmp_path):
    store = open_store(str(tmp_path / "s"))
    (tmp_path / "f").write_bytes(b"0123456789")
    store.put(tmp_path / "f", "a/b")
    store.write(b"x", "c")
    assert list(store.list()) == [("a/b", 10), ("c", 1)]
    assert store.read("a/b", 2, 3) == b"234"
    store.get("a/b", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == b"0123456789"
    store.delete("c")
    assert not store.exists("c")
    with pytest.raises(MissingError, match="no such file"):
        store.get("c", tmp_path / "no")
    with pytest.raises(TrainerError, match=r"store\.url"):
        open_store("ftp://x")


def test_s3_store(bucket, tmp_path):
    store = open_store(f"{bucket}/pre/fix")
    (tmp_path / "f").write_bytes(b"0123456789")
    store.put(tmp_path / "f", "a/b")
    store.write(b"x", "c")
    assert sorted(store.list()) == [("a/b", 10), ("c", 1)]
    assert store.read("a/b", 2, 3) == b"234"
    store.get("a/b", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == b"0123456789"
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []
    store.delete("c")
    assert not store.exists("c")
    with pytest.raises(MissingError, match=r"s3://.*/pre/fix/c \("):
        store.get("c", tmp_path / "no")
    with pytest.raises(TrainerError, match="no-such-bucket"):
        open_store("s3://no-such-bucket/x").read("y")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_really_full_disk(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], check=False
    ).returncode:
        pytest.skip("no mounts here")
    try:
        cache = Cache(CacheConfig(directory=str(mount), limit_bytes=10**6, run="r"))
        with pytest.raises(TrainerError, match="no space left"), cache.hold("a", 10**5, fill(10**5)):
            pass
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)
