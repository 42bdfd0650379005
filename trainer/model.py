"""The language-action model: Qwen3-VL reads camera, lidar, radar, text; heads write text, actions, boxes."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from accelerate import init_empty_weights
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator
from torch import Tensor, nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from trainer.architectures import ARCHITECTURES, qwen3_vl
from trainer.encoders import EncoderConfig, PillarEncoder, lidar_default, radar_default
from trainer.errors import TrainerError
from trainer.heads import ActionConfig, ActionHead, BoxConfig, BoxHead, decode_boxes
from trainer.losses import (
    NO_LABEL,
    LossWeights,
    action_loss,
    box_loss,
    combine,
    counts_of,
    next_token_labels,
    text_loss,
)
from trainer.weights import materialize

if TYPE_CHECKING:
    from trainer.samples import Batch

# What a `freeze` entry may name besides a pattern over parameter names.
PARTS = {
    "vision": "core.model.visual.*",
    "text": "core.model.language_model.*",
    "lm_head": "core.lm_head.*",
    "encoders": "encoders.*",
    "heads": "heads.*",
}


class LoraConfig(BaseModel):
    """Low-rank adapters on the text model's projections; everything else of the core is frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: PositiveInt = 16
    alpha: PositiveInt = 32
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class ModelConfig(BaseModel):
    """`base` is a named size (random weights) or a directory that `save_pretrained` wrote."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: str = "tiny"
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    lidar: EncoderConfig = Field(default_factory=lidar_default)
    radar: EncoderConfig = Field(default_factory=radar_default)
    action: ActionConfig = ActionConfig()
    boxes: BoxConfig = BoxConfig()
    loss_weights: LossWeights = LossWeights()
    freeze: tuple[str, ...] = ()
    lora: LoraConfig | None = None

    @field_validator("base")
    @classmethod
    def _known(cls, base: str) -> str:
        if base not in ARCHITECTURES and "/" not in base:
            raise ValueError(
                f"{base!r} is no size of {sorted(ARCHITECTURES)} and no directory (write ./{base})"
            )
        return base

    @property
    def directory(self) -> Path | None:
        """Where `base` has weights; None for a named size, whose weights are drawn."""
        return None if self.base in ARCHITECTURES else Path(self.base)


class Vocabulary(Protocol):
    """What the model must know of the tokenizer: how many ids, and which ones stand for what is not text."""

    vocab_size: int
    image_id: int
    lidar_id: int
    radar_id: int
    action_id: int


@dataclass(frozen=True)
class Output:
    """Results of one packed batch of B samples.

    loss: weighted sum of this batch's own means; a trainer combines `losses` by global counts instead.
    losses, counts: sum over the batch and number of things summed, by task.
    trajectory [B, steps, 3]: x, y (m), heading (rad). boxes [B, Q, 9]: x, y, z, l, w, h, yaw, class, score.
    logits [L, V]: at the L places that have a label, or [1, T, V] when all were asked for.
    """

    loss: Tensor
    losses: dict[str, Tensor]
    counts: dict[str, Tensor]
    trajectory: Tensor
    boxes: Tensor
    logits: Tensor


class LanguageActionModel(nn.Module):
    """`core` is transformers' model untouched, so that its weights load from and save to the usual files."""

    def __init__(
        self, config: ModelConfig, core: Qwen3VLForConditionalGeneration, vocabulary: Vocabulary
    ) -> None:
        super().__init__()
        width = core.config.text_config.hidden_size
        self.config = config
        self.image_id, self.action_id = vocabulary.image_id, vocabulary.action_id
        self.sensor_ids = {"lidar": vocabulary.lidar_id, "radar": vocabulary.radar_id}
        self.core = core
        self.encoders = nn.ModuleDict(
            {"lidar": PillarEncoder(config.lidar, width), "radar": PillarEncoder(config.radar, width)}
        )
        self.heads = nn.ModuleDict(
            {"action": ActionHead(config.action, width), "boxes": BoxHead(config.boxes, width)}
        )

    def forward(self, batch: Batch, *, all_logits: bool = False) -> Output:
        """Packed samples never see each other; every parameter takes part, whatever the batch holds."""
        ids, segment = batch.input_ids, batch.segment
        embeds, deepstack, is_image = self.embed(batch)
        hidden = self.core.model.language_model(
            inputs_embeds=embeds,
            position_ids=batch.position_ids,
            visual_pos_masks=None if deepstack is None else is_image,
            deepstack_visual_embeds=deepstack,
            # With a cache transformers skips the packing mask, without a word, and samples see each other.
            use_cache=False,
        ).last_hidden_state

        labels = next_token_labels(batch.labels, segment)
        labelled = labels != NO_LABEL
        logits = self.core.lm_head(hidden if all_logits else hidden[labelled])
        owner = segment[0] == torch.arange(batch.sizes, device=segment.device)[:, None]  # [B, T]
        trajectory = self.heads["action"](self._action_state(hidden[0], ids[0], owner), batch.history)
        scores, coded = self.heads["boxes"](hidden[0], owner)
        extent = self.config.boxes.extent
        losses = {
            "text": text_loss(logits[labelled] if all_logits else logits, labels[labelled]),
            "action": action_loss(trajectory, batch.trajectory, batch.trajectory_mask),
            "boxes": box_loss(scores, coded, batch.boxes, batch.boxes_mask, extent),
        }
        counts = counts_of(batch)
        return Output(
            loss=combine(losses, counts, self.config.loss_weights),
            losses=losses,
            counts=counts,
            trajectory=trajectory,
            boxes=decode_boxes(scores.detach(), coded.detach(), extent),
            logits=logits,
        )

    def embed(self, batch: Batch) -> tuple[Tensor, list[Tensor] | None, Tensor]:
        """What the text model reads: tokens [1, T, D] with images, lidar and radar in, the images' features
        for its first layers (None without images), and where they go [1, T].
        """
        embeds = self.core.get_input_embeddings()(batch.input_ids)
        is_image, deepstack = batch.input_ids == self.image_id, None
        if not len(batch.image_grid_thw):
            embeds = embeds + self._blank_vision(batch).to(embeds.dtype)
        else:
            features, deepstack = self.core.model.get_image_features(batch.pixel_values, batch.image_grid_thw)
            features = torch.cat(features)
            if int(is_image.sum()) != len(features):
                raise TrainerError(
                    "batch",
                    f"{int(is_image.sum())} image tokens for {len(features)} image features",
                    "as many tokens as patches / spatial_merge_size²",
                    "build the batch with a processor made for this model's vision configuration",
                )
            embeds = embeds.masked_scatter(is_image[..., None], features.to(embeds.dtype))
        for name, sensor in self.encoders.items():
            tokens = sensor(getattr(batch, name), getattr(batch, f"{name}_mask"))
            embeds = self._place(embeds, tokens, batch.input_ids == self.sensor_ids[name], batch.segment)
        return embeds, deepstack, is_image

    def _blank_vision(self, batch: Batch) -> Tensor:
        """Zero, through every parameter of the vision tower: ranks with and without pictures meet in the same
        collectives, or a sharded run hangs.
        """
        vision = self.core.config.vision_config
        side = vision.spatial_merge_size
        patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        pixels = batch.pixel_values.new_zeros(side * side, patch)
        grid = torch.tensor([[1, side, side]], device=pixels.device)
        features, deepstack = self.core.model.get_image_features(pixels, grid)
        return sum(part.sum() for part in (*features, *deepstack)) * 0.0

    @staticmethod
    def _place(embeds: Tensor, tokens: Tensor, here: Tensor, segment: Tensor) -> Tensor:
        """Sensor tokens [B, n, D] at places `here` [1, T]: a sample's k-th place takes its k-th token."""
        before = here.long().cumsum(1) - 1  # number of such places up to this one, whole stream
        sample = segment.clamp_min(0)
        per_sample = torch.zeros(tokens.shape[0], dtype=torch.long, device=here.device)
        per_sample = per_sample.scatter_add(0, sample[0], here[0].long())
        slot = before - (per_sample.cumsum(0) - per_sample)[sample]
        # A sample with more placeholders than tokens indexes out of range, which raises.
        chosen = tokens.to(embeds.dtype)[sample, torch.where(here, slot, 0)]
        return torch.where(here[..., None], chosen, embeds)

    def _action_state(self, hidden: Tensor, ids: Tensor, owner: Tensor) -> Tensor:
        """Hidden state [B, D] at each sample's last action token, or at its last token when it has none."""
        place = torch.arange(len(ids), device=ids.device).expand_as(owner)
        last = torch.where(owner, place, -1).amax(1)
        action = torch.where(owner & (ids == self.action_id), place, -1).amax(1)
        return hidden[torch.where(action >= 0, action, last)]


def core_config(config: ModelConfig, vocabulary: Vocabulary) -> Qwen3VLConfig:
    """Qwen3-VL's configuration for `config.base`; a directory keeps its own, if its vocabulary has room."""
    path = config.directory
    if path is None:
        core = qwen3_vl(config.base, vocab_size=vocabulary.vocab_size)
    else:
        if not (path / "config.json").is_file():
            raise TrainerError(
                "model.base",
                config.base,
                "a directory with config.json",
                "download the base model there first",
            )
        core = Qwen3VLConfig.from_pretrained(path, local_files_only=True)
        if core.text_config.vocab_size < vocabulary.vocab_size:
            raise TrainerError(
                "model.base",
                f"{core.text_config.vocab_size} embeddings for {vocabulary.vocab_size} tokens",
                "at least as many embeddings as tokens",
                "use the base model's own tokenizer",
            )
    core.image_token_id = vocabulary.image_id
    for part in (core, core.text_config, core.vision_config):
        part._attn_implementation = config.attention
        part.dtype = torch.float32  # a published configuration says bfloat16, which the parts would take up
    core.text_config.use_cache = False
    return core


def build_model(
    config: ModelConfig, vocabulary: Vocabulary, *, seed: int = 0, device: str | torch.device = "cpu"
) -> LanguageActionModel:
    """The model in float32, equal on every rank for equal seeds, frozen as configured.

    `device="meta"` allocates no parameters: shard the model, then call `weights.materialize`.
    """
    with init_empty_weights(include_buffers=False):
        core = Qwen3VLForConditionalGeneration(core_config(config, vocabulary))
        if config.lora is not None:
            _add_lora(core, config.lora)
        model = LanguageActionModel(config, core, vocabulary)
    core.tie_weights()  # the context above gave a tied head a parameter of its own
    freeze(model, config.freeze)
    if str(device) == "meta":
        return model
    return materialize(model, seed=seed, device=device, base=config.directory)


def _add_lora(core: nn.Module, config: LoraConfig) -> None:
    import peft  # noqa: PLC0415  (optional, slow to import)

    names = "|".join(config.targets)
    peft.inject_adapter_in_model(
        peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            target_modules=rf".*language_model\.layers\.\d+\.(self_attn|mlp)\.({names})",
        ),
        core,
    )


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Stops gradients of the parameters that a part's name or a pattern over parameter names covers."""
    for given in patterns:
        pattern = PARTS.get(given, given)
        covered = [parameter for name, parameter in model.named_parameters() if fnmatchcase(name, pattern)]
        if not covered:
            raise TrainerError(
                "model.freeze",
                given,
                f"one of {sorted(PARTS)} or a pattern over parameter names",
                "see the names with `model.named_parameters()`",
            )
        for parameter in covered:
            parameter.requires_grad_(False)
