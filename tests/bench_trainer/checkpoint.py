"""Checkpoints of 126 million float32 parameters with Adam, two gloo ranks, local disk."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench_trainer.measure import WORK, environment, median, short
from tests.figures import Figure, figure

WIDTH, LAYERS = 2048, 30  # 30 x 2048 x 2049 = 126 million
BATCH = 16
STEPS_AT_MOST = 300  # while a checkpoint is written


def figures(*, quick: bool) -> Iterator[Figure]:
    """What a save costs the training, now and while it is written."""
    from tests.trainer.launch import launch

    layers, rounds = (3, 1) if quick else (LAYERS, 3)
    WORK.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        ranks = launch(
            "tests.bench_trainer.checkpoint:costs", 2, folder, layers, rounds, env=environment(), timeout=600
        )
    # A step ends when its slowest rank ends.
    took = {
        name: [max(pair) for pair in zip(*(rank[name] for rank in ranks), strict=True)] for name in ranks[0]
    }
    print(f"  {took}")
    cost = {name: median(values) for name, values in took.items()}
    size = f"{layers * WIDTH * (WIDTH + 1) / 1e6:.0f} million parameters with Adam on 2 ranks"
    stall, urgent = cost["stall"], cost["urgent"]
    name = f"checkpoint, {size}: stall of an asynchronous save, against"
    yield figure(f"{name} our own urgent save", stall, urgent, "s", "≤ 0.10", met=stall <= 0.10 * urgent)
    yield figure(f"{name} `dcp.save`", stall, cost["dcp"], "s")
    name = f"checkpoint, {size}: the step after the save, while it is written, against a quiet step"
    yield figure(name, cost["next"], cost["quiet"], "s")
    name = f"checkpoint, {size}: all that it delays the training until it is durable, against our urgent save"
    yield figure(name, short(max(cost["delay"], 0.0)), urgent, "s")


def costs(folder: str, layers: int, rounds: int) -> dict[str, list[float]]:
    """On each rank: seconds by kind, one of each per round."""
    import torch.distributed.checkpoint as dcp

    from trainer.checkpoint import CheckpointConfig, Checkpointer
    from trainer.state import ModelState, OptimizerState

    model, optimizer, train = _training(layers)
    checkpoints = Checkpointer(CheckpointConfig(folder=f"{folder}/ours", keep=1), run="bench")
    parts = {"model": ModelState(model), "optimizer": OptimizerState(model, optimizer)}
    took: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        took.setdefault(name, []).append(seconds)

    for turn in range(rounds):
        quiet = statistics.median(train() for _ in range(3))
        number = 2 * turn + 1
        stall = delay = _timed(checkpoints.save, number, parts)
        steps = []
        while not steps or _any_rank(checkpoints.durable_step != number):
            waited: list[float] = []
            seconds = train(lambda: waited.append(_timed(checkpoints.before_optimizer_step)))  # noqa: B023
            stall += waited[0]
            steps.append(seconds - waited[0])
            delay += seconds - quiet
            if len(steps) > STEPS_AT_MOST:
                raise RuntimeError(f"checkpoint {number} is not durable after {STEPS_AT_MOST} steps")
        note("quiet", quiet)
        note("stall", stall)
        note("next", steps[0])
        note("delay", delay)
        note("urgent", _timed(lambda: checkpoints.save(number + 1, parts, urgent=True)))  # noqa: B023
        place = f"{folder}/dcp-{turn}"
        note("dcp", _timed(lambda: dcp.save(_states(parts), checkpoint_id=place)))  # noqa: B023
        _barrier_and_remove(place)
    checkpoints.close()
    return took


def _training(layers: int) -> tuple[Any, Any, Callable[..., float]]:
    """A sharded model, its optimizer, and a step that gives its seconds."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(BATCH, WIDTH)

    def train(before_optimizer_step: Callable[[], object] = lambda: None) -> float:
        began = time.perf_counter()
        model(batch).square().mean().backward()
        before_optimizer_step()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - began

    train()
    return model, optimizer, train


def _states(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: part.state_dict() for name, part in parts.items()}


def _timed(run: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - began


def _any_rank(waits: bool) -> bool:
    """The steps hold collectives: ranks must do equally many."""
    import torch
    import torch.distributed as dist

    flag = torch.tensor(int(waits))
    dist.all_reduce(flag)
    return bool(flag)


def _barrier_and_remove(place: str) -> None:
    import torch.distributed as dist

    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(Path(place))
    dist.barrier()
