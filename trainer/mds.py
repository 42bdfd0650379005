"""Reader of MosaicML MDS shards as MDSWriter writes them (index.json, raw or zstd), by mmap and in batches.

Layout of a shard: uint32 count, uint32 offsets[count + 1], then the samples; a sample is the uint32 sizes of
its variable columns followed by the columns. Every shard is hashed when a process first opens it, cached or
not.
"""

import hashlib
import json
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from trainer.cache import Cache
from trainer.encodings import decoder, fixed_size
from trainer.errors import TrainerError
from trainer.stores import DirectoryStore, MissingError, open_store

_FAST_HASHES = ("xxh3_64", "xxh3_128", "xxh64", "xxh128", "xxh32", "blake2b", "sha1", "md5")


class BadShardError(TrainerError):
    """A shard whose bytes in the store are not those that were written."""

    def __init__(self, url: str, shard: str, given: str, allowed: str) -> None:
        self.shard = f"{url.rstrip('/')}/{shard}"
        fix = (
            f"write or copy the shard again, or set data.on_bad_shard=quarantine, or add '{self.shard}' to "
            "data.quarantine (its samples are then replaced, the same way on every rank)"
        )
        super().__init__(f"shard {self.shard}", given, allowed, fix)


@dataclass(frozen=True)
class Shard:
    """One entry of index.json; sizes in bytes, hashes by algorithm."""

    name: str
    samples: int
    size: int
    hashes: dict[str, str]
    zip_name: str | None
    zip_size: int
    zip_hashes: dict[str, str]
    compression: str | None
    columns: tuple[tuple[str, str, int | None], ...]

    @classmethod
    def from_index(cls, entry: dict[str, Any]) -> "Shard":
        """Parse one shard of an index."""
        raw, packed = entry["raw_data"], entry.get("zip_data") or {}
        columns = zip(entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True)
        return cls(
            raw["basename"], entry["samples"], raw["bytes"], raw.get("hashes") or {}, packed.get("basename"),
            packed.get("bytes", 0), packed.get("hashes") or {}, entry.get("compression"), tuple(columns),
        )  # fmt: skip


class Shards:
    """The samples of one stream by number.

    `read(indices)` gives dicts of decoded columns in the order asked. A store that is a directory is read in
    place unless its shards are compressed; otherwise `cache` makes the cache (called only then).
    """

    def __init__(self, url: str, *, cache: Callable[[], Cache] | None = None) -> None:
        self.url = url.rstrip("/")
        self.store = open_store(self.url)
        self.shards = self._index()
        self.sizes = np.array([shard.samples for shard in self.shards], np.int64)
        self._ends = np.cumsum(self.sizes)
        self._begins = self._ends - self.sizes
        self.columns = {name: encoding for name, encoding, _ in self.shards[0].columns}
        self._decode = {columns: _sample_decoder(columns) for columns in {s.columns for s in self.shards}}
        self._cache: Cache | None = None
        self._stream = hashlib.sha256(self.url.encode()).hexdigest()[:12]
        self._open: dict[int, tuple[IO[bytes], mmap.mmap, np.ndarray]] = {}
        self._checked: dict[int, tuple[int, int, int]] = {}
        if not isinstance(self.store, DirectoryStore) or any(shard.zip_name for shard in self.shards):
            if cache is None:
                raise TrainerError(
                    "data.cache", "none", f"a cache for {self.url}", "set data.cache.directory"
                )
            self._cache = cache()
            total, largest = sum(s.size for s in self.shards), max(s.size + s.zip_size for s in self.shards)
            self._cache.expect(self.url, total, largest)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def shard_of(self, indices: np.ndarray) -> np.ndarray:
        """Number of the shard that holds each sample."""
        return np.searchsorted(self._ends, indices, side="right")

    def read(self, indices: np.ndarray) -> list[dict[str, Any]]:
        """Decoded samples, each a dict by column; shards are opened one after the other."""
        indices = np.asarray(indices, np.int64)
        which = self.shard_of(indices)
        out: list[Any] = [None] * len(indices)
        for number in np.unique(which):
            shard = self.shards[number]
            decode = self._decode[shard.columns]
            wanted = np.nonzero(which == number)[0]
            local = indices[wanted] - self._begins[number]
            file, data, offsets = self._opened(int(number))
            begins, ends = offsets[local].tolist(), offsets[local + 1].tolist()
            for slot, begin, end in zip(wanted.tolist(), begins, ends, strict=True):
                out[slot] = decode(data[begin:end])
            if not self._keep:
                data.close()
                file.close()
        return out

    def verify(self, number: int) -> None:
        """Read the whole shard and compare its hash; raises BadShardError."""
        file, data, _ = self._opened(number, fresh=True)
        if number not in self._open:
            data.close()
            file.close()

    @property
    def _keep(self) -> bool:
        """Whether files may stay mapped: nothing is evicted in place, nor from a cache that holds all."""
        return self._cache is None or self._cache.roomy

    def _index(self) -> list[Shard]:
        where = f"{self.url}/index.json"
        try:
            index = json.loads(self.store.read("index.json"))
            shards = [Shard.from_index(entry) for entry in index["shards"]]
            formats = {(entry["format"], entry["version"]) for entry in index["shards"]}
        except (ValueError, KeyError) as error:
            if isinstance(error, TrainerError):
                raise
            raise TrainerError(
                where, f"{type(error).__name__}: {error}", "an MDS index", "merge or write it again"
            ) from None
        shards = [shard for shard in shards if shard.samples]
        if not shards or formats != {("mds", 2)}:
            given = sorted(formats) or "no shards"
            raise TrainerError(
                where, given, "MDS version 2 with at least one sample", "write it with MDSWriter"
            )
        for shard in shards:
            for _, encoding, size in shard.columns:
                if fixed_size(encoding) != size:
                    raise TrainerError(
                        where, f"{encoding} of {size} bytes", str(fixed_size(encoding)), "write it again"
                    )
        return shards

    def _opened(self, number: int, *, fresh: bool = False) -> tuple[IO[bytes], mmap.mmap, np.ndarray]:
        if number in self._open and not fresh:
            return self._open[number]
        shard = self.shards[number]
        file = self._file(shard)
        try:
            data = self._map(number, shard, file, fresh)
        except BadShardError:
            file.close()
            if self._cache is None:
                raise
            # The copy is bad: take it from the store again, once; if that is bad too, the store's bytes are.
            self._cache.drop(self._key(shard))
            file = self._file(shard)
            data = self._map(number, shard, file, fresh)
        offsets = np.frombuffer(data[4 : 8 + 4 * shard.samples], np.uint32).astype(np.int64)
        if self._keep:
            self._open[number] = file, data, offsets
        return file, data, offsets

    def _file(self, shard: Shard) -> IO[bytes]:
        try:
            if self._cache is None:
                if not self.store.exists(shard.name):
                    raise BadShardError(self.url, shard.name, "no such file", f"{shard.size} bytes")
                return (Path(self.store.url.removeprefix("file://")).expanduser() / shard.name).open("rb")
            return self._cache.acquire(
                self._key(shard), shard.size, lambda into: self._fetch(shard, into), overhead=shard.zip_size
            )
        except MissingError:
            raise BadShardError(
                self.url, shard.zip_name or shard.name, "no such file", f"{shard.size} bytes"
            ) from None

    def _fetch(self, shard: Shard, into: Path) -> None:
        """Download, decompress and check one shard; the compressed part is removed before the end."""
        if shard.zip_name is None:
            self.store.get(shard.name, into)
            return
        packed = into.with_name(f"{into.name}.zip")
        self.store.get(shard.zip_name, packed)
        data = packed.read_bytes()
        _check(self.url, shard.zip_name, data, shard.zip_size, shard.zip_hashes)
        into.write_bytes(_decompress(self.url, shard, data))
        packed.unlink()

    def _map(self, number: int, shard: Shard, file: IO[bytes], fresh: bool) -> mmap.mmap:
        stat = Path(f"/proc/self/fd/{file.fileno()}").stat()
        if stat.st_size != shard.size:
            raise BadShardError(self.url, shard.name, f"{stat.st_size} bytes", f"{shard.size} bytes")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        stamp = stat.st_ino, stat.st_mtime_ns, stat.st_size
        if fresh or self._checked.get(number) != stamp:
            _check(self.url, shard.name, data, shard.size, shard.hashes)
            self._checked[number] = stamp
        return data

    def _key(self, shard: Shard) -> str:
        return f"{self._stream}-{shard.name}"


def _check(url: str, name: str, data: bytes | mmap.mmap, size: int, hashes: dict[str, str]) -> None:
    if len(data) != size:
        raise BadShardError(url, name, f"{len(data)} bytes", f"{size} bytes")
    algorithm = next((one for one in (*_FAST_HASHES, *sorted(hashes)) if one in hashes), None)
    if algorithm is not None:
        actual = _digest(algorithm, data)
        if actual != hashes[algorithm]:
            raise BadShardError(url, name, f"{algorithm} {actual}", f"{algorithm} {hashes[algorithm]}")


def _digest(algorithm: str, data: bytes | mmap.mmap) -> str:
    if algorithm.startswith("xx"):
        import xxhash  # noqa: PLC0415 - only where the index uses it

        return getattr(xxhash, algorithm)(data).hexdigest()
    return hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()


def _decompress(url: str, shard: Shard, data: bytes) -> bytes:
    kind = (shard.compression or "").partition(":")[0]
    if kind != "zstd":
        raise TrainerError(
            f"{url}/{shard.zip_name}", f"compression {kind}", "none or zstd", "write it again with zstd"
        )
    import zstd  # noqa: PLC0415 - only where shards are compressed

    try:
        return zstd.decompress(data)
    except zstd.Error as error:
        raise BadShardError(
            url, shard.zip_name or shard.name, f"zstd: {error}", "a whole zstd frame"
        ) from None


def _sample_decoder(columns: tuple[tuple[str, str, int | None], ...]) -> Callable[[bytes], dict[str, Any]]:
    parts = [(name, size, decoder(encoding)) for name, encoding, size in columns]
    head = 4 * sum(size is None for _, size, _ in parts)

    def decode(data: bytes) -> dict[str, Any]:
        at, variable = head, 0
        sample = {}
        for name, size, value in parts:
            length = size
            if length is None:
                length = int.from_bytes(data[variable : variable + 4], "little")
                variable += 4
            sample[name] = value(data, at, length)
            at += length
        return sample

    return decode
