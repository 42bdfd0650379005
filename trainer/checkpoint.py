"""Checkpoints: torch.distributed.checkpoint in a thread beside the training, with its own process group.

`save` copies ("stages") in the background; `before_optimizer_step` waits until the copy is whole, for a
weight that changes while it is copied is torn without an error. A checkpoint exists once it is published
(publish.py).
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pydantic import BaseModel, ConfigDict, Field
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.stateful import Stateful

from trainer.folders import Folder, open_folder
from trainer.publish import (
    METADATA,
    File,
    Marker,
    Skipped,
    name_of,
    publish,
    record_digests,
)
from trainer.retention import clear_before_writing, remove, retain
from trainer.search import Search
from trainer.state import cause, load
from trainer.tiered import Memory, TieredConfig
from trainer.tracking import emit


class CheckpointConfig(BaseModel):
    """Where checkpoints go, how often, how many stay."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str  # a directory or s3://bucket/prefix; one folder per run
    every: int = Field(100, ge=1)  # steps
    keep: int = Field(3, ge=1)  # newest ones that stay
    keep_every: int | None = Field(None, ge=1)  # steps; these stay for ever
    mode: Literal["async", "sync"] = "async"
    failures_allowed: int = Field(3, ge=0)  # saves that may fail one after the other
    verify: Literal["content", "sizes"] = "content"  # of a checkpoint before it is loaded
    writer_threads: int = Field(1, ge=1)  # per rank
    timeout_s: float = Field(1800, gt=0)  # of one collective between the writers
    tiered: TieredConfig | None = None  # checkpoints in the nodes' memory, too
    initial: str | None = (
        None  # a checkpoint's URL (…/step-00000020): weights to start from when folder is empty
    )


class CheckpointsFailingError(RuntimeError):
    """More saves failed in a row than the recipe allows."""


class Checkpointer:
    """Saves, publishes, retains, finds and loads the checkpoints of one run. Every method is collective.

    `run` is written into each marker; checkpoints of another run in the folder are skipped as foreign.
    """

    def __init__(self, config: CheckpointConfig, *, run: str) -> None:
        self.config = config
        self.run = run
        self.folder: Folder = open_folder(config.folder)
        self.durable_step: int | None = None  # newest published or loaded
        distributed = dist.is_initialized()
        self.rank = dist.get_rank() if distributed else 0
        self.world = dist.get_world_size() if distributed else 1
        # Its own group: the writers' collectives must not interleave with those of the training.
        timeout = timedelta(seconds=config.timeout_s)
        self._group = dist.new_group(backend="gloo", timeout=timeout) if distributed else None
        device = torch.accelerator.is_available()
        self.memory = Memory(config.tiered, run=run, group=self._group) if config.tiered else None
        self._search = Search(self.folder, run=run, verify=config.verify, group=self._group)
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=device,
                use_shared_memory=False,
                use_async_staging=True,
                use_non_blocking_copy=device,
            )
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._staging: Future[Any] | None = None
        self._pending: Future[str | None] | None = None
        self._anchored = False  # memory belongs to a published checkpoint; before the first, it stays empty
        self._counts = True  # whether the pending save is one that may fail only so often
        self._failures = 0
        self._digest = ""  # of the newest published one's metadata
        self._stall_s = 0.0
        self._asynchronous = config.mode == "async"

    def due(self, step: int) -> bool:
        """Whether the recipe asks for a checkpoint after this step."""
        return step % self.config.every == 0

    def due_in_memory(self, step: int) -> bool:
        """Whether the recipe asks for one in the nodes' memory only."""
        tiered = self.config.tiered
        return tiered is not None and step % tiered.every == 0 and not self.due(step)

    def save(
        self, step: int, state: dict[str, Stateful | Any], *, urgent: bool = False, memory: bool = False
    ) -> None:
        """Begin to save; `urgent`: return when it is published; `memory`: to the nodes' memory, unpublished.
        Waits for the save before.

        Raises CheckpointsFailingError, on all ranks at the same step, when too many have failed in a row.
        """
        started = time.monotonic()
        self._finish_pending()
        if step == self.durable_step or (memory and not self._anchored):
            return
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # the staging stream does not wait for the optimizer's kernels
        plain = {
            key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state.items()
        }
        waits = urgent or not self._asynchronous
        staged = plain if waits else self._stager.stage(plain)
        self._staging = staged if isinstance(staged, Future) else None
        self._stall_s = time.monotonic() - started
        self._counts = not memory
        write = partial(self._remember, self.memory) if memory and self.memory else self._write
        self._pending = self._thread.submit(write, step, staged, started)
        if waits:
            self._finish_pending()

    def before_optimizer_step(self) -> None:
        """Wait until the copy is whole. Call before anything changes the weights."""
        if self._staging is not None:
            started = time.monotonic()
            if (failure := self._staging.exception()) is not None:  # the writer fails with it, too
                emit("staging_failed", rank=self.rank, now="sync", error=cause(failure))
                self._asynchronous = False
            self._staging = None
            self._stall_s += time.monotonic() - started

    def close(self) -> None:
        """Wait for the last save and end the threads."""
        try:
            self._finish_pending()
        finally:
            self._thread.shutdown(wait=True)
            self._stager.close()

    def latest(self) -> tuple[Marker | None, list[Skipped]]:
        """The newest whole checkpoint, agreed by all ranks, each of which verifies its share of the files."""
        marker, skipped = self._search.newest()
        if self.memory and marker:
            self.memory.follow(marker.step, marker.metadata_sha256)
        self._anchored = marker is not None
        return marker, skipped

    def load(
        self, step: int, state: dict[str, Stateful | Any], source: Folder | Memory | None = None
    ) -> None:
        """Load in place, from the folder if not said otherwise; `rng.N` is dropped from `state` where the
        checkpoint had fewer ranks.
        """
        load(source or self.folder, name_of(step), state, group=self._group)
        if source in (None, self.folder):
            self.durable_step = step

    def _write(self, step: int, staged: Any, started: float) -> str | None:  # noqa: ANN401
        """In the thread: write, publish, retain. Returns the error, the same on all ranks."""
        files: dict[str, File] = {}
        try:
            error = self._agreed(cause(staged.exception()) if _failed(staged) else None)
            if error is None:
                content = staged.result() if isinstance(staged, Future) else staged
                error = self._save_data(step, content, files)
            written = self._gather(files)
            if self.rank == 0:
                everything = {name: file for part in written for name, file in part.items()}
                error = error or self._publish(step, everything, started)
                if error:
                    self._report_failure(step, error)
            outcome = [error, self._digest]
            if self._group is not None:
                dist.broadcast_object_list(outcome, src=0, group=self._group)
            error, self._digest = outcome
        except Exception as failure:  # a peer died: torchrun is about to restart this rank too
            error = cause(failure)
        if error is None:
            self.durable_step = step
            if self.memory:
                if self.rank == 0:
                    self.memory.forget()
                self.memory.follow(step, self._digest)
        return error

    def _remember(self, memory: Memory, step: int, staged: Any, started: float) -> str | None:  # noqa: ANN401
        """In the thread: write to the nodes' memory. Returns the error, which nobody needs to act on."""
        error = self._agreed(cause(staged.exception()) if _failed(staged) else None)
        if error is None:
            content = staged.result() if isinstance(staged, Future) else staged
            error = self._agreed(memory.write(step, content))
        if self.rank == 0:
            seconds = time.monotonic() - started
            emit(
                "memory", step=step, stall_s=self._stall_s, seconds=seconds, saved=error is None, error=error
            )
        return error

    def _save_data(self, step: int, content: dict[str, Any], files: dict[str, File]) -> str | None:
        """Write and sync this rank's part; `files` is filled. Returns the error, the same on all ranks."""
        try:
            writer = self.folder.writer(name_of(step), self.config.writer_threads)
            record_digests(writer, files)
            clear_before_writing(writer, self.folder, name_of(step))
            dcp.save(content, storage_writer=writer, process_group=self._group, no_dist=self._group is None)
        except (Exception, CheckpointException) as failure:
            return self._agreed(cause(failure))
        return self._agreed(None)

    def _agreed(self, error: str | None) -> str | None:
        """The first error of any rank: all must take the same way through the collectives."""
        return next((entry for entry in self._gather(error) if entry), None)

    def _publish(self, step: int, files: dict[str, File], started: float) -> str | None:
        """On rank 0."""
        data = {name: entry for name, entry in files.items() if not name.startswith(METADATA)}
        try:
            marker = publish(self.folder, step, run=self.run, world=self.world, files=data)
        except Exception as failure:
            return cause(failure)
        self._digest = marker.metadata_sha256
        size = sum(entry.bytes for entry in data.values())
        total = time.monotonic() - started
        url = f"{self.folder.url}/{name_of(step)}"
        emit("checkpoint", step=step, bytes=size, stall_s=self._stall_s, durable_s=total, url=url)
        try:
            retain(self.folder, step, keep=self.config.keep, keep_every=self.config.keep_every)
        except Exception as failure:
            emit("retention", step=step, error=cause(failure))
        return None

    def _report_failure(self, step: int, error: str) -> None:
        """On rank 0: one line, and the disk is freed of what was written."""
        emit(
            "checkpoint_failed",
            step=step,
            in_a_row=self._failures + 1,
            allowed=self.config.failures_allowed,
            error=error,
        )
        try:
            remove(self.folder, name_of(step))
        except Exception as failure:  # the folder that failed the save may well fail this too
            emit("retention", step=step, error=cause(failure))

    def _finish_pending(self) -> None:
        if self._pending is None:
            return
        error = self._pending.result()
        self._pending = None
        if not self._counts:
            return
        self._anchored |= error is None
        self._failures = 0 if error is None else self._failures + 1
        if self._failures > self.config.failures_allowed:
            raise CheckpointsFailingError(f"{self._failures} checkpoints in a row failed, the last: {error}")

    def _gather(self, value: Any) -> list[Any]:  # noqa: ANN401
        if self._group is None:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self._group)
        return values


def _failed(staged: Any) -> bool:  # noqa: ANN401
    """Whether the copy failed; waits for it."""
    return isinstance(staged, Future) and staged.exception() is not None
