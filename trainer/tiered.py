"""Checkpoints in the memory of the cluster's nodes, between the published ones.

Needs HyperPod's managed tiered checkpointing (a daemon on every node) and `amzn-sagemaker-checkpointing`.
What lies in memory is never published and nothing depends on it: it shortens the way back after a crash, and
where it is gone or not whole, the run goes on from the newest published checkpoint as if there were none.
"""

from __future__ import annotations

import logging
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pydantic import BaseModel, ConfigDict, Field
from torch.distributed.checkpoint.api import CheckpointException

from trainer.errors import TrainerError
from trainer.state import cause

if TYPE_CHECKING:
    from torch.distributed.checkpoint import StorageReader


class TieredConfig(BaseModel):
    """How often checkpoints go to memory; needs about twice a rank's part of a checkpoint as host memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: int = Field(10, ge=1)  # steps
    url: str = "http://ai-toolkit-gossip-headless.aws-hyperpod.svc.cluster.local:9200"  # the cluster's daemon


class Memory:
    """The tier of one run. What it holds belongs to one published checkpoint, which its name space names:
    a run that was set back to an older one finds nothing of the newer.

    `reader` and `url` are what `state.load` asks of a folder.
    """

    def __init__(self, config: TieredConfig, *, run: str, group: dist.ProcessGroup | None) -> None:
        if find_spec("amzn_sagemaker_checkpointing") is None:
            raise TrainerError(
                "checkpoint.tiered",
                "an environment without amzn-sagemaker-checkpointing",
                "the trainer's image",
                "install it, or leave checkpoint.tiered out",
            )
        self._config, self._group = config, group
        self.rank = dist.get_rank() if group else 0
        self.world = dist.get_world_size() if group else 1
        self._run = re.sub(r"[^A-Za-z0-9_-]", "_", run)
        self.follow(0, "")  # nothing is written here
        # The package tells every request on the console; what matters comes back as an error.
        self._logger = logging.getLogger("trainer.tiered")
        self._logger.setLevel(logging.CRITICAL)
        self._logger.addHandler(logging.NullHandler())

    @property
    def url(self) -> str:
        """Daemon and name space."""
        return f"{self._config.url}/{self._namespace}"

    def follow(self, step: int, digest: str) -> None:
        """From now on, hold what comes after this published checkpoint; `digest`: of its metadata."""
        self._namespace = f"{self._run}-{self.world}-{step}-{digest[:12]}"

    def forget(self) -> None:
        """On rank 0: free what is held; a daemon that does not answer frees it by itself in time."""
        try:
            self._reader(0).client.delete_namespace()
        except Exception:
            self._logger.info("not freed: %s", self.url)

    def write(self, step: int, content: dict[str, Any]) -> str | None:
        """Write this rank's part. Returns the error. Collective."""
        from amzn_sagemaker_checkpointing.checkpointing.filesystem.writer import (  # noqa: PLC0415
            SageMakerTieredStorageWriter,
        )

        try:
            writer = self._pointed(SageMakerTieredStorageWriter(self._settings(), step=step))
            dcp.save(content, storage_writer=writer, process_group=self._group, no_dist=self._group is None)
        except (Exception, CheckpointException) as failure:
            return cause(failure)
        return None

    def newest(self) -> int | None:
        """Newest step of which every rank's part is there and has its checksum. Collective."""
        listed: list[list[int]] = [self._steps() if self.rank == 0 else []]
        if self._group:
            dist.broadcast_object_list(listed, src=0, group=self._group)
        return next((step for step in listed[0] if self._whole(step)), None)

    def reader(self, name: str) -> StorageReader:
        """torch.distributed.checkpoint's reader of `step-00000020`."""
        return self._reader(int(name.rpartition("-")[2]))

    def _steps(self) -> list[int]:
        client = self._reader(0).client
        try:
            return client.get_latest_checkpoints() if client.get_namespace_config() else []
        except Exception:  # no daemon, nothing in memory
            return []

    def _whole(self, step: int) -> bool:
        parts = [{"rank": self.rank}] + ([{"metadata_index": 0}] if self.rank == 0 else [])
        client = self._reader(step).client
        try:
            mine = all(client.get_checkpoint(step, **part) is not None for part in parts)
        except Exception:  # no answer, or a checksum that differs
            mine = False
        everyone: list[Any] = [mine]
        if self._group:
            everyone = [None] * self.world
            dist.all_gather_object(everyone, mine, group=self._group)
        return all(everyone)

    def _reader(self, step: int) -> Any:  # noqa: ANN401 (imported lazily)
        from amzn_sagemaker_checkpointing.checkpointing.filesystem.reader import (  # noqa: PLC0415
            SageMakerTieredStorageReader,
        )

        return self._pointed(SageMakerTieredStorageReader(self._settings(), step=step))

    def _settings(self) -> Any:  # noqa: ANN401
        from amzn_sagemaker_checkpointing.config.sagemaker_checkpoint_config import (  # noqa: PLC0415
            SageMakerCheckpointConfig,
        )

        return SageMakerCheckpointConfig(
            namespace=self._namespace, world_size=self.world, logger=self._logger
        )

    def _pointed(self, end: Any) -> Any:  # noqa: ANN401
        """The package has the daemon's address as a constant."""
        end.client.config.base_url = self._config.url
        return end
