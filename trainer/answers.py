"""Greedy answers to packed prompts: for each token the whole prompts again, many samples at a time.

Slower than generation with a cache, and right for every encoder and mesh that training is right for: it is
the training's own forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from trainer.collate import Processor
from trainer.losses import NO_LABEL
from trainer.model import LanguageActionModel
from trainer.samples import Batch


def greedy(
    model: LanguageActionModel,
    prompts: Batch,
    processor: Processor,
    *,
    most: int,
    anyone: Callable[[bool], bool] = lambda waiting: waiting,
) -> list[list[int]]:
    """Each sample's likeliest tokens, one after the other, until its end token or `most` of them.

    `prompts` was packed with `answers=False`. `anyone` says whether any rank still waits: a sharded model's
    forward takes all ranks, so those that are done go along. Ids come without the end token.
    """
    replies: list[list[int]] = [[] for _ in range(prompts.sizes)]
    open_ = list(range(prompts.sizes))
    while anyone(bool(open_)):
        turn = open_ or [0]
        asked = with_replies(only(prompts, turn, processor), [replies[i] for i in turn], processor)
        # A label at each last token has the model give logits for what comes before it, and nothing else.
        last = asked.input_ids == processor.action_id
        tokens = model(replace(asked, labels=torch.where(last, 0, NO_LABEL))).logits.argmax(-1).tolist()
        goes_on = []
        for number, token in zip(open_, tokens, strict=False):  # none is open where others wait
            if token == processor.eos_id:
                continue
            replies[number].append(token)
            if len(replies[number]) < most:
                goes_on.append(number)
        open_ = goes_on
    return replies


def with_replies(prompts: Batch, replies: Sequence[Sequence[int]], processor: Processor) -> Batch:
    """The batch with these tokens between each prompt and its action token, as `collate` packs answers.

    Labels are left out: every place is -100.
    """
    ids, positions, segment = [], [], []
    for number, reply in enumerate(replies):
        own = (prompts.segment[0] == number).nonzero()[:, 0]
        head, action = own[:-1], own[-1:]
        ids += [prompts.input_ids[0, head], head.new_tensor(list(reply)), prompts.input_ids[0, action]]
        ahead = torch.arange(len(reply) + 1, device=own.device)  # text counts up in all four rows
        positions += [prompts.position_ids[:, 0, head], prompts.position_ids[:, 0, action] + ahead]
        segment.append(torch.full((len(own) + len(reply),), number, device=own.device))
    padding = -sum(len(part) for part in segment) % processor.config.pack_to
    blank = torch.arange(padding, device=prompts.input_ids.device)
    ids.append(torch.full_like(blank, processor.pad_id))
    positions.append(blank.expand(4, -1))
    segment.append(torch.full_like(blank, -1))
    row = torch.cat(ids)[None]
    return replace(
        prompts,
        input_ids=row,
        position_ids=torch.cat(positions, dim=1)[:, None],
        labels=torch.full_like(row, NO_LABEL),
        segment=torch.cat(segment)[None],
    )


def only(batch: Batch, keep: Sequence[int], processor: Processor) -> Batch:
    """These samples of the batch, in this order, packed anew without labels, action token last."""
    if list(keep) == list(range(batch.sizes)):
        return batch
    starts = batch.segment[batch.input_ids == processor.tokenizer.vision_start_id]  # sample of each picture
    patches = batch.image_grid_thw.prod(-1)
    pixels = batch.pixel_values.split(patches.tolist())
    pictures = [at for number in keep for at in (starts == number).nonzero()[:, 0].tolist()]
    own = [(batch.segment[0] == number).nonzero()[:, 0] for number in keep]
    places = torch.cat(own)
    rows = torch.tensor(keep, device=places.device)
    per_sample = {
        name: getattr(batch, name)[rows]
        for name in (
            "lidar", "lidar_mask", "radar", "radar_mask", "trajectory", "trajectory_mask", "history", "boxes",
            "boxes_mask",
        )
    }  # fmt: skip
    return replace(
        batch,
        input_ids=batch.input_ids[:, places],
        position_ids=batch.position_ids[:, :, places],
        labels=batch.labels[:, places],
        segment=torch.cat([torch.full_like(place, number) for number, place in enumerate(own)])[None],
        pixel_values=torch.cat([pixels[at] for at in pictures]) if pictures else batch.pixel_values[:0],
        image_grid_thw=batch.image_grid_thw[pictures],
        **per_sample,
        sample_ids=tuple(batch.sample_ids[number] for number in keep),
        tasks=tuple(batch.tasks[number] for number in keep),
        sizes=len(keep),
    )


def texts(batch: Batch, processor: Processor) -> list[str]:
    """True answers of a batch that was packed with them, special tokens left out."""
    told = batch.labels[0] != NO_LABEL
    return [
        processor.tokenizer.decode(batch.labels[0, told & (batch.segment[0] == number)].tolist())
        for number in range(batch.sizes)
    ]
