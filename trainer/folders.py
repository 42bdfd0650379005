"""Where checkpoints lie: a POSIX directory or an S3 prefix, with the few operations that publishing needs.

A folder holds checkpoints (sub-folders, `step-00000020`), and these hold files, flat. Paths are relative:
`step-00000020/.metadata`. What differs between the two is how a file becomes durable and atomic.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import override

if TYPE_CHECKING:
    from torch.distributed.checkpoint import StorageReader, StorageWriter

CHUNK = 8 << 20  # bytes read at a time when a file is verified


class Folder(Protocol):
    """What publish, retention and checkpoint ask of storage."""

    url: str

    def names(self) -> list[str]:
        """Sub-folders, sorted; empty where the folder does not exist yet."""

    def files(self, name: str) -> dict[str, int]:
        """Files of a sub-folder with their sizes in bytes."""

    def chunks(self, path: str) -> Iterator[bytes]:
        """Yield a file's content in pieces; FileNotFoundError where there is none."""

    def put(self, path: str, data: bytes) -> None:
        """Write a small file: whole and durable, or not at all."""

    def create(self, path: str, data: bytes) -> bool:
        """Write a small file as `put` does, but only where none is: whether it then holds `data`.

        Of several at once, one succeeds.
        """

    def sync(self, name: str) -> None:
        """Make the entries of a sub-folder durable (its files already are)."""

    def remove(self, name: str, files: list[str]) -> None:
        """Delete files of a sub-folder, durably; the sub-folder too once it is empty."""

    def writer(self, name: str, threads: int) -> StorageWriter:
        """torch.distributed.checkpoint's writer into a sub-folder."""

    def reader(self, name: str) -> StorageReader:
        """torch.distributed.checkpoint's reader of a sub-folder."""


def open_folder(url: str) -> Folder:
    """`s3://bucket/prefix` or a path."""
    return S3Folder(url) if url.startswith("s3://") else PosixFolder(url)


class PosixFolder(Folder):
    """A directory on a local or shared file system."""

    def __init__(self, url: str) -> None:
        self.root = Path(url.removeprefix("file://")).expanduser()
        self.url = str(self.root)

    @override
    def names(self) -> list[str]:
        return (
            sorted(child.name for child in self.root.iterdir() if child.is_dir())
            if self.root.is_dir()
            else []
        )

    @override
    def files(self, name: str) -> dict[str, int]:
        folder = self.root / name
        if not folder.is_dir():
            return {}
        return {child.name: child.stat().st_size for child in folder.iterdir() if child.is_file()}

    @override
    def chunks(self, path: str) -> Iterator[bytes]:
        with (self.root / path).open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk

    @override
    def put(self, path: str, data: bytes) -> None:
        with self._written(path, data) as temporary:
            temporary.replace(self.root / path)

    @override
    def create(self, path: str, data: bytes) -> bool:
        with self._written(path, data) as temporary:
            try:
                (self.root / path).hardlink_to(temporary)  # fails where a rename would replace
            except FileExistsError:
                return (self.root / path).read_bytes() == data
        return True

    @contextmanager
    def _written(self, path: str, data: bytes) -> Iterator[Path]:
        """A durable temporary file beside the target; what the block makes of it becomes durable, too."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".put-")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)
        _fsync(target.parent)

    @override
    def sync(self, name: str) -> None:
        for folder in (self.root / name, self.root):
            _fsync(folder)

    @override
    def remove(self, name: str, files: list[str]) -> None:
        folder = self.root / name
        for file in files:
            (folder / file).unlink(missing_ok=True)
        if folder.is_dir():
            _fsync(folder)
            if not any(folder.iterdir()):
                folder.rmdir()

    @override
    def writer(self, name: str, threads: int) -> StorageWriter:
        from torch.distributed.checkpoint import FileSystemWriter  # noqa: PLC0415 (1 s to import)

        return FileSystemWriter(self.root / name, thread_count=threads, sync_files=True, overwrite=True)

    @override
    def reader(self, name: str) -> StorageReader:
        from torch.distributed.checkpoint import FileSystemReader  # noqa: PLC0415

        return FileSystemReader(self.root / name)


class S3Folder(Folder):
    """A prefix of a bucket. A PUT is atomic and durable when it returns, so `sync` has nothing to do.

    `AWS_ENDPOINT_URL` and the region come from the environment, for boto3 and s3torchconnector alike.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.bucket, _, prefix = self.url.removeprefix("s3://").partition("/")
        self.prefix = f"{prefix}/" if prefix else ""

    @cached_property
    def _s3(self) -> Any:  # noqa: ANN401 (boto3 has no types of its own)
        import boto3  # noqa: PLC0415 (0.3 s that a POSIX run never needs)
        from botocore.config import Config  # noqa: PLC0415

        return boto3.client(
            "s3", region_name=self._region, config=Config(retries={"mode": "adaptive", "max_attempts": 10})
        )

    @cached_property
    def _region(self) -> str:
        import boto3  # noqa: PLC0415

        return os.environ.get("AWS_REGION") or boto3.Session().region_name or "us-east-1"

    def _pages(self, **arguments: str) -> Iterator[dict[str, Any]]:
        yield from self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, **arguments)

    @override
    def names(self) -> list[str]:
        pages = self._pages(Prefix=self.prefix, Delimiter="/")
        found = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
        return sorted(entry.removeprefix(self.prefix).rstrip("/") for entry in found)

    @override
    def files(self, name: str) -> dict[str, int]:
        prefix = f"{self.prefix}{name}/"
        found = [entry for page in self._pages(Prefix=prefix) for entry in page.get("Contents", [])]
        return {entry["Key"].removeprefix(prefix): entry["Size"] for entry in found}

    @override
    def chunks(self, path: str) -> Iterator[bytes]:
        try:
            body = self._s3.get_object(Bucket=self.bucket, Key=self.prefix + path)["Body"]
        except self._s3.exceptions.NoSuchKey as error:
            raise FileNotFoundError(f"{self.url}/{path}") from error
        yield from body.iter_chunks(CHUNK)

    @override
    def put(self, path: str, data: bytes) -> None:
        self._s3.put_object(Bucket=self.bucket, Key=self.prefix + path, Body=data)

    @override
    def create(self, path: str, data: bytes) -> bool:
        where = {"Bucket": self.bucket, "Key": self.prefix + path}
        try:
            self._s3.put_object(**where, Body=data, IfNoneMatch="*")
        except self._s3.exceptions.ClientError as error:
            if error.response["Error"]["Code"] not in ("PreconditionFailed", "ConditionalRequestConflict"):
                raise
            # A request whose answer was lost is sent again, and then meets what it wrote itself.
            try:
                return b"".join(self.chunks(path)) == data
            except FileNotFoundError:  # the other request has yet to end, or was a deletion
                return False
        return True

    @override
    def sync(self, name: str) -> None:
        del name

    @override
    def remove(self, name: str, files: list[str]) -> None:
        for start in range(0, len(files), 1000):  # the API's limit for one request
            keys = [{"Key": f"{self.prefix}{name}/{file}"} for file in files[start : start + 1000]]
            answer = self._s3.delete_objects(Bucket=self.bucket, Delete={"Objects": keys, "Quiet": True})
            if errors := answer.get("Errors"):
                raise OSError(f"{self.url}/{name}: {errors[0].get('Code')}: {errors[0].get('Message')}")

    @override
    def writer(self, name: str, threads: int) -> StorageWriter:
        from s3torchconnector.dcp import S3StorageWriter  # noqa: PLC0415 (only where S3 is used)

        url = f"{self.url}/{name}"
        return S3StorageWriter(
            self._region, url, s3client_config=_s3_client(), thread_count=threads, overwrite=True
        )

    @override
    def reader(self, name: str) -> StorageReader:
        from s3torchconnector.dcp import S3StorageReader  # noqa: PLC0415

        return S3StorageReader(self._region, f"{self.url}/{name}", s3client_config=_s3_client())


def _s3_client() -> Any:  # noqa: ANN401 (imported lazily)
    from s3torchconnector import S3ClientConfig  # noqa: PLC0415

    # Servers other than AWS (an endpoint is given) have no bucket names in their host names.
    return S3ClientConfig(force_path_style="AWS_ENDPOINT_URL" in os.environ, max_attempts=10)


def _fsync(folder: Path) -> None:
    """Directory entries are durable only after an fsync of the directory itself."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
