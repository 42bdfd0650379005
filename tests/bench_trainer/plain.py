"""The rival in the downtime figure: a training script as samples write it, under plain torchrun.

The trainer's model, data and batches; one DataLoader, `fully_shard`, `dcp.save` every few steps with a file
that names the latest, and none of the trainer's cures.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainer.collate import Processor, ProcessorConfig, collate
from trainer.mds import Shards
from trainer.model import ModelConfig, build_model
from trainer.samples import Sample


class Driving(Dataset):
    """Samples by number."""

    def __init__(self, place: str) -> None:
        self._shards = Shards(place)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> Sample:
        return Sample.from_columns(self._shards.read([number])[0])


class Collate:
    """The trainer's batches, made in the DataLoader's workers."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor

    def __call__(self, samples: list[Sample]) -> object:
        return collate(samples, self._processor)


def main(place: str, folder: Path, every: int, batch: int) -> None:
    """Train until somebody ends it."""
    dist.init_process_group("gloo")
    processor = Processor(ProcessorConfig())
    model = build_model(ModelConfig(base="tiny"), processor)
    for block in model.core.model.language_model.layers:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    dataset = Driving(place)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(
        dataset,
        batch_size=batch,
        sampler=sampler,
        num_workers=1,
        collate_fn=Collate(processor),
        drop_last=True,
    )
    latest, step = folder / "latest", 0
    if latest.exists():
        step = int(latest.read_text())
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=folder / f"step-{step}")
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    seen = step % len(loader)
    for epoch in range(step // len(loader), sys.maxsize):
        sampler.set_epoch(epoch)
        for number, micro in enumerate(loader):
            if number < seen:
                continue
            loss = model(micro).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if dist.get_rank() == 0:
                print(f"step={step} loss={loss.item():.4f}", flush=True)
            if step % every == 0:
                weights, moments = get_state_dict(model, optimizer)
                dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / f"step-{step}")
                if dist.get_rank() == 0:
                    latest.write_text(str(step))
                    shutil.rmtree(folder / f"step-{step - every}", ignore_errors=True)
        seen = 0


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
