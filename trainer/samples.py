"""One sample as it is stored and one packed batch as the model reads it.

Ego frame: x ahead, y left, z up, metres.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.errors import TrainerError
from trainer.transport import Piece

# MDS columns and their encodings. MDS stores no empty array: "no box" is one row of class -1.
COLUMNS = {
    "images": "ndarray:uint8",
    "lidar": "ndarray:float32",
    "radar": "ndarray:float32",
    "prompt": "str",
    "answer": "str",
    "trajectory": "ndarray:float32",
    "history": "ndarray:float32",
    "boxes": "ndarray:float32",
    "task": "str",
    "id": "str",
}
# Beside them in sets for reinforcement learning: what rates a drive; no model reads it.
REWARD_COLUMNS = {"lane": "ndarray:float32", "tracks": "ndarray:float32"}
TASKS = ("drive", "vqa", "detect")


@dataclass(frozen=True)
class Sample:
    """Decoded columns.

    images [cameras, H, W, 3] uint8; lidar [N, 4] x, y, z, intensity; radar [M, 5] x, y, vx, vy (m/s), rcs;
    trajectory [T, 3] future x, y, heading (rad), NaN where not labelled; history [P, 3] past poses, the last
    now; boxes [K, 8] x, y, z, length, width, height, yaw, class. For the reward alone: lane [S, 3], the
    centreline's x, y, heading; tracks [K, T, 3], the boxes' x, y, heading at the trajectory's times.
    """

    images: np.ndarray
    lidar: np.ndarray
    radar: np.ndarray
    prompt: str
    answer: str
    trajectory: np.ndarray
    history: np.ndarray
    boxes: np.ndarray
    task: str
    id: str
    lane: np.ndarray | None = None
    tracks: np.ndarray | None = None

    @classmethod
    def from_columns(cls, columns: dict[str, Any], source: str = "data") -> "Sample":
        """Build from a reader's dict; columns of other names are left out."""
        rating = {name: columns.get(name) for name in REWARD_COLUMNS}
        try:
            return cls(**{name: columns[name] for name in COLUMNS}, **rating)
        except KeyError as error:
            given, need = f"columns {sorted(columns)}", f"columns {sorted(COLUMNS)}"
            raise TrainerError(source, given, need, f"write the data with a column {error}") from None


@dataclass(frozen=True)
class Batch:
    """B samples packed into one row of T tokens; padding has segment -1 and label -100.

    input_ids, labels, segment [1, T]; labels lie at their own token (the model shifts them).
    position_ids [4, 1, T]: row 0 counts text positions anew in each sample (packing is detected from it),
    rows 1-3 are Qwen3-VL's temporal, height and width positions. pixel_values [patches, dim] float32;
    image_grid_thw [images, 3] in patches. lidar [B, N, 4], radar [B, M, 5], boxes [B, K, 8] with masks;
    trajectory [B, T_f, 3] with mask [B]; history [B, P, 3]. `sizes` is B.
    """

    input_ids: Tensor
    position_ids: Tensor
    labels: Tensor
    segment: Tensor
    pixel_values: Tensor
    image_grid_thw: Tensor
    lidar: Tensor
    lidar_mask: Tensor
    radar: Tensor
    radar_mask: Tensor
    trajectory: Tensor
    trajectory_mask: Tensor
    history: Tensor
    boxes: Tensor
    boxes_mask: Tensor
    sample_ids: tuple[str, ...]
    tasks: tuple[str, ...]
    sizes: int

    def to(self, device: torch.device | str, *, non_blocking: bool = True) -> "Batch":
        """The same batch with its tensors on a device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory."""
        return self._map(lambda tensor: tensor.pin_memory())

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process in one piece."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        return _batch, (Piece(tensors), {name: v for name, v in values.items() if name not in tensors})

    @property
    def tokens(self) -> int:
        """Tokens that are not padding."""
        return int((self.segment >= 0).sum())

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Batch(**{name: change(v) if isinstance(v, Tensor) else v for name, v in values.items()})


def _batch(tensors: dict[str, Tensor], others: dict[str, Any]) -> Batch:
    return Batch(**tensors, **others)
