"""Sizes of the Qwen3-VL family by name: what `model.base` may be without a directory.

`8b` and `32b` are the published dense models (`config.json` of Qwen/Qwen3-VL-8B-Instruct and -32B-Instruct);
`400m` and `7b` are sizes between in the same shape; `tiny` runs on a laptop's CPU. A named size starts from
random weights.
"""

from __future__ import annotations

from transformers import Qwen3VLConfig

_VISION_TINY = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0],
}
_VISION_SMALL = {
    "depth": 12,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_heads": 8,
    "deepstack_visual_indexes": [3, 6, 9],
}
_VISION_FULL = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "deepstack_visual_indexes": [8, 16, 24],
}


def _text(
    hidden: int, layers: int, heads: int, kv: int, mlp: int, *, head_dim: int = 128, **more: object
) -> dict:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": mlp,
        "head_dim": head_dim,
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
        "rope_theta": 5000000,
        "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True},
        **more,
    }


# Half of head_dim is split over time, height and width: 16 / 2 = 4 + 2 + 2.
_ROPE_TINY = {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}

ARCHITECTURES: dict[str, dict] = {
    "tiny": {
        "text_config": _text(
            64, 4, 4, 2, 128, head_dim=16, rope_scaling=_ROPE_TINY, max_position_embeddings=8192
        ),
        "vision_config": {**_VISION_TINY, "out_hidden_size": 64},
        "tie_word_embeddings": False,
    },
    "400m": {
        "text_config": _text(1024, 12, 16, 8, 3072, tie_word_embeddings=True),
        "vision_config": {**_VISION_SMALL, "out_hidden_size": 1024},
        "tie_word_embeddings": True,
    },
    "7b": {
        "text_config": _text(4096, 28, 32, 8, 12288),
        "vision_config": {**_VISION_FULL, "out_hidden_size": 4096},
        "tie_word_embeddings": False,
    },
    "8b": {
        "text_config": _text(4096, 36, 32, 8, 12288),
        "vision_config": {**_VISION_FULL, "out_hidden_size": 4096},
        "tie_word_embeddings": False,
    },
    "32b": {
        "text_config": _text(5120, 64, 64, 8, 25600),
        "vision_config": {**_VISION_FULL, "out_hidden_size": 5120},
        "tie_word_embeddings": False,
    },
}


def qwen3_vl(name: str, *, vocab_size: int | None = None) -> Qwen3VLConfig:
    """The transformers configuration of a named size; `vocab_size` replaces Qwen's."""
    chosen = ARCHITECTURES[name]
    text = dict(chosen["text_config"])
    if vocab_size is not None:
        text["vocab_size"] = vocab_size
    return Qwen3VLConfig(
        text_config=text,
        vision_config=dict(chosen["vision_config"]),
        tie_word_embeddings=chosen["tie_word_embeddings"],
    )
