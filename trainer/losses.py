"""Losses as sums with counts: Σ over samples and tokens, divided once by global counts, is right on any mesh.

The mean of means is wrong as soon as ranks or micro-steps hold different numbers of tokens; a sum divided by
the count over all ranks and micro-steps is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, NonNegativeFloat
from torch import Tensor
from torch.nn import functional as fn

from trainer.errors import TrainerError
from trainer.heads import encode_boxes

TASKS = ("text", "action", "boxes")
NO_LABEL = -100


class LossWeights(BaseModel):
    """What each task's mean counts in the total."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: NonNegativeFloat = 1.0
    action: NonNegativeFloat = 1.0
    boxes: NonNegativeFloat = 0.2


class Targets(Protocol):
    """The fields of a batch that say how much there is to learn from it."""

    labels: Tensor
    segment: Tensor
    trajectory_mask: Tensor
    boxes_mask: Tensor


def next_token_labels(labels: Tensor, segment: Tensor) -> Tensor:
    """Labels [1, T] moved one place left: place t holds what t must predict; never across two samples."""
    ahead = fn.pad(labels[:, 1:], (0, 1), value=NO_LABEL)
    same = fn.pad(segment[:, 1:], (0, 1), value=-1) == segment
    return torch.where(same, ahead, NO_LABEL)


def counts_of(batch: Targets) -> dict[str, Tensor]:
    """Labelled tokens, samples with a trajectory, samples with boxes: scalars (int64), before any forward.

    A sample whose box list is empty is not labelled for detection and does not count.
    """
    return {
        "text": (next_token_labels(batch.labels, batch.segment) != NO_LABEL).sum(),
        "action": batch.trajectory_mask.sum(),
        "boxes": batch.boxes_mask.any(-1).sum(),
    }


def combine(
    losses: Mapping[str, Tensor], counts: Mapping[str, Tensor], weights: LossWeights, data_size: int = 1
) -> Tensor:
    """Σ weight · sum / count. `counts` are global (all data ranks, all micro-steps of the optimizer step).

    `data_size` undoes the mean that data-parallel reduction takes over ranks.
    """
    parts = [getattr(weights, task) * losses[task] / counts[task].clamp_min(1) for task in losses]
    return torch.stack(parts).sum() * data_size


def text_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy summed over places: logits [L, V], labels [L]."""
    return fn.cross_entropy(logits.float(), labels, reduction="sum", ignore_index=NO_LABEL)


def action_loss(trajectory: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Smooth L1 in metres plus 1 - cos of the heading's error; mean over time, summed over `mask` [B]."""
    target = torch.where(mask[:, None, None], target.float(), 0.0)
    place = fn.smooth_l1_loss(trajectory[..., :2], target[..., :2], reduction="none").sum(-1)
    heading = 1 - (trajectory[..., 2] - target[..., 2]).cos()
    return ((place + heading).mean(-1) * mask).sum()


def assign(cost: np.ndarray) -> np.ndarray:
    """Hungarian method: `cost` [n, m], n <= m, to the column of each row, total cost least. O(n² m)."""
    rows, columns = cost.shape
    row_price, column_price = np.zeros(rows + 1), np.zeros(columns + 1)
    row_of = np.zeros(columns + 1, dtype=np.int64)  # 1-based; 0 is "free"
    for row in range(1, rows + 1):
        row_of[0], column = row, 0
        least = np.full(columns + 1, np.inf)
        came_from = np.zeros(columns + 1, dtype=np.int64)
        used = np.zeros(columns + 1, dtype=bool)
        while row_of[column] != 0:
            used[column] = True
            here = row_of[column]
            reduced = cost[here - 1] - row_price[here] - column_price[1:]
            better = ~used[1:] & (reduced < least[1:])
            least[1:][better] = reduced[better]
            came_from[1:][better] = column
            free = np.where(used, np.inf, least)
            free[0] = np.inf
            nearest = int(free.argmin())
            delta = free[nearest]
            row_price[row_of[used]] += delta
            column_price[used] -= delta
            least[~used] -= delta
            column = nearest
        while column:
            row_of[column] = row_of[came_from[column]]
            column = int(came_from[column])
    chosen = np.zeros(rows, dtype=np.int64)
    for column in range(1, columns + 1):
        if row_of[column]:
            chosen[row_of[column] - 1] = column - 1
    return chosen


def _check_classes(kinds: Tensor, classes: int) -> None:
    if kinds.numel() and (worst := int(kinds.max())) >= classes:
        fix = f"set model.boxes.classes to {worst + 1} or more"
        raise TrainerError("batch.boxes", f"class {worst}", f"0 to {classes - 1}", fix)


def box_loss(scores: Tensor, coded: Tensor, boxes: Tensor, mask: Tensor, extent: float) -> Tensor:
    """Each true box gets one query, at least total cost; class cross-entropy over queries plus L1 over pairs.

    Both are means inside a sample and summed over samples that have boxes. `scores` [B, Q, C + 1], `coded`
    [B, Q, 8], `boxes` [B, K, 8], `mask` [B, K]; of more than Q boxes the nearest to the vehicle are kept.
    """
    none = scores.shape[-1] - 1
    target = encode_boxes(torch.where(mask[..., None], boxes.float(), 1.0), extent)
    kinds = torch.where(mask, boxes[..., 7], 0.0).long()
    _check_classes(kinds, none)
    with torch.no_grad():
        likely = scores.softmax(-1)[..., :-1].gather(
            2, kinds[:, None].expand(-1, scores.shape[1], -1)
        )  # [B, Q, K]
        cost = ((coded[:, :, None] - target[:, None]).abs().sum(-1) - likely).cpu().numpy()
    present, centre = mask.cpu().numpy(), boxes[..., :2].float().cpu().numpy()
    total = (scores.sum() + coded.sum()) * 0.0  # every rank's backward reaches the head, boxes or none
    for sample in np.flatnonzero(present.any(-1)):
        real = np.flatnonzero(present[sample])
        real = real[np.argsort(np.square(centre[sample, real]).sum(-1), kind="stable")][: scores.shape[1]]
        chosen = torch.from_numpy(assign(cost[sample][:, real].T.astype(np.float64))).to(scores.device)
        which = torch.from_numpy(real).to(scores.device)
        wanted = torch.full_like(scores[sample, :, 0], none, dtype=torch.long)
        wanted[chosen] = kinds[sample, which]
        weight = torch.where(wanted == none, 0.1, 1.0)
        entropy = fn.cross_entropy(scores[sample], wanted, reduction="none")
        total = total + (entropy * weight).sum() / weight.sum()
        total = total + (coded[sample, chosen] - target[sample, which]).abs().sum() / len(real)
    return total
