"""Samples to one packed batch: media placeholders, text, Qwen3-VL's patches and its multimodal positions.

One sample: before [start image* end] per camera, lidar*, radar*, prompt, between, answer, after, <action>.
Loss lies on answer and `after`. A sample to be answered by the model (`answers=False`) ends with `between`
and <action>.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from trainer.errors import TrainerError
from trainer.samples import Batch, Sample
from trainer.tokenizer import load_tokenizer

NO_LABEL = -100


class ProcessorConfig(BaseModel):
    """Must fit the model: its vision tower's patch sizes, its encoders' lidar and radar tokens.

    Points and boxes are padded to `max_*` (fixed shapes compile once) and thinned evenly, boxes by distance,
    beyond. The packed row is padded to a multiple of `pack_to`; `max_tokens` bounds one sample.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    tokenizer: str = "bytes"
    patch_size: int = Field(default=16, gt=0)
    merge_size: int = Field(default=2, gt=0)
    temporal_patch_size: int = Field(default=2, gt=0)
    image_mean: float = 0.5
    image_std: float = Field(default=0.5, gt=0)
    lidar_tokens: int = Field(default=8, ge=0)
    radar_tokens: int = Field(default=4, ge=0)
    max_lidar: int = Field(default=128, gt=0)
    max_radar: int = Field(default=16, gt=0)
    max_boxes: int = Field(default=16, gt=0)
    pack_to: int = Field(default=64, gt=0)
    max_tokens: int = Field(default=4096, gt=0)


class Processor:
    """Turns samples into tensors; also the model's vocabulary (`vocab_size`, `image_id`, `lidar_id`, …)."""

    def __init__(self, config: ProcessorConfig) -> None:
        self.config = config
        self.tokenizer = load_tokenizer(config.tokenizer)
        self.vocab_size = self.tokenizer.vocab_size
        self.pad_id, self.eos_id = self.tokenizer.pad_id, self.tokenizer.eos_id
        self.image_id = self.tokenizer.image_id
        self.lidar_id, self.radar_id = self.tokenizer.lidar_id, self.tokenizer.radar_id
        self.action_id, self.box_id = self.tokenizer.action_id, self.tokenizer.box_id

    def grid(self, height: int, width: int) -> tuple[int, int, int]:
        """Patches (1, rows, columns) of one picture."""
        unit = self.config.patch_size * self.config.merge_size
        if height % unit or width % unit or not height or not width:
            allowed = f"multiples of patch_size * merge_size = {unit}"
            raise TrainerError("images", f"{height}x{width} pixels", allowed, "resize when writing the data")
        return 1, height // self.config.patch_size, width // self.config.patch_size

    def image_tokens(self, grid: tuple[int, int, int]) -> int:
        """Placeholders of one picture: what the vision tower's merger gives."""
        return grid[0] * grid[1] * grid[2] // self.config.merge_size**2

    def patches(self, images: np.ndarray) -> np.ndarray:
        """[cameras, H, W, 3] uint8 to normalised patches [cameras * rows * columns, dim] float32.

        The order is that of transformers' image processor: patches of one merge window lie together; a still
        picture fills all `temporal_patch_size` frames.
        """
        config = self.config
        count, height, width, channels = images.shape
        patch, merge = config.patch_size, config.merge_size
        _, rows, columns = self.grid(height, width)
        cut = images.reshape(
            count, rows // merge, merge, patch, columns // merge, merge, patch, channels
        ).transpose(0, 1, 4, 2, 5, 7, 3, 6)
        flat = _lookup(config.image_mean, config.image_std)[cut].reshape(
            count * rows * columns, channels, 1, patch**2
        )
        return np.broadcast_to(
            flat, (len(flat), channels, config.temporal_patch_size, patch**2)
        ).reshape(len(flat), -1)  # fmt: skip

    def tokens(self, sample: Sample, *, answers: bool = True) -> tuple[list[int], list[int]]:
        """(ids, labels) of one sample."""
        config, words = self.config, self.tokenizer
        grid = self.grid(*sample.images.shape[1:3])
        camera = [words.vision_start_id, *[words.image_id] * self.image_tokens(grid), words.vision_end_id]
        head = [*words.before, *camera * len(sample.images)]
        head += [words.lidar_id] * config.lidar_tokens + [words.radar_id] * config.radar_tokens
        head += [*words.encode(sample.prompt), *words.between]
        reply = [*words.encode(sample.answer), *words.after] if answers else []
        ids = [*head, *reply, words.action_id]
        if len(ids) > config.max_tokens:
            given, allowed = f"sample {sample.id} of {len(ids)} tokens", f"{config.max_tokens} tokens"
            raise TrainerError("processor.max_tokens", given, allowed, "raise it or write shorter samples")
        return ids, [NO_LABEL] * len(head) + reply + [NO_LABEL]

    def positions(self, ids: np.ndarray, grids: Sequence[tuple[int, int, int]]) -> np.ndarray:
        """[4, len] of one sample: text position, then time, height and width as Qwen3-VL counts them.

        Text counts up in all three; a picture starts at the next number, spans rows and columns from there,
        and text goes on after its longer side.
        """
        out = np.empty((4, len(ids)), np.int64)
        out[0] = np.arange(len(ids))
        at, base = 0, 0
        image = ids == self.image_id
        for _, rows, columns in grids:
            rows, columns = rows // self.config.merge_size, columns // self.config.merge_size  # noqa: PLW2901
            start = at + int(np.argmax(image[at:]))
            out[1:, at:start] = base + np.arange(start - at)
            base += start - at
            at = start + rows * columns
            out[1, start:at] = base
            out[2, start:at] = base + np.repeat(np.arange(rows), columns)
            out[3, start:at] = base + np.tile(np.arange(columns), rows)
            base += max(rows, columns)
        out[1:, at:] = base + np.arange(len(ids) - at)
        return out


def collate(samples: Sequence[Sample], processor: Processor, *, answers: bool = True) -> Batch:
    """Pack samples into one batch; all must agree in the lengths of trajectory and history."""
    if not samples:
        raise TrainerError("collate", "no samples", "at least one", "raise micro_batch")
    config = processor.config
    ids, labels, positions, segment, grids = [], [], [], [], []
    for number, sample in enumerate(samples):
        own, wanted = processor.tokens(sample, answers=answers)
        cameras = [processor.grid(*sample.images.shape[1:3])] * len(sample.images)
        ids += own
        labels += wanted
        positions.append(processor.positions(np.array(own), cameras))
        segment += [number] * len(own)
        grids += cameras
    padding = -len(ids) % config.pack_to
    # Padding counts from 0 like a sample of its own, so that packing detection sets it apart.
    positions.append(np.broadcast_to(np.arange(padding), (4, padding)))
    lidar, lidar_mask = _padded([_thin(s.lidar, config.max_lidar) for s in samples], config.max_lidar)
    radar, radar_mask = _padded([_thin(s.radar, config.max_radar) for s in samples], config.max_radar)
    boxes, boxes_mask = _padded([_nearest(s.boxes, config.max_boxes) for s in samples], config.max_boxes)
    trajectory = _stack(samples, "trajectory")
    labelled = np.isfinite(trajectory).all((1, 2))
    return Batch(
        input_ids=torch.tensor([ids + [processor.pad_id] * padding]),
        position_ids=torch.from_numpy(np.concatenate(positions, axis=1)[:, None]),
        labels=torch.tensor([labels + [NO_LABEL] * padding]),
        segment=torch.tensor([segment + [-1] * padding]),
        pixel_values=torch.from_numpy(np.concatenate([processor.patches(s.images) for s in samples])),
        image_grid_thw=torch.tensor(grids),
        lidar=lidar,
        lidar_mask=lidar_mask,
        radar=radar,
        radar_mask=radar_mask,
        trajectory=torch.from_numpy(np.where(labelled[:, None, None], trajectory, np.float32(0))),
        trajectory_mask=torch.from_numpy(labelled),
        history=torch.from_numpy(_stack(samples, "history")),
        boxes=boxes,
        boxes_mask=boxes_mask,
        sample_ids=tuple(sample.id for sample in samples),
        tasks=tuple(sample.task for sample in samples),
        sizes=len(samples),
    )


@lru_cache(maxsize=4)
def _lookup(mean: float, std: float) -> np.ndarray:
    """Normalised value of each of the 256 levels: faster than arithmetic on every pixel."""
    levels = torch.arange(256, dtype=torch.float32)
    return ((levels - mean * 255) / (std * 255)).numpy()


def _stack(samples: Sequence[Sample], name: str) -> np.ndarray:
    arrays = [getattr(sample, name) for sample in samples]
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1:
        given = f"shapes {sorted(shapes)} in one batch"
        raise TrainerError(f"data.{name}", given, "one length for all samples", "write all streams alike")
    return np.stack(arrays).astype(np.float32)


def _thin(points: np.ndarray, most: int) -> np.ndarray:
    """At most so many points, taken evenly."""
    return points if len(points) <= most else points[np.linspace(0, len(points) - 1, most).astype(np.int64)]


def _nearest(boxes: np.ndarray, most: int) -> np.ndarray:
    """Real boxes, the nearest to the vehicle if there are too many."""
    real = boxes[boxes[:, 7] >= 0]
    order = np.argsort(np.square(real[:, :2]).sum(-1), kind="stable")[:most]
    return real[np.sort(order)]


def _padded(arrays: Sequence[np.ndarray], most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, most, columns] with zeros after each sample's rows, and the mask [B, most] of its rows."""
    out = np.zeros((len(arrays), most, arrays[0].shape[1]), np.float32)
    mask = np.zeros((len(arrays), most), bool)
    for number, array in enumerate(arrays):
        out[number, : len(array)] = array
        mask[number, : len(array)] = True
    return torch.from_numpy(out), torch.from_numpy(mask)
