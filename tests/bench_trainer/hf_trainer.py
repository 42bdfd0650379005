"""The rival in the tokens figure: transformers' Trainer on the trainer's model, data and batches."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.bench_trainer.plain import Collate, Driving
from trainer.collate import Processor, ProcessorConfig
from trainer.model import ModelConfig, build_model
from trainer.samples import Batch, Sample


class Wrapped(nn.Module):
    """What Trainer expects of a model: keywords in, a dict with the loss out."""

    def __init__(self, processor: Processor) -> None:
        super().__init__()
        self.model = build_model(ModelConfig(base="tiny"), processor)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.model(batch).loss}


class AsKeyword(Collate):
    """A batch under the name of forward's argument."""

    def __call__(self, samples: list[Sample]) -> dict[str, object]:
        return {"batch": super().__call__(samples)}


class Times(TrainerCallback):
    """Seconds at which each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.perf_counter())


def main(place: str, folder: str, steps: int, batch: int, sharding: str) -> None:
    """Train; rank 0 writes the step ends to `folder`/ends.json."""
    fsdp: dict[str, Any] = {}
    if sharding == "fsdp":
        blocks = ["Qwen3VLTextDecoderLayer", "Qwen3VLVisionBlock"]
        fsdp = {"fsdp": "full_shard auto_wrap"}
        fsdp["fsdp_config"] = {"version": 2, "transformer_layer_cls_to_wrap": blocks}
    arguments = TrainingArguments(
        output_dir=folder, max_steps=steps, per_device_train_batch_size=batch, use_cpu=True,
        ddp_backend="gloo", ddp_find_unused_parameters=False, remove_unused_columns=False,
        dataloader_num_workers=1, learning_rate=1e-3, max_grad_norm=1.0, lr_scheduler_type="constant",
        report_to=[], save_strategy="no", logging_steps=10, disable_tqdm=True, **fsdp,
    )  # fmt: skip
    processor, times = Processor(ProcessorConfig()), Times()
    trainer = Trainer(
        model=Wrapped(processor), args=arguments, train_dataset=Driving(place),
        data_collator=AsKeyword(processor), callbacks=[times],
    )  # fmt: skip
    trainer.train()
    if trainer.is_world_process_zero():
        (Path(folder) / "ends.json").write_text(json.dumps(times.ends))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
