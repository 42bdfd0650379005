"""Decisions that all ranks take alike: one that errs alone would leave the others waiting in a collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from trainer.errors import TrainerError
from trainer.publish import NotWholeError
from trainer.state import cause

T = TypeVar("T")


def own_rank() -> int:
    """0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def anyone(waiting: bool) -> bool:
    """Whether any rank says yes. Collective."""
    if not dist.is_initialized():
        return waiting
    vote = torch.tensor(int(waiting))
    dist.all_reduce(vote, op=dist.ReduceOp.MAX)
    return bool(vote)


def from_first(action: Callable[[], T]) -> T:
    """What rank 0 gets from `action`, or its error, on every rank. Collective."""
    box: list[Any] = [None, None]
    if own_rank() == 0:
        try:
            box[0] = action()
        except (Exception, CheckpointException) as error:
            box[1] = _plain(error)
    if dist.is_initialized():
        dist.broadcast_object_list(box, src=0)
    if box[1] is not None:
        raise box[1]
    return box[0]


def agreed(action: Callable[[], T]) -> T:
    """What this rank gets from `action`; the first error of any rank is raised on all. Collective."""
    result: Any = None
    error: BaseException | None = None
    try:
        result = action()
    except (Exception, CheckpointException) as failure:
        error = _plain(failure)
    everyone: list[BaseException | None] = [error]
    if dist.is_initialized():
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, error)
    for entry in everyone:
        if entry is not None:
            raise entry
    return result


def _plain(error: BaseException) -> BaseException:
    """An error that can cross processes."""
    return error if isinstance(error, TrainerError | NotWholeError) else RuntimeError(cause(error))
