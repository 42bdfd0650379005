"""Shards on local NVMe under a hard byte limit, shared by all processes of one user's run on one node.

Room is reserved before a byte is downloaded, by evicting what was used longest ago; a file that some process
is reading (it holds a shared lock on it) is never evicted, and nobody waits for room while holding a file, so
the wait always ends. After kill -9 the kernel drops the dead process's locks: its half-written parts are
found unlocked and removed, and the ledger, which can only have counted too much, is counted afresh when it is
full.
"""

import contextlib
import fcntl
import getpass
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, Field

from trainer.errors import TrainerError
from trainer.stores import disk_errors

_PART = ".part-"
_STRIPES = 64
_WAIT_S = 300.0


class CacheConfig(BaseModel):
    """`directory`: on NVMe; `limit_bytes`: never exceeded; `run`: isolates runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    directory: str = "/tmp/trainshed-cache"  # noqa: S108 - a subdirectory of it belongs to the user alone
    limit_bytes: int = Field(default=100 * 2**30, gt=0)
    run: str = ""

    def run_name(self) -> str:
        """The configured run, else the id that torchrun or Slurm gives to all processes of this run."""
        env = os.environ
        return self.run or env.get("TORCHELASTIC_RUN_ID") or env.get("SLURM_JOB_ID") or "local"


class Cache:
    """`with cache.hold(key, bytes, fill) as path` gives a complete file that stays until the block ends."""

    def __init__(self, config: CacheConfig, *, wait_s: float = _WAIT_S) -> None:
        self.limit = config.limit_bytes
        self.root = Path(config.directory).expanduser() / getpass.getuser() / _safe(config.run_name())
        self._wait_s = wait_s
        self._expected: dict[str, int] = {}
        with disk_errors("cache.directory", self.root):
            shared = self.root.parent.parent
            if not shared.exists():
                shared.mkdir(exist_ok=True, parents=True)
                shared.chmod(0o1777)  # others may have caches beside ours, which is closed to them
            self.root.mkdir(exist_ok=True, parents=True, mode=0o700)
            self.root.joinpath(".ledger").touch()
        with self._ledger():
            self._count()

    def expect(self, stream: str, total: int, largest: int) -> None:
        """Check at start that the limit lets a stream be read at all; bytes with compressed parts."""
        if self.limit < 2 * largest:
            allowed = f"at least {2 * largest} (two of the largest shard of {stream})"
            raise TrainerError(
                "cache.limit_bytes", self.limit, allowed, "raise the limit or write smaller shards"
            )
        self._expected[stream] = total + largest

    @property
    def roomy(self) -> bool:
        """Whether every expected shard fits at once, so that files may stay open."""
        return sum(self._expected.values()) <= self.limit

    @contextmanager
    def hold(self, key: str, size: int, fill: Callable[[Path], None], *, overhead: int = 0) -> Iterator[Path]:
        """The file of this key, filled if absent; `fill` may use `overhead` bytes beside `size`."""
        file = self.acquire(key, size, fill, overhead=overhead)
        try:
            yield Path(file.name)
        finally:
            file.close()

    def acquire(self, key: str, size: int, fill: Callable[[Path], None], *, overhead: int = 0) -> IO[bytes]:
        """As `hold`; the file may not be evicted until the returned handle is closed."""
        path = self.root / _safe(key)
        while True:
            found = _share(path)
            if found is not None:
                return found
            with self._stripe(key):
                found = _share(path)
                if found is None:
                    self._download(path, size, fill, overhead)
            # Loop: between the download and our lock another process may have evicted it.

    def drop(self, key: str) -> None:
        """Forget a file that proved bad; a process still reading it keeps its own open copy."""
        with self._ledger():
            (self.root / _safe(key)).unlink(missing_ok=True)
            self._count()

    def used(self) -> int:
        """Bytes held or reserved now, counted on disk."""
        return sum(size for size, _, _ in self._files())

    def close(self, *, delete: bool = False) -> None:
        """Remove the run's files when asked to."""
        if delete:
            shutil.rmtree(self.root, ignore_errors=True)

    def _download(self, path: Path, size: int, fill: Callable[[Path], None], overhead: int) -> None:
        reserved = self._reserve(path, size + overhead)
        inner = Path(f"{reserved.name}.data")
        surplus = size + overhead
        try:
            with disk_errors("cache.directory", path):
                fill(inner)
                inner.replace(path)
                surplus = overhead
        finally:
            with self._ledger():
                self._discard(Path(reserved.name))
                self._write(self._read() - surplus)
            reserved.close()

    def _reserve(self, path: Path, need: int) -> IO[bytes]:
        """A locked file whose name counts as `need` bytes; the lock says that its owner lives."""
        deadline = time.monotonic() + self._wait_s
        if need > self.limit:
            raise TrainerError(
                "cache.limit_bytes", self.limit, f"at least {need} for {path.name}", "raise the limit"
            )
        while True:
            with self._ledger(), disk_errors("cache.directory", self.root):
                used = self._read()
                if used + need > self.limit:
                    used = self._evict(self._count(), need)
                if used + need <= self.limit:
                    part = (self.root / f"{_PART}{need}-{uuid.uuid4().hex[:12]}").open("wb")
                    fcntl.flock(part, fcntl.LOCK_EX)
                    self._write(used + need)
                    return part
            if time.monotonic() > deadline:
                held = f"{self.limit} with every file in use for {self._wait_s:.0f} s"
                raise TrainerError("cache.limit_bytes", held, f"room for {need} bytes", "raise the limit")
            time.sleep(0.01)

    def _evict(self, used: int, need: int) -> int:
        for size, _, path in sorted(self._files(), key=lambda entry: entry[1]):
            if used + need <= self.limit:
                break
            if path.name.startswith(_PART):
                continue
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                used -= size
        self._write(used)
        return used

    def _discard(self, part: Path) -> None:
        """Remove a reservation and whatever was written under its name."""
        for left in self.root.glob(f"*{part.name}*"):
            left.unlink(missing_ok=True)

    def _count(self) -> int:
        """Bytes on disk and reserved, once the reservations of dead processes are removed."""
        used = 0
        for size, _, path in self._files():
            if path.name.startswith(_PART) and _dead(path):
                self._discard(path)
                continue
            used += size
        self._write(used)
        return used

    def _files(self) -> list[tuple[int, int, Path]]:
        """(bytes, last use in ns, path) of every shard and reservation."""
        found = []
        for entry in os.scandir(self.root):
            if entry.name.startswith(_PART) and not entry.name.endswith(".data"):
                found.append((int(entry.name.split("-")[1]), 0, Path(entry.path)))
            elif not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat()
                    found.append((stat.st_size, stat.st_atime_ns, Path(entry.path)))
        return found

    @contextmanager
    def _ledger(self) -> Iterator[None]:
        with disk_errors("cache.directory", self.root), (self.root / ".ledger").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self) -> int:
        return int((self.root / ".ledger").read_bytes() or b"0")

    def _write(self, used: int) -> None:
        (self.root / ".ledger").write_text(str(max(used, 0)).rjust(20))

    @contextmanager
    def _stripe(self, key: str) -> Iterator[None]:
        """One download of a shard at a time on this node; a few lock files stand for all shards."""
        number = int(hashlib.sha256(key.encode()).hexdigest(), 16) % _STRIPES
        with disk_errors("cache.directory", self.root), (self.root / f".stripe-{number}").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _share(path: Path) -> IO[bytes] | None:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    fcntl.flock(file, fcntl.LOCK_SH)
    if os.fstat(file.fileno()).st_nlink == 0:
        file.close()
        return None
    stat = os.fstat(file.fileno())
    os.utime(file.fileno(), ns=(time.time_ns(), stat.st_mtime_ns))
    return file


def _dead(part: Path) -> bool:
    """Whether the process that made this reservation is gone: the kernel dropped its lock."""
    try:
        with part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _safe(name: str) -> str:
    """One path component; never hidden, so it cannot meet the cache's own files."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".") or "_"
