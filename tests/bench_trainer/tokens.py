"""Tokens per second of one training on two processes, against transformers' Trainer on the same model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from tests.bench_trainer.measure import ROOT, call, environment, medians
from tests.figures import Figure, figure

RECIPE = ROOT / "trainer/recipes/tiny-cpu.yaml"
MICRO, GLOBAL = 8, 16  # samples; no accumulation
WARM_UP = 5  # steps not counted
LIMIT_S = 300

Mode = Literal["fsdp", "ddp"]


class FailedError(RuntimeError):
    """A run that ended with an error; the text is its last line."""


def figures(*, quick: bool) -> Iterator[Figure]:
    """With FSDP on both sides, or DDP on both where Trainer's FSDP does not run."""
    place, steps = call("datasets:make", "driving", 2000), 12 if quick else 40
    tokens = call("tokens:per_sample", place)
    mode: Mode = "fsdp"
    told = "transformers' Trainer with FSDP"
    try:
        rival(place, mode, 2)
    except FailedError as failure:
        mode = "ddp"
        told = f"transformers' Trainer with DDP (with FSDP it stops: `{failure}`)"
    runs = {"ours": partial(ours, place, mode, steps), "Trainer": partial(rival, place, mode, steps)}
    speed = {name: value * tokens for name, value in medians(runs, 1 if quick else 3).items()}
    name = f"training the tiny model on 2 processes ({mode}), data loading included, against {told}"
    yield figure(name, round(speed["ours"]), round(speed["Trainer"]), "tokens/s")


def per_sample(place: str) -> float:
    """Mean tokens of a sample."""
    from tests.bench_trainer.plain import Driving
    from trainer.collate import Processor, ProcessorConfig

    processor, samples = Processor(ProcessorConfig()), Driving(place)
    counts = [len(processor.tokens(samples[number])[0]) for number in range(len(samples))]
    return sum(counts) / len(counts)


def ours(place: str, mode: Mode, steps: int) -> float:
    """Samples per second of trainer.train."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"data.streams=[{json.dumps({'url': place})}]", f"data.cache.directory={folder}/cache"]
        settings += [f"checkpoint.folder={folder}/checkpoints", f"tracking.jsonl={folder}/metrics.jsonl"]
        settings += ["checkpoint.every=1000000", f"steps={steps}", "schedule.kind=constant"]
        settings += [f"global_batch={GLOBAL}", f"micro_batch={MICRO}", f"parallel.mode={mode}"]
        settings += ["parallel.shard=1", "parallel.replicate=2"] if mode == "ddp" else []
        # Trainer, too, takes the faster kernels.
        settings += ["deterministic=false"]
        _torchrun("trainer.train", str(RECIPE), *(part for one in settings for part in ("--set", one)))
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
        told = [json.loads(line) for line in lines]
    return _speed([entry["time"] for entry in told if entry["kind"] == "step"])


def rival(place: str, mode: Mode, steps: int) -> float:
    """Samples per second of Trainer."""
    with tempfile.TemporaryDirectory() as folder:
        _torchrun("tests.bench_trainer.hf_trainer", place, folder, str(steps), str(MICRO), mode)
        return _speed(json.loads((Path(folder) / "ends.json").read_text()))


def _torchrun(*script: str) -> None:
    launcher: Sequence[str] = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
    done = subprocess.run(
        [sys.executable, "-m", *launcher, *script],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        said = re.findall(r"^\[rank0\]: (\w+(?:Error|Exception): .*)$", done.stderr, re.MULTILINE)
        raise FailedError(said[-1] if said else f"{script[0]}: {done.stdout[-1000:]}{done.stderr[-3000:]}")


def _speed(ends: Sequence[float]) -> float:
    """Samples per second over the steps after the warm-up; 0 for a run that was no longer than that."""
    counted = ends[WARM_UP:]
    return GLOBAL * (len(counted) - 1) / (counted[-1] - counted[0]) if len(counted) > 1 else 0.0
