"""A trajectory as text: the action that a language model can write, and that reinforcement learning samples.

A word of two letters holds for `HOLD` poses: the first is one of `ACCELERATIONS`, the second one of
`YAW_RATES`. "pm ol" is two words. `trainer.heads.integrate` drives them: what is written can be driven.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.heads import integrate, present_speed

HOLD = 2  # poses
DT = 0.5  # seconds between poses
ACCELERATIONS = torch.arange(-12, 7) * 0.5  # m/s², a to s
# rad/s, a to y: finer around straight ahead, where a small difference carries the car far.
YAW_RATES = torch.arange(-12, 13).sign() * 0.6 * (torch.arange(-12, 13).abs() / 12) ** 1.5
MARK = "="  # the controls follow the last one; before it the writer may think


def write(trajectory: Tensor, history: Tensor) -> list[str]:
    """Words that come nearest, block by block, to trajectories [B, T, 3] after pasts [B, P, 3]."""
    pairs = torch.cartesian_prod(ACCELERATIONS, YAW_RATES)
    count, state = len(trajectory), _state(history)
    words: list[list[str]] = [[] for _ in range(count)]
    for wanted in trajectory[..., :2].split(HOLD, 1):
        every = state.repeat_interleave(len(pairs), 0)
        tried = _drive(every, pairs.repeat(count, 1), wanted.shape[1]).unflatten(0, (count, len(pairs)))
        best = (tried[..., :2] - wanted[:, None]).square().sum((-1, -2)).argmin(1)
        state = torch.cat([state, tried[torch.arange(count), best]], 1)[:, -2:]
        for own, which in zip(words, best.tolist(), strict=True):
            own.append(_letter(which // len(YAW_RATES)) + _letter(which % len(YAW_RATES)))
    return [" ".join(own) for own in words]


def read(texts: Sequence[str], history: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """What the texts say after pasts [B, P, 3]: poses [B, steps, 3] and whether each text is readable [B].

    Readable: exactly the words that `steps` poses need stand after the last `MARK`. What is not is the car
    that rolls on.
    """
    blocks = -(-steps // HOLD)
    chosen = [_controls(text, blocks) for text in texts]
    readable = torch.tensor([one is not None for one in chosen])
    controls = torch.stack([torch.zeros(blocks, 2) if one is None else one for one in chosen])
    poses = _state(history)
    for block in controls.unbind(1):
        poses = torch.cat([poses, _drive(poses[:, -2:], block, HOLD)], 1)
    return poses[:, 2 : 2 + steps], readable


def _controls(text: str, blocks: int) -> Tensor | None:
    words = text.rpartition(MARK)[2].split()
    if len(words) != blocks or any(len(word) != 2 for word in words):
        return None
    places = torch.tensor([[ord(letter) - ord("a") for letter in word] for word in words])
    if (places < 0).any() or (places >= torch.tensor([len(ACCELERATIONS), len(YAW_RATES)])).any():
        return None
    return torch.stack([ACCELERATIONS[places[:, 0]], YAW_RATES[places[:, 1]]], -1)


def _drive(state: Tensor, controls: Tensor, poses: int) -> Tensor:
    """One acceleration and yaw rate [N, 2] held for `poses` poses after the last two [N, 2, 3]."""
    before = present_speed(state, DT)
    # A car that brakes to a stand stays there.
    speed = (before[:, None] + controls[:, :1] * DT * torch.arange(1, poses + 1)).clamp_min(0)
    held = torch.stack(
        [speed.diff(dim=1, prepend=before[:, None]) / DT, controls[:, 1:].expand_as(speed)], -1
    )
    # A car that stands does not turn.
    held[..., 1] *= speed > 0
    return integrate(held, state, DT)


def _state(history: Tensor) -> Tensor:
    """The last two poses; a past of one pose stands."""
    return history.float()[:, [-2, -1] if history.shape[1] > 1 else [-1, -1]]


def _letter(place: int) -> str:
    return chr(ord("a") + place)
