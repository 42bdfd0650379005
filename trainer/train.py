"""`python -m trainer.launch … -m trainer.train RECIPE [--set a.b=value …]`: builds, resumes, trains a run.

Exit codes are `trainer.resilience.Exit`. The same command starts, restarts and continues a run.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import numpy as np
import psutil
import torch
import torch.distributed as dist

from trainer.checkpoint import Checkpointer, CheckpointsFailingError
from trainer.collate import Processor
from trainer.config import Recipe, check_world, load_recipe
from trainer.errors import TrainerError
from trainer.folders import open_folder
from trainer.groups import Group, NoQuorumError, check_batch, own_group
from trainer.live import Live
from trainer.loader import Loader
from trainer.loop import Loop
from trainer.mesh import build_mesh
from trainer.model import LanguageActionModel, build_model
from trainer.optimizer import build_optimizer
from trainer.parallel import parallelize
from trainer.preflight import preflight
from trainer.resilience import Exit, StopSignal, exit_code, leave
from trainer.state import load_model
from trainer.tracking import Tracker, emit, fatal, peak_flops
from trainer.weights import materialize


def parse(
    arguments: list[str], *, prog: str = "python -m trainer.train", about: str | None = __doc__
) -> argparse.Namespace:
    """No abbreviations: torchrun reads flags that it knows, or thinks it knows, for itself."""
    parser = argparse.ArgumentParser(prog=prog, description=about, allow_abbrev=False)
    parser.add_argument("recipe", help="YAML file")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change one value")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """The run's exit code."""
    stop = StopSignal()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.multiprocessing._set_thread_name(f"rank{rank}")  # for ps and top
    try:
        options = parse(arguments)
        recipe = load_recipe(options.recipe, options.set)
        check_world(recipe, world)
        group = own_group(recipe.live) if recipe.live else None
        return _run(recipe, rank, world, stop, group)
    except TrainerError as error:
        if rank == 0:
            for fault in str(error).splitlines():
                emit("error", text=fault)
        return Exit.RECIPE
    except NoQuorumError as error:
        if rank == 0:
            fatal("quorum", str(error))
        return Exit.FATAL


def _run(recipe: Recipe, rank: int, world: int, stop: StopSignal, group: Group | None) -> int:
    if group:
        recipe = apart(recipe, group)
    device = own_device()
    recipe.hardware.check_device(device)
    connect(recipe, rank, world, device)
    _seed(recipe, rank + world * (group.number if group else 0))
    strict = recipe.resilience.preflight == "stop"
    preflight(device, recipe.data.cache.directory, open_folder(recipe.checkpoint.folder), strict=strict)
    mesh = build_mesh(recipe.parallel, world, device.type)
    processor = Processor(recipe.data.processor)
    if recipe.live and group:
        check_batch(recipe.global_batch, recipe.micro_batch, mesh.data_size, recipe.live, group.groups)
    model = build_model(recipe.model, processor, device="meta")
    check_fit(model, processor)
    model = parallelize(model, recipe.parallel, mesh)
    materialize(model, seed=recipe.seed, device=device, base=recipe.model.directory)
    loader = Loader(
        recipe.data,
        rank=mesh.data_rank,
        world=mesh.data_size,
        global_batch=recipe.global_batch,
        micro_batch=recipe.micro_batch,
        processor=processor,
        seed=recipe.seed,
    )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    tracker = Tracker(
        recipe.tracking,
        run=f"{recipe.name}-group{group.number}" if group else recipe.name,
        rank=rank,
        steps=recipe.steps,
        recipe=recipe.model_dump(mode="json"),
    )
    loop = Loop(
        recipe,
        mesh=mesh,
        model=model,
        optimizer=build_optimizer(model, recipe.optimizer),
        loader=loader,
        checkpoints=Checkpointer(recipe.checkpoint, run=recipe.name),
        tracker=tracker,
        stop=stop,
        device=device,
        peak_flops=peak_flops(recipe.tracking, name),
        peers=Live(recipe.live, group, device=device, event=tracker.event) if recipe.live and group else None,
    )
    loop.resume()
    if loop.step == 0 and recipe.checkpoint.initial:
        load_model(recipe.checkpoint.initial, model)
    layout = f"{mesh.replicate}x{mesh.shard}x{mesh.tensor}"
    loop.tracker.event(
        "started",
        run=recipe.name,
        step=loop.step,
        ranks=world,
        mesh=layout,
        parameters=loop.parameters,
        device=name,
        start_s=round(time.time() - psutil.Process().create_time(), 2),
    )
    model.train()
    end = loop.run()
    with suppress(CheckpointsFailingError):  # only after a FATAL, which says how the run ended
        loop.checkpoints.close()
    loop.tracker.event("ended", step=loop.step, exit=int(end))
    loop.tracker.close()
    loop.peers.close()
    if end in (Exit.DONE, Exit.PREEMPTED):
        dist.barrier()  # nobody closes a connection that another still uses
    return end


def apart(recipe: Recipe, group: Group) -> Recipe:
    """The recipe with files of this group's own: all groups tell all steps."""
    jsonl = recipe.tracking.jsonl and Path(recipe.tracking.jsonl)
    if not jsonl:
        return recipe
    own = str(jsonl.with_stem(f"{jsonl.stem}-group{group.number}"))
    return recipe.model_copy(update={"tracking": recipe.tracking.model_copy(update={"jsonl": own})})


def check_fit(model: LanguageActionModel, processor: Processor) -> None:
    """The processor must cut pictures and leave places as the model expects; torch would not say which."""
    vision, own = model.core.config.vision_config, processor.config
    pairs = {
        "patch_size": (own.patch_size, vision.patch_size),
        "merge_size": (own.merge_size, vision.spatial_merge_size),
        "temporal_patch_size": (own.temporal_patch_size, vision.temporal_patch_size),
        "lidar_tokens": (own.lidar_tokens, model.config.lidar.tokens),
        "radar_tokens": (own.radar_tokens, model.config.radar.tokens),
    }
    for name, (given, wanted) in pairs.items():
        if given != wanted:
            raise TrainerError(f"data.processor.{name}", given, f"{wanted}, the model's", "set it so")


def own_device() -> torch.device:
    """The GPU of this rank, made current, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def connect(recipe: Recipe, rank: int, world: int, device: torch.device) -> None:
    """Join the process group; one process alone needs no launcher."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")  # collectives that the flight recorder keeps
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=recipe.resilience.collective_timeout_s)
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group(backend, timeout=timeout)
    elif world == 1:
        dist.init_process_group(backend, timeout=timeout, store=dist.HashStore(), rank=rank, world_size=world)
    else:
        raise TrainerError("WORLD_SIZE", world, "1 without a launcher", "start with trainer.launch")


def _seed(recipe: Recipe, rank: int) -> None:
    """Each rank draws its own numbers; the model's first weights come from the recipe's seed alone."""
    own = recipe.seed * 1_000_003 + rank
    random.seed(own)
    np.random.seed(own % 2**32)
    torch.manual_seed(own)
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False


if __name__ == "__main__":
    leave(exit_code(main, sys.argv[1:]))
