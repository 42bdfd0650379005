"""`data.reader: streaming`: mosaicml's StreamingDataset over the same shards, behind the same loader.

Kept for comparison and for those who rely on its order. Its own world is read from the launcher's environment
(RANK, WORLD_SIZE, LOCAL_WORLD_SIZE); where an epoch does not divide by ranks and batch it repeats samples.
"""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streaming import Stream, StreamingDataset
from torch.utils.data import DataLoader

from trainer.cache import Cache
from trainer.collate import Processor, collate
from trainer.samples import Batch, Sample
from trainer.workers import end, init_worker, track

if TYPE_CHECKING:
    from trainer.loader import Loader

_SHM = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lives
_NAME = re.compile(r"(sem\.)?\d{6}_\w+")


def micro_batches(loader: "Loader") -> Iterator[Batch]:
    """Micro-batches from the loader's position on, epoch after epoch."""
    remove_stale_shared_memory()
    config = loader.config
    root = Cache(config.cache).root
    streams = [
        Stream(
            remote=s.url,
            local=str(root / f"streaming-{n}"),
            proportion=_share(loader, n),
            validate_hash="xxh64",
        )
        if "://" in s.url
        else Stream(local=s.url, proportion=_share(loader, n))
        for n, s in enumerate(config.streams)
    ]
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    dataset = StreamingDataset(
        streams=streams,
        shuffle=True,
        shuffle_seed=loader.seed,
        batch_size=loader.micro_batch,
        cache_limit=config.cache.limit_bytes if any("://" in s.url for s in config.streams) else None,
        replication=ranks // loader.world if ranks > loader.world else None,
    )
    # A state at the very end of an epoch would give an empty first pass: it is the start of the next.
    epoch, inside = divmod(loader.position, loader.samples_per_epoch)
    if loader.position:
        state = dataset.state_dict(0, False)
        dataset.load_state_dict({**state, "epoch": epoch, "sample_in_epoch": inside})
    batches = DataLoader(
        dataset,
        batch_size=loader.micro_batch,
        num_workers=config.workers,
        multiprocessing_context="fork" if config.workers else None,  # whatever started this rank
        prefetch_factor=config.prefetch if config.workers else None,
        collate_fn=partial(_collate, loader.processor),
        worker_init_fn=partial(init_worker, parent=os.getpid()),
        drop_last=True,
    )
    while True:
        iterator = iter(batches)
        workers = list(getattr(iterator, "_workers", ()))
        track(workers)
        try:
            yield from iterator
        finally:
            if workers:
                iterator._shutdown_workers()
            end(workers)


def remove_stale_shared_memory() -> None:
    """Remove what a killed run of this user left, and nothing that a live process maps.

    streaming's own clean_stale_shared_memory() is a collective and wipes every job's segments on the node.
    """
    held = "\n".join(_read(process / "maps") for process in Path("/proc").glob("[0-9]*"))
    for entry in _SHM.iterdir():
        if _NAME.fullmatch(entry.name) and entry.owner() == _user() and str(entry) not in held:
            entry.unlink(missing_ok=True)


def _collate(processor: Processor, columns: list[dict[str, Any]]) -> Batch:
    return collate([Sample.from_columns(one) for one in columns], processor)


def _share(loader: "Loader", number: int) -> float | None:
    weights = [stream.weight for stream in loader.config.streams]
    return weights[number] / sum(weights) if len(weights) > 1 else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _user() -> str:
    return Path("/proc/self").owner()
