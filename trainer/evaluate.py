"""Score a checkpoint on held-out data: trajectories (beside those of constant velocity), boxes, answers.

`python -m trainer.evaluate --checkpoint FOLDER_OR_CHECKPOINT [--data URL] [--out FOLDER]`, alone or under
torchrun. With `--watch` every checkpoint of a run is scored once, as it is published, however many evaluators
there are and whenever they die. Exit codes are `trainer.resilience.Exit`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial
from typing import Any

import torch.distributed as dist

from trainer.collate import Processor
from trainer.config import Recipe, load_recipe, recipe_of
from trainer.errors import TrainerError
from trainer.evaluation import Scene, evaluate
from trainer.folders import Folder, open_folder
from trainer.mesh import ParallelConfig, build_mesh
from trainer.model import build_model
from trainer.parallel import parallelize
from trainer.plots import evaluation_picture
from trainer.publish import MARKER, Marker, NotWholeError, check, check_content, name_of, step_of
from trainer.resilience import Exit, exit_code, leave
from trainer.source import DataConfig, StreamConfig
from trainer.state import ModelState, load
from trainer.together import agreed, from_first
from trainer.tracking import Tracker, emit
from trainer.train import check_fit, connect, own_device
from trainer.watch import Claims, WatchConfig, watch
from trainer.weights import allocate


def parse(arguments: list[str]) -> argparse.Namespace:
    """No abbreviations, as in `trainer.train`."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.evaluate", description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="URL", help="a run's folder, or one step-NNNNNNNN of it")
    add("--recipe", metavar="FILE", help="instead of the one in the checkpoint")
    add("--set", action="append", default=[], metavar="PATH=VALUE", help="change one value of the recipe")
    add("--data", metavar="URL", help="instead of the recipe's evaluation.url")
    add("--limit", type=int, metavar="N", help="samples at most")
    add("--out", default="evaluation", metavar="FOLDER", help="of evaluation.json and evaluation.png")
    add("--watch", action="store_true", help="each checkpoint once; the results lie beside them")
    add("--until-step", type=int, metavar="N", help="the last one to watch for (default: the recipe's steps)")
    for name, default, what in (
        ("--idle-s", 3600.0, "watch: seconds without news until the end"),
        ("--poll-s", 10.0, "watch: seconds between two looks"),
        ("--lease-s", 120.0, "watch: seconds of silence after which a claim is void"),
    ):
        add(name, type=_positive, default=default, help=f"{what} (default: {default:g})")
    return parser.parse_args(arguments)


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"given {text}; allowed: more than 0")
    return value


def main(arguments: list[str]) -> int:
    """The exit code."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    try:
        options = parse(arguments)
        url = options.checkpoint.rstrip("/")
        root, _, name = url.rpartition("/")
        single = step_of(name) is not None
        folder = open_folder(root if single else url)
        if single and options.watch:
            raise TrainerError("--watch", url, "a folder of checkpoints", "leave the step out")
        patience = options.idle_s if options.watch else 0.0
        recipe = _recipe(options, folder, name if single else None, patience)
        connect(recipe, rank, world, own_device())
        evaluator = Evaluator(recipe, folder, rank, world)
        if options.watch:
            _watch(evaluator, options)
        else:
            marker = evaluator.whole(name) if single else evaluator.newest()
            evaluator.save(open_folder(options.out), *evaluator.score(marker))
        evaluator.tracker.close()
        dist.barrier()  # nobody closes a connection that another still uses
        return Exit.DONE
    except NotWholeError as error:
        if rank == 0:
            emit("error", text=_unfit(options.checkpoint, error))
        return Exit.RECIPE
    except TrainerError as error:
        for fault in str(error).splitlines() if rank == 0 else ():
            emit("error", text=fault)
        return Exit.RECIPE


class Evaluator:
    """One model in memory, loaded with one checkpoint after the other. Every method is collective.

    The weights are sharded over the ranks, whatever the layout they were trained in.
    """

    def __init__(self, recipe: Recipe, folder: Folder, rank: int, world: int) -> None:
        self.recipe, self.folder, self.rank, self.world = recipe, folder, rank, world
        url = recipe.evaluation.url
        trained_on = {stream.url.rstrip("/") for stream in recipe.data.streams}
        self.held_out = url is not None and url.rstrip("/") not in trained_on
        self.data = DataConfig.model_validate(
            recipe.data.model_dump() | {"streams": (StreamConfig(url=str(url)),), "quarantine": ()}
        )
        self.device = own_device()
        layout = ParallelConfig(mode="fsdp", shard=-1, param_dtype=recipe.parallel.param_dtype)
        self.mesh = build_mesh(layout, world, self.device.type)
        self.processor = Processor(recipe.data.processor)
        self.model = build_model(recipe.model, self.processor, device="meta")
        check_fit(self.model, self.processor)
        allocate(parallelize(self.model, layout, self.mesh), self.device)
        # The training may hold the port, and there is nothing to show progress of.
        tracking = recipe.tracking.model_copy(update={"prometheus_port": None, "progress": "off"})
        self.tracker = Tracker(
            tracking, run=recipe.name, rank=rank, steps=recipe.steps, recipe=recipe.model_dump(mode="json")
        )

    def newest(self) -> Marker:
        """The newest whole checkpoint; says which ones did not count."""
        for step in reversed(from_first(lambda: published(self.folder))):
            try:
                return self.whole(name_of(step))
            except NotWholeError as error:
                self.tracker.event("skipped", checkpoint=name_of(step), reason=str(error))
        raise _unfit(self.folder.url, "none in it is whole")

    def whole(self, name: str) -> Marker:
        """Marker of a checkpoint whose every byte was checked; NotWholeError on all ranks alike."""
        marker = from_first(lambda: check(self.folder, name))
        agreed(lambda: check_content(self.folder, marker, part=self.rank, parts=self.world))
        return marker

    def score(self, marker: Marker) -> tuple[dict[str, Any], list[Scene]]:
        """Load, then evaluate: the report and scenes to draw."""
        name, started = name_of(marker.step), time.monotonic()
        try:
            agreed(lambda: load(self.folder, name, {"model": ModelState(self.model)}))
        except (TrainerError, RuntimeError):
            from_first(lambda: check(self.folder, name))  # it may be gone since it was found whole
            raise
        metrics, scenes = evaluate(
            self.model,
            self.data,
            self.recipe.evaluation,
            processor=self.processor,
            mesh=self.mesh,
            device=self.device,
        )
        report = {
            "step": marker.step,
            "checkpoint": f"{self.folder.url}/{name}",
            "run": marker.run,
            "data": self.recipe.evaluation.url,
            "held_out": self.held_out,
            **metrics.result(),
            "seconds": round(time.monotonic() - started, 2),
            "time": time.time(),
        }
        return report, scenes

    def save(self, out: Folder, report: dict[str, Any], scenes: list[Scene]) -> None:
        """On rank 0: picture and report, the report last, and the line."""

        def write() -> None:
            out.put("evaluation.png", picture(report, scenes))
            out.put("evaluation.json", json.dumps(report, indent=1).encode())

        from_first(write)
        self.tell(report)

    def tell(self, report: dict[str, Any]) -> None:
        """One line, and the same numbers to the tracking back ends."""
        baseline, exact = report["constant_velocity"], report["exact_match"]
        metrics = {
            **{name: report["trajectory"][name] for name in ("ade", "fde", "miss_rate")},
            **{f"{name}_constant_velocity": baseline[name] for name in ("ade", "fde")},
            "map": report["boxes"]["map"],
            "exact_match": exact.get("vqa"),
            **{f"exact_match_{task}": value for task, value in exact.items() if task != "vqa"},
            **{f"loss_{task}": value for task, value in report["loss"].items()},
        }
        told = {"samples": report["samples"], "data": report["data"], "url": report["checkpoint"]}
        self.tracker.scores(report["step"], metrics, **told)


def picture(report: dict[str, Any], scenes: list[Scene]) -> bytes:
    """PNG of a report."""
    return evaluation_picture(scenes, report, f"{report['run']}, step {report['step']}, {report['data']}")


def published(folder: Folder) -> list[int]:
    """Steps whose marker lies there, ascending."""
    steps = [(step, name) for name in folder.names() if (step := step_of(name)) is not None]
    return sorted(step for step, name in steps if MARKER in folder.files(name))


def _unfit(url: str, reason: object) -> TrainerError:
    return TrainerError("--checkpoint", f"{url} ({reason})", "a whole checkpoint", "choose another")


def _recipe(options: argparse.Namespace, folder: Folder, name: str | None, patience: float) -> Recipe:
    """From the file or the newest checkpoint (waited for while watching), with the command's changes."""
    changes = list(options.set)
    if options.data is not None:
        changes.append(f"evaluation.url={json.dumps(options.data)}")
    if options.limit is not None:
        changes.append(f"evaluation.limit={options.limit}")
    if options.recipe is not None:
        recipe = load_recipe(options.recipe, changes)
    else:
        recipe = recipe_of(_stored(folder, name, patience, options.poll_s), changes)
    if recipe.evaluation.url is None:
        fix = "give --data URL, or set evaluation.url in the recipe"
        raise TrainerError("evaluation.url", "nothing", "held-out data: a directory or s3://", fix)
    return recipe


def _stored(folder: Folder, name: str | None, patience: float, poll_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + patience
    while True:
        for candidate in [name] if name else [name_of(step) for step in reversed(published(folder))]:
            try:
                check(folder, candidate)
            except NotWholeError as error:
                if name:
                    raise _unfit(f"{folder.url}/{name}", error) from None
                continue
            state: dict[str, Any] = {"progress": ""}
            load(folder, candidate, state)
            return json.loads(state["progress"])["recipe"]
        if time.monotonic() >= deadline:
            raise _unfit(folder.url, "none in it is whole")
        time.sleep(poll_s)


def _watch(evaluator: Evaluator, options: argparse.Namespace) -> None:
    folder, recipe = evaluator.folder, evaluator.recipe
    config = WatchConfig(options.until_step or recipe.steps, options.idle_s, options.poll_s)
    claims = Claims(folder, str(recipe.evaluation.url), options.lease_s)
    scenes: list[Scene] = []

    def score(step: int) -> dict[str, Any]:
        report, scenes[:] = evaluator.score(evaluator.whole(name_of(step)))
        return report

    for report in watch(claims, partial(published, folder), score, config, evaluator.tracker.event):
        drawing = f"{claims.place}/{name_of(report['step'])}.png"
        from_first(lambda: folder.put(drawing, picture(report, scenes)))  # noqa: B023 (called here)
        evaluator.tell(report)


if __name__ == "__main__":
    leave(exit_code(main, sys.argv[1:]))
