"""A checkpoint as a directory that transformers and vLLM load, and what they do not know of beside it.

`python -m trainer.export --checkpoint FOLDER_OR_CHECKPOINT --out DIR [--dtype bfloat16|float32]` runs as one
process, whatever mesh wrote the checkpoint, with the model's float32 weights in memory once. Encoders and
heads go to `trainshed.safetensors`, in float32, and `load_exported` puts the whole model together again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, safe_open, save_file
from torch import nn
from transformers import GenerationConfig, Qwen2VLImageProcessorFast, Qwen3VLProcessor, Qwen3VLVideoProcessor

from trainer.collate import Processor, ProcessorConfig
from trainer.config import Recipe, recipe_of
from trainer.errors import TrainerError
from trainer.folders import Folder, open_folder
from trainer.model import LanguageActionModel, ModelConfig, build_model
from trainer.publish import Marker, NotWholeError, check, check_content, name_of, newest_whole, step_of
from trainer.resilience import Exit
from trainer.state import ModelState, load
from trainer.tokenizer import HuggingFaceTokenizer
from trainer.tracking import emit
from trainer.weights import allocate

PARTS = "trainshed.safetensors"
ABOUT = "trainshed.json"
FORMAT = "trainshed-export-1"
INDEX = "model.safetensors.index.json"
SHARD = "5GB"
MOST_PIXELS = 1 << 24  # of one picture, as Qwen3-VL is published


def export(url: str, out: Path, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """Write `out` whole or not at all; returns what `trainshed.json` holds.

    Raises TrainerError when `out` is there already, or the checkpoint is not whole.
    """
    if out.exists():
        raise TrainerError("--out", out, "a directory that is not there yet", "choose another, or remove it")
    folder, marker = _find(url)
    recipe = _recipe(folder, marker)
    processor = Processor(recipe.data.processor)
    model = allocate(build_model(recipe.model, processor, device="meta"), "cpu")
    load(folder, name_of(marker.step), {"model": ModelState(model)})
    if recipe.model.lora is not None:
        _merge_adapters(model.core)
    about = {
        "format": FORMAT,
        "run": marker.run,
        "step": marker.step,
        "checkpoint": f"{folder.url}/{name_of(marker.step)}",
        "dtype": str(dtype).removeprefix("torch."),
        "model": recipe.model.model_dump(mode="json"),
        "processor": recipe.data.processor.model_dump(mode="json"),
    }
    with _whole_or_nothing(out) as directory:
        _write_parts(model, directory)
        _write_core(model, processor, directory, dtype)
        _write_processor(processor, directory)
        (directory / ABOUT).write_text(json.dumps(about, indent=1))
    return about


def load_exported(
    directory: str | Path, device: str | torch.device = "cpu"
) -> tuple[LanguageActionModel, Processor]:
    """The whole model in float32, adapters merged, and its processor. Raises TrainerError."""
    directory = Path(directory).resolve()
    try:
        about = json.loads((directory / ABOUT).read_text())
        parts = load_file(directory / PARTS)
    except (OSError, ValueError) as failure:
        fix = "write one with python -m trainer.export"
        raise TrainerError("export", f"{directory} ({failure})", f"a directory with {ABOUT}", fix) from None
    if about.get("format") != FORMAT:
        raise TrainerError("export", f"format {about.get('format')}", FORMAT, "export the checkpoint again")
    tokenizer = about["processor"]["tokenizer"]
    own = {"tokenizer": tokenizer if tokenizer == "bytes" else str(directory)}
    processor = Processor(ProcessorConfig.model_validate(about["processor"] | own))
    own = {"base": str(directory), "lora": None, "freeze": ()}
    model = build_model(ModelConfig.model_validate(about["model"] | own), processor, device=device)
    left = model.load_state_dict(parts, strict=False)
    wrong = [*left.unexpected_keys, *(name for name in left.missing_keys if not name.startswith("core."))]
    if wrong:
        raise TrainerError("export", f"{PARTS} with or without {wrong[0]}", "the model's own", "export again")
    return model, processor


def _find(url: str) -> tuple[Folder, Marker]:
    """The checkpoint named, or the newest whole one of a folder; every byte is checked."""
    root, _, name = url.rstrip("/").rpartition("/")
    try:
        if step_of(name) is not None:
            folder = open_folder(root)
            marker = check(folder, name)
            check_content(folder, marker)
            return folder, marker
        folder = open_folder(url)
        newest, skipped = newest_whole(folder)
    except NotWholeError as error:
        raise _unfit(url, error) from None
    for entry in skipped:
        emit("skipped", checkpoint=entry.name, reason=entry.reason)
    if newest is None:
        raise _unfit(url, "none in it is whole")
    return folder, newest


def _unfit(url: str, reason: object) -> TrainerError:
    return TrainerError("--checkpoint", f"{url} ({reason})", "a whole checkpoint", "choose another")


def _recipe(folder: Folder, marker: Marker) -> Recipe:
    state: dict[str, Any] = {"progress": ""}
    load(folder, name_of(marker.step), state)
    return recipe_of(json.loads(state["progress"])["recipe"])


def _merge_adapters(core: nn.Module) -> None:
    from peft.tuners.lora import LoraLayer  # noqa: PLC0415  (optional, slow to import)

    for name, layer in [entry for entry in core.named_modules() if isinstance(entry[1], LoraLayer)]:
        layer.merge()
        core.set_submodule(name, layer.get_base_layer())


@contextmanager
def _whole_or_nothing(out: Path) -> Iterator[Path]:
    """A directory beside `out` that becomes it at the end; a failure leaves nothing."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    except OSError as failure:
        raise TrainerError("--out", out, "a place that can be written", str(failure)) from None
    try:
        yield directory
        umask = os.umask(0)
        os.umask(umask)
        for path in (directory, *directory.rglob("*")):  # safetensors and mkdtemp close theirs to all others
            path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        directory.rename(out)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _write_parts(model: LanguageActionModel, directory: Path) -> None:
    parts = {name: part for name, part in model.state_dict().items() if not name.startswith("core.")}
    save_file(parts, directory / PARTS, metadata={"format": "pt"})


def _write_core(
    model: LanguageActionModel, processor: Processor, directory: Path, dtype: torch.dtype
) -> None:
    """What `Qwen3VLForConditionalGeneration.save_pretrained` writes, with the ids of this tokenizer."""
    core, words = model.core.to(dtype), processor.tokenizer
    config = core.config
    config.vision_start_token_id, config.vision_end_token_id = words.vision_start_id, words.vision_end_id
    config.text_config.use_cache = True
    config.text_config.eos_token_id, config.text_config.pad_token_id = words.eos_id, words.pad_id
    for part in (config, config.text_config, config.vision_config):
        part.dtype = dtype  # vLLM goes by the text part's
    core.generation_config = GenerationConfig(
        eos_token_id=words.eos_id, pad_token_id=words.pad_id, do_sample=False
    )
    core.save_pretrained(directory, max_shard_size=SHARD)
    if not (directory / INDEX).exists():
        _write_index(directory)


def _write_index(directory: Path) -> None:
    """For a model in one file, too: without an index vLLM reads every safetensors file that it finds."""
    name = "model.safetensors"
    with safe_open(directory / name, framework="pt") as file:
        keys = list(file.keys())
    size = (directory / name).stat().st_size
    index = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys(keys, name)}
    (directory / INDEX).write_text(json.dumps(index, indent=1))


def _write_processor(processor: Processor, directory: Path) -> None:
    """Tokenizer and picture settings as trained; the byte tokenizer has no such files."""
    words, config = processor.tokenizer, processor.config
    if not isinstance(words, HuggingFaceTokenizer):
        return
    cut = {
        "patch_size": config.patch_size,
        "merge_size": config.merge_size,
        "temporal_patch_size": config.temporal_patch_size,
        "image_mean": [config.image_mean] * 3,
        "image_std": [config.image_std] * 3,
    }
    kind = type(words.inner).__name__
    if not kind.startswith("Qwen2Tokenizer"):
        fix = "use the tokenizer of a Qwen3-VL model"
        raise TrainerError(
            "data.processor.tokenizer", kind, "Qwen2Tokenizer, which Qwen3-VL's processor takes", fix
        )
    unit = (config.patch_size * config.merge_size) ** 2
    size = {"shortest_edge": unit, "longest_edge": MOST_PIXELS}
    Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessorFast(**cut, size=size),
        tokenizer=words.inner,
        video_processor=Qwen3VLVideoProcessor(**cut, size=size),
        chat_template=words.inner.chat_template,
    ).save_pretrained(directory)


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.export", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="URL", help="a run's folder, or one step-NNNNNNNN of it")
    add("--out", required=True, metavar="DIR", type=Path, help="a directory that is not there yet")
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="(default: bfloat16)")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process, which is meant
    try:
        about = export(options.checkpoint, options.out, getattr(torch, options.dtype))
    except TrainerError as error:
        for fault in str(error).splitlines():
            emit("error", text=fault)
        return Exit.RECIPE
    bytes_only = about["processor"]["tokenizer"] == "bytes"
    told = {name: about[name] for name in ("run", "step", "checkpoint", "dtype")}
    needs = "a Hugging Face tokenizer, which this run has not" if bytes_only else "nothing more"
    emit("exported", **told, out=options.out, vllm_needs=needs)
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
