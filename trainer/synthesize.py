"""Write a driving-like multimodal data set with MosaicML's MDSWriter: what `python -m trainer.data
synthesize` runs.
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from trainer.controls import DT, MARK, write
from trainer.errors import TrainerError
from trainer.rewards import RewardConfig, Surroundings, rate
from trainer.samples import COLUMNS, REWARD_COLUMNS
from trainer.sensors import cameras, class_name, lidar, radar
from trainer.stores import DirectoryStore, open_store
from trainer.world import Scenes, simulate

_CHUNK = 256
# Rated with the default reward, of which 1.75 is the most: no collision, near the centreline, gently.
_WELL_DRIVEN = 1.65

Stage = Literal["sft", "cot", "rl"]


@dataclass(frozen=True)
class Scale:
    """Sizes of a sample; `side` in pixels, a multiple of the model's patch size times its merge size."""

    cameras: int = 2
    side: int = 64
    lidar: int = 128
    radar: int = 16
    history: int = 4
    future: int = 8


def generate(samples: int, seed: int, *, scale: Scale | None = None, stage: Stage = "sft") -> Iterator[dict]:
    """Samples as MDS columns; a longer set of the same seed begins with the same samples.

    `sft`: driving, questions about the picture, detection; driving has no answer in words, so that no action
    is trained on a text that tells it. `cot`: well-driven scenes alone, answered by a short chain of thought
    and the controls as text; without a trajectory, for the same reason. `rl`: the same question without an
    answer, and `REWARD_COLUMNS`.
    """
    scale = scale or Scale()
    given, first = 0, 0
    while given < samples:
        rng = np.random.default_rng([seed, first])
        scenes = simulate(_CHUNK, rng, past=scale.history, future=scale.future)
        pictures = cameras(scenes, scale.cameras, scale.side)
        clouds, echoes = lidar(scenes, scale.lidar, rng), radar(scenes, scale.radar, rng)
        tasks = rng.choice(["drive", "vqa", "detect"], _CHUNK, p=[0.6, 0.2, 0.2])
        questions = rng.integers(0, 3, _CHUNK)
        rows = np.arange(_CHUNK) if stage != "cot" else _well_driven(scenes)
        texts = (
            _texts(scenes, tasks, questions) if stage == "sft" else _thoughts(scenes, answers=stage == "cot")
        )
        for row in rows[: samples - given].tolist():
            task = str(tasks[row]) if stage == "sft" else "drive"
            prompt, answer = texts[row]
            boxes = scenes.actors[row][scenes.present[row]]
            trajectory = scenes.trajectory[row]
            # Questions about the picture carry no driving label, as in mixed fleets of data.
            labelled = task != "vqa" and stage != "cot"
            rating = {
                "lane": scenes.lane[row].astype(np.float32),
                "tracks": scenes.tracks[row][scenes.present[row]],
            }
            yield {
                "images": pictures[row],
                "lidar": clouds[row],
                "radar": echoes[row],
                "prompt": prompt,
                "answer": answer,
                "trajectory": trajectory if labelled else np.full_like(trajectory, np.nan),
                "history": scenes.history[row],
                "boxes": boxes if len(boxes) else np.array([[0, 0, 0, 0, 0, 0, 0, -1]], np.float32),
                "task": task,
                "id": f"{seed}-{first + row:09d}",
                **({name: _filled(rating[name]) for name in REWARD_COLUMNS} if stage == "rl" else {}),
            }
        given += min(len(rows), samples - given)
        first += _CHUNK


def synthesize(
    out: str,
    samples: int,
    seed: int,
    *,
    scale: Scale | None = None,
    stage: Stage = "sft",
    compression: str | None = None,
    shard_bytes: int = 16 * 2**20,
) -> str:
    """Write `samples` samples below the directory or s3:// address `out`; returns the address."""
    # Imported here: reading needs neither the writer nor the seconds its import takes.
    from streaming import MDSWriter  # noqa: PLC0415

    store = open_store(out)
    if store.exists("index.json"):
        raise TrainerError(
            "synthesize --out", f"{out} (holds a data set)", "an empty place", "choose another or delete it"
        )
    columns = {**COLUMNS, **(REWARD_COLUMNS if stage == "rl" else {})}
    local = isinstance(store, DirectoryStore)
    folder = store.root if local else Path(tempfile.mkdtemp(prefix="trainshed-synthesize-"))
    try:
        with MDSWriter(
            out=str(folder), columns=columns, hashes=["sha1", "xxh64"], compression=compression,
            size_limit=shard_bytes, exist_ok=True,
        ) as writer:  # fmt: skip
            for sample in generate(samples, seed, scale=scale, stage=stage):
                writer.write(sample)
        if not local:
            # The index last: who finds it finds all shards.
            for path in sorted(folder.iterdir(), key=lambda file: file.name == "index.json"):
                store.put(path, path.name)
    finally:
        if not local:
            shutil.rmtree(folder, ignore_errors=True)
    return out


def _texts(scenes: Scenes, tasks: np.ndarray, questions: np.ndarray) -> list[tuple[str, str]]:
    """Prompt and answer of each scene by its task."""
    out = []
    for row, (task, question) in enumerate(zip(tasks.tolist(), questions.tolist(), strict=True)):
        boxes = scenes.actors[row][scenes.present[row]]
        if task == "drive":
            out.append(("Drive on.", ""))
        elif task == "detect":
            near = boxes[np.argsort(np.hypot(boxes[:, 0], boxes[:, 1]), kind="stable")][:4]
            told = "; ".join(f"{class_name(b[7])} {b[0]:.0f} {b[1]:.0f}" for b in near)
            out.append(("List what is near.", told or "nothing"))
        elif question == 0:
            ahead = boxes[(boxes[:, 0] > 0) & (boxes[:, 7] < 2)]
            out.append(("How many vehicles are ahead?", str(len(ahead))))
        elif question == 1:
            out.append(("Which way does the road turn?", road_turn(scenes, row)))
        else:
            braking = scenes.braking[row] and scenes.present[row, 0]
            out.append(("Is the vehicle ahead braking?", "yes" if braking else "no"))
    return out


def _thoughts(scenes: Scenes, *, answers: bool) -> list[tuple[str, str]]:
    """The question with the ego's state, and the chain of thought that ends in what the driver did."""
    past = scenes.history[:, -3:].astype(np.float64)
    speed = np.linalg.norm(np.diff(past[..., :2], axis=1), axis=-1) / DT
    turn, gain = (past[:, -1, 2] - past[:, -2, 2]) / DT, (speed[:, -1] - speed[:, -2]) / DT
    prompts = [
        f"Speed {v:.1f} m/s, {a:+.1f} m/s2, {w:+.2f} rad/s. Think, then drive."
        for v, a, w in zip(speed[:, -1], gain, turn, strict=True)
    ]
    if not answers:
        return [(prompt, "") for prompt in prompts]
    words = write(torch.from_numpy(scenes.trajectory), torch.from_numpy(scenes.history))
    return [(prompt, f"{thought(scenes, row)} {MARK} {words[row]}") for row, prompt in enumerate(prompts)]


def _well_driven(scenes: Scenes) -> np.ndarray:
    """Rows whose recorded drive the reward likes: what stage 2 calls high quality."""
    around = Surroundings(
        scenes.history, scenes.trajectory, scenes.lane, scenes.actors, scenes.tracks, scenes.present
    )
    return np.nonzero(rate(RewardConfig(), scenes.trajectory, around)["total"] >= _WELL_DRIVEN)[0]


def _filled(array: np.ndarray) -> np.ndarray:
    """MDS stores no empty array: one row of zeros stands in, as for boxes."""
    return array if len(array) else np.zeros((1, *array.shape[1:]), array.dtype)


def road_turn(scenes: Scenes, row: int) -> str:
    """Left, right or straight, by the heading of the lane 40 m ahead."""
    at = int(np.argmin(np.abs(scenes.lane[row, :, 0] - 40)))
    turn = scenes.lane[row, at, 2]
    return "left" if turn > 0.15 else "right" if turn < -0.15 else "straight"


def thought(scenes: Scenes, row: int) -> str:
    """What the driver sees and does next, in words: "lead 18 m brakes, road left, slow down"."""
    now, later = scenes.speed[row]
    pace = "slow down" if later < now - 1.5 else "speed up" if later > now + 1.5 else "keep speed"
    lead = "no lead"
    if scenes.present[row, 0]:
        lead = f"lead {scenes.actors[row, 0, 0]:.0f} m{' brakes' if scenes.braking[row] else ''}"
    return f"{lead}, road {road_turn(scenes, row)}, {pace}"
