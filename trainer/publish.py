"""A checkpoint counts only when `_PUBLISHED.json` lies beside its data, and that file is written last.

It names every file with its size and CRC-32 and the SHA-256 of DCP's `.metadata`. Whatever is missing, cut,
changed or from elsewhere is skipped with a reason; nothing ever points at a checkpoint that is not durable.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.checkpoint import StorageWriter

    from trainer.folders import Folder

MARKER = "_PUBLISHED.json"
METADATA = ".metadata"
FORMAT = "trainshed-checkpoint-1"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class File:
    """One data file: size in bytes and CRC-32 of the content."""

    bytes: int
    crc32: int


@dataclass(frozen=True)
class Marker:
    """Content of `_PUBLISHED.json`. `time`: seconds since 1970; `world`: ranks that wrote."""

    step: int
    run: str
    world: int
    metadata_sha256: str
    files: dict[str, File]
    time: float = field(default_factory=time.time)
    format: str = FORMAT


@dataclass(frozen=True)
class Skipped:
    """A checkpoint that does not count, and why."""

    name: str
    reason: str


class NotWholeError(Exception):
    """A checkpoint that does not count; the text is the reason."""


def name_of(step: int) -> str:
    """20 → `step-00000020`."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """`step-00000020` → 20; None for a folder that is not a checkpoint."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def record_digests(writer: StorageWriter, digests: dict[str, File]) -> None:
    """Fills in sizes and CRCs of what a DCP writer writes, while it writes (no second read)."""
    filesystem: Any = writer.fs  # type: ignore[attr-defined]
    plain = filesystem.create_stream

    @contextmanager
    def create_stream(path: object, mode: str) -> Iterator[object]:
        with plain(path, mode) as stream:
            digesting = _Digesting(stream)
            yield digesting if mode == "wb" else stream
        if mode == "wb":
            digests[str(path).rsplit("/", 1)[-1]] = File(digesting.bytes, digesting.crc32)

    filesystem.create_stream = create_stream


class _Digesting:
    """A writable stream that sums what passes through."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.bytes = 0
        self.crc32 = 0

    def write(self, data: bytes) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        self.bytes += memoryview(data).nbytes
        return self._stream.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def publish(folder: Folder, step: int, *, run: str, world: int, files: dict[str, File]) -> Marker:
    """Publish what all ranks have written and synced. Refuses when storage does not hold what they wrote."""
    name = name_of(step)
    stored = folder.files(name)
    for file, wrote in files.items():
        if stored.get(file) != wrote.bytes:
            raise NotWholeError(f"{file} has {stored.get(file)} bytes, {wrote.bytes} were written")
    folder.sync(name)
    marker = Marker(step=step, run=run, world=world, metadata_sha256=_sha256(folder, name), files=files)
    folder.put(f"{name}/{MARKER}", json.dumps(asdict(marker), indent=1).encode())
    return marker


def check(folder: Folder, name: str, *, run: str | None = None) -> Marker:
    """Marker, sizes and metadata of one checkpoint; NotWholeError with the reason."""
    try:
        raw = json.loads(b"".join(folder.chunks(f"{name}/{MARKER}")))
    except FileNotFoundError:
        raise NotWholeError("not published (its writing or its removal was cut)") from None
    except ValueError:
        raise NotWholeError(f"torn: {MARKER} is not JSON") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise NotWholeError(f"foreign: format is not {FORMAT}")
    try:
        marker = Marker(**raw | {"files": {file: File(**entry) for file, entry in raw["files"].items()}})
    except (TypeError, KeyError, AttributeError):
        raise NotWholeError(f"torn: {MARKER} lacks fields") from None
    if marker.step != step_of(name):
        raise NotWholeError(f"foreign: holds step {marker.step}")
    if run is not None and marker.run != run:
        raise NotWholeError(f"foreign: written by run {marker.run!r}, this is {run!r}")
    stored = folder.files(name)
    for file, wrote in marker.files.items():
        if file not in stored:
            raise NotWholeError(f"torn: {file} is missing")
        if stored[file] != wrote.bytes:
            raise NotWholeError(f"truncated: {file} has {stored[file]} of {wrote.bytes} bytes")
    if _sha256(folder, name) != marker.metadata_sha256:
        raise NotWholeError(f"torn: {METADATA} differs from what was published")
    return marker


def check_content(folder: Folder, marker: Marker, *, part: int = 0, parts: int = 1) -> None:
    """Compare CRCs of every `parts`-th file from `part` on; NotWholeError names the first that differs."""
    name = name_of(marker.step)
    for file, wrote in sorted(marker.files.items())[part::parts]:
        crc = 0
        for chunk in folder.chunks(f"{name}/{file}"):
            crc = zlib.crc32(chunk, crc)
        if crc != wrote.crc32:
            raise NotWholeError(f"corrupt: {file} has CRC {crc:08x}, {wrote.crc32:08x} was written")


def newest_whole(
    folder: Folder,
    *,
    run: str | None = None,
    content: Callable[[Folder, Marker], None] = check_content,
) -> tuple[Marker | None, list[Skipped]]:
    """The newest checkpoint that counts, or None, and the newer ones that do not, newest first."""
    skipped: list[Skipped] = []
    steps = {step: name for name in folder.names() if (step := step_of(name)) is not None}
    for step in sorted(steps, reverse=True):
        try:
            marker = check(folder, steps[step], run=run)
            content(folder, marker)
        except NotWholeError as error:
            skipped.append(Skipped(steps[step], str(error)))
        else:
            return marker, skipped
    return None, skipped


def unpublish(folder: Folder, name: str) -> None:
    """From here on the checkpoint does not count; its data may now go."""
    folder.remove(name, [MARKER])


def _sha256(folder: Folder, name: str) -> str:
    digest = hashlib.sha256()
    try:
        for chunk in folder.chunks(f"{name}/{METADATA}"):
            digest.update(chunk)
    except FileNotFoundError:
        raise NotWholeError(f"torn: {METADATA} is missing") from None
    return digest.hexdigest()
