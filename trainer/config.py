"""A recipe: all that decides a run, read from YAML, changed by dotted paths, checked before anything starts.

Every fault is told at once, one line each: where, what was given, what is allowed, how to mend it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from trainer.checkpoint import CheckpointConfig
from trainer.errors import TrainerError
from trainer.evaluation import EvaluationConfig
from trainer.groups import LiveConfig
from trainer.memory import Hardware
from trainer.mesh import ParallelConfig, sizes
from trainer.model import ModelConfig
from trainer.optimizer import OptimizerConfig, ScheduleConfig
from trainer.policy import RLConfig
from trainer.resilience import ResilienceConfig
from trainer.source import DataConfig
from trainer.tracking import TrackingConfig


class ConfigError(TrainerError):
    """A recipe with faults; the text has one line for each."""

    def __init__(self, faults: list[str]) -> None:
        ValueError.__init__(self, "\n".join(faults))
        self.faults = faults


class Recipe(BaseModel):
    """One run. `global_batch`: samples per optimizer step, all ranks; `micro_batch`: per rank and forward."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")  # of the run: checkpoints carry it
    hardware: Hardware = Hardware()
    model: ModelConfig = ModelConfig()
    data: DataConfig
    parallel: ParallelConfig = ParallelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    checkpoint: CheckpointConfig
    resilience: ResilienceConfig = ResilienceConfig()
    live: LiveConfig | None = None  # several groups, each a torchrun, that outlive one another
    tracking: TrackingConfig = TrackingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    rl: RLConfig | None = None  # for `trainer.rl`; `trainer.train` passes over it
    steps: int = Field(gt=0)
    seed: int = Field(0, ge=0)
    global_batch: int = Field(gt=0)
    micro_batch: int = Field(gt=0)
    deterministic: bool = True  # kernels that give the same bits again; some are slower

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.live and self.checkpoint.tiered:
            raise ValueError("live needs no checkpoint.tiered: a group heals from a peer; set one of the two")
        waits = max(self.live.quorum_s, self.live.collective_s) if self.live else 0
        if waits >= (self.resilience.hang_s or math.inf):
            raise ValueError(f"resilience.hang_s must be above live's quorum_s and collective_s, {waits:g} s")
        return self

    def accumulation(self, data_size: int) -> int:
        """Micro-steps per optimizer step on `data_size` data ranks."""
        per_micro_step = self.micro_batch * data_size
        if self.global_batch % per_micro_step:
            below = self.global_batch // per_micro_step * per_micro_step
            legal = [value for value in (below, below + per_micro_step) if value]
            raise TrainerError(
                "global_batch",
                f"{self.global_batch} for micro_batch {self.micro_batch} on {data_size} data ranks",
                f"multiples of {per_micro_step}",
                f"set it to {' or '.join(map(str, legal))}",
            )
        return self.global_batch // per_micro_step


def load_recipe(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a YAML file and apply `a.b=value` (value in YAML). Raises ConfigError with every fault."""
    try:
        raw = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise ConfigError([_line("recipe", str(path), "a readable file", error.strerror or "")]) from None
    except yaml.YAMLError as error:
        raise ConfigError([_line("recipe", str(path), "YAML", " ".join(str(error).split()))]) from None
    if not isinstance(raw, dict):
        raise ConfigError([_line("recipe", type(raw).__name__, "a mapping", f"see the keys in {path}")])
    return recipe_of(raw, overrides)


def recipe_of(raw: dict[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """A recipe of plain values, as YAML or a checkpoint holds it, which `overrides` change in place."""
    faults = [fault for override in overrides if (fault := _apply(raw, override))]
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(faults + [_explain(entry) for entry in error.errors()]) from None
    if faults:
        raise ConfigError(faults)
    return recipe


def check_world(recipe: Recipe, world: int) -> None:
    """Faults that show only once the number of ranks is known, all together."""
    faults: list[str] = []
    try:
        replicate, shard, _ = sizes(recipe.parallel, world)
        recipe.accumulation(replicate * shard)
    except TrainerError as error:
        faults.append(str(error))
    if recipe.parallel.mode == "none" and world > 1:
        faults.append(_line("parallel.mode", f"none for {world} ranks", "ddp, fsdp, hsdp", "set one of them"))
    if faults:
        raise ConfigError(faults)


def _apply(raw: dict[str, Any], override: str) -> str | None:
    """Set one dotted path in place; a fault as text."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        return _line("--set", override, "path=value", "for instance --set optimizer.lr=1e-4")
    *parents, last = path.split(".")
    place: Any = raw
    for part in parents:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            return _line(
                f"--set {path}", f"a value below {part}", "a path to one value", f"{part} is {place!r}"
            )
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return _line(f"--set {path}", text, "a YAML value", "quote it")
    place[last] = _number(value)
    return None


def _number(value: object) -> object:
    """YAML 1.1 reads 1e-4 as text."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _explain(error: ErrorDetails) -> str:
    where = ".".join(map(str, error["loc"]))
    match error["type"]:
        case "extra_forbidden":
            names = _fields(error["loc"][:-1])
            near = difflib.get_close_matches(str(error["loc"][-1]), names, n=1, cutoff=0.5)
            fix = f"did you mean {near[0]}?" if near else "remove it"
            return _line(where, "an unknown key", ", ".join(sorted(names)), fix)
        case "missing":
            return _line(where, "nothing", "a value", "add it to the recipe")
        case "literal_error":
            expected = str(error.get("ctx", {}).get("expected", ""))
            choices = [choice.strip(" '") for choice in expected.replace(" or ", ", ").split(",")]
            near = difflib.get_close_matches(str(error["input"]), choices, n=1, cutoff=0.4)
            return _line(
                where, repr(error["input"]), expected, f"did you mean {near[0]}?" if near else "choose one"
            )
        case _:
            message = error["msg"].removeprefix("Value error, ")
            return _line(where, _short(error["input"]), message, "change the recipe or --set it")


def _fields(path: tuple[int | str, ...]) -> list[str]:
    """Keys that the model at `path` has."""
    model: Any = Recipe
    for part in path:
        field = model.model_fields.get(part)
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        kind = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)
        if kind is None:
            return []
        model = kind
    return list(model.model_fields)


def _short(value: object) -> str:
    return f"a mapping of {', '.join(map(str, value))}" if isinstance(value, Mapping) else repr(value)[:80]


def _line(where: str, given: str, allowed: str, fix: str) -> str:
    return str(TrainerError(where, given, allowed, fix))
