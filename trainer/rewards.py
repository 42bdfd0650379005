"""The driving reward: getting ahead, hitting nothing, gently, in the lane. Numpy, over many drives at once.

The drive is open loop: other road users keep to their recorded `tracks` whatever the ego does. Poses are in
the ego frame of now: x ahead, y left (m), heading (rad), `trainer.controls.DT` apart, the first DT ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat

from trainer.controls import DT, read
from trainer.errors import TrainerError
from trainer.samples import Sample

TERMS = ("progress", "collision", "comfort", "lane")


class RewardConfig(BaseModel):
    """Weights of the terms in the total, each term in [0, 1]; `collision` is taken away, the others given.

    `unreadable` is the total of an answer that says no controls. A pose is comfortable within `acceleration`,
    `braking`, `sideways` (m/s²) and `jerk` (m/s³). Beyond `lane_half` metres off the centreline the lane term
    is 0. `least` metres of progress are asked for where the recorded driver stood.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    progress: NonNegativeFloat = 1.0
    collision: NonNegativeFloat = 1.0
    comfort: NonNegativeFloat = 0.25
    lane: NonNegativeFloat = 0.5
    unreadable: float = -1.0
    acceleration: PositiveFloat = 2.5
    braking: PositiveFloat = 4.5
    sideways: PositiveFloat = 4.0
    jerk: PositiveFloat = 8.0
    lane_half: PositiveFloat = 1.75
    least: PositiveFloat = 5.0
    length: PositiveFloat = 4.5  # of the ego's outline, metres
    width: PositiveFloat = 1.9
    substeps: int = Field(5, ge=1)  # between poses, at which outlines are compared


@dataclass(frozen=True)
class Surroundings:
    """What rates B drives and the policy does not see.

    history [B, P, 3]; recorded [B, T, 3]: how the driver went on; lane [B, S, 3]: centreline x, y, heading;
    boxes [B, K, 8] now; tracks [B, K, T, 3]: where they go; present [B, K]: false for padding.
    """

    history: np.ndarray
    recorded: np.ndarray
    lane: np.ndarray
    boxes: np.ndarray
    tracks: np.ndarray
    present: np.ndarray

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Surroundings:
        """From samples that carry `trainer.samples.REWARD_COLUMNS`."""
        for sample in samples:
            if sample.lane is None or sample.tracks is None or not np.isfinite(sample.trajectory).all():
                raise TrainerError(
                    "data.streams",
                    f"sample {sample.id} without lane, tracks or trajectory",
                    "samples that the reward can rate",
                    "write the set with `python -m trainer.data synthesize --stage rl`",
                )
        most = max(len(sample.boxes) for sample in samples)

        def padded(array: np.ndarray) -> np.ndarray:
            return np.concatenate([array, np.zeros((most - len(array), *array.shape[1:]), array.dtype)])

        return cls(
            history=np.stack([sample.history for sample in samples]),
            recorded=np.stack([sample.trajectory for sample in samples]),
            lane=np.stack([sample.lane for sample in samples]),
            boxes=np.stack([padded(sample.boxes) for sample in samples]),
            tracks=np.stack([padded(sample.tracks) for sample in samples]),
            present=np.stack([np.arange(most) < (sample.boxes[:, 7] >= 0).sum() for sample in samples]),
        )


def rate_texts(config: RewardConfig, texts: Sequence[str], around: Surroundings) -> dict[str, np.ndarray]:
    """`rate` of controls written as text, and `readable` (0 or 1); an unreadable one has no other term."""
    trajectory, said = read(texts, torch.from_numpy(around.history), around.recorded.shape[1])
    readable = said.numpy()
    rated = {
        name: np.where(readable, value, 0.0)
        for name, value in rate(config, trajectory.numpy(), around).items()
    }
    rated["total"] = np.where(readable, rated["total"], config.unreadable)
    return {**rated, "readable": readable.astype(np.float64)}


def rate(config: RewardConfig, trajectory: np.ndarray, around: Surroundings) -> dict[str, np.ndarray]:
    """Each of `TERMS` and their weighted `total`, [B], of trajectories [B, T, 3]."""
    terms = {
        "progress": progress(trajectory, around.recorded, around.lane, least=config.least),
        "collision": collisions(config, trajectory, around).any(1).astype(np.float64),
        "comfort": comfort(config, trajectory, around.history),
        "lane": lane_keeping(trajectory, around.lane, half=config.lane_half),
    }
    signs = {"collision": -1.0}
    total = sum(signs.get(name, 1.0) * getattr(config, name) * value for name, value in terms.items())
    return {**terms, "total": total}


def along_lane(points: np.ndarray, lane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Metres along the centreline [B, S, 3] and metres left of it, [B, n] each, of points [B, n, 2+]."""
    gaps = np.square(points[:, :, None, :2] - lane[:, None, :, :2]).sum(-1)
    nearest = gaps.argmin(-1)
    steps = np.linalg.norm(np.diff(lane[..., :2], axis=1), axis=-1)
    length = np.concatenate([np.zeros((len(lane), 1)), np.cumsum(steps, 1)], 1)
    at = np.take_along_axis(lane, nearest[..., None], 1)
    off = points[..., :2] - at[..., :2]
    cos, sin = np.cos(at[..., 2]), np.sin(at[..., 2])
    ahead = np.take_along_axis(length, nearest, 1) + off[..., 0] * cos + off[..., 1] * sin
    return ahead, off[..., 1] * cos - off[..., 0] * sin


def progress(
    trajectory: np.ndarray, recorded: np.ndarray, lane: np.ndarray, *, least: float = 5.0
) -> np.ndarray:
    """Metres made along the lane as a share of the recorded driver's (at least `least`), [B] in [0, 1].

    Going farther than the driver gives no more: it is no race.
    """
    ends = np.stack([np.zeros_like(trajectory[:, 0]), trajectory[:, -1], recorded[:, -1]], 1)
    ahead, _ = along_lane(ends, lane)
    made, wanted = ahead[:, 1] - ahead[:, 0], ahead[:, 2] - ahead[:, 0]
    return np.clip(made / np.maximum(wanted, least), 0, 1)


def lane_keeping(trajectory: np.ndarray, lane: np.ndarray, *, half: float = 1.75) -> np.ndarray:
    """Mean over the poses of 1 on the centreline, falling to 0 at `half` metres beside it; [B]."""
    _, off = along_lane(trajectory, lane)
    return np.clip(1 - np.abs(off) / half, 0, 1).mean(1)


def comfort(config: RewardConfig, trajectory: np.ndarray, history: np.ndarray) -> np.ndarray:
    """Share of the poses whose acceleration, sideways acceleration and jerk are bearable; [B].

    Finite differences: speed between poses, acceleration between speeds, the first one from the past's; the
    past's own acceleration begins the jerk. A past needs three poses.
    """
    poses = np.concatenate([history[:, -3:], trajectory], 1).astype(np.float64)
    speed = np.linalg.norm(np.diff(poses[..., :2], axis=1), axis=-1) / DT
    acceleration = np.diff(speed, axis=1) / DT
    jerk = np.diff(acceleration, axis=1) / DT
    turn = np.diff(poses[:, 2:, 2], axis=1)
    turn = np.arctan2(np.sin(turn), np.cos(turn)) / DT
    ahead, sideways = acceleration[:, 1:], speed[:, 2:] * turn
    bearable = (ahead <= config.acceleration) & (ahead >= -config.braking)
    bearable &= (np.abs(sideways) <= config.sideways) & (np.abs(jerk) <= config.jerk)
    return bearable.mean(1)


def collisions(config: RewardConfig, trajectory: np.ndarray, around: Surroundings) -> np.ndarray:
    """Whether the ego's outline meets each box's at any moment, [B, K]; between poses both move evenly."""
    start = np.concatenate([np.zeros_like(trajectory[:, :1]), trajectory], 1)
    now = around.boxes[..., [0, 1, 6]]
    ours = _between(start, config.substeps)[:, None]
    theirs = _between(np.concatenate([now[:, :, None], around.tracks], 2), config.substeps)
    size = around.boxes[:, :, None, 3:5]
    apart = _apart(ours, np.array([config.length, config.width]), theirs, size)
    apart |= _apart(theirs, size, ours, np.array([config.length, config.width]))
    return ~apart.all(-1) & around.present


def _between(poses: np.ndarray, substeps: int) -> np.ndarray:
    """Poses [..., n, 3] with `substeps` even steps from one to the next, [..., (n - 1) * substeps + 1, 3]."""
    step = np.diff(poses, axis=-2)
    step[..., 2] = np.arctan2(np.sin(step[..., 2]), np.cos(step[..., 2]))
    parts = np.arange(substeps)[:, None] / substeps
    filled = poses[..., :-1, None, :] + step[..., None, :] * parts
    return np.concatenate([filled.reshape(*poses.shape[:-2], -1, 3), poses[..., -1:, :]], -2)


def _apart(one: np.ndarray, own: np.ndarray, other: np.ndarray, its: np.ndarray) -> np.ndarray:
    """Whether an axis of rectangle `one` separates it from `other`; poses [..., 3], sizes [..., 2]."""
    cos, sin = np.cos(one[..., 2]), np.sin(one[..., 2])
    x, y = other[..., 0] - one[..., 0], other[..., 1] - one[..., 1]
    turn = other[..., 2] - one[..., 2]
    c, s = np.abs(np.cos(turn)), np.abs(np.sin(turn))
    long, wide = its[..., 0], its[..., 1]
    gap_x = np.abs(x * cos + y * sin) - (own[..., 0] + long * c + wide * s) / 2
    gap_y = np.abs(y * cos - x * sin) - (own[..., 1] + long * s + wide * c) / 2
    return (gap_x > 0) | (gap_y > 0)
