"""Batches for a rank, endlessly, from any position on.

`for micro_batches in loader` gives one optimizer step at a time.

Global sample position p counts from 0 over all epochs. Step s covers [s*G, (s+1)*G) whatever the number of
ranks; rank r of W takes the r-th contiguous part of it, in micro-batches. So a run stopped at a step goes on
at the next sample on any world size and any number of workers, each sample once per epoch.
"""

import time
from collections.abc import Iterator
from functools import partial
from os import getpid
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from trainer.collate import Processor, collate
from trainer.errors import TrainerError
from trainer.order import fold
from trainer.samples import Batch
from trainer.source import DataConfig, Source
from trainer.workers import end, init_worker, track


class _Positions(Sampler):
    """Positions of each micro-batch of one rank, from a step's first position on."""

    def __init__(self, position: int, global_batch: int, micro_batch: int, rank: int, world: int) -> None:
        self._position, self._step, self._micro = position, global_batch, micro_batch
        self._offset, self._share = rank * (global_batch // world), global_batch // world

    def __iter__(self) -> Iterator[np.ndarray]:
        position = self._position
        while True:
            for start in range(self._offset, self._offset + self._share, self._micro):
                yield np.arange(position + start, position + start + self._micro)
            position += self._step


class _Batches(Dataset):
    """Runs in the workers: a whole micro-batch per call, read, decoded, packed."""

    def __init__(self, source: Source, processor: Processor) -> None:
        self._source, self._processor = source, processor

    def __getitems__(self, positions: np.ndarray) -> tuple[Batch | None, list[str], TrainerError | None]:
        """(batch, shards quarantined so far, error): an error travels as a value, to be raised as it is."""
        try:
            batch = collate(self._source.fetch(positions), self._processor)
        except TrainerError as error:
            return None, [], error
        return batch, sorted(self._source.quarantined), None


class Loader:
    """Micro-batches of this rank's share of every step.

    `rank` and `world` count data-parallel ranks; tensor-parallel peers pass the same rank. `wait_s`: seconds
    the last step waited for data; `waited_s`: all steps together. The state is what was handed out, not
    prefetched.
    """

    def __init__(
        self,
        config: DataConfig,
        *,
        rank: int,
        world: int,
        global_batch: int,
        micro_batch: int,
        processor: Processor,
        seed: int,
    ) -> None:
        if global_batch % config.lanes:
            raise TrainerError(
                "data.lanes", config.lanes, f"a divisor of global_batch {global_batch}", "change it"
            )
        self.config, self.seed, self.processor = config, seed, processor
        self.global_batch, self.micro_batch = global_batch, micro_batch
        self.deal(rank, world)
        self.position = 0
        self.wait_s = self.waited_s = 0.0
        self.quarantined: set[str] = set()
        self.source = Source(config, seed, hop=global_batch)
        self.quarantined |= self.source.quarantined

    def deal(self, rank: int, world: int) -> None:
        """Be this rank of this world from the next iteration on; every world gets the same samples."""
        if self.global_batch % (world * self.micro_batch):
            allowed = f"a multiple of ranks x micro_batch = {world} x {self.micro_batch}"
            raise TrainerError(
                "global_batch", self.global_batch, allowed, "change global_batch, micro_batch or the mesh"
            )
        self.rank, self.world = rank, world
        self.accumulation = self.global_batch // (world * self.micro_batch)

    @property
    def samples_per_epoch(self) -> int:
        """Samples of all streams; with one stream exactly an epoch."""
        return self.source.total

    @property
    def epoch(self) -> int:
        """Whole epochs before the position."""
        return self.position // self.source.total

    def __iter__(self) -> Iterator[list[Batch]]:
        """One optimizer step's micro-batches at a time; starts at the current position."""
        if self.config.reader == "streaming":
            from trainer.rival import micro_batches  # noqa: PLC0415 - the rival's import takes seconds

            stream = micro_batches(self)
        else:
            stream = self._micro_batches()
        try:
            while True:
                began = time.perf_counter()
                batches = [next(stream) for _ in range(self.accumulation)]
                self.wait_s = time.perf_counter() - began
                self.waited_s += self.wait_s
                self.position += self.global_batch
                yield batches
        finally:
            stream.close()

    def state_dict(self) -> dict[str, Any]:
        """Plain values; equal on all ranks but for quarantined shards that only some have met."""
        return {
            "position": self.position,
            "epoch": self.epoch,
            "epochs": self.source.mixture.epochs(self.position),
            "seed": self.seed,
            "quarantined": sorted(self.quarantined),
            "order": self._order(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the last sample that was handed out; the order must be the one that was left."""
        for name, own in {"seed": self.seed, **self._order()}.items():
            left = state["seed"] if name == "seed" else state["order"].get(name)
            if left != own:
                fix = f"restore {name}, or start this stage without the loader's state"
                raise TrainerError(f"loader state: {name}", own, f"{left}, as in the checkpoint", fix)
        self.position = int(state["position"])
        for name in state["quarantined"]:
            self.source.exclude(name)
        self.quarantined |= set(state["quarantined"])

    def _order(self) -> dict[str, Any]:
        """What the meaning of a position depends on. With lanes also the global batch."""
        config = self.config
        sizes = [fold(*stream.sizes.tolist()) for stream in self.source.streams]
        return {
            "reader": config.reader,
            "window_shards": config.window_shards,
            "lanes": config.lanes,
            "stripe": self.global_batch // config.lanes if config.lanes > 1 else 1,
            "weights": [stream.weight for stream in config.streams],
            "shards": [
                f"{len(s.sizes)}-{size:016x}" for s, size in zip(self.source.streams, sizes, strict=True)
            ],
        }

    def _micro_batches(self) -> Iterator[Batch]:
        config = self.config
        positions = _Positions(self.position, self.global_batch, self.micro_batch, self.rank, self.world)
        loader = DataLoader(
            _Batches(self.source, self.processor),
            batch_sampler=positions,
            collate_fn=_same,
            num_workers=config.workers,
            multiprocessing_context="fork" if config.workers else None,  # whatever started this rank
            prefetch_factor=config.prefetch if config.workers else None,
            worker_init_fn=partial(init_worker, parent=getpid()),
            pin_memory=torch.cuda.is_available(),
            # Its own generator: starting workers must not move the model's random numbers.
            generator=torch.Generator().manual_seed(self.seed % 2**63),
        )
        iterator = iter(loader)
        workers = list(getattr(iterator, "_workers", ()))
        track(workers)
        try:
            for batch, quarantined, error in iterator:
                if error is not None:
                    raise error
                self.quarantined |= set(quarantined)
                yield batch
        finally:
            if workers:
                iterator._shutdown_workers()
            end(workers)


def _same(batch: object) -> object:
    return batch


def pass_over(
    config: DataConfig,
    *,
    rank: int,
    world: int,
    micro_batch: int,
    processor: Processor,
    limit: int | None = None,
    answers: bool = True,
) -> Iterator[Batch]:
    """One pass in stored order over all streams, for evaluation; the last batch may be short.

    At most `limit` samples. `answers=False` leaves the answers for the model to give.

    Rank r takes every world-th micro-batch, so the ranks' samples together are each sample once.
    """
    source = Source(config, 0, hop=1)
    ends = np.cumsum(source.mixture.totals)
    total = min(int(ends[-1]), limit) if limit is not None else int(ends[-1])
    for start in range(rank * micro_batch, total, world * micro_batch):
        indices = np.arange(start, min(start + micro_batch, total))
        samples = []
        for index in indices:
            stream = int(np.searchsorted(ends, index, side="right"))
            own = index - (int(ends[stream - 1]) if stream else 0)
            samples += source.at(stream, np.array([own]))
        if samples:
            yield collate(samples, processor, answers=answers)
