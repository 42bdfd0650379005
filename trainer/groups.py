"""Replica groups: what a job of several, each a torchrun of its own, and a job of one have in common.

`Alone` is the job of one and says what every method means; live.py has the other.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from trainer.errors import TrainerError

Parcel = dict[str, Any]  # what a group that heals is sent


class LiveConfig(BaseModel):
    """How long groups wait for one another, in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_groups: int = Field(1, ge=1)  # with fewer nobody goes on
    collective_s: float = Field(120, gt=0)  # of one sum over groups; a healing peer's transfer falls into it
    quorum_s: float = Field(300, gt=0)  # until enough groups have come, or a lost lighthouse is back
    connect_s: float = Field(30, gt=0)  # to the lighthouse and to a peer


class NoQuorumError(RuntimeError):
    """The lighthouse is gone, or too few groups have come in time."""


@dataclass(frozen=True)
class Group:
    """Which of the job's groups this process belongs to."""

    number: int
    groups: int
    lighthouse: str  # http://host:port


class Alone:
    """A group that is the whole job."""

    groups, index = 1, 0
    failed = False

    @property
    def publishes(self) -> bool:
        """Whether this group writes the checkpoints: one does, another from one step to the next perhaps."""
        return self.index == 0

    def join(self, send: Callable[[], Parcel], receive: Callable[[Parcel], None]) -> bool:  # noqa: ARG002
        """Meet the others; whether one of them was ahead, so that `receive` was called with what it sent."""
        return False

    def resumed(self, step: int) -> None:
        """Progress came from a checkpoint."""

    def start(self) -> bool:
        """Before a step: settle who takes part. True: the loader must begin anew after the last step."""
        return False

    def sum(self, values: Tensor) -> Tensor:
        """Over groups, rank by rank, in place; zeros where `failed`."""
        return values

    def reduce(self, parameters: Iterable[nn.Parameter]) -> None:
        """Gradients summed over groups in place, shard by shard."""

    def agree(self, value: Tensor) -> Tensor:
        """The same value on all, bit by bit: groups may round a sum each in its own order."""
        return value

    def commits(self) -> bool:
        """Whether the step counts: all sums of this group's ranks came through."""
        return True

    def close(self) -> None:
        """Leave."""


def own_group(config: LiveConfig) -> Group:
    """The environment's contract, which torchft's launchers keep to. Raises TrainerError."""
    lighthouse = os.environ.get("TORCHFT_LIGHTHOUSE", "")
    if not lighthouse.startswith(("http://", "https://")):
        fix = "set it to where torchft_lighthouse listens"
        raise TrainerError("TORCHFT_LIGHTHOUSE", lighthouse or "nothing", "http://host:port", fix)
    groups = _whole("NUM_REPLICA_GROUPS", config.min_groups, None)
    return Group(_whole("REPLICA_GROUP_ID", 0, groups - 1), groups, lighthouse)


def check_batch(global_batch: int, micro_batch: int, data_size: int, config: LiveConfig, groups: int) -> None:
    """A step must divide by every number of groups that may be left, `data_size` data ranks in each."""
    unit = micro_batch * data_size * math.lcm(*range(config.min_groups, groups + 1))
    if global_batch % unit:
        least = (global_batch // unit + 1) * unit
        raise TrainerError(
            "global_batch",
            f"{global_batch} for micro_batch {micro_batch} on {data_size} data ranks in each of "
            f"{config.min_groups} to {groups} groups",
            f"multiples of {unit}",
            f"set it to {least}, or raise live.min_groups",
        )


def _whole(name: str, least: int, most: int | None) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        allowed = f"{least} or more" if most is None else f"0 to {most}, another in each group"
        raise TrainerError(name, text or "nothing", allowed, "set it as torchft's launchers do")
    return int(text)
