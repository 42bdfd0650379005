"""trl's GRPOTrainer over our policy: settings from a recipe, numbers as our lines, our checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from trainer.optimizer import schedule
from trainer.parallel import gradient_norm
from trainer.policy import Policy, SceneTokenizer
from trainer.resilience import Watchdog
from trainer.rewards import TERMS, Surroundings, rate_texts
from trainer.state import ModelState, OptimizerState

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from trainer.checkpoint import Checkpointer
    from trainer.config import Recipe
    from trainer.model import LanguageActionModel
    from trainer.resilience import StopSignal
    from trainer.tracking import Tracker

DAPO_CLIP_HIGH = 0.28  # of the DAPO paper
# What a line tells, by trl's names.
_TOLD = {
    "reward": "reward",
    "reward_std": "reward_std",
    **{name: name for name in (*TERMS, "readable")},
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "learning_rate",
    "entropy": "entropy",
    "kl": "kl",
    "tokens": "completions/mean_length",
    "cut": "completions/clipped_ratio",
    "step_s": "step_time",
}


class NotFiniteError(RuntimeError):
    """A gradient that is no number; the update was not made."""

    def __init__(self, step: int, norm: float) -> None:
        super().__init__(f"gradient norm {norm:g}")
        self.step = step


class GroupTrainer(GRPOTrainer):
    """GRPOTrainer on scenes in the order of their source, from optimizer step `done` of the recipe on.

    `reference` is what `rl.beta` holds the policy to; trl would load it from a directory. `folder` takes what
    trl insists on writing.
    """

    def __init__(
        self,
        policy: Policy,
        recipe: Recipe,
        optimizer: torch.optim.Optimizer,
        *,
        reference: LanguageActionModel | None,
        done: int,
        folder: str,
    ) -> None:
        self.scenes, self.reward = policy.model.scenes, recipe.rl.reward
        # Groups may have their own share of the rate; LambdaLR multiplies what it finds.
        for group in optimizer.param_groups:
            group["lr"] = recipe.optimizer.lr * group["scale"]
        rate = LambdaLR(optimizer, lambda step: schedule(done + step, recipe.schedule, recipe.steps))
        prompts = recipe.global_batch // recipe.rl.group
        numbers = range(done * prompts, recipe.steps * prompts)
        super().__init__(
            model=policy,
            reward_funcs=[self.driving],
            args=_arguments(recipe, policy, done=done, folder=folder),
            train_dataset=Dataset.from_dict({"prompt": [str(number) for number in numbers]}),
            processing_class=SceneTokenizer(self.scenes),
            optimizers=(optimizer, rate),
        )
        self.remove_callback(PrinterCallback)
        if reference is not None:
            twin = Policy(reference, self.scenes).requires_grad_(False)
            add_fused_lm_head(twin, temperature=recipe.rl.temperature)
            self.beta = recipe.rl.beta
            self.ref_model = self.accelerator.prepare_model(twin, evaluation_mode=True)

    def driving(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        log_metric: Callable[[str, float], None],
        **_: object,
    ) -> list[float]:
        """The reward of each completion; its terms go into the log."""
        around = Surroundings.of(self.scenes.samples([int(prompt) for prompt in prompts]))
        rated = rate_texts(self.reward, completions, around)
        for name, values in rated.items():
            if name != "total":
                log_metric(name, float(values.mean()))
        return rated["total"].tolist()


def _arguments(recipe: Recipe, policy: Policy, *, done: int, folder: str) -> GRPOConfig:
    rl = recipe.rl
    dapo = rl.algorithm == "dapo"
    high = rl.epsilon_high or (DAPO_CLIP_HIGH if dapo else rl.epsilon)
    on_cpu = policy.device.type == "cpu"
    return GRPOConfig(
        output_dir=folder,
        loss_type=rl.algorithm,
        mask_truncated_completions=dapo,
        num_generations=rl.group,
        max_completion_length=rl.max_tokens,
        temperature=rl.temperature,
        epsilon=rl.epsilon,
        epsilon_high=high,
        generation_kwargs={"suppress_tokens": policy.silent, "use_cache": True},
        max_steps=recipe.steps - done,
        per_device_train_batch_size=recipe.micro_batch,
        gradient_accumulation_steps=recipe.accumulation(dist.get_world_size()),
        max_grad_norm=recipe.optimizer.clip_norm,
        # Drawing starts anew where a run goes on: with other numbers than at its beginning.
        seed=recipe.seed + done,
        shuffle_dataset=False,
        use_cpu=on_cpu,
        bf16=recipe.parallel.param_dtype == "bfloat16",
        gradient_checkpointing=recipe.parallel.activation_checkpointing != "none",
        ddp_find_unused_parameters=False,
        ddp_timeout=int(recipe.resilience.collective_timeout_s),
        dataloader_pin_memory=not on_cpu,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


class Steps(TrainerCallback):
    """Between steps: one line, a checkpoint when due, and the end when a signal asks for it.

    `notes` goes into each checkpoint's progress. `stopped` tells afterwards that a signal ended the run.
    """

    def __init__(
        self,
        recipe: Recipe,
        actor: LanguageActionModel,
        optimizer: torch.optim.Optimizer,
        *,
        done: int,
        notes: dict[str, Any],
        checkpoints: Checkpointer,
        tracker: Tracker,
        stop: StopSignal,
    ) -> None:
        self.recipe, self.actor, self.optimizer, self.notes = recipe, actor, optimizer, notes
        self.checkpoints, self.tracker, self.stop = checkpoints, tracker, stop
        self.step, self._begun = done, done
        self.stopped = False
        self.watchdog = Watchdog(recipe.resilience, rank=dist.get_rank())

    def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
        """Weights must not change while they are copied for a checkpoint, nor by what is no number."""
        self.checkpoints.before_optimizer_step()
        norm = gradient_norm(self.actor.parameters()).item()
        if not math.isfinite(norm):
            raise NotFiniteError(self.step + 1, norm)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """After the optimizer's step. Collective."""
        self.step = self._begun + state.global_step
        self.watchdog.beat(self.step)
        asked = torch.tensor(int(self.stop.received is not None), device=args.device)
        dist.all_reduce(asked)
        if asked.item():
            self.stopped = control.should_training_stop = True
        elif self.checkpoints.due(self.step) and self.step < self.recipe.steps:
            self.save()

    def on_log(
        self,
        _args: TrainingArguments,
        state: TrainerState,
        _control: TrainerControl,
        logs: dict[str, float],
        **_: object,
    ) -> None:
        """trl's numbers of one step; its summary at the end is left out."""
        if "reward" in logs:
            told = {name: logs[key] for name, key in _TOLD.items() if key in logs}
            self.tracker.step(self._begun + state.global_step, told, kind="rl")

    def save(self, *, urgent: bool = False) -> bool:
        """Begin a checkpoint as `trainer.train` writes them; whether an urgent one is durable. Collective."""
        progress = {"step": self.step, "recipe": self.recipe.model_dump(mode="json"), **self.notes}
        state = {
            "model": ModelState(self.actor),
            "optimizer": OptimizerState(self.actor, self.optimizer),
            "progress": json.dumps(progress),
        }
        with self.watchdog.patience(self.checkpoints.config.timeout_s):
            self.checkpoints.save(self.step, state, urgent=urgent)
        return self.checkpoints.durable_step == self.step
