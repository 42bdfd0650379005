"""The optimizer step and what surrounds it: one loss over ranks and micro-steps, saving, stopping, telling.

Per step there are two collectives of our own: label counts and the stop flag before the first forward (on the
CPU, so that no device waits), loss sums after the last backward. With several groups (groups.py) both go over
all of them, as do the gradients.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from trainer.checkpoint import Checkpointer, CheckpointsFailingError
from trainer.groups import Alone, NoQuorumError
from trainer.losses import TASKS, combine
from trainer.optimizer import set_rate
from trainer.parallel import clip_grads_with_norm_, gradient_norm, sync_gradients
from trainer.resilience import Exit, Health, Stragglers, Watchdog
from trainer.shares import Shares, share
from trainer.state import ModelState, OptimizerState, fit, rng_state, set_rng_state, strip, untouched_rng
from trainer.tracking import fatal, flops_utilisation

if TYPE_CHECKING:
    from trainer.config import Recipe
    from trainer.folders import Folder
    from trainer.loader import Loader
    from trainer.mesh import Mesh
    from trainer.model import LanguageActionModel
    from trainer.resilience import StopSignal
    from trainer.samples import Batch
    from trainer.tiered import Memory
    from trainer.tracking import Tracker


@dataclass
class Step:
    """Numbers of one step. Times in seconds; `own` are this rank's times outside collectives."""

    loss: float
    losses: dict[str, float]
    grad_norm: float
    own: dict[str, float] = field(default_factory=dict)


class Loop:
    """Everything of one run, put together by train.py."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        mesh: Mesh,
        model: LanguageActionModel,
        optimizer: torch.optim.Optimizer,
        loader: Loader,
        checkpoints: Checkpointer,
        tracker: Tracker,
        stop: StopSignal,
        device: torch.device,
        peak_flops: float | None,
        peers: Alone | None = None,
    ) -> None:
        self.recipe = recipe
        self.mesh, self.model, self.optimizer, self.loader = mesh, model, optimizer, loader
        self.checkpoints, self.tracker, self.stop, self.device = checkpoints, tracker, stop, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.peak_flops = peak_flops and peak_flops * self.world
        self.peers = peers or Alone()
        self.health = Health(recipe.resilience)
        self.stragglers = Stragglers(recipe.resilience, device)
        self.watchdog = Watchdog(recipe.resilience, rank=self.rank)
        self.step = 0  # optimizer steps done
        self._consumed = loader.state_dict()  # of the samples whose step is done; prefetch runs ahead
        self._batches: Generator[list[Batch]] = iter(loader)

    def resume(self) -> None:
        """Go on where peers are, else from the newest whole checkpoint; say which ones did not count."""
        if self.peers.join(self._parcel, self._receive):
            return
        marker, skipped = self.checkpoints.latest()
        for entry in skipped:
            self.tracker.event("skipped", checkpoint=entry.name, reason=entry.reason)
        memory = self.checkpoints.memory
        if memory is not None and (step := memory.newest()) is not None:
            self._load(step, memory, self.world)
        elif marker is not None:
            self._load(marker.step, self.checkpoints.folder, marker.world)
        if self.step:
            self.peers.resumed(self.step)

    def _load(self, step: int, source: Folder | Memory, ranks: int) -> None:
        state = self._state()
        self.checkpoints.load(step, state, source)
        self._go_on(json.loads(state["progress"]))
        if (rng := state.get(f"rng.{self.rank}")) is not None:
            set_rng_state(rng)
        self.tracker.event("resumed", step=self.step, url=f"{source.url}/step-{step:08d}", ranks=ranks)

    def _go_on(self, progress: dict[str, Any]) -> None:
        self.step = progress["step"]
        self.health.restore(progress["window"])
        self.loader.load_state_dict(progress["loader"])
        self._consumed = self.loader.state_dict()

    def run(self) -> Exit:
        """Train to the last step, or to a signal, or to what cannot go on."""
        try:
            while self.step < self.recipe.steps:
                if (end := self._one()) is not None:
                    return end
            if not self.peers.publishes or self._save_now():
                return Exit.DONE
            return self._fatal("checkpoint", "the last checkpoint failed")
        except CheckpointsFailingError as error:
            return self._fatal("checkpoint", str(error))
        except NoQuorumError as error:  # all groups stand at this step: one saves it before all start again
            if self.step and self.peers.publishes:
                self._save_now()
            return self._fatal("quorum", str(error))
        finally:
            self.watchdog.close()
            self._batches.close()

    def _one(self) -> Exit | None:
        started = time.perf_counter()
        if self.peers.start():
            self._deal()
        asked = time.perf_counter()
        with untouched_rng():
            micro_steps = next(self._batches)
        waited = time.perf_counter() - asked
        compare = self.peers.groups > 1 and self.checkpoints.due(self.step)
        weights = self.model.parameters() if compare else ()
        shares = share(micro_steps, weights, stop=self.stop, tensor=self.mesh.tensor, peers=self.peers)
        if shares.differ:
            return self._fatal("groups", f"their weights differ after step {self.step}")
        if all(shares.stops):
            return self._stopped()
        result = None if shares.failed else self._forward_backward(micro_steps, shares.counts)
        if not self.peers.commits() or result is None:
            self.optimizer.zero_grad(set_to_none=True)
            return None
        self.checkpoints.before_optimizer_step()
        verdict, why = self.health.judge(result.loss, result.grad_norm)
        rate = set_rate(
            self.optimizer, self.step, self.recipe.optimizer, self.recipe.schedule, self.recipe.steps
        )
        if verdict == "stop":
            return self._fatal(why, f"loss {result.loss:g}, gradient norm {result.grad_norm:g}")
        if verdict != "ok":
            self.tracker.event(verdict, step=self.step + 1, reason=why, loss=result.loss)
        if verdict != "skip":
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self._consumed = self.loader.state_dict()
        self._tell(result, shares, rate, waited, time.perf_counter() - started)
        self.watchdog.beat(self.step)
        memory = self.checkpoints.due_in_memory(self.step)
        due = (memory or self.checkpoints.due(self.step)) and self.peers.publishes
        if due and self.step < self.recipe.steps:
            with self._writing():
                self.checkpoints.save(self.step, self._state(), memory=memory)
        return self._left() if shares.stops[self.peers.index] else None

    def _deal(self) -> None:
        """Give this rank its share of the next step's samples, whoever takes part by now."""
        self._batches.close()
        size = self.mesh.data_size
        self.loader.deal(self.peers.index * size + self.mesh.data_rank, self.peers.groups * size)
        self.loader.load_state_dict(self._consumed)
        self._batches = iter(self.loader)

    def _forward_backward(self, micro_steps: list[Batch], counts: dict[str, int]) -> Step:
        weights = self.model.config.loss_weights
        on_device = {task: torch.tensor(count, device=self.device) for task, count in counts.items()}
        sums = torch.zeros(len(TASKS), dtype=torch.float64, device=self.device)
        timed = self.stragglers.due(self.step + 1)
        own: dict[str, float] = {}
        for number, batch in enumerate(micro_steps):
            sync_gradients(self.model, last=number == len(micro_steps) - 1)
            started = time.perf_counter()
            output = self.model(batch.to(self.device))
            if timed and number == 0:
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                own = {"forward": time.perf_counter() - started}
            combine(output.losses, on_device, weights, self.mesh.data_size).backward()
            sums += torch.stack([output.losses[task].detach().double() for task in TASKS])
        self.peers.sum(self.mesh.sum_over_data(sums))
        self.peers.reduce(self.model.parameters())
        norm = self.peers.agree(gradient_norm(self.model.parameters()))
        if clip := self.recipe.optimizer.clip_norm:
            clip_grads_with_norm_(self.model.parameters(), clip, norm)
        losses = {
            task: total / max(counts[task], 1) for task, total in zip(TASKS, sums.tolist(), strict=True)
        }
        return Step(
            sum(getattr(weights, task) * loss for task, loss in losses.items()), losses, norm.item(), own
        )

    def _tell(self, result: Step, shares: Shares, rate: float, waited: float, seconds: float) -> None:
        speed = shares.tokens / seconds
        self.tracker.step(
            self.step,
            {
                "loss": result.loss,
                "grad_norm": result.grad_norm,
                "lr": rate,
                "tokens_per_s": round(speed, 1),
                "mfu": flops_utilisation(self.parameters, speed / self.peers.groups, self.peak_flops),
                "wait": round(waited / seconds, 4),
                "step_s": round(seconds, 4),
                **{f"loss_{task}": loss for task, loss in result.losses.items()},
            },
        )
        if result.own:
            own = {**result.own, "wait": waited, "probe": self.stragglers.probe()}
            slowest, lagging = self.stragglers.report(own, self._gather)
            told = {f"{name}_s": round(value, 4) for name, value in slowest.items()}
            self.tracker.event("ranks", step=self.step, **told, lagging="; ".join(lagging) or None)

    def _gather(self, values: list[float]) -> list[list[float]]:
        rows = [torch.zeros(len(values), dtype=torch.float64) for _ in range(self.world)]
        dist.all_gather(rows, torch.tensor(values, dtype=torch.float64))
        return [row.tolist() for row in rows]

    def _stopped(self) -> Exit:
        # Before the first step there is nothing to save, and asking Adam for its state would begin one.
        if not self.peers.publishes:
            return self._left()
        saved = self.step == 0 or self._save_now()
        self.tracker.event("stopped", step=self.step, signal=self._signal(), saved=saved)
        return Exit.PREEMPTED if saved else Exit.PREEMPTED_UNSAVED

    def _left(self) -> Exit:
        self.tracker.event("stopped", step=self.step, signal=self._signal(), saved="by a peer")
        return Exit.PREEMPTED

    def _signal(self) -> str:
        return self.stop.received.name if self.stop.received else "another rank's signal"

    def _save_now(self) -> bool:
        with self._writing():
            self.checkpoints.save(self.step, self._state(), urgent=True)
        return self.checkpoints.durable_step == self.step

    def _writing(self) -> AbstractContextManager[None]:
        """Slow storage is no hang."""
        return self.watchdog.patience(self.checkpoints.config.timeout_s)

    def _fatal(self, reason: str, message: str) -> Exit:
        if self.rank == 0:
            fatal(reason, message, step=self.step + 1)
        return Exit.FATAL

    def _state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        recipe = self.recipe.model_dump(mode="json")
        return {
            **self._parts(),
            "progress": json.dumps({**self._progress(self._loader_state()), "recipe": recipe}),
            f"rng.{self.rank}": rng_state(),
        }

    def _parts(self) -> dict[str, ModelState | OptimizerState]:
        return {"model": ModelState(self.model), "optimizer": OptimizerState(self.model, self.optimizer)}

    def _progress(self, loader: dict[str, Any]) -> dict[str, Any]:
        return {"step": self.step, "loader": loader, "window": self.health.state()}

    def _parcel(self) -> dict[str, Any]:
        """What a peer's rank of the same number needs. Not collective: each may be asked by another group."""
        parts = {name: strip(part.state_dict()) for name, part in self._parts().items()}
        return {**parts, "progress": self._progress(self._consumed)}

    def _receive(self, parcel: dict[str, Any]) -> None:
        self.checkpoints.before_optimizer_step()  # a checkpoint may still be copying what is replaced here
        for name, part in self._parts().items():
            part.load_state_dict(fit(part.state_dict(), parcel[name]))
        self._go_on(parcel["progress"])

    def _loader_state(self) -> dict[str, Any]:
        """One state for all ranks: with the shards that any of them has quarantined. Collective."""
        everyone: list[Any] = [None] * self.world
        dist.all_gather_object(everyone, self._consumed["quarantined"])
        return {**self._consumed, "quarantined": sorted(set().union(*everyone))}
