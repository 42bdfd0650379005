"""`python -m tests.trainer.group`: trainer.train that leaves the samples of each step, and its weights.

With GATE it is a standby, imported and waiting for that file: a restart that need not wait for imports.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from trainer import train
from trainer.loop import Loop
from trainer.resilience import leave

_forward_backward, _tell, _run = Loop._forward_backward, Loop._tell, Loop.run


def forward_backward(self, micro_steps, counts):
    self.samples = sorted(name for batch in micro_steps for name in batch.sample_ids)
    return _forward_backward(self, micro_steps, counts)


def tell(self, *arguments):
    """Called once for each step that counted."""
    with Path(f"samples-{self.rank}").open("a") as out:
        out.write(f"{self.step} {' '.join(self.samples)}\n")
    return _tell(self, *arguments)


def run(self):
    end = _run(self)
    whole = self.model.state_dict()
    weights = {name: w.full_tensor() if isinstance(w, DTensor) else w for name, w in whole.items()}
    if self.rank == 0:
        torch.save({"step": self.step, "weights": weights, "torchft": "torchft" in sys.modules}, "end.pt")
    return end


Loop._forward_backward, Loop._tell, Loop.run = forward_backward, tell, run

if __name__ == "__main__":
    while "GATE" in os.environ and not Path(os.environ["GATE"]).exists():
        time.sleep(0.02)
    leave(train.main(sys.argv[1:]))
