"""Heads on the text model's hidden states: future trajectory (or controls) and 3D boxes."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt
from torch import Tensor, nn

from trainer.encoders import CrossAttention


class ActionConfig(BaseModel):
    """`steps` future poses every `dt` seconds after `history` past ones at the same interval.

    `trajectory` regresses the difference from driving on at constant velocity; `controls` predicts an
    acceleration and a yaw rate per step and integrates them, so that what comes out can be driven.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: PositiveInt = 8
    history: PositiveInt = 4
    dt: PositiveFloat = 0.5
    hidden: PositiveInt = 128
    output: Literal["trajectory", "controls"] = "trajectory"


class BoxConfig(BaseModel):
    """`queries` boxes at most per sample, `classes` kinds of object."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    queries: PositiveInt = 16
    classes: PositiveInt = 4
    hidden: PositiveInt = 64
    heads: PositiveInt = 4
    extent: PositiveFloat = 64.0


def constant_velocity(history: Tensor, steps: int) -> Tensor:
    """Past poses [B, P, 3] (x, y, heading; the last is now), at constant velocity: [B, steps, 3]."""
    now = history[:, -1]
    velocity = now - history[:, -2] if history.shape[1] > 1 else torch.zeros_like(now)
    velocity = torch.cat([velocity[:, :2], torch.zeros_like(velocity[:, 2:])], dim=-1)
    ahead = torch.arange(1, steps + 1, device=history.device, dtype=history.dtype)
    return now[:, None] + velocity[:, None] * ahead[None, :, None]


def departure(history: Tensor) -> Tensor:
    """Past poses [B, P, 3] as distances from a past at constant velocity, that velocity last: [B, P, 3].

    What tells a bend or a brake are centimetres beside the metres travelled: no gradient descent of the usual
    length finds them in the poses themselves. Headings are in tenths of a radian, velocities in 10 m a pose.
    """
    now = history[:, -1:]
    velocity = now - history[:, -2:-1] if history.shape[1] > 1 else torch.zeros_like(now)
    behind = torch.arange(history.shape[1] - 1, 0, -1, device=history.device, dtype=history.dtype)
    off = history[:, :-1] - (now - velocity * behind[None, :, None])
    unit = history.new_tensor([[1.0, 1.0, 0.1], [10.0, 10.0, 0.1]])
    return torch.cat([off / unit[0], velocity / unit[1]], dim=1)


def integrate(controls: Tensor, history: Tensor, dt: float) -> Tensor:
    """Acceleration (m/s²) and yaw rate (rad/s) [B, T, 2] from the present speed to poses [B, T, 3]."""
    speed = present_speed(history, dt)[:, None] + (controls[..., 0] * dt).cumsum(1)
    heading = history[:, -1, 2:] + (controls[..., 1] * dt).cumsum(1)
    x = history[:, -1, 0:1] + (speed * heading.cos() * dt).cumsum(1)
    y = history[:, -1, 1:2] + (speed * heading.sin() * dt).cumsum(1)
    return torch.stack([x, y, heading], dim=-1)


def present_speed(history: Tensor, dt: float) -> Tensor:
    """Speed [B] in m/s between the last two of the past poses [B, P, 3], which are `dt` seconds apart."""
    travelled = (constant_velocity(history, 1)[:, 0] - history[:, -1])[:, :2]
    return travelled.pow(2).sum(-1).clamp_min(1e-6).sqrt() / dt


class ActionHead(nn.Module):
    """Hidden state at the action token [B, D] and past poses [B, P, 3] to future poses [B, steps, 3]."""

    def __init__(self, config: ActionConfig, width: int) -> None:
        super().__init__()
        self.config = config
        out = config.steps * (3 if config.output == "trajectory" else 2)
        self.norm = nn.LayerNorm(width)
        self.past = nn.Linear(config.history * 3, config.hidden)
        self.state = nn.Linear(width, config.hidden)
        self.body = nn.Sequential(nn.GELU(), nn.Linear(config.hidden, config.hidden), nn.GELU())
        self.out = nn.Linear(config.hidden, out)

    def forward(self, hidden: Tensor, history: Tensor) -> Tensor:
        """Poses in the frame of `history`, metres and radians, float32."""
        history = history.float()
        state = self.state(self.norm(hidden.float())) + self.past(departure(history).flatten(1))
        out = self.out(self.body(state)).unflatten(1, (self.config.steps, -1))
        if self.config.output == "trajectory":
            return constant_velocity(history, self.config.steps) + out
        return integrate(out, history, self.config.dt)


class BoxHead(nn.Module):
    """Learned queries read a sample's own tokens and each proposes one box.

    Returns class scores [B, Q, classes + 1] (the last is "no object") and the regression target's form
    [B, Q, 8]: centre / extent, log of size, sine and cosine of yaw.
    """

    def __init__(self, config: BoxConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.memory = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, config.hidden))
        self.queries = nn.Embedding(config.queries, config.hidden)
        self.read = CrossAttention(config.hidden, config.heads)
        self.body = nn.Sequential(
            nn.LayerNorm(config.hidden), nn.Linear(config.hidden, 2 * config.hidden), nn.GELU()
        )
        self.classes = nn.Linear(2 * config.hidden, config.classes + 1)
        self.box = nn.Linear(2 * config.hidden, 8)

    def forward(self, hidden: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """`hidden` [T, D] packed; `owner` [B, T] is true where a token belongs to the sample."""
        memory = self.memory(hidden.float()).expand(owner.shape[0], -1, -1)
        queries = self.queries.weight.expand(owner.shape[0], -1, -1)
        body = self.body(queries + self.read(queries, memory, owner[:, None, None, :]))
        return self.classes(body), self.box(body)


def encode_boxes(boxes: Tensor, extent: float) -> Tensor:
    """Boxes [..., 7+] x, y, z, l, w, h, yaw (metres, radians) to the regression target [..., 8]."""
    centre, size, yaw = boxes[..., :3] / extent, boxes[..., 3:6].clamp_min(1e-2).log(), boxes[..., 6:7]
    return torch.cat([centre, size, yaw.sin(), yaw.cos()], dim=-1)


def decode_boxes(scores: Tensor, coded: Tensor, extent: float) -> Tensor:
    """Class scores and coded boxes to [..., 9]: x, y, z, l, w, h, yaw, class, score (probability)."""
    score, kind = scores.softmax(-1)[..., :-1].max(-1)
    yaw = torch.atan2(coded[..., 6], coded[..., 7])
    parts = [coded[..., :3] * extent, coded[..., 3:6].clamp(-5, 5).exp()]
    return torch.cat([*parts, yaw[..., None], kind[..., None].to(coded.dtype), score[..., None]], dim=-1)
