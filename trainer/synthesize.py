"""Write a driving-like multimodal data set with MosaicML's MDSWriter: what `python -m trainer.data
synthesize` runs.
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.errors import TrainerError
from trainer.samples import COLUMNS
from trainer.sensors import cameras, class_name, lidar, radar
from trainer.stores import DirectoryStore, open_store
from trainer.world import Scenes, simulate

_CHUNK = 256


@dataclass(frozen=True)
class Scale:
    """Sizes of a sample; `side` in pixels, a multiple of the model's patch size times its merge size."""

    cameras: int = 2
    side: int = 64
    lidar: int = 128
    radar: int = 16
    history: int = 4
    future: int = 8


def generate(
    samples: int, seed: int, *, scale: Scale | None = None, reasoning: bool = False
) -> Iterator[dict]:
    """Samples as MDS columns; a longer set of the same seed begins with the same samples.

    `reasoning` writes the manoeuvre as the answer of driving samples (chain of thought); without it their
    answer is empty, so that no action is trained on a text that tells it.
    """
    scale = scale or Scale()
    for first in range(0, samples, _CHUNK):
        rng = np.random.default_rng([seed, first])
        scenes = simulate(_CHUNK, rng, past=scale.history, future=scale.future)
        pictures = cameras(scenes, scale.cameras, scale.side)
        clouds, echoes = lidar(scenes, scale.lidar, rng), radar(scenes, scale.radar, rng)
        tasks = rng.choice(["drive", "vqa", "detect"], _CHUNK, p=[0.6, 0.2, 0.2])
        questions = rng.integers(0, 3, _CHUNK)
        for row in range(min(_CHUNK, samples - first)):
            task = str(tasks[row])
            boxes = scenes.actors[row][scenes.present[row]]
            prompt, answer = _text(task, int(questions[row]), scenes, row, boxes, reasoning)
            trajectory = scenes.trajectory[row]
            yield {
                "images": pictures[row],
                "lidar": clouds[row],
                "radar": echoes[row],
                "prompt": prompt,
                "answer": answer,
                # Questions about the picture carry no driving label, as in mixed fleets of data.
                "trajectory": np.full_like(trajectory, np.nan) if task == "vqa" else trajectory,
                "history": scenes.history[row],
                "boxes": boxes if len(boxes) else np.array([[0, 0, 0, 0, 0, 0, 0, -1]], np.float32),
                "task": task,
                "id": f"{seed}-{first + row:09d}",
            }


def synthesize(
    out: str,
    samples: int,
    seed: int,
    *,
    scale: Scale | None = None,
    reasoning: bool = False,
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
    local = isinstance(store, DirectoryStore)
    folder = store.root if local else Path(tempfile.mkdtemp(prefix="trainshed-synthesize-"))
    try:
        with MDSWriter(
            out=str(folder), columns=COLUMNS, hashes=["sha1", "xxh64"], compression=compression,
            size_limit=shard_bytes, exist_ok=True,
        ) as writer:  # fmt: skip
            for sample in generate(samples, seed, scale=scale, reasoning=reasoning):
                writer.write(sample)
        if not local:
            # The index last: who finds it finds all shards.
            for path in sorted(folder.iterdir(), key=lambda file: file.name == "index.json"):
                store.put(path, path.name)
    finally:
        if not local:
            shutil.rmtree(folder, ignore_errors=True)
    return out


def _text(  # noqa: PLR0917 - one scene, spelt out
    task: str, question: int, scenes: Scenes, row: int, boxes: np.ndarray, reasoning: bool
) -> tuple[str, str]:
    if task == "drive":
        return "Drive on.", manoeuvre(scenes, row) if reasoning else ""
    if task == "detect":
        near = boxes[np.argsort(np.hypot(boxes[:, 0], boxes[:, 1]), kind="stable")][:4]
        told = "; ".join(f"{class_name(b[7])} {b[0]:.0f} {b[1]:.0f}" for b in near)
        return "List what is near.", told or "nothing"
    ahead = boxes[(boxes[:, 0] > 0) & (boxes[:, 7] < 2)]
    if question == 0:
        return "How many vehicles are ahead?", str(len(ahead))
    if question == 1:
        return "Which way does the road turn?", road_turn(scenes, row)
    return "Is the vehicle ahead braking?", "yes" if scenes.braking[row] and scenes.present[row, 0] else "no"


def road_turn(scenes: Scenes, row: int) -> str:
    """Left, right or straight, by the heading of the lane 40 m ahead."""
    at = int(np.argmin(np.abs(scenes.lane[row, :, 0] - 40)))
    turn = scenes.lane[row, at, 2]
    return "left" if turn > 0.15 else "right" if turn < -0.15 else "straight"


def manoeuvre(scenes: Scenes, row: int) -> str:
    """What the driver does next, in words."""
    now, later = scenes.speed[row]
    pace = "slow down" if later < now - 1.5 else "speed up" if later > now + 1.5 else "keep speed"
    why = " for the vehicle ahead" if pace == "slow down" and scenes.present[row, 0] else ""
    return f"road {road_turn(scenes, row)}, {pace}{why}"
