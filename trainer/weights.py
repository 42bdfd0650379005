"""Storage and first weights for a model that was built without: sharded or whole, bit for bit the same.

A model that does not fit one process is built on the meta device, laid over the mesh, and only then given
memory: each rank holds its own part. Weights that are drawn come from a generator per module, seeded by its
name, so that no layout changes them; a base model's are read slice by slice from its safetensors files.
"""

from __future__ import annotations

import copy
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor

from trainer.errors import TrainerError
from trainer.mesh import local_of
from trainer.state import cause

if TYPE_CHECKING:
    from trainer.model import LanguageActionModel

READ_THREADS = 8  # files of a base model read at a time, per rank


def materialize(
    model: LanguageActionModel, *, seed: int, device: str | torch.device, base: Path | None = None
) -> LanguageActionModel:
    """Gives a meta model its memory on `device` and its weights; afterwards it trains like any other.

    `base`: directory whose safetensors hold the core's weights; without it they are drawn, as those of
    encoders, heads and adapters always are. Equal for equal seeds on every layout of one kind of device.
    Raises TrainerError when the files do not fit the model.
    """
    allocate(model, device)
    devices = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        _draw(model, seed, core=base is None)
    if base is not None:
        _read(model, base)
    return model


def allocate(model: LanguageActionModel, device: str | torch.device) -> LanguageActionModel:
    """Uninitialised parameters on `device`, to be filled by the caller; buffers keep their values."""
    tied = _is_tied(model)
    # Emptied with the rest, and no checkpoint holds them: rotary frequencies would be noise, without a word.
    buffers = dict(model.named_buffers())
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    if tied:
        model.core.lm_head.weight = model.core.get_input_embeddings().weight
    return model


def _is_tied(model: LanguageActionModel) -> bool:
    return model.core.lm_head.weight is model.core.get_input_embeddings().weight


def _draw(model: LanguageActionModel, seed: int, *, core: bool) -> None:
    done: set[int] = set()
    for name, module in model.named_modules():
        plain = name.replace("_checkpoint_wrapped_module.", "").removesuffix(".base_layer")
        wanted = [own for own in module.parameters(recurse=False) if id(own) not in done]
        if not wanted or not (core or _is_ours(plain)):
            continue
        torch.manual_seed(zlib.crc32(f"{seed} {plain}".encode()))
        for own, drawn in zip(wanted, _drawn(model, module, plain), strict=True):
            _fill(own, drawn)
            done.add(id(own))


def _is_ours(name: str) -> bool:
    """Whether a module is no part of the base model."""
    return not name.startswith("core.") or ".lora_" in name


def _drawn(model: LanguageActionModel, module: nn.Module, name: str) -> list[Tensor]:
    """Whole new weights of one module: the one tensor at a time that is not sharded."""
    twin = copy.copy(module)
    twin._parameters = {
        key: None
        if own is None
        else nn.Parameter(torch.empty(own.shape, dtype=own.dtype, device=local_of(own).device))
        for key, own in module._parameters.items()
    }
    if ".lora_B." in name:  # an adapter begins as no change
        nn.init.zeros_(twin.weight)
    elif _is_ours(name):
        twin.reset_parameters()
    else:
        model.core._init_weights(twin)
    return list(twin.parameters(recurse=False))


def _fill(parameter: nn.Parameter, value: Tensor) -> None:
    """This rank's part of `value`, which every rank holds: nothing is sent."""
    if isinstance(parameter, DTensor):
        value = distribute_tensor(
            value, parameter.device_mesh, parameter.placements, src_data_rank=None
        ).to_local()
    local_of(parameter).copy_(value)


def _read(model: LanguageActionModel, base: Path) -> None:
    """Each rank reads its own slices. Names as transformers writes them; a tied head is not in the files."""
    tied = _is_tied(model)
    state = {
        name.removeprefix("core.").replace(".base_layer.", "."): tensor
        for name, tensor in get_model_state_dict(model).items()
        if not _is_ours(name) and not (tied and name == "core.lm_head.weight")
    }
    try:
        with warnings.catch_warnings():  # of every rank's reading by itself, which is meant
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            dcp.load(state, storage_reader=HuggingFaceStorageReader(str(base), READ_THREADS), no_dist=True)
    except (Exception, CheckpointException) as failure:
        allowed = "a directory of safetensors with the model's weights"
        raise TrainerError("model.base", base, allowed, cause(failure)) from failure
