"""AdamW, its parameter groups, and a learning rate that depends on the step number and nothing else."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import nn
from torch.distributed.tensor import DTensor

from trainer.errors import TrainerError


class OptimizerConfig(BaseModel):
    """`clip_norm` 0 does not clip; `part_lr` multiplies the rate by prefix of parameter names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lr: PositiveFloat = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    clip_norm: NonNegativeFloat = 1.0
    part_lr: dict[str, PositiveFloat] = Field(default_factory=dict)
    fused: bool = False


class ScheduleConfig(BaseModel):
    """Linear warm-up over `warmup` steps, then `kind` down to `floor` times the peak at the last step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: NonNegativeInt = 10
    floor: NonNegativeFloat = 0.1


def schedule(step: int, config: ScheduleConfig, steps: int) -> float:
    """Factor of the peak rate at optimizer step `step`, counted from 0, of `steps`."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    if config.kind == "constant":
        return 1.0
    done = min(1.0, (step - config.warmup) / max(1, steps - 1 - config.warmup))
    shape = 0.5 * (1 + math.cos(math.pi * done)) if config.kind == "cosine" else 1 - done
    return config.floor + (1 - config.floor) * shape


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters. Call after `parallelize`.

    Matrices decay; norms, biases and other vectors do not. A group never mixes device meshes: the fused and
    foreach kernels take lists of one layout. Groups carry `scale`, their share of the scheduled rate.
    """
    groups: dict[tuple[object, ...], dict] = {}
    prefixes = set()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        plain = name.replace("_checkpoint_wrapped_module.", "")
        prefix = max((p for p in config.part_lr if plain.startswith(p)), key=len, default=None)
        prefixes.add(prefix)
        decay = config.weight_decay if parameter.ndim > 1 else 0.0
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        scale = 1.0 if prefix is None else config.part_lr[prefix]
        group = groups.setdefault((decay, scale, mesh), {"params": [], "weight_decay": decay, "scale": scale})
        group["params"].append(parameter)
    if not groups:
        raise TrainerError("model.freeze", "every parameter", "some left to train", "freeze less")
    if unused := set(config.part_lr) - prefixes:
        raise TrainerError(
            "optimizer.part_lr",
            sorted(unused),
            "prefixes of trainable parameter names",
            "see the names with `model.named_parameters()`",
        )
    return torch.optim.AdamW(
        list(groups.values()), lr=config.lr, betas=config.betas, eps=config.eps, fused=config.fused or None
    )


def set_rate(
    optimizer: torch.optim.Optimizer,
    step: int,
    config: OptimizerConfig,
    schedule_config: ScheduleConfig,
    steps: int,
) -> float:
    """Sets every group's rate for `step` and returns the scheduled one (scale 1)."""
    rate = config.lr * schedule(step, schedule_config, steps)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]
    return rate
