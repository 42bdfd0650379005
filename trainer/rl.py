"""`torchrun … -m trainer.rl RECIPE [--set a.b=value …]`: stage 3, reinforcement learning to drive.

Starts from `checkpoint.initial`, which must write controls as text (stage 2); goes on from the newest
checkpoint of its own folder. Prints the mean reward on `evaluation.url` before and after. Exit codes are
`trainer.resilience.Exit`.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trainer.checkpoint import Checkpointer, CheckpointsFailingError
from trainer.collate import Processor
from trainer.config import ConfigError, Recipe, check_world, load_recipe
from trainer.errors import TrainerError
from trainer.folders import open_folder
from trainer.grpo import GroupTrainer, NotFiniteError, Steps
from trainer.model import LanguageActionModel, build_model, freeze
from trainer.optimizer import build_optimizer
from trainer.policy import Policy, Scenes
from trainer.preflight import preflight
from trainer.resilience import Exit, StopSignal, exit_code, leave
from trainer.rewards import Surroundings, rate_texts
from trainer.source import DataConfig, Source, StreamConfig
from trainer.state import ModelState, OptimizerState, load_model
from trainer.tracking import Tracker, emit, fatal
from trainer.train import check_fit, connect, own_device, parse


def main(arguments: list[str]) -> int:
    """The run's exit code."""
    stop = StopSignal()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    try:
        options = parse(arguments, prog="python -m trainer.rl", about=__doc__)
        recipe = load_recipe(options.recipe, options.set)
        check(recipe, world)
        recipe.hardware.check_device(own_device())
        return _run(recipe, rank, world, stop)
    except TrainerError as error:
        if rank == 0:
            for fault in str(error).splitlines():
                emit("error", text=fault)
        return Exit.RECIPE
    except (CheckpointsFailingError, NotFiniteError) as error:
        if rank == 0:
            nan = isinstance(error, NotFiniteError)
            fatal("nan" if nan else "checkpoint", str(error), step=error.step if nan else None)
        return Exit.FATAL


def check(recipe: Recipe, world: int) -> None:
    """Faults of a recipe for reinforcement learning, all together."""
    faults = []
    try:
        check_world(recipe, world)
    except ConfigError as error:
        faults += error.faults
    if recipe.rl is None:
        raise TrainerError("rl", "nothing", "a mapping", "add `rl: {algorithm: grpo}` to the recipe")
    if recipe.live:
        faults.append(str(TrainerError("live", "a mapping", "nothing in trainer.rl", "remove it")))
    group = recipe.rl.group
    if recipe.global_batch % group:
        allowed = f"multiples of rl.group, {group}"
        faults.append(str(TrainerError("global_batch", recipe.global_batch, allowed, "change one of them")))
    layout = recipe.parallel
    if layout.mode not in ("ddp", "none") or layout.tensor > 1 or layout.compile:
        given = f"{layout.mode}, tensor {layout.tensor}, compile {layout.compile}"
        fix = "set mode: ddp, replicate: -1; model.lora makes a large model fit"
        faults.append(str(TrainerError("parallel", given, "whole replicas (ddp, none), not compiled", fix)))
    if recipe.evaluation.url is None:
        fix = "write one with `python -m trainer.data synthesize --stage rl --split val`"
        faults.append(str(TrainerError("evaluation.url", "nothing", "a held-out data set", fix)))
    if faults:
        raise ConfigError(faults)


def _run(recipe: Recipe, rank: int, world: int, stop: StopSignal) -> int:
    device = own_device()
    connect(recipe, rank, world, device)
    strict = recipe.resilience.preflight == "stop"
    preflight(device, recipe.data.cache.directory, open_folder(recipe.checkpoint.folder), strict=strict)
    processor = Processor(recipe.data.processor)
    actor = build_model(recipe.model, processor, seed=recipe.seed, device=device)
    check_fit(actor, processor)
    # No text comes from the heads: they have no gradient here, and stay as supervised training left them.
    freeze(actor, ("heads",))
    optimizer = build_optimizer(actor, recipe.optimizer)
    checkpoints = Checkpointer(recipe.checkpoint, run=recipe.name)
    tracker = Tracker(
        recipe.tracking, run=recipe.name, rank=rank, steps=recipe.steps, recipe=recipe.model_dump(mode="json")
    )
    if recipe.checkpoint.initial is None:
        fix = "name the last checkpoint of stage 2"
        raise TrainerError("checkpoint.initial", "nothing", "weights that write controls", fix)
    load_model(recipe.checkpoint.initial, actor)
    reference = copy.deepcopy(actor) if recipe.rl.beta else None
    progress = _resume(checkpoints, actor, optimizer, tracker)
    done = progress.get("step", 0)
    policy = Policy(actor, Scenes(Source(recipe.data, recipe.seed, recipe.global_batch), processor))
    held_out = Scenes(Source(_held_out(recipe), recipe.seed, recipe.global_batch), processor)
    rated = [recipe.evaluation.url, recipe.evaluation.limit, recipe.rl.decoding]
    if progress and progress.get("rated") != rated:
        fix = "leave evaluation and rl.decoding as they were, or begin in another folder"
        raise TrainerError("evaluation", rated, f"{progress.get('rated')}, rated before the first step", fix)
    before = progress.get("before") or evaluate(policy, held_out, recipe)
    tracker.event("started", run=recipe.name, step=done, ranks=world, algorithm=recipe.rl.algorithm, **before)
    steps = Steps(
        recipe,
        actor,
        optimizer,
        done=done,
        notes={"before": before, "rated": rated},
        checkpoints=checkpoints,
        tracker=tracker,
        stop=stop,
    )
    try:
        if done < recipe.steps:
            _improve(policy, recipe, optimizer, reference, steps)
        saved = steps.save(urgent=True)
    finally:
        steps.watchdog.close()
    if steps.stopped:
        received = stop.received.name if stop.received else "another rank's signal"
        tracker.event("stopped", step=steps.step, signal=received, saved=saved)
        end = Exit.PREEMPTED if saved else Exit.PREEMPTED_UNSAVED
    elif not saved:
        raise CheckpointsFailingError("the last checkpoint failed")
    else:
        after = evaluate(policy, held_out, recipe)
        told = {f"{name}_before": value for name, value in before.items()}
        told |= {f"{name}_after": value for name, value in after.items()}
        tracker.event("rl_evaluation", step=steps.step, url=recipe.evaluation.url, **told)
        end = Exit.DONE
    checkpoints.close()
    tracker.event("ended", step=steps.step, exit=int(end))
    tracker.close()
    dist.barrier()  # nobody closes a connection that another still uses
    return end


def _improve(
    policy: Policy,
    recipe: Recipe,
    optimizer: torch.optim.Optimizer,
    reference: LanguageActionModel | None,
    steps: Steps,
) -> None:
    with tempfile.TemporaryDirectory(prefix="trainshed-rl-") as folder:
        trainer = GroupTrainer(policy, recipe, optimizer, reference=reference, done=steps.step, folder=folder)
        trainer.add_callback(steps)
        trainer.train()


def _resume(
    checkpoints: Checkpointer, actor: LanguageActionModel, optimizer: torch.optim.Optimizer, tracker: Tracker
) -> dict[str, Any]:
    """Load the newest whole checkpoint; its progress, empty without one."""
    marker, skipped = checkpoints.latest()
    for entry in skipped:
        tracker.event("skipped", checkpoint=entry.name, reason=entry.reason)
    if marker is None:
        return {}
    state: dict[str, Any] = {
        "model": ModelState(actor),
        "optimizer": OptimizerState(actor, optimizer),
        "progress": "",
    }
    checkpoints.load(marker.step, state)
    tracker.event("resumed", step=marker.step, url=f"{checkpoints.folder.url}/step-{marker.step:08d}")
    return json.loads(state["progress"])


def _held_out(recipe: Recipe) -> DataConfig:
    stream = StreamConfig(url=str(recipe.evaluation.url))
    return recipe.data.model_copy(update={"streams": (stream,), "quarantine": ()})


@torch.no_grad()
def evaluate(policy: Policy, held_out: Scenes, recipe: Recipe) -> dict[str, float]:
    """Mean `reward` and its terms over the held-out scenes. Collective; equal on every rank.

    Each scene counts once whatever the number of ranks. Draws are the same each time, and nobody else's.
    """
    total = held_out.source.total
    numbers = range(min(total, recipe.evaluation.limit or total))
    mine = numbers[dist.get_rank() :: dist.get_world_size()]
    was_training, seen = policy.training, policy.model.scenes
    policy.eval()
    policy.model.scenes = held_out
    sums: dict[str, float] = {}
    rl, micro_batch = recipe.rl, recipe.evaluation.micro_batch
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed * 1_000_003 + dist.get_rank())
        for first in range(0, len(mine), micro_batch):
            some = list(mine[first : first + micro_batch])
            temperature = rl.temperature if rl.decoding == "sampled" else None
            texts = policy.answers(some, max_tokens=rl.max_tokens, temperature=temperature)
            rated = rate_texts(rl.reward, texts, Surroundings.of(held_out.samples(some)))
            for name, values in rated.items():
                sums[name] = sums.get(name, 0.0) + float(values.sum())
    policy.train(was_training)
    policy.model.scenes = seen
    everyone: list[dict[str, float]] = [sums] * dist.get_world_size()
    dist.all_gather_object(everyone, sums)
    names = max(everyone, key=len)
    means = {name: float(np.sum([one.get(name, 0.0) for one in everyone])) / len(numbers) for name in names}
    return {"reward": means.pop("total"), **means}


if __name__ == "__main__":
    leave(exit_code(main, sys.argv[1:]))
