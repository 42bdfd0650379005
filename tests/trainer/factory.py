"""Batches and vocabularies small enough to run a model on."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from trainer.model import LanguageActionModel, ModelConfig, build_model
from trainer.samples import Batch

VOCABULARY = SimpleNamespace(vocab_size=272, image_id=260, lidar_id=261, radar_id=262, action_id=263)


def sample(seed: int, *, images: int = 1, text: int = 12, action: bool = True, boxes: int = 3) -> dict:
    """One sample's tensors, unpacked; `seed` decides the values."""
    random = torch.Generator().manual_seed(seed)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    grid = torch.tensor([[1, 4, 4]] * images, dtype=torch.long).reshape(-1, 3)
    words = torch.randint(0, 256, (text,), generator=random)
    head = [VOCABULARY.image_id] * 4 * images + [VOCABULARY.lidar_id] * 8 + [VOCABULARY.radar_id] * 4
    tail = [VOCABULARY.action_id] if action else []
    ids = torch.cat([torch.tensor(head), words, torch.tensor(tail, dtype=torch.long)]).long()
    labels = torch.full_like(ids, -100)
    answer = slice(len(head) + text // 2, len(head) + text)
    labels[answer] = ids[answer]
    positions = torch.arange(len(ids)).expand(4, -1).clone()
    for picture in range(images):  # any height and width positions do; both sides get the same
        positions[2:, 4 * picture : 4 * picture + 4] += torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]])
    points, echoes = 20 + seed % 7, 5 + seed % 3
    kinds = torch.randint(0, 4, (boxes, 1), generator=random).float()
    box = torch.cat([values(boxes, 3) * 10, values(boxes, 3).abs() + 1, values(boxes, 1), kinds], dim=-1)
    return {
        "ids": ids,
        "labels": labels,
        "positions": positions,
        "pixels": values(16 * images, 3 * 2 * 16 * 16),
        "grid": grid,
        "lidar": values(points, 4) * 20,
        "radar": values(echoes, 5) * 20,
        "trajectory": values(8, 3) * 3 if action else None,
        "history": values(4, 3),
        "boxes": box,
        "id": str(seed),
    }


def pack(samples: list[dict], *, pad: int = 0) -> Batch:
    """Samples behind each other in one row, `pad` padding tokens after them."""

    def ragged(key: str, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = max(1, *(len(s[key]) for s in samples))
        values = torch.full((len(samples), rows, width), float("nan"))
        mask = torch.zeros(len(samples), rows, dtype=torch.bool)
        for i, s in enumerate(samples):
            values[i, : len(s[key])], mask[i, : len(s[key])] = s[key], True
        return values, mask

    def row(parts: list[torch.Tensor], fill: int) -> torch.Tensor:
        return torch.cat([*parts, torch.full((pad,), fill)])[None]

    lidar, lidar_mask = ragged("lidar", 4)
    radar, radar_mask = ragged("radar", 5)
    boxes, boxes_mask = ragged("boxes", 8)
    none = torch.full((8, 3), float("nan"))
    return Batch(
        input_ids=row([s["ids"] for s in samples], 0),
        labels=row([s["labels"] for s in samples], -100),
        segment=row([torch.full_like(s["ids"], i) for i, s in enumerate(samples)], -1),
        position_ids=torch.cat([s["positions"] for s in samples] + [torch.zeros(4, pad).long()], dim=1)[
            :, None
        ],
        pixel_values=torch.cat([s["pixels"] for s in samples]),
        image_grid_thw=torch.cat([s["grid"] for s in samples]),
        lidar=lidar,
        lidar_mask=lidar_mask,
        radar=radar,
        radar_mask=radar_mask,
        trajectory=torch.stack([none if s["trajectory"] is None else s["trajectory"] for s in samples]),
        trajectory_mask=torch.tensor([s["trajectory"] is not None for s in samples]),
        history=torch.stack([s["history"] for s in samples]),
        boxes=boxes,
        boxes_mask=boxes_mask,
        sample_ids=tuple(s["id"] for s in samples),
        tasks=("drive",) * len(samples),
        sizes=len(samples),
    )


def tiny(seed: int = 0, **options) -> LanguageActionModel:
    """A tiny model in training mode; `options` are fields of ModelConfig."""
    model = build_model(ModelConfig(**options), VOCABULARY, seed=seed)
    model.train()
    return model
