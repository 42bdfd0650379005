"""Positions to samples: the mixture's order, the shards it leads to, and what stands in for a bad shard."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from trainer.cache import Cache, CacheConfig
from trainer.collate import ProcessorConfig
from trainer.errors import TrainerError
from trainer.mds import BadShardError, Shards
from trainer.order import Mixture
from trainer.samples import Sample


class StreamConfig(BaseModel):
    """One MDS data set (directory or s3://) and its share of the samples."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    url: str
    weight: float = Field(default=1.0, gt=0)


class DataConfig(BaseModel):
    """What is read and how.

    `workers` processes per rank, each `prefetch` micro-batches ahead. `window_shards`: shards mixed at a
    time. `lanes`: set it to the number of nodes and each node reads about 1/lanes of a single stream.
    `on_bad_shard`: stop, or quarantine (substitute its samples, the same way on every rank); `quarantine`
    names shards known bad as `<url>/<file>`. `reader: streaming` uses mosaicml-streaming's own
    StreamingDataset instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    streams: tuple[StreamConfig, ...] = Field(min_length=1)
    cache: CacheConfig = CacheConfig()
    processor: ProcessorConfig = ProcessorConfig()
    reader: Literal["native", "streaming"] = "native"
    workers: int = Field(default=2, ge=0)
    prefetch: int = Field(default=2, gt=0)
    window_shards: int = Field(default=16, gt=0)
    lanes: int = Field(default=1, gt=0)
    on_bad_shard: Literal["error", "quarantine"] = "error"
    quarantine: tuple[str, ...] = ()


class Source:
    """Samples by global position (0 … endlessly), deterministic in seed, streams and the set of bad shards.

    A sample of a quarantined shard is replaced by the one `hop` positions later (and so on while that is
    bad): no other position moves, so ranks, peers and a resumed run agree without talking, and every sample
    of the healthy shards still comes in its place.
    """

    def __init__(self, config: DataConfig, seed: int, hop: int, quarantined: Sequence[str] = ()) -> None:
        make = lru_cache(maxsize=1)(lambda: Cache(config.cache))
        self.streams = [Shards(stream.url, cache=make) for stream in config.streams]
        self.mixture = Mixture(
            [stream.sizes for stream in self.streams], [stream.weight for stream in config.streams], seed,
            window=config.window_shards, lanes=config.lanes, stripe=max(hop // config.lanes, 1),
        )  # fmt: skip
        self._hop = hop
        self._forgive = config.on_bad_shard == "quarantine"
        self._good = [np.ones(len(stream.shards), bool) for stream in self.streams]
        self.quarantined: set[str] = set()
        for name in (*config.quarantine, *quarantined):
            self.exclude(name)

    @property
    def total(self) -> int:
        """Samples of all streams together."""
        return int(self.mixture.totals.sum())

    def exclude(self, name: str) -> None:
        """Quarantine a shard by `<url>/<file>`."""
        known = {}
        for number, stream in enumerate(self.streams):
            known |= {f"{stream.url}/{shard.name}": (number, at) for at, shard in enumerate(stream.shards)}
            known |= {
                f"{stream.url}/{shard.zip_name}": (number, at) for at, shard in enumerate(stream.shards)
            }
        if name not in known:
            allowed = f"a shard of {', '.join(stream.url for stream in self.streams)}"
            raise TrainerError("data.quarantine", name, allowed, "write <url>/<file> as the error names it")
        number, at = known[name]
        self._good[number][at] = False
        self.quarantined.add(name)
        if not self._good[number].any():
            raise TrainerError(
                "data.streams", f"{self.streams[number].url} (every shard bad)", "a good shard", "restore it"
            )

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(stream, sample) served at each position, bad shards substituted."""
        positions = np.array(positions, np.int64)
        stream, sample = self.mixture.locate(positions)
        while (bad := self._bad(stream, sample)).any():
            positions[bad] += self._hop
            stream[bad], sample[bad] = self.mixture.locate(positions[bad])
        return stream, sample

    def fetch(self, positions: np.ndarray) -> list[Sample]:
        """Samples at these positions, in order."""
        while True:
            stream, sample = self.locate(positions)
            try:
                out: list[Sample] = [None] * len(positions)  # type: ignore[list-item]
                for number in np.unique(stream):
                    slots = np.nonzero(stream == number)[0]
                    shards = self.streams[number]
                    for slot, columns in zip(slots.tolist(), shards.read(sample[slots]), strict=True):
                        out[slot] = Sample.from_columns(columns, shards.url)
            except BadShardError as error:
                if not self._forgive:
                    raise
                self.exclude(error.shard)
            else:
                return out

    def at(self, stream: int, samples: np.ndarray) -> list[Sample]:
        """Samples of one stream by number; those of quarantined shards are left out."""
        while True:
            good = samples[~self._bad(np.full(len(samples), stream), samples)]
            try:
                return [
                    Sample.from_columns(c, self.streams[stream].url) for c in self.streams[stream].read(good)
                ]
            except BadShardError as error:
                if not self._forgive:
                    raise
                self.exclude(error.shard)

    def _bad(self, stream: np.ndarray, sample: np.ndarray) -> np.ndarray:
        bad = np.zeros(len(stream), bool)
        if self.quarantined:
            for number in np.unique(stream):
                here = stream == number
                bad[here] = ~self._good[number][self.streams[number].shard_of(sample[here])]
        return bad
