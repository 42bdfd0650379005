"""Exports: plain transformers computes what the trained model computes, and nothing half written is left."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoProcessor, Qwen2TokenizerFast, Qwen3VLForConditionalGeneration

from tests.trainer.buckets import s3_server
from tests.trainer.ranks import run_ranks
from trainer import export as export_module
from trainer.architectures import ARCHITECTURES
from trainer.checkpoint import CheckpointConfig, Checkpointer
from trainer.collate import Processor, ProcessorConfig, collate
from trainer.config import load_recipe
from trainer.errors import TrainerError
from trainer.export import export, load_exported, main
from trainer.folders import open_folder
from trainer.mesh import ParallelConfig, build_mesh
from trainer.model import build_model
from trainer.parallel import parallelize
from trainer.samples import Sample
from trainer.state import ModelState
from trainer.synthesize import Scale, generate
from trainer.weights import materialize

ROOT = Path(__file__).parents[2]
TINY = ROOT / "trainer" / "recipes" / "tiny-cpu.yaml"
LORA = ("model.lora={rank: 4, alpha: 16}",)


@pytest.fixture(scope="module", autouse=True)
def tied():
    made = {**ARCHITECTURES["tiny"], "tie_word_embeddings": True}
    ARCHITECTURES["tied"] = {**made, "text_config": {**made["text_config"], "tie_word_embeddings": True}}
    yield
    del ARCHITECTURES["tied"]


def save(folder: str, *settings: str, step: int = 3, layout: dict | None = None, world: int = 1):
    """A checkpoint of a recipe's model with weights that are not the first ones; the model."""
    recipe = load_recipe(TINY, [*settings, f"checkpoint.folder={folder}"])
    processor = Processor(recipe.data.processor)
    if layout is None:
        model = build_model(recipe.model, processor, seed=7)
    else:
        parallel = ParallelConfig(**layout)
        model = build_model(recipe.model, processor, device="meta")
        parallelize(model, parallel, build_mesh(parallel, world))
        materialize(model, seed=7, device="cpu")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.add_(0.05)
    progress = {"step": step, "recipe": recipe.model_dump(mode="json")}
    checkpoints = Checkpointer(CheckpointConfig(folder=folder), run=recipe.name)
    checkpoints.save(step, {"model": ModelState(model), "progress": json.dumps(progress)}, urgent=True)
    assert checkpoints.durable_step == step
    checkpoints.close()
    return model


def saved_on_a_mesh(rank: int, folder: str, layout: dict, world: int) -> None:
    save(folder, layout=layout, world=world)


def batch_of(config: ProcessorConfig, samples: int = 1, **changes):
    made = generate(samples, 0, scale=Scale(2, 64))
    return collate(
        [Sample.from_columns(columns) for columns in made], Processor(config.model_copy(update=changes))
    )


def without_sensors(config: ProcessorConfig | None = None):
    """Text and two pictures: what plain transformers can read."""
    return batch_of(config or ProcessorConfig(), lidar_tokens=0, radar_tokens=0, pack_to=1)


def stock_logits(directory: Path, batch, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Of plain transformers, which counts the positions by itself."""
    stock = Qwen3VLForConditionalGeneration.from_pretrained(directory, dtype=dtype).eval()
    with torch.no_grad():
        return stock(
            input_ids=batch.input_ids,
            attention_mask=torch.ones_like(batch.input_ids),
            pixel_values=batch.pixel_values.to(dtype),
            image_grid_thw=batch.image_grid_thw,
            use_cache=False,
        ).logits


def own_logits(model, batch) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(batch, all_logits=True).logits


def keys(directory: Path) -> dict[str, tuple[list[int], str]]:
    """Name → shape and type of everything that the index leads to."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    found = {}
    for file in set(index.values()):
        with safe_open(directory / file, framework="pt") as opened:
            for name in [*opened.keys()]:
                assert index[name] == file
                part = opened.get_slice(name)
                found[name] = (part.get_shape(), part.get_dtype())
    assert found.keys() == index.keys()
    return found


@pytest.mark.parametrize("base", ["tiny", "tied"])
def test_transformers_computes_the_same_bits(tmp_path, base):
    model = save(str(tmp_path / "run"), f"model.base={base}")
    export(str(tmp_path / "run"), tmp_path / "out", torch.float32)
    batch = without_sensors()
    assert len(batch.image_grid_thw) == 2
    assert torch.equal(stock_logits(tmp_path / "out", batch), own_logits(model, batch))


@pytest.mark.parametrize("base", ["tiny", "tied"])
def test_names_shapes_and_configuration_are_those_of_a_stock_model(tmp_path, base):
    save(str(tmp_path / "run"), f"model.base={base}")
    export(str(tmp_path / "run"), tmp_path / "out")
    config = AutoConfig.from_pretrained(tmp_path / "out")
    stock = Qwen3VLForConditionalGeneration(config).state_dict()
    if base == "tied":
        del stock["lm_head.weight"]
    found = keys(tmp_path / "out")
    assert {name: shape for name, (shape, _) in found.items()} == {n: [*t.shape] for n, t in stock.items()}
    assert {kind for _, kind in found.values()} == {"BF16"}
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architectures"] == ["Qwen3VLForConditionalGeneration"]
    assert written["model_type"] == "qwen3_vl"
    tied = base == "tied"
    assert written["tie_word_embeddings"] is config.text_config.tie_word_embeddings is tied
    assert {written[part]["dtype"] for part in ("text_config", "vision_config")} == {"bfloat16"}
    assert (written["dtype"], written["text_config"]["use_cache"]) == ("bfloat16", True)
    words = Processor(ProcessorConfig()).tokenizer
    assert written["image_token_id"] == words.image_id
    assert written["vision_start_token_id"] == words.vision_start_id
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (generation["eos_token_id"], generation["pad_token_id"]) == (words.eos_id, words.pad_id)


def test_large_models_come_in_shards_and_load(tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "SHARD", "300KB")
    model = save(str(tmp_path / "run"))
    export(str(tmp_path / "run"), tmp_path / "out", torch.float32)
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 2
    assert keys(tmp_path / "out").keys() == model.core.state_dict().keys()
    again, _ = load_exported(tmp_path / "out")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))


def test_adapters_are_merged(tmp_path):
    model = save(str(tmp_path / "run"), *LORA)
    export(str(tmp_path / "run"), tmp_path / "out", torch.float32)
    batch = without_sensors()
    ours, stock = own_logits(model, batch), stock_logits(tmp_path / "out", batch)
    assert (ours - stock).abs().max() <= 1e-5
    for layer in model.core.modules():
        if hasattr(layer, "lora_B"):
            torch.nn.init.zeros_(layer.lora_B["default"].weight)
    assert (own_logits(model, batch) - stock).abs().max() > 1e-3, "the adapters do something"
    assert not [name for name in keys(tmp_path / "out") if "lora" in name or "base_layer" in name]


def test_the_whole_model_comes_back(tmp_path):
    """Trajectories and boxes too, which plain transformers does not know of."""
    model = save(str(tmp_path / "run"), "model.action.hidden=32", "data.processor.pack_to=32").eval()
    about = export(f"{tmp_path}/run/step-00000003", tmp_path / "out", torch.float32)
    assert (about["run"], about["step"]) == ("tiny-cpu", 3)
    again, processor = load_exported(tmp_path / "out")
    assert processor.config.pack_to == 32
    batch = batch_of(processor.config, 3)
    with torch.no_grad():
        ours, theirs = model(batch), again.eval()(batch)
    for name in ("loss", "trajectory", "boxes", "logits"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def test_bfloat16_rounds_the_core_and_leaves_metres_alone(tmp_path):
    model = save(str(tmp_path / "run"))
    export(str(tmp_path / "run"), tmp_path / "out")
    again, _ = load_exported(tmp_path / "out")
    for (name, ours), theirs in zip(model.named_parameters(), again.parameters(), strict=True):
        rounded = ours.to(torch.bfloat16).float() if name.startswith("core.") else ours
        assert torch.equal(rounded, theirs), name


@pytest.mark.parametrize(
    ("world", "layout"),
    [
        (2, {"shard": 2, "activation_checkpointing": "full"}),
        (4, {"shard": 2, "tensor": 2}),
    ],
)
def test_any_mesh_is_read_by_one_process(tmp_path, world, layout):
    run_ranks(world, saved_on_a_mesh, str(tmp_path / "run"), layout, world)
    export(str(tmp_path / "run"), tmp_path / "out", torch.float32)
    alone = save(str(tmp_path / "alone"))
    again, _ = load_exported(tmp_path / "out")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), alone.parameters(), strict=True))


def test_s3_and_the_newest_whole_checkpoint(tmp_path, capsys):
    with s3_server("runs") as (url, _):
        save(f"{url}/tiny", step=1)
        save(f"{url}/tiny", step=2)
        open_folder(f"{url}/tiny").remove("step-00000002", [".metadata"])
        assert main(["--checkpoint", f"{url}/tiny", "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "[trainer] skipped checkpoint=step-00000002" in told
    assert (
        f"[trainer] exported run=tiny-cpu step=1 checkpoint={url}/tiny/step-00000001 dtype=bfloat16" in told
    )
    assert "Hugging Face tokenizer" in told
    assert json.loads((tmp_path / "out" / "trainshed.json").read_text())["step"] == 1


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    """A directory as Qwen's: bytes, its special tokens, its chat template's form."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = ("endoftext", "im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad")
    made.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in names])
    folder = tmp_path_factory.mktemp("tokenizer")
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    Qwen2TokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=template
    ).save_pretrained(folder)
    return folder


def test_a_hugging_face_tokenizer_and_the_picture_settings_go_along(tmp_path, tokenizer, capsys):
    """What vLLM needs to serve pictures: AutoProcessor gives the pixels and ids that the training read."""
    model = save(str(tmp_path / "run"), f"data.processor.tokenizer={tokenizer}")
    assert (
        main(["--checkpoint", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--dtype", "float32"])
        == 0
    )
    assert 'vllm_needs="nothing more"' in capsys.readouterr().out
    moved = tmp_path / "elsewhere"
    shutil.move(tmp_path / "out", moved)
    again, processor = load_exported(moved)
    assert processor.vocab_size == model.core.config.text_config.vocab_size
    batch = without_sensors(processor.config)
    assert torch.equal(stock_logits(moved, batch), own_logits(again, batch))
    theirs = AutoProcessor.from_pretrained(moved)
    sample = Sample.from_columns(next(iter(generate(1, 0, scale=Scale(2, 64)))))
    pictures = "<|vision_start|><|image_pad|><|vision_end|>" * 2
    chat = [{"role": "user", "content": pictures + sample.prompt}]
    text = theirs.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    made = theirs(text=[text], images=[*sample.images], return_tensors="pt")
    ids, _ = Processor(
        processor.config.model_copy(update={"lidar_tokens": 0, "radar_tokens": 0})
    ).tokens(sample, answers=False)  # fmt: skip
    assert made["input_ids"][0].tolist() == ids[:-1], "all but the action token"
    torch.testing.assert_close(made["pixel_values"], batch.pixel_values, atol=1e-6, rtol=0)
    assert made["image_grid_thw"].tolist() == batch.image_grid_thw.tolist()


def test_faults_are_one_line_and_leave_nothing(tmp_path, capsys, monkeypatch):
    save(str(tmp_path / "run"))
    (tmp_path / "there").mkdir()
    torn = tmp_path / "torn" / "step-00000003"
    shutil.copytree(tmp_path / "run" / "step-00000003", torn)
    data = next(torn.glob("*.distcp"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    capsys.readouterr()
    for checkpoint, out, told in (
        ("run", "there", "--out: given"),
        ("run", "run/step-00000003/.metadata/x", "a place that can be written"),
        ("nowhere", "out", "none in it is whole"),
        ("run/step-00000009", "out", "not published"),
        ("torn/step-00000003", "out", "corrupt"),
    ):
        assert main(["--checkpoint", str(tmp_path / checkpoint), "--out", str(tmp_path / out)]) == 2
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("[trainer] error text=")
        assert told in lines[0]

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(export_module, "_write_core", full)
    with pytest.raises(OSError, match="no space"):
        export(str(tmp_path / "run"), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "there", "torn"]
    for damaged in ("trainshed.json", "trainshed.safetensors"):
        with pytest.raises(TrainerError, match=damaged):
            load_exported(tmp_path / "run")
        (tmp_path / "run" / "trainshed.json").write_text("{}")


def test_the_command_runs_without_a_process_group(tmp_path):
    save(str(tmp_path / "run"))
    command = [sys.executable, "-m", "trainer.export", "--checkpoint", str(tmp_path / "run"), "--out", "out"]
    ran = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("[trainer] exported ")
    assert "Warning" not in ran.stderr, ran.stderr
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert modes == {(tmp_path / "run" / "step-00000003" / ".metadata").stat().st_mode & 0o777}
