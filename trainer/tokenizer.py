"""Text to ids: one id per byte (nothing to download), or a Hugging Face tokenizer directory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from trainer.errors import TrainerError

_SPECIAL = ("pad", "bos", "eos", "image", "vision_start", "vision_end", "lidar", "radar", "action", "box")


class Tokenizer(Protocol):
    """What the processor and the model need; `before`, `between`, `after` frame media+prompt and answer."""

    vocab_size: int
    pad_id: int
    eos_id: int
    image_id: int
    vision_start_id: int
    vision_end_id: int
    lidar_id: int
    radar_id: int
    action_id: int
    box_id: int
    before: list[int]
    between: list[int]
    after: list[int]

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, no special tokens added."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""


class ByteTokenizer:
    """UTF-8 bytes as ids 0-255, then special tokens; 320 ids, which tensor parallelism can divide."""

    vocab_size = 320

    def __init__(self) -> None:
        ids = {name: 256 + number for number, name in enumerate(_SPECIAL)}
        self.pad_id, self.bos_id, self.eos_id = ids["pad"], ids["bos"], ids["eos"]
        self.image_id = ids["image"]
        self.vision_start_id, self.vision_end_id = ids["vision_start"], ids["vision_end"]
        self.lidar_id, self.radar_id = ids["lidar"], ids["radar"]
        self.action_id, self.box_id = ids["action"], ids["box"]
        self.before, self.between, self.after = [self.bos_id], [ord("\n")], [self.eos_id]

    def encode(self, text: str) -> list[int]:
        """One id per byte."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Bytes that are no whole character become U+FFFD."""
        return bytes(one for one in ids if one < 256).decode(errors="replace")


class HuggingFaceTokenizer:
    """Qwen's tokenizer from a directory (`inner`); lidar, radar, action, box take ids in its spare room."""

    def __init__(self, directory: str) -> None:
        # Imported here: the byte tokenizer, and so every loader worker of it, starts without transformers.
        from transformers import AutoTokenizer  # noqa: PLC0415

        self.inner: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        added = [f"<|{name}|>" for name in ("lidar", "radar", "action", "box")]
        self.inner.add_special_tokens(
            {"additional_special_tokens": added}, replace_additional_special_tokens=False
        )
        self.lidar_id, self.radar_id, self.action_id, self.box_id = (self._id(token) for token in added)
        self.image_id = self._id("<|image_pad|>")
        self.vision_start_id = self._id("<|vision_start|>")
        self.vision_end_id = self._id("<|vision_end|>")
        self.eos_id = self._id("<|im_end|>")
        self.pad_id = self.inner.pad_token_id if self.inner.pad_token_id is not None else self.eos_id
        self.vocab_size = len(self.inner)
        self.before = self._all("<|im_start|>user\n")
        self.between = self._all("<|im_end|>\n<|im_start|>assistant\n")
        self.after = [self.eos_id]

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; text that spells a special token stays text."""
        return self.inner(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.inner.decode(ids, skip_special_tokens=True)

    def _all(self, text: str) -> list[int]:
        return self.inner(text, add_special_tokens=False)["input_ids"]

    def _id(self, token: str) -> int:
        number = self.inner.convert_tokens_to_ids(token)
        if number is None or number == self.inner.unk_token_id:
            fix = "use the tokenizer of a Qwen3-VL model"
            raise TrainerError("processor.tokenizer", f"no token {token}", "a tokenizer with it", fix)
        return number


def load_tokenizer(name: str) -> Tokenizer:
    """`bytes`, or a directory with a Hugging Face tokenizer."""
    if name == "bytes":
        return ByteTokenizer()
    if not Path(name).is_dir():
        raise TrainerError(
            "processor.tokenizer", name, "'bytes' or a directory", "save the tokenizer there first"
        )
    return HuggingFaceTokenizer(name)
