"""Where files live: a directory (disk, FSx) or `s3://bucket/prefix`. Paths are relative, with forward
slashes.

Every file appears whole or not at all: downloads and local writes go to a temporary name and are renamed.
S3 takes its endpoint, region and credentials from the environment; throttling is met by adaptive retries.
"""

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from trainer.errors import TrainerError

_DISK = {
    errno.ENOSPC: ("no space left", "free space or lower the byte limit"),
    errno.EDQUOT: ("quota exceeded", "free space or raise the quota"),
    errno.EROFS: ("read-only file system", "choose a directory on a writable volume"),
    errno.EACCES: ("permission denied", "choose a directory this user owns"),
    errno.EPERM: ("permission denied", "choose a directory this user owns"),
    errno.EIO: ("input/output error", "check the volume; replace the node if its disk is failing"),
}


class MissingError(TrainerError):
    """The file is not in the store."""


class Store(Protocol):
    """Whole files by relative path."""

    url: str

    def get(self, path: str, into: Path) -> None:
        """Download the whole file; `into` appears by rename."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of the file, all or a range."""

    def put(self, source: Path, path: str) -> None:
        """Upload the whole file."""

    def write(self, data: bytes, path: str) -> None:
        """Write a small file."""

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """(path, bytes) of each file below the prefix, sorted."""

    def exists(self, path: str) -> bool:
        """Whether the file is there."""

    def delete(self, path: str) -> None:
        """Remove the file; absent is fine."""


@contextmanager
def disk_errors(where: str, path: Path) -> Iterator[None]:
    """Turn a full, read-only or forbidden disk into one message that names the path."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK:
            raise
        what, fix = _DISK[error.errno]
        raise TrainerError(where, f"{path} ({what})", "a writable directory with room", fix) from None


class DirectoryStore:
    """Files below one directory."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.root = Path(url.removeprefix("file://")).expanduser()

    def local(self, path: str) -> Path:
        """Where the file lies on this machine."""
        return self.root / path

    def get(self, path: str, into: Path) -> None:
        """Copy or download; `into` appears by rename."""
        self._need(path)
        with disk_errors("store.get", into):
            _replace(into, lambda part: shutil.copyfile(self.root / path, part))

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """All of the file, or `length` bytes from `start`."""
        self._need(path)
        with disk_errors("store.read", self.root / path), (self.root / path).open("rb") as file:
            file.seek(start)
            return file.read() if length is None else file.read(length)

    def put(self, source: Path, path: str) -> None:
        """Upload whole."""
        with disk_errors("store.put", self.root / path):
            _replace(self.root / path, lambda part: shutil.copyfile(source, part))

    def write(self, data: bytes, path: str) -> None:
        """Write a small file whole."""
        with disk_errors("store.write", self.root / path):
            _replace(self.root / path, lambda part: part.write_bytes(data))

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """(path, bytes) below the prefix."""
        base = self.root / prefix
        for file in sorted(base.rglob("*")) if base.is_dir() else []:
            if file.is_file():
                yield file.relative_to(self.root).as_posix(), file.stat().st_size

    def exists(self, path: str) -> bool:
        """Whether the file is there."""
        return (self.root / path).is_file()

    def delete(self, path: str) -> None:
        """Remove; absent is fine."""
        (self.root / path).unlink(missing_ok=True)

    def _need(self, path: str) -> None:
        if not self.exists(path):
            raise MissingError(
                "store", f"{self.root / path} (no such file)", "an existing file", "check the path"
            )


class S3Store:
    """Objects below one prefix of a bucket."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.bucket, _, self.prefix = self.url.removeprefix("s3://").partition("/")
        if not self.bucket:
            raise TrainerError("store.url", url, "s3://bucket/prefix", "name the bucket")
        self._client: Any = None
        self._pid = 0

    @property
    def client(self) -> Any:  # noqa: ANN401 - boto3 has no types
        """A client of this process: a forked worker must not share its parent's connections."""
        if self._pid != os.getpid():
            # Imported here: a run that reads a directory needs neither boto3 nor its import time.
            import boto3  # noqa: PLC0415
            from botocore.config import Config  # noqa: PLC0415

            style = (
                "path"
                if os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL_S3")
                else "auto"
            )
            retries = {"mode": "adaptive", "total_max_attempts": 10}
            config = Config(
                retries=retries, s3={"addressing_style": style}, connect_timeout=10, read_timeout=60
            )
            self._client, self._pid = boto3.session.Session().client("s3", config=config), os.getpid()
        return self._client

    def get(self, path: str, into: Path) -> None:
        """Copy or download; `into` appears by rename."""
        with self._errors(path), disk_errors("store.get", into):
            _replace(into, lambda part: self.client.download_file(self.bucket, self._key(path), str(part)))

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """All of the file, or `length` bytes from `start`."""
        end = "" if length is None else start + length - 1
        span = {} if start == 0 and length is None else {"Range": f"bytes={start}-{end}"}
        with self._errors(path):
            return self.client.get_object(Bucket=self.bucket, Key=self._key(path), **span)["Body"].read()

    def put(self, source: Path, path: str) -> None:
        """Upload whole."""
        with self._errors(path):
            self.client.upload_file(str(source), self.bucket, self._key(path))

    def write(self, data: bytes, path: str) -> None:
        """Write a small file whole."""
        with self._errors(path):
            self.client.put_object(Bucket=self.bucket, Key=self._key(path), Body=data)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """(path, bytes) below the prefix."""
        with self._errors(prefix):
            pages = self.client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=self._key(prefix)):
                for entry in page.get("Contents", []):
                    yield entry["Key"].removeprefix(f"{self.prefix}/" if self.prefix else ""), entry["Size"]

    def exists(self, path: str) -> bool:
        """Whether the file is there."""
        try:
            with self._errors(path):
                self.client.head_object(Bucket=self.bucket, Key=self._key(path))
        except MissingError:
            return False
        return True

    def delete(self, path: str) -> None:
        """Remove; absent is fine."""
        with self._errors(path):
            self.client.delete_object(Bucket=self.bucket, Key=self._key(path))

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        where = f"s3://{self.bucket}/{self._key(path)}"
        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in ("404", "NoSuchKey", "NoSuchBucket", "NotFound"):
                raise MissingError(
                    "store", f"{where} ({code})", "an existing object", "check bucket and prefix"
                ) from None
            fix = (
                "grant the role s3:GetObject/ListBucket/PutObject there"
                if code in ("403", "AccessDenied")
                else ("retry later; if SlowDown persists, spread the data over more prefixes")
            )
            raise TrainerError("store", f"{where} ({code})", "a request that S3 accepts", fix) from None
        except (BotoCoreError, Boto3Error) as error:
            fix = "check credentials, region and AWS_ENDPOINT_URL"
            raise TrainerError(
                "store", f"{where} ({type(error).__name__}: {error})", "a reachable store", fix
            ) from None


def open_store(url: str) -> "DirectoryStore | S3Store":
    """The store of a directory path, file:// or s3:// address."""
    scheme, found, _ = url.partition("://")
    if found and scheme not in ("s3", "file"):
        raise TrainerError(
            "store.url", url, "a directory, file://… or s3://bucket/prefix", "use one of these"
        )
    return S3Store(url) if scheme == "s3" and found else DirectoryStore(url)


def _replace(into: Path, fill: Callable[[Path], object]) -> None:
    into.parent.mkdir(parents=True, exist_ok=True)
    part = into.with_name(f".{into.name}.{uuid.uuid4().hex[:12]}")
    try:
        fill(part)
        part.replace(into)
    finally:
        part.unlink(missing_ok=True)
