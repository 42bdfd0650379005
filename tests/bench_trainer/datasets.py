"""Data sets of the bench, written once below build/bench/data and kept: the same samples in each format."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench_trainer.measure import WORK

TOKENS, PATCHES = (512,), (16, 64)
BLOCK = 1000
SHARD_BYTES = 16 * 2**20
COLUMNS = {"tokens": "ndarray:int32:512", "patches": "ndarray:float16:16,64"}


def folder(kind: str, samples: int) -> Path:
    """Where the data set of this kind and size is; it is written if it is not there."""
    place = WORK / "data" / f"{kind}-{samples}"
    if not place.exists():
        draft = place.with_name(f"{place.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        WRITERS[kind](draft, samples)
        draft.rename(place)
    return place


def make(kind: str, samples: int) -> str:
    """`folder` in a process of its own; its files are in the page cache afterwards."""
    place = folder(kind, samples)
    for path in sorted(place.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(2**24):
                    pass
    return str(place)


def rows(samples: int) -> Iterator[dict[str, np.ndarray]]:
    """The same samples whatever the format: 2 KiB of tokens and 2 KiB of patches each."""
    for first in range(0, samples, BLOCK):
        yield from _block((first, min(BLOCK, samples - first)))


def _block(where: tuple[int, int]) -> Iterator[dict[str, np.ndarray]]:
    first, count = where
    random = np.random.default_rng([11, first])
    tokens = random.integers(0, 150_000, (BLOCK, *TOKENS), np.int32)
    patches = random.random((BLOCK, *PATCHES), np.float32).astype(np.float16)
    for row in range(count):
        yield {"tokens": tokens[row], "patches": patches[row]}


def _mds(place: Path, samples: int) -> None:
    _write_mds(place, COLUMNS, rows(samples), SHARD_BYTES)


def _numbers(place: Path, samples: int) -> None:
    _write_mds(place, {"number": "int"}, ({"number": n} for n in range(samples)), 2**20)


def _write_mds(place: Path, columns: dict[str, str], content: Iterator[dict[str, Any]], size: int) -> None:
    from streaming import MDSWriter

    hashes = ["sha1", "xxh64"]
    with MDSWriter(out=str(place), columns=columns, hashes=hashes, size_limit=size, exist_ok=True) as writer:
        for sample in content:
            writer.write(sample)


def _driving(place: Path, samples: int) -> None:
    from trainer.synthesize import synthesize

    synthesize(str(place), samples, seed=0)


def _memmap(place: Path, samples: int) -> None:
    shapes = {"tokens": ((samples, *TOKENS), np.int32), "patches": ((samples, *PATCHES), np.float16)}
    arrays = {
        name: np.lib.format.open_memmap(place / f"{name}.npy", "w+", dtype, shape)
        for name, (shape, dtype) in shapes.items()
    }
    for number, sample in enumerate(rows(samples)):
        for name, value in sample.items():
            arrays[name][number] = value


def _webdataset(place: Path, samples: int) -> None:
    import webdataset as wds

    with wds.ShardWriter(f"{place}/%05d.tar", maxsize=4 * SHARD_BYTES, verbose=0) as writer:
        for number, sample in enumerate(rows(samples)):
            writer.write({"__key__": f"{number:08d}", **{f"{k}.npy": v for k, v in sample.items()}})


def _litdata(place: Path, samples: int) -> None:
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = f"{place}.cache"
    os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = f"{place}.cache"
    import litdata

    blocks = [(first, min(BLOCK, samples - first)) for first in range(0, samples, BLOCK)]
    litdata.optimize(
        _block, blocks, output_dir=str(place), chunk_bytes=4 * SHARD_BYTES, num_workers=1, verbose=False
    )
    shutil.rmtree(f"{place}.cache", ignore_errors=True)


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "mds": _mds,
    "numbers": _numbers,
    "driving": _driving,
    "memmap": _memmap,
    "webdataset": _webdataset,
    "litdata": _litdata,
}
