"""A model over held-out data: it answers, then drives and detects on what it answered, and is scored.

The answer is the model's own: a trajectory that follows a true answer would be read off it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from trainer.answers import greedy, texts, with_replies
from trainer.collate import Processor
from trainer.errors import TrainerError
from trainer.heads import constant_velocity
from trainer.loader import pass_over
from trainer.mesh import Mesh
from trainer.metrics import Metrics
from trainer.model import LanguageActionModel, Output
from trainer.samples import Batch
from trainer.source import DataConfig
from trainer.together import agreed, anyone


class EvaluationConfig(BaseModel):
    """Held-out data (a directory or s3://) and how much of it; sizes per rank and forward."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str | None = None
    limit: int | None = Field(None, gt=0)  # samples; None: all
    micro_batch: int = Field(16, gt=0)
    answer_tokens: int = Field(96, gt=0)  # at most, of one answer
    scenes: int = Field(6, ge=0)  # drawn in the picture


@dataclass(frozen=True)
class Scene:
    """One labelled sample for a picture, on the CPU: poses [n, 3], boxes [K, 8] and [Q, 9]."""

    name: str
    history: Tensor
    truth: Tensor
    guess: Tensor
    constant_velocity: Tensor
    boxes: Tensor
    found: Tensor


def evaluate(
    model: LanguageActionModel,
    data: DataConfig,
    config: EvaluationConfig,
    *,
    processor: Processor,
    mesh: Mesh,
    device: torch.device,
) -> tuple[Metrics, list[Scene]]:
    """Metrics over all ranks, equal on each, and the first scenes of this rank's data. Collective.

    Every sample is scored once whatever the number of ranks.
    """
    over = partial(_pairs, data, micro_batch=config.micro_batch, processor=processor)
    # A rank whose samples are over goes along with one that does not count: forwards take all ranks.
    spare = next(over(rank=0, world=1, limit=1), None)
    if spare is None:
        raise TrainerError(
            "evaluation.url", f"{data.streams[0].url} (no sample)", "samples", "choose another"
        )
    mine = over(rank=mesh.data_rank, world=mesh.data_size, limit=config.limit)
    metrics, scenes = Metrics(model.config.boxes.classes), []
    was_training = model.training
    model.eval()
    with torch.no_grad():
        pair = agreed(partial(next, mine, None))  # a bad shard stops all ranks
        while anyone(pair is not None):
            told, asked = (batch.to(device) for batch in pair or spare)
            scored, seen = _score(model, told, asked, config, processor)
            if pair is not None:
                metrics += scored
                scenes += seen[: max(config.scenes - len(scenes), 0)]
            pair = agreed(partial(next, mine, None))
    model.train(was_training)
    return _together(metrics), scenes


def _pairs(data: DataConfig, **options: Any) -> Iterator[tuple[Batch, Batch]]:  # noqa: ANN401 (`pass_over`'s)
    """The same samples with their answers and without."""
    told, asked = (pass_over(data, **options, answers=answers) for answers in (True, False))
    yield from zip(told, asked, strict=True)


def _score(
    model: LanguageActionModel, told: Batch, asked: Batch, config: EvaluationConfig, processor: Processor
) -> tuple[Metrics, list[Scene]]:
    replies = greedy(model, asked, processor, most=config.answer_tokens, anyone=anyone)
    after = processor.tokenizer.after
    output = model(with_replies(asked, [[*reply, *after] for reply in replies], processor))
    given = model(told)
    metrics = Metrics(model.config.boxes.classes, samples=asked.sizes)
    metrics.add_trajectories(output.trajectory, asked.trajectory, asked.trajectory_mask, asked.history)
    metrics.boxes.add(output.boxes, asked.boxes, asked.boxes_mask)
    answers = [processor.tokenizer.decode(reply) for reply in replies]
    metrics.answers.add(answers, texts(told, processor), asked.tasks)
    metrics.losses.add(
        {**output.losses, "text": given.losses["text"]}, {**output.counts, "text": given.counts["text"]}
    )
    return metrics, _scenes(asked, output)


def _scenes(batch: Batch, output: Output) -> list[Scene]:
    steady = constant_velocity(batch.history.float(), batch.trajectory.shape[1])
    return [
        Scene(
            batch.sample_ids[at],
            batch.history[at].cpu(),
            batch.trajectory[at].cpu(),
            output.trajectory[at].float().cpu(),
            steady[at].cpu(),
            batch.boxes[at, batch.boxes_mask[at]].cpu(),
            output.boxes[at].float().cpu(),
        )
        for at in batch.trajectory_mask.nonzero()[:, 0].tolist()
    ]


def _together(metrics: Metrics) -> Metrics:
    if not dist.is_initialized():
        return metrics
    everyone: list[Metrics] = [metrics] * dist.get_world_size()
    dist.all_gather_object(everyone, metrics)
    return reduce(add, everyone)
