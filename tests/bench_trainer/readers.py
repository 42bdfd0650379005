"""The loaders under test: each gives batches of the same columns as tensors, shuffled, from two workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from os import getpid
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from trainer.loader import _Positions
from trainer.mds import Shards
from trainer.order import Mixture
from trainer.transport import Piece
from trainer.workers import init_worker

BATCH, WORKERS, SEED = 64, 2, 7


class Positions(Sampler):
    """The trainer's own positions for one rank, up to the end of an epoch."""

    def __init__(self, position: int, samples: int) -> None:
        self._all, self._batches = _Positions(position, BATCH, BATCH, 0, 1), (samples - position) // BATCH

    def __iter__(self) -> Iterator[np.ndarray]:
        for _, positions in zip(range(self._batches), self._all, strict=False):
            yield positions


class Columns(Dataset):
    """The trainer's reader and order; in place of its driving samples, plain columns stacked."""

    def __init__(self, shards: Shards) -> None:
        self._shards, self._order = shards, Mixture([shards.sizes], [1.0], SEED)

    def __getitems__(self, positions: np.ndarray) -> Piece:
        _, samples = self._order.locate(positions)
        read = self._shards.read(samples)
        return Piece({name: torch.from_numpy(np.stack([one[name] for one in read])) for name in read[0]})


def ours(place: str, position: int = 0) -> Iterable[dict[str, torch.Tensor]]:
    """As trainer.loader puts it together."""
    shards = Shards(place)
    return DataLoader(
        Columns(shards), batch_sampler=Positions(position, len(shards)), collate_fn=_same,
        num_workers=WORKERS, prefetch_factor=2, worker_init_fn=partial(init_worker, parent=getpid()),
    )  # fmt: skip


def mosaicml(place: str, position: int = 0) -> Iterable[dict[str, torch.Tensor]]:
    """StreamingDataset and StreamingDataLoader, resumed from their own state."""
    from streaming import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=place, shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)
    if position:
        loader.load_state_dict({**dataset.state_dict(0, False), "epoch": 0, "sample_in_epoch": position})
    return loader


def litdata(place: str) -> Iterable[dict[str, torch.Tensor]]:
    """StreamingDataset and StreamingDataLoader of litdata."""
    from litdata import StreamingDataLoader, StreamingDataset

    # Its default decodes 256 samples for each one where workers share a chunk: a tenth of this speed.
    dataset = StreamingDataset(place, shuffle=True, seed=SEED, batch_decode=0)
    return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)


def webdataset(place: str) -> Iterable[tuple[torch.Tensor, ...]]:
    """Shards and a buffer of samples shuffled, batched in the worker."""
    import webdataset as wds

    shards = sorted(map(str, Path(place).glob("*.tar")))
    dataset = wds.WebDataset(shards, shardshuffle=len(shards), seed=SEED, empty_check=False)
    dataset = dataset.shuffle(1000).decode().to_tuple("tokens.npy", "patches.npy").batched(BATCH)
    return wds.WebLoader(dataset, batch_size=None, num_workers=WORKERS)


class Memmap(Dataset):
    """Arrays on disk, one sample at a time."""

    def __init__(self, place: str) -> None:
        self._arrays = {path.stem: np.load(path, mmap_mode="r") for path in Path(place).glob("*.npy")}

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(array[number].copy()) for name, array in self._arrays.items()}


def torchdata(place: str) -> Iterable[dict[str, torch.Tensor]]:
    """StatefulDataLoader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Memmap(place), batch_size=BATCH, shuffle=True, num_workers=WORKERS)


def driving(place: str, reader: str, cache: str) -> Iterator[list[Any]]:
    """The trainer's whole Loader on driving samples: read, decoded, packed."""
    from trainer.cache import CacheConfig
    from trainer.collate import Processor
    from trainer.loader import Loader
    from trainer.source import DataConfig, StreamConfig

    config = DataConfig(
        streams=(StreamConfig(url=place),), reader=reader, workers=WORKERS, cache=CacheConfig(directory=cache)
    )
    return iter(
        Loader(
            config, rank=0, world=1, global_batch=8, micro_batch=8, processor=Processor(config.processor),
            seed=SEED,
        )
    )  # fmt: skip


def _same(batch: object) -> object:
    return batch
