"""Weights of a model built without storage: the same on every layout, and the same as transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor
from transformers import Qwen3VLForConditionalGeneration

from tests.trainer.factory import VOCABULARY, pack, sample, tiny
from tests.trainer.ranks import run_ranks
from trainer.architectures import ARCHITECTURES, qwen3_vl
from trainer.errors import TrainerError
from trainer.mesh import ParallelConfig, build_mesh
from trainer.model import ModelConfig, build_model
from trainer.parallel import parallelize
from trainer.weights import materialize

SEED = 5
LORA = {"lora": {"rank": 4, "alpha": 8}}
LAYOUTS = {
    2: {"fsdp2": {"shard": 2}, "ddp2": {"mode": "ddp", "replicate": 2}},
    4: {
        "fsdp2 tp2 full": {"shard": 2, "tensor": 2, "activation_checkpointing": "full"},
        "hsdp2x2 selective": {
            "mode": "hsdp", "replicate": 2, "shard": 2, "activation_checkpointing": "selective",
        },
        "fsdp4 uneven": {"shard": 4},
    },
}  # fmt: skip


def plain(name: str) -> str:
    return name.replace("_checkpoint_wrapped_module.", "")


def laid_out(layout: dict, options: dict, world: int):
    """A sharded build as trainer.train makes it."""
    config = ModelConfig(**options)
    parallel = ParallelConfig(**layout)
    model = build_model(config, VOCABULARY, device="meta")
    model = parallelize(model, parallel, build_mesh(parallel, world))
    return materialize(model, seed=SEED, device="cpu", base=config.directory)


def different(rank: int, world: int, cases: dict[str, tuple[dict, dict, dict]]) -> dict[str, list[str]]:
    """Names of parameters and buffers that are not bit for bit those expected, by case (layout, options)."""
    found = {}
    for name, (layout, options, expected) in cases.items():
        model = laid_out(layout, options, world)
        tensors = {plain(n): t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()]}
        whole = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in tensors.items()}
        assert any(isinstance(t, DTensor) for t in tensors.values())
        found[name] = [n for n in whole.keys() | expected.keys() if not equal(whole, expected, n)]
    return found


def equal(these: dict, those: dict, name: str) -> bool:
    return name in these and name in those and torch.equal(these[name], those[name])


def tensors_of(model) -> dict[str, torch.Tensor]:
    return {n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()]}


@pytest.fixture
def tied(monkeypatch):
    made = {**ARCHITECTURES["tiny"], "tie_word_embeddings": True}
    made["text_config"] = {**made["text_config"], "tie_word_embeddings": True}
    monkeypatch.setitem(ARCHITECTURES, "tied", made)


@pytest.mark.parametrize("world", LAYOUTS)
def test_drawn_weights_are_those_of_one_process(tied, world):
    cases = {}
    for kind, options in {"untied": {}, "tied": {"base": "tied"}, "lora": LORA}.items():
        expected = tensors_of(tiny(SEED, **options))
        assert ("core.lm_head.weight" in expected) == (kind != "tied")
        for name, layout in LAYOUTS[world].items():
            if kind != "lora" or "tensor" not in layout:
                cases[f"{kind} {name}"] = (layout, options, expected)
    for found in run_ranks(world, different, world, cases):
        assert found == {case: [] for case in cases}


def test_a_base_models_weights_are_those_that_transformers_loads(tied, tmp_path):
    """Published files are bfloat16 in several shards; masters are float32."""
    cases = {}
    for kind in ("tiny", "tied"):
        base = tmp_path / kind
        tiny(1, base=kind).core.to(torch.bfloat16).save_pretrained(base, max_shard_size="200KB")
        assert len(list(base.glob("*.safetensors"))) > 2
        loaded = Qwen3VLForConditionalGeneration.from_pretrained(base, dtype=torch.float32)
        given = {f"core.{name}": tensor for name, tensor in tensors_of(loaded).items()}
        for more in ({}, LORA):
            options = {**more, "base": str(base)}
            whole = tensors_of(tiny(SEED, **options))
            renamed = {name.replace(".base_layer", ""): tensor for name, tensor in whole.items()}
            assert [name for name in given if not equal(renamed, given, name)] == []
            for name, layout in LAYOUTS[2].items():
                cases[f"{kind} {len(options)} {name}"] = (layout, options, whole)
    for found in run_ranks(2, different, 2, cases):
        assert found == {case: [] for case in cases}


def test_rotary_frequencies_are_numbers_not_what_memory_held():
    model = tiny()
    fresh = Qwen3VLForConditionalGeneration(qwen3_vl("tiny", vocab_size=VOCABULARY.vocab_size))
    buffers = dict(fresh.named_buffers())
    assert len(buffers) == 2
    for name, buffer in model.core.named_buffers():
        torch.testing.assert_close(buffer, buffers[name], rtol=0, atol=0)
    theta, width = 5e6, 16
    by_hand = torch.tensor([theta ** (-2 * pair / width) for pair in range(width // 2)])
    torch.testing.assert_close(model.core.model.language_model.rotary_emb.inv_freq, by_hand)


def test_drawn_weights_are_distributed_as_transformers_distributes_them():
    model = tiny(**LORA)
    weights = dict(model.named_parameters())
    embedding = weights["core.model.language_model.embed_tokens.weight"]
    assert float(embedding.detach().std()) == pytest.approx(0.02, rel=0.03)
    for name, weight in weights.items():
        values = weight.detach()
        if name.startswith("core.") and "norm" in name and name.endswith("weight"):
            assert torch.equal(values, torch.ones_like(values)), name
        elif ".lora_B." in name or (name.startswith("core.") and name.endswith("bias")):
            assert not values.any(), name
        elif weight.ndim > 1:
            assert 0.01 < values.std() < 2, name
        assert values.abs().max() < 6, name
    drawn = [w.detach().flatten()[:8] for n, w in weights.items() if n.endswith("q_proj.base_layer.weight")]
    assert not torch.equal(drawn[0], drawn[1]), "every block has its own"
    again = dict(tiny(1, **LORA).named_parameters())
    assert not torch.equal(embedding, again["core.model.language_model.embed_tokens.weight"])


def test_a_base_models_configuration_may_say_bfloat16(tmp_path):
    tiny(1).core.to(torch.bfloat16).save_pretrained(tmp_path)
    model = build_model(ModelConfig(base=str(tmp_path)), VOCABULARY)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model(pack([sample(1)])).loss.isfinite()


def test_files_that_do_not_fit_are_told_in_one_line(tmp_path):
    core = tiny().core
    core.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(
        TrainerError, match=r"model\.base: given .*; allowed a directory of safetensors"
    ) as told:
        build_model(ModelConfig(base=str(tmp_path)), VOCABULARY)
    assert "\n" not in str(told.value)
    state = core.state_dict()
    del state["lm_head.weight"]
    core.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(TrainerError, match=r"lm_head\.weight"):
        build_model(ModelConfig(base=str(tmp_path)), VOCABULARY)


def peak_rise(rank: int, world: int, *, sharded: bool) -> tuple[int, int]:
    """Bytes by which this process's peak exceeds what it held before the build, and bytes of parameters."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = resident("VmRSS")
    parallel = ParallelConfig(shard=world)
    mesh = build_mesh(parallel, world)
    ARCHITECTURES["third"] = third()
    config = ModelConfig(base="third")
    if sharded:
        model = parallelize(build_model(config, VOCABULARY, device="meta"), parallel, mesh)
        materialize(model, seed=0, device="cpu")
    else:
        model = parallelize(build_model(config, VOCABULARY), parallel, mesh)
    return resident("VmHWM") - before, 4 * sum(parameter.numel() for parameter in model.parameters())


def third() -> dict:
    """The 400m model with a third of its depth."""
    made = ARCHITECTURES["400m"]
    text = {**made["text_config"], "num_hidden_layers": 5}
    vision = {**made["vision_config"], "depth": 4, "deepstack_visual_indexes": [1]}
    return {**made, "text_config": text, "vision_config": vision}


def resident(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def sharded_rise(rank: int, world: int) -> tuple[int, int]:
    return peak_rise(rank, world, sharded=True)


def whole_rise(rank: int, world: int) -> tuple[int, int]:
    return peak_rise(rank, world, sharded=False)


def test_a_rank_never_holds_the_whole_model(record_property):
    """On two ranks: half of it and the largest tensor, instead of all of it."""
    sharded, whole = max(run_ranks(2, sharded_rise, 2)), max(run_ranks(2, whole_rise, 2))
    told = {"sharded": sharded[0] / sharded[1], "whole": whole[0] / whole[1]}
    record_property("peak_rise_per_parameter_byte", told)
    print("peak above the process, of the model's bytes:", told)
    assert sharded[1] == whole[1] > 4 * 0.06e9
    assert sharded[0] <= 0.75 * whole[0]
