"""What a model on a mesh needs of a GPU's memory: counted where it can be counted, estimated where it cannot.

Parameters come from the model built on the meta device, so their number is exact. Gradients and AdamW's two
moments follow from it. Activations follow from the shapes of one packed row; kernels, buckets and
fragmentation are a margin on top, so read the sum as "fits" or "does not fit", to a tenth or two.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from trainer.errors import TrainerError
from trainer.mesh import ParallelConfig, sizes
from trainer.model import LanguageActionModel, ModelConfig, Vocabulary, build_model

if TYPE_CHECKING:
    from trainer.config import Recipe

GIB = 1024**3
# Of all tokens, those with a label: answers are short beside pictures and prompts.
LABELLED = 1 / 8
# Of a GPU's memory, what a job can count on: the rest goes to the CUDA context, NCCL and fragmentation.
USABLE = 0.88


class Hardware(BaseModel):
    """What a recipe was made for: `nodes` of `instance`, each with `accelerators` of `memory_gib` GiB.

    A text instead of a mapping is for people, and nothing is checked against it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    note: str = ""
    instance: str = ""  # as HyperPod names it: ml.p5.48xlarge
    nodes: PositiveInt = 1
    accelerators: NonNegativeInt = 0  # NVIDIA GPUs of one node; 0: none are needed
    memory_gib: NonNegativeFloat = 0  # of one GPU

    @model_validator(mode="before")
    @classmethod
    def _note(cls, given: object) -> object:
        return {"note": given} if isinstance(given, str) else given

    def check_device(self, device: torch.device) -> None:
        """Raises where GPUs are needed and the CPU is all there is: it would train for years, silently."""
        if self.accelerators and device.type != "cuda":
            raise TrainerError(
                "hardware",
                f"{self.instance or 'GPUs'}, and no CUDA device here",
                "a node with NVIDIA GPUs and their driver",
                "start it there; --set hardware.accelerators=0 trains on this CPU",
            )


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU, and the number of parameters of the whole model."""

    parameters: int
    trainable: int
    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int

    @property
    def total(self) -> int:
        """All of it at the worst moment of a step, bytes."""
        return self.weights + self.gradients + self.optimizer + self.gathered + self.activations

    def fits(self, gib: float) -> bool:
        """Whether it goes into `gib` GiB with room for the driver and fragmentation."""
        return self.total <= gib * GIB * USABLE

    def __str__(self) -> str:
        parts = {
            name: value for name, value in asdict(self).items() if name not in ("parameters", "trainable")
        }
        told = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items())
        return f"{self.parameters / 1e9:.2f}B parameters, {self.total / GIB:.2f} GiB per GPU ({told})"


@dataclass(frozen=True)
class _Unit:
    """Parameters that are gathered together, by whether the tensor dimension cuts them."""

    cut: int = 0
    whole: int = 0

    def on_rank(self, tensor: int) -> int:
        return self.cut // tensor + self.whole


def meta_model(config: ModelConfig, vocabulary: Vocabulary) -> LanguageActionModel:
    """The model with shapes and no storage."""
    return build_model(config, vocabulary, device="meta")


def estimate(
    model: LanguageActionModel,
    parallel: ParallelConfig,
    world: int,
    *,
    tokens: int,
    patches: int,
    labelled: int | None = None,
) -> Memory:
    """Memory of one of `world` ranks for micro-steps of `tokens` packed tokens and `patches` image patches.

    `labelled`: tokens with a label (logits are computed for those only); all of them if not given.
    """
    replicate, shard, tensor = sizes(parallel, world)
    units = [_unit(block, cut=True) for block in model.core.model.language_model.layers]
    units += [_unit(block, cut=False) for block in model.core.model.visual.blocks]
    everything = _unit(model, cut=False).whole
    ends = {model.core.get_input_embeddings().weight, model.core.lm_head.weight}
    rest = _Unit(cut=sum(weight.numel() for weight in ends))
    known = sum(unit.cut + unit.whole for unit in units) + rest.cut
    rest = _Unit(rest.cut, everything - known)
    units.append(rest)
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    kept = sum(unit.on_rank(tensor) for unit in units) / shard
    learned = kept * trainable / everything
    width = 2 if parallel.param_dtype == "bfloat16" else 4
    # The rest stays gathered through the step, one block is being used and the next one arrives.
    gathered = (rest.on_rank(tensor) + 2 * max(unit.on_rank(tensor) for unit in units[:-1])) * width
    if shard * replicate == 1 and width == 4:
        gathered = 0
    # Reduced gradients live in float32 beside the block's own, not yet reduced.
    gradients = int(4 * learned) + 2 * 4 * max(unit.on_rank(tensor) for unit in units[:-1])
    return Memory(
        parameters=everything,
        trainable=trainable,
        weights=int(4 * kept),
        gradients=gradients,
        optimizer=int(8 * learned),
        gathered=gathered,
        activations=_activations(
            model,
            parallel,
            tensor=tensor,
            tokens=tokens,
            patches=patches,
            labelled=tokens if labelled is None else labelled,
        ),
    )


def _unit(module: torch.nn.Module, *, cut: bool) -> _Unit:
    total = sum(parameter.numel() for parameter in module.parameters())
    if not cut:
        return _Unit(whole=total)
    matrices = sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 1)
    return _Unit(cut=matrices, whole=total - matrices)


def _activations(
    model: LanguageActionModel,
    parallel: ParallelConfig,
    *,
    tensor: int,
    tokens: int,
    patches: int,
    labelled: int,
) -> int:
    """Saved for backward, all blocks, plus the widest moment: one block recomputed, or the logits in float32.

    Elements per token of a text block: inputs of norms and matrices, q, k, v, attention's output, the widths
    of the MLP; the packing mask is one byte per pair of tokens, shared by all blocks.
    """
    text, vision = model.core.config.text_config, model.core.config.vision_config
    width = 2 if parallel.param_dtype == "bfloat16" else 4
    heads = text.head_dim * (2 * text.num_attention_heads + 2 * text.num_key_value_heads) / tensor
    # Norms work in float32 and save it: two of them, counted as elements of the working type.
    block = (
        4 * text.hidden_size
        + 2 * text.hidden_size * 4 / width
        + 2 * heads
        + 4 * text.intermediate_size / tensor
    )
    picture = 8 * vision.hidden_size + 6 * vision.hidden_size + 2 * vision.intermediate_size
    whole = text.num_hidden_layers * block * tokens + vision.depth * picture * patches
    ends = text.num_hidden_layers * text.hidden_size * tokens + vision.depth * vision.hidden_size * patches
    once = max(block * tokens, picture * patches)
    if parallel.activation_checkpointing == "full":
        saved = ends + once
    elif parallel.activation_checkpointing == "selective":
        saved = ends + 0.5 * whole + once
    else:
        saved = whole
    logits = 3 * 4 * labelled * text.vocab_size  # float32 copy, softmax, gradient; lm_head gives whole rows
    mask = tokens * tokens if model.config.attention != "flash_attention_2" else 0
    return int(saved * width + logits + mask * (1 + width))


def planned(recipe: Recipe, vocabulary: Vocabulary, world: int) -> Memory:
    """Memory of one of `world` ranks at the largest micro-step that the recipe's processor lets through.

    That is `micro_batch` samples of `max_tokens`, every one of them a picture's.
    """
    processor = recipe.data.processor
    tokens = recipe.micro_batch * processor.max_tokens
    return estimate(
        meta_model(recipe.model, vocabulary),
        recipe.parallel,
        world,
        tokens=tokens,
        patches=tokens * processor.merge_size**2,
        labelled=int(tokens * LABELLED),
    )


def check_fits(memory: Memory, hardware: Hardware) -> None:
    """Raises when the estimate exceeds what a GPU of `hardware` has."""
    if not memory.fits(hardware.memory_gib):
        raise TrainerError(
            "recipe",
            f"{memory.total / GIB:.0f} GiB per GPU",
            f"{hardware.memory_gib * USABLE:.0f} GiB on {hardware.instance}",
            f"raise parallel.shard (a node has {hardware.accelerators}), checkpoint activations, "
            "lower micro_batch",
        )
