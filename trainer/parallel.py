"""Lays a model over the mesh in the order that works: tensor, compile inside checkpointing, shard."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from trainer.errors import TrainerError
from trainer.mesh import Mesh, ParallelConfig, local_of
from trainer.model import LanguageActionModel

aten = torch.ops.aten
BACKEND = "inductor"
# Cheap to keep, dear to compute again.
_KEEP = {
    aten.mm.default,
    aten.addmm.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_cudnn_attention.default,
}


def parallelize(model: LanguageActionModel, config: ParallelConfig, mesh: Mesh) -> LanguageActionModel:
    """The same model object, its parameters laid over the mesh.

    Gradients after backward are means over data ranks: `losses.combine` multiplies by `mesh.data_size`.
    """
    if mesh.tensor > 1:
        _slice(model, mesh)
    if config.compile:
        for block in _blocks(model, vision=False):
            _compile(block)
        _own_embedding_output(model)
    if config.activation_checkpointing != "none":
        _checkpoint(model, selective=config.activation_checkpointing == "selective")
    if mesh.device_mesh is not None:
        _shard(model, config, mesh)
    return model


def _blocks(model: LanguageActionModel, *, vision: bool = True) -> list[nn.Module]:
    text = list(model.core.model.language_model.layers)
    return text + (list(model.core.model.visual.blocks) if vision else [])


# ---------------------------------------------------------------------------------------------------- tensor


def _slice(model: LanguageActionModel, mesh: Mesh) -> None:
    """Cuts the text model's matrices over the tensor dimension; activations between blocks stay whole.

    The vision tower, encoders and heads are small beside it and are computed alike by all tensor peers.
    """
    text = model.core.config.text_config
    for name in ("num_attention_heads", "num_key_value_heads"):
        if getattr(text, name) % mesh.tensor:
            raise TrainerError(
                "parallel.tensor",
                f"{mesh.tensor} for {getattr(text, name)} {name}",
                f"a divisor of {getattr(text, name)}",
                "lower parallel.tensor",
            )
    if model.config.lora is not None:
        raise TrainerError("parallel.tensor", f"{mesh.tensor} with LoRA", "1", "shard instead (mode fsdp)")
    tensor = mesh.device_mesh["tensor"]
    for block in model.core.model.language_model.layers:
        parallelize_module(block, tensor, block_plan())
    language, core = model.core.model.language_model, model.core
    tied = core.lm_head.weight is language.embed_tokens.weight
    whole = {"input_layouts": Replicate(), "output_layouts": Replicate()}
    parallelize_module(language, tensor, {"embed_tokens": RowwiseParallel(**whole)})
    parallelize_module(core, tensor, {"lm_head": ColwiseParallel(**whole)})
    if tied:  # both were cut along the vocabulary, so one tensor still serves both
        core.lm_head.weight = language.embed_tokens.weight


def block_plan() -> dict[str, ParallelStyle]:
    """One text block: columns in, rows out; heads are spread, so the norms over a head see only some of them.

    Without the two norms' entries their gradients stay each rank's own part, unsummed, and nothing warns.
    """
    over_heads = SequenceParallel(sequence_dim=2, use_local_output=True)
    return {
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.q_norm": over_heads,
        "self_attn.k_norm": over_heads,
        "self_attn.o_proj": RowwiseParallel(),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }


# ------------------------------------------------------------------------------------- compile, checkpointing


def _compile(block: nn.Module) -> None:
    """Compiles the block's forward alone: the sharding's hooks stay outside, parameters keep their names."""
    block.forward = torch.compile(block.forward, fullgraph=True, backend=BACKEND)


def _own_embedding_output(model: LanguageActionModel) -> None:
    """A compiled block after a sliced embedding drops the embedding's gradient to zero without a word, unless
    what the block reads is a tensor of its own.
    """
    model.core.get_input_embeddings().register_forward_hook(lambda _module, _inputs, output: output.clone())


def _keep_matmuls(_context: object, op: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _KEEP else CheckpointPolicy.PREFER_RECOMPUTE


def _checkpoint(model: LanguageActionModel, *, selective: bool) -> None:
    """Forgets a block's activations and computes them again in backward. Wraps the compiled block, not the
    reverse, which torch 2.13 refuses under tensor parallelism.
    """
    options = (
        {"context_fn": partial(create_selective_checkpoint_contexts, _keep_matmuls)} if selective else {}
    )
    for blocks in (model.core.model.language_model.layers, model.core.model.visual.blocks):
        for index, block in enumerate(blocks):
            blocks[index] = checkpoint_wrapper(block, preserve_rng_state=False, **options)


# ------------------------------------------------------------------------------------------- shard, replicate


def _shard(model: LanguageActionModel, config: ParallelConfig, mesh: Mesh) -> None:
    """One unit per block, one for the vision tower, the encoders, the heads, and the rest.

    All modes are this one: with shard 1 a parameter is whole on every rank, which is DDP, and checkpoints,
    clipping and accumulation need not know. Encoders and heads stay in float32: they hold metres.
    """
    data = (
        mesh.device_mesh["replicate", "shard"]
        if config.mode in ("ddp", "hsdp")
        else mesh.device_mesh["shard"]
    )
    reduce = getattr(torch, config.reduce_dtype)
    mixed = MixedPrecisionPolicy(
        param_dtype=getattr(torch, config.param_dtype), reduce_dtype=reduce, cast_forward_inputs=False
    )
    exact = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=reduce, cast_forward_inputs=False)
    for block in _blocks(model):
        fully_shard(block, mesh=data, mp_policy=mixed)
    fully_shard(model.core.model.visual, mesh=data, mp_policy=mixed)
    for part in (*model.encoders.values(), *model.heads.values()):
        fully_shard(part, mesh=data, mp_policy=exact)
    fully_shard(model, mesh=data, mp_policy=mixed)


def sync_gradients(model: nn.Module, *, last: bool) -> None:
    """Before a micro-step's forward: gradients are reduced over ranks on the `last` one only."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        model.set_is_last_backward(last)


# ------------------------------------------------------------------------------------------------- gradients


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Euclidean norm over the whole model: float32 scalar, equal on all ranks, whatever the layout."""
    groups: dict[tuple[DeviceMesh | None, tuple[int, ...]], list[Tensor]] = {}
    for parameter in parameters:
        if (gradient := parameter.grad) is None:
            continue
        mesh, cut, local = None, (), gradient
        if isinstance(gradient, DTensor):
            mesh, local = gradient.device_mesh, gradient.to_local()
            if any(placement.is_partial() for placement in gradient.placements):
                raise RuntimeError(
                    f"a gradient is not summed over {gradient.device_mesh}: {gradient.placements}"
                )
            cut = tuple(
                dim for dim, placement in enumerate(gradient.placements) if not placement.is_replicate()
            )
        groups.setdefault((mesh, cut), []).append(local)
    total = None
    for (mesh, cut), locals_ in groups.items():
        norms = torch._foreach_norm([local.float() for local in locals_])
        square = torch.stack(norms).square().sum()
        for dim in cut:
            dist.all_reduce(square, group=mesh.get_group(dim))
        total = square if total is None else total + square
    return torch.zeros(()) if total is None else total.sqrt()


def clip_grads_with_norm_(parameters: Iterable[nn.Parameter], max_norm: float, norm: Tensor) -> None:
    """Scales gradients, whose norm is `norm`, in place to a norm of at most `max_norm`."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            local = local_of(parameter.grad)
            local.mul_(factor.to(local.device))
