"""Parameter counts against the meta model; estimates against saved tensors."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from tests.trainer.factory import VOCABULARY, pack, sample, tiny
from trainer.architectures import ARCHITECTURES
from trainer.errors import TrainerError
from trainer.memory import Hardware, check_fits, estimate, meta_model
from trainer.mesh import ParallelConfig
from trainer.model import ModelConfig

# Qwen's vocabulary: the recipes on real hardware use its tokenizer.
QWEN = type(VOCABULARY)(**{**vars(VOCABULARY), "vocab_size": 151936})
SIZES = {
    "tiny": (0.0003, 0.0006),
    "400m": (0.38, 0.48),
    "7b": (6.9, 7.5),
    "8b": (8.6, 8.9),
    "32b": (32.9, 33.6),
}


@pytest.fixture(scope="module")
def meta():
    made = {}

    def get(base: str):
        return made.setdefault(
            base, meta_model(ModelConfig(base=base), VOCABULARY if base == "tiny" else QWEN)
        )

    return get


@pytest.mark.parametrize("base", ARCHITECTURES)
def test_parameter_count_is_the_meta_models(meta, base):
    model = meta(base)
    counted = sum(parameter.numel() for parameter in model.parameters())
    memory = estimate(model, ParallelConfig(), 1, tokens=64, patches=64)
    low, high = SIZES[base]
    assert memory.parameters == memory.trainable == counted
    assert low < counted / 1e9 < high
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_tiny_counts_are_those_of_the_real_model(meta):
    real = {name: p.shape for name, p in tiny().named_parameters()}
    assert {name: p.shape for name, p in meta("tiny").named_parameters()} == real


def test_32b_does_not_fit_one_h100_and_the_error_names_the_cure(meta):
    memory = estimate(meta("32b"), ParallelConfig(), 1, tokens=1024, patches=1024)
    assert memory.weights == 4 * memory.parameters
    assert memory.optimizer == 8 * memory.parameters
    with pytest.raises(TrainerError, match=r"allowed 70 GiB on ml\.p5\.48xlarge; fix: raise parallel\.shard"):
        check_fits(memory, Hardware(instance="ml.p5.48xlarge", accelerators=8, memory_gib=80))
    assert "33." in str(memory)


@pytest.mark.parametrize(
    ("field", "part", "most"),
    # The vision tower, 0.6 of 7.2 billion, is not cut over the tensor dimension.
    [("shard", "weights", 0.51), ("shard", "optimizer", 0.51), ("tensor", "weights", 0.7)],
)
def test_more_ranks_take_less(meta, field, part, most):
    def bytes_with(size: int) -> int:
        config = ParallelConfig(**{field: size})
        return getattr(estimate(meta("7b"), config, size, tokens=4096, patches=4096), part)

    assert 0.49 < bytes_with(8) / bytes_with(4) < most


def test_freezing_saves_gradients_and_moments(meta):
    frozen = meta_model(ModelConfig(base="tiny", freeze=("text", "lm_head", "vision")), VOCABULARY)
    less, more = (
        estimate(model, ParallelConfig(), 1, tokens=64, patches=64) for model in (frozen, meta("tiny"))
    )
    assert less.weights == more.weights
    assert less.optimizer < 0.7 * more.optimizer


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_activations_are_those_that_autograd_saves(meta, checkpointing):
    model, batch = tiny(), pack([sample(seed, images=2, text=60) for seed in range(8)])
    if checkpointing == "full":
        for blocks in (model.core.model.language_model.layers, model.core.model.visual.blocks):
            for index, block in enumerate(blocks):
                blocks[index] = checkpoint_wrapper(block)
    seen: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(batch)  # held: its graph owns the storages
    measured = sum(size for pointer, size in seen.items() if pointer not in weights)
    assert output.loss.isfinite()
    config = ParallelConfig(activation_checkpointing=checkpointing)
    memory = estimate(
        model, config, 1, tokens=batch.input_ids.numel(), patches=len(batch.pixel_values),
        labelled=int(output.counts["text"]),
    )  # fmt: skip
    assert 0.5 < memory.activations / measured < 2.0, (memory.activations, measured)
