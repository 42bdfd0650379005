"""What all ranks must know of each other before a step's first forward, in one collective on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from trainer.losses import TASKS, counts_of

if TYPE_CHECKING:
    from trainer.groups import Alone
    from trainer.resilience import StopSignal
    from trainer.samples import Batch


@dataclass
class Shares:
    """Sums over the ranks of all groups: labels by task, tokens (not padding).

    `stops`: by group, whether any of its ranks was asked to stop. `failed`: a sum over groups did not come
    through on some rank of this group, so the rest is worth nothing and the step will not count.
    """

    counts: dict[str, int]
    tokens: int
    stops: list[bool]
    failed: bool


def share(micro_steps: list[Batch], *, stop: StopSignal, tensor: int, peers: Alone) -> Shares:
    """Counts are needed before the first backward: a gradient is a sum over all labels of the step.

    `tensor` ranks hold the same samples. A stop asked of every group ends the job: one group saves. A stop
    asked of some ends those alone, after the step and without a save, for the others hold the state; the last
    group that is left is every group, and saves.
    """
    rows = [torch.stack([counts_of(batch)[task] for task in TASKS]) for batch in micro_steps]
    tokens = sum(batch.tokens for batch in micro_steps)
    asked = [0] * peers.groups
    asked[peers.index] = int(stop.received is not None)
    mine = peers.sum(torch.cat([torch.stack(rows).sum(0), torch.tensor([tokens, *asked])]))
    mine = torch.cat([mine, torch.tensor([int(peers.failed)])])
    dist.all_reduce(mine)
    counts = [count // tensor for count in mine[: len(TASKS)].tolist()]
    tokens, *asked, failed = mine[len(TASKS) :].tolist()
    return Shares(
        dict(zip(TASKS, counts, strict=True)), tokens // tensor, [count > 0 for count in asked], failed > 0
    )
