"""Step overhead: the trainer's loop against a bare one, same model, optimizer and batches, step by step."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from tests.bench_trainer.measure import ROOT, call, environment, short
from tests.figures import Figure

RECIPE = ROOT / "trainer/recipes/tiny-cpu.yaml"
WARM_UP = 5  # steps not counted


def figures(*, quick: bool) -> Iterator[Figure]:
    """Two ranks, fsdp. The two take turns within one process: a difference of 2 % drowns between two."""
    from tests.trainer.launch import launch

    place, steps = call("datasets:make", "driving", 2000), 15 if quick else 100
    with tempfile.TemporaryDirectory() as folder:
        ranks = launch(
            "tests.bench_trainer.overhead:steps", 2, place, folder, steps, env=environment(), timeout=600
        )
    took = {
        name: [max(pair) for pair in zip(*(rank[name] for rank in ranks), strict=True)] for name in ranks[0]
    }
    ours, bare = (short(statistics.median(took[name])) for name in ("ours", "bare"))
    # The median of the ratios of neighbours: what the machine does meanwhile falls on both.
    ratio = round(statistics.median(a / b for a, b in zip(took["ours"], took["bare"], strict=True)), 3)
    yield Figure(
        name="one step on 2 ranks (fsdp, tiny model), against a bare loop with clipping",
        ours=ours, rival=bare, unit="s", ratio=ratio, target="ratio ≤ 1.02", met=ratio <= 1.02,
    )  # fmt: skip


class Turns:
    """In the loader's place: gives the loop made batches, and does a bare step between two of its own."""

    def __init__(self, batches: list[list[Any]], bare: Any) -> None:
        self._batches, self._bare = batches, bare
        self.took: dict[str, list[float]] = {"ours": [], "bare": []}

    def __iter__(self) -> Iterator[list[Any]]:
        while True:
            for batches in self._batches:
                began = time.perf_counter()
                self._bare(batches)
                self.took["bare"].append(time.perf_counter() - began)
                began = time.perf_counter()
                yield batches
                self.took["ours"].append(time.perf_counter() - began)

    def state_dict(self) -> dict[str, Any]:
        return {"quarantined": []}


def steps(place: str, folder: str, count: int) -> dict[str, list[float]]:
    """On each rank: seconds of each step."""
    import torch
    import torch.distributed as dist

    from trainer.checkpoint import Checkpointer
    from trainer.config import load_recipe
    from trainer.loop import Loop
    from trainer.mesh import build_mesh
    from trainer.resilience import StopSignal
    from trainer.tracking import Tracker

    told = json.dumps({"url": place})
    settings = [f"data.streams=[{told}]", f"data.cache.directory={folder}/cache", "micro_batch=8"]
    settings += [f"checkpoint.folder={folder}/checkpoints", f"tracking.jsonl={folder}/metrics.jsonl"]
    settings += [f"steps={count + WARM_UP}", "checkpoint.every=1000000", "parallel.shard=2"]
    recipe = load_recipe(RECIPE, settings)
    mesh = build_mesh(recipe.parallel, dist.get_world_size())
    batches, models, optimizers = _parts(recipe, mesh)

    def bare(micro_steps: list[Any]) -> None:
        for batch in micro_steps:
            (models[1](batch).loss / len(micro_steps)).backward()
        # As every script has it, plain.py and transformers' Trainer too: the same mathematics on both sides.
        torch.nn.utils.clip_grad_norm_(models[1].parameters(), recipe.optimizer.clip_norm)
        optimizers[1].step()
        optimizers[1].zero_grad(set_to_none=True)

    turns = Turns(batches, bare)
    loop = Loop(
        recipe, mesh=mesh, model=models[0], optimizer=optimizers[0], loader=turns,
        checkpoints=Checkpointer(recipe.checkpoint, run=recipe.name),
        tracker=Tracker(recipe.tracking, run="bench", rank=dist.get_rank(), steps=count, recipe={}),
        stop=StopSignal(), device=torch.device("cpu"), peak_flops=None,
    )  # fmt: skip
    for _ in range(count + WARM_UP):
        loop._one()
    loop.watchdog.close()
    loop.checkpoints.close()
    took = {name: values[WARM_UP:] for name, values in turns.took.items()}
    return {name: values[: count - 1] for name, values in took.items()}


def _parts(recipe: Any, mesh: Any) -> tuple[list[list[Any]], list[Any], list[Any]]:
    """(batches, two equal models, their optimizers)."""
    from trainer.collate import Processor
    from trainer.loader import Loader
    from trainer.model import build_model
    from trainer.optimizer import build_optimizer
    from trainer.parallel import parallelize

    processor = Processor(recipe.data.processor)
    loader = Loader(
        recipe.data, rank=mesh.data_rank, world=mesh.data_size, global_batch=recipe.global_batch,
        micro_batch=recipe.micro_batch, processor=processor, seed=recipe.seed,
    )  # fmt: skip
    made = iter(loader)
    batches = [next(made) for _ in range(8)]
    made.close()
    models = []
    for _ in range(2):
        model = build_model(recipe.model, processor, seed=recipe.seed)
        models.append(parallelize(model, recipe.parallel, mesh).train())
    return batches, models, [build_optimizer(model, recipe.optimizer) for model in models]
