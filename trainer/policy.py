"""The model as a policy that writes its drive: what trl samples from and improves, all sensors in place.

trl knows texts and pictures, no lidar and no radar. So a prompt begins with the number of a scene, an id of
`vocab_size` + number that is no word. The policy takes it off, fetches the scene's sensors, and reads exactly
the stream that supervised training packs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn
from transformers import Cache, GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase, Qwen3VLConfig
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from trainer.collate import Processor, collate
from trainer.model import LanguageActionModel
from trainer.rewards import RewardConfig
from trainer.samples import Sample
from trainer.source import Source

_KEPT = 512  # scenes in memory


class RLConfig(BaseModel):
    """Reinforcement learning of a recipe whose data was written with `--stage rl`.

    `group` completions are drawn of each scene and compared with each other; a step takes `global_batch`
    completions. `grpo` averages over completions, `dapo` over tokens, lets ratios rise farther than fall and
    leaves cut completions out. `beta` weighs the divergence from the first weights. `epsilon_high` None: that
    of the algorithm (grpo: `epsilon`; dapo: 0.28). `decoding` of answers that are rated before and after: the
    likeliest tokens, or drawn at `temperature` as in training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: Literal["grpo", "dapo"] = "grpo"
    group: int = Field(8, ge=2)
    beta: NonNegativeFloat = 0.0
    epsilon: PositiveFloat = 0.2
    epsilon_high: PositiveFloat | None = None
    max_tokens: PositiveInt = 96
    temperature: PositiveFloat = 1.0
    decoding: Literal["greedy", "sampled"] = "greedy"
    reward: RewardConfig = RewardConfig()


class Scenes:
    """Samples by their position in the order of a source, and the ids that ask for a drive through them."""

    def __init__(self, source: Source, processor: Processor) -> None:
        self.source, self.processor = source, processor
        self._kept: OrderedDict[int, Sample] = OrderedDict()

    def samples(self, numbers: Sequence[int]) -> list[Sample]:
        """One sample a number; the newest few hundred stay in memory."""
        wanted = [number for number in dict.fromkeys(numbers) if number not in self._kept]
        if wanted:
            self._kept.update(zip(wanted, self.source.fetch(np.array(wanted)), strict=True))
        chosen = [self._kept[number] for number in numbers]
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return chosen

    def prompt(self, number: int) -> list[int]:
        """The scene's number, then the stream up to the answer."""
        ids, _ = self.processor.tokens(self.samples([number])[0], answers=False)
        return [self.processor.vocab_size + number, *ids[:-1]]  # the last is the action head's place


class SceneTokenizer(PreTrainedTokenizerBase):
    """What trl asks of a tokenizer: `["17"]` to the ids of scene 17, and ids to text."""

    def __init__(self, scenes: Scenes) -> None:
        super().__init__(pad_token="<pad>", eos_token="<eos>")  # noqa: S106
        self.scenes = scenes

    def convert_tokens_to_ids(self, tokens: str) -> int:
        """Ids of the two special tokens."""
        known = {"<pad>": self.scenes.processor.pad_id, "<eos>": self.scenes.processor.eos_id}
        return known[tokens]

    def __len__(self) -> int:
        return self.scenes.processor.vocab_size

    def __call__(self, text: Sequence[str], **_: object) -> dict[str, list[list[int]]]:  # type: ignore[override]
        """Prompts' ids, as `Scenes.prompt` gives them."""
        return {"input_ids": [self.scenes.prompt(int(one)) for one in text]}

    def batch_decode(self, sequences: Sequence[Sequence[int]], **_: object) -> list[str]:  # type: ignore[override]
        """Texts without special tokens."""
        return [self.scenes.processor.tokenizer.decode([int(one) for one in ids]) for ids in sequences]


class Sight(nn.Module):
    """The text model behind the sensors: rows of ids [B, T], padded, to hidden states [B, T, D].

    The first attended id of a row is its scene's number and is hidden from the model.
    """

    def __init__(self, actor: LanguageActionModel, scenes: Scenes) -> None:
        super().__init__()
        self.actor, self.scenes = actor, scenes
        self._shift: Tensor | None = None  # [B, 1] of a row's next position over its column, as in Qwen3-VL

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        past_key_values: Cache | None = None,
        cache_position: Tensor | None = None,
        use_cache: bool | None = None,
        **_: object,
    ) -> BaseModelOutputWithPast:
        """With a filled cache `input_ids` are the newest alone, `attention_mask` covers all."""
        seen = attention_mask * (attention_mask.cumsum(1) > 1)
        text: Any = self.actor.core.model.language_model
        if past_key_values is not None and past_key_values.get_seq_length():
            positions = (cache_position + self._shift).expand(3, -1, -1)
            inputs = {"inputs_embeds": self.actor.core.get_input_embeddings()(input_ids)}
        else:
            inputs, positions = self._see(input_ids, attention_mask, seen.bool())
            self._shift = positions[0, :, -1:] - (input_ids.shape[1] - 1)
        return text(
            **inputs,
            position_ids=positions,
            attention_mask=seen,
            past_key_values=past_key_values,
            cache_position=cache_position,
            use_cache=use_cache,
        )

    def _see(self, ids: Tensor, attended: Tensor, seen: Tensor) -> tuple[dict[str, Any], Tensor]:
        """Embeddings of whole rows with their sensors, and their positions [3, B, T]."""
        processor = self.scenes.processor
        numbers = ids.gather(1, attended.argmax(1, keepdim=True)) - processor.vocab_size
        samples = self.scenes.samples(numbers[:, 0].tolist())
        ids = ids.where(seen, processor.pad_id)
        owner = torch.arange(len(ids), device=ids.device)[:, None].where(seen, -1)
        batch = collate(samples, processor, answers=False).to(ids.device)
        batch = replace(batch, input_ids=ids.reshape(1, -1), segment=owner.reshape(1, -1))
        embeds, deepstack, is_image = self.actor.embed(batch)
        positions = torch.zeros(3, *ids.shape, dtype=torch.long)
        for row, sample in enumerate(samples):
            own = seen[row].cpu()
            grids = [processor.grid(*sample.images.shape[1:3])] * len(sample.images)
            counted = processor.positions(ids[row].cpu()[own].numpy(), grids)[1:]
            positions[:, row, own] = torch.from_numpy(counted)
        inputs = {
            "inputs_embeds": embeds.unflatten(1, ids.shape)[0],
            "visual_pos_masks": None if deepstack is None else is_image.reshape(ids.shape),
            "deepstack_visual_embeds": deepstack,
        }
        return inputs, positions.to(ids.device)


class Policy(PreTrainedModel, GenerationMixin):
    """`LanguageActionModel` with the face of a causal language model; shares its weights."""

    config_class = Qwen3VLConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True

    def __init__(self, actor: LanguageActionModel, scenes: Scenes) -> None:
        super().__init__(actor.core.config)
        self.model = Sight(actor, scenes)
        self.generation_config.use_cache = True  # the core's configuration says no, for packed training
        words = scenes.processor.tokenizer
        # Tokens that stand for what is not text: one more of them would ask for a picture that is not there.
        media = {words.image_id, words.vision_start_id, words.vision_end_id, words.lidar_id, words.radar_id}
        self.silent = sorted({*media, words.action_id, words.box_id, words.pad_id} - {words.eos_id})

    def get_input_embeddings(self) -> nn.Module:
        """Of the text model."""
        return self.model.actor.core.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        """The text head."""
        return self.model.actor.core.lm_head

    def forward(self, input_ids: Tensor, logits_to_keep: int = 0, **inputs: Any) -> CausalLMOutputWithPast:  # noqa: ANN401
        """Logits of the last `logits_to_keep` ids of each row, 0: of all."""
        out = self.model(input_ids, **inputs)
        hidden = out.last_hidden_state[:, -logits_to_keep:]
        return CausalLMOutputWithPast(
            logits=self.get_output_embeddings()(hidden), past_key_values=out.past_key_values
        )

    @torch.no_grad()
    def answers(
        self, numbers: Sequence[int], *, max_tokens: int, temperature: float | None = None
    ) -> list[str]:
        """What the policy writes for scenes of `model.scenes`; its likeliest tokens without a temperature."""
        drawn = {} if temperature is None else {"temperature": temperature, "top_k": 0, "top_p": 1.0}
        scenes, device = self.model.scenes, self.get_output_embeddings().weight.device
        processor = scenes.processor
        prompts = [torch.tensor(scenes.prompt(number)) for number in numbers]
        rows, widest = len(prompts), max(map(len, prompts))
        ids = torch.full((rows, widest), processor.pad_id)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, widest - len(prompt) :], mask[row, widest - len(prompt) :] = prompt, 1
        out = self.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=max_tokens,
            do_sample=temperature is not None,
            **drawn,
            use_cache=True,
            suppress_tokens=self.silent,
            eos_token_id=processor.eos_id,
            pad_token_id=processor.pad_id,
        )
        answers = []
        for row in out[:, widest:].tolist():
            end = row.index(processor.eos_id) if processor.eos_id in row else len(row)
            answers.append(processor.tokenizer.decode(row[:end]))
        return answers
