"""What all ranks must know of each other before a step's first forward, in one collective on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.losses import TASKS, counts_of
from trainer.mesh import local_of

if TYPE_CHECKING:
    from trainer.groups import Alone
    from trainer.resilience import StopSignal
    from trainer.samples import Batch


@dataclass
class Shares:
    """Sums over the ranks of all groups: labels by task, tokens (not padding).

    `stops`: by group, whether any of its ranks was asked to stop. `failed`: a sum over groups did not come
    through on some rank of this group, so the rest is worth nothing and the step will not count. `differ`:
    the groups' weights do.
    """

    counts: dict[str, int]
    tokens: int
    stops: list[bool]
    failed: bool
    differ: bool


def share(
    micro_steps: list[Batch], weights: Iterable[Tensor], *, stop: StopSignal, tensor: int, peers: Alone
) -> Shares:
    """Counts are needed before the first backward: a gradient is a sum over all labels of the step.

    `weights` are compared over groups; `tensor` ranks hold the same samples. A stop asked of every group ends
    the job: one group saves. A stop asked of some ends those alone, after the step and without a save, for
    the others hold the state; the last group that is left is every group, and saves.
    """
    rows = [torch.stack([counts_of(batch)[task] for task in TASKS]) for batch in micro_steps]
    tokens = sum(batch.tokens for batch in micro_steps)
    groups = torch.zeros(2, peers.groups, dtype=torch.int64)
    groups[:, peers.index] = torch.tensor([int(stop.received is not None), fingerprint(weights)])
    mine = peers.sum(torch.cat([torch.stack(rows).sum(0), torch.tensor([tokens]), groups.flatten()]))
    mine = torch.cat([mine, torch.tensor([int(peers.failed)])])
    dist.all_reduce(mine)
    counts = [count // tensor for count in mine[: len(TASKS)].tolist()]
    tokens, *by_group, failed = mine[len(TASKS) :].tolist()
    asked, prints = by_group[: peers.groups], by_group[peers.groups :]
    return Shares(
        dict(zip(TASKS, counts, strict=True)),
        tokens // tensor,
        stops=[count > 0 for count in asked],
        failed=failed > 0,
        differ=not failed and len(set(prints)) > 1,
    )


def fingerprint(weights: Iterable[Tensor]) -> int:
    """Sum of the bit patterns of this rank's parts, modulo 2^64: another bit anywhere is another number."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    parts = [local_of(weight.detach()) for weight in weights]
    sums = [part.view(kinds[part.element_size()]).sum(dtype=torch.int64) for part in parts]
    return int(torch.stack(sums).sum()) if sums else 0
