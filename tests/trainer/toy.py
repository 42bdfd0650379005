"""A model of two layers with its optimizer and checkpointer, plain or sharded."""

from __future__ import annotations

import json

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from trainer.checkpoint import CheckpointConfig, Checkpointer
from trainer.state import ModelState, OptimizerState, rng_state


class Toy:
    def __init__(self, folder, *, mesh=None, rank=0, width=32, run="toy", **config):
        torch.manual_seed(0)
        self.rank = rank
        self.model = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        if mesh is not None:
            fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.checkpoints = Checkpointer(CheckpointConfig(folder=str(folder), **config), run=run)
        self.width = width

    def step(self, number: int) -> float:
        """One update on inputs that are a function of the step alone."""
        inputs = torch.randn(8, self.width, generator=torch.Generator().manual_seed(number))
        self.optimizer.zero_grad()
        loss = (self.model(inputs) - inputs).square().mean()
        loss.backward()
        self.checkpoints.before_optimizer_step()
        self.optimizer.step()
        return loss.item()

    def state(self, step: int = 0) -> dict:
        return {
            "model": ModelState(self.model),
            "optimizer": OptimizerState(self.model, self.optimizer),
            "progress": json.dumps({"step": step}),
            f"rng.{self.rank}": rng_state(),
        }

    def weights(self) -> list[torch.Tensor]:
        whole = (p.full_tensor() if isinstance(p, DTensor) else p for p in self.model.parameters())
        return [p.detach().clone() for p in whole]
