"""What a run tells: lines on stdout that log rules match, JSONL, Prometheus, Comet, a bar on a terminal.

A line is `[trainer] KIND key=value …` (a step's has no KIND) and is written whole by one call. Step lines
give loss and norm with 9 digits, which is every bit of a float32.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PEAK_FLOPS = {  # dense BF16 FLOP/s of one device, by a part of its name; NVIDIA's data sheets
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
}


class CometConfig(BaseModel):
    """Comet ML. `offline` writes archives into `folder`, to be uploaded later with `comet upload`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["offline", "online"] = "offline"
    folder: str = "comet"
    project: str = "trainshed"
    workspace: str | None = None


class TrackingConfig(BaseModel):
    """Where the numbers go. stdout always has them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: int = Field(1, ge=1)  # steps between lines
    jsonl: str | None = None  # file that lines are appended to
    prometheus_port: int | None = Field(None, ge=1, le=65535)  # on the node of rank 0
    comet: CometConfig | None = None
    progress: Literal["auto", "off"] = "auto"  # a bar on stderr, only where that is a terminal
    peak_flops: float | None = None  # FLOP/s of one device; None: by its name


def line(kind: str | None, **fields: object) -> str:
    """`line("checkpoint", step=20)` → `[trainer] checkpoint step=20`."""
    parts = [
        "[trainer]",
        *([kind] if kind else []),
        *(f"{key}={_text(value)}" for key, value in fields.items()),
    ]
    return " ".join(parts)


def emit(kind: str | None, **fields: object) -> None:
    """Write one line to stdout in one call: lines of threads and ranks must not mix."""
    sys.stdout.write(line(kind, **fields) + "\n")
    sys.stdout.flush()


def fatal(reason: str, message: str, **fields: object) -> None:
    """The line on which the Training Operator's log rules act; its beginning is a contract."""
    emit("FATAL", reason=reason, **fields, message=message)


def peak_flops(config: TrackingConfig, device_name: str) -> float | None:
    """Dense BF16 FLOP/s of one device; None when nobody knows (MFU is then not told)."""
    known = (peak for name, peak in PEAK_FLOPS.items() if name in device_name)
    return config.peak_flops or next(known, None)


def flops_utilisation(parameters: int, tokens_per_s: float, peak: float | None) -> float | None:
    """MFU: 6 FLOPs per parameter and token (attention's square not counted) over all devices' peak."""
    return 6 * parameters * tokens_per_s / peak if peak else None


class Tracker:
    """Rank 0 of the run; of the others, the first of each node tells that it is alive, the rest nothing."""

    def __init__(
        self, config: TrackingConfig, *, run: str, rank: int, steps: int, recipe: dict[str, Any]
    ) -> None:
        self._config = config
        self._active = rank == 0
        # HyperPod's agent watches the first rank of every node; one that is silent is taken for hung.
        self._first = not self._active and os.environ.get("LOCAL_RANK", str(rank)) == "0"
        self._jsonl = None
        self._gauges: dict[str, Any] = {}
        self._comet: Any = None
        self._bar: Any = None
        if not self._active:
            return
        if config.jsonl:
            Path(config.jsonl).parent.mkdir(parents=True, exist_ok=True)
            self._jsonl = Path(config.jsonl).open("a", buffering=1)  # noqa: SIM115 (closed by close)
        if config.prometheus_port:
            from prometheus_client import start_http_server  # noqa: PLC0415 (optional)

            start_http_server(config.prometheus_port)
        if config.comet:
            self._comet = _comet(config.comet, run, recipe)
        if config.progress == "auto" and sys.stderr.isatty():
            from tqdm import tqdm  # noqa: PLC0415 (only on a terminal)

            self._bar = tqdm(total=steps, unit="step", file=sys.stderr)

    def step(self, step: int, metrics: dict[str, float | None], *, kind: str | None = None) -> None:
        """Numbers of one optimizer step. None: not known here. `kind` marks steps other than training's."""
        if self._first and step % self._config.every == 0:
            emit("alive", step=step)
        if not self._active:
            return
        if step % self._config.every == 0:
            emit(kind, step=step, **metrics)
            self._record({"kind": kind or "step", "step": step, **metrics})
            known = {name: value for name, value in metrics.items() if value is not None}
            self._gauge("step", step)
            for name, value in known.items():
                self._gauge(name, value)
            if self._comet is not None:
                self._comet.log_metrics(known, step=step)
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def event(self, kind: str, **fields: object) -> None:
        """Anything that is not a step."""
        if self._active:
            emit(kind, **fields)
            self._record({"kind": kind, **fields})

    def scores(self, step: int, metrics: dict[str, float | None], **told: object) -> None:
        """Figures of merit of the weights after a step: an `evaluation` line, and `evaluation_…` in Comet."""
        self.event("evaluation", step=step, **metrics, **told)
        if self._comet is not None:
            known = {f"evaluation_{name}": value for name, value in metrics.items() if value is not None}
            self._comet.log_metrics(known, step=step)

    def close(self) -> None:
        """Flush everything."""
        if self._bar is not None:
            self._bar.close()
        if self._comet is not None:
            self._comet.end()
        if self._jsonl is not None:
            self._jsonl.close()

    def _record(self, entry: dict[str, object]) -> None:
        if self._jsonl is not None:
            finite = {
                k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in entry.items()
            }
            self._jsonl.write(json.dumps({"time": time.time(), **finite}) + "\n")

    def _gauge(self, name: str, value: float) -> None:
        if not self._config.prometheus_port:
            return
        if name not in self._gauges:
            from prometheus_client import Gauge  # noqa: PLC0415 (optional)

            self._gauges[name] = Gauge(f"trainer_{name}", f"{name} of the newest step")
        self._gauges[name].set(value)


def _comet(config: CometConfig, run: str, recipe: dict[str, Any]) -> Any:  # noqa: ANN401 (optional dependency)
    import comet_ml  # noqa: PLC0415 (optional)

    # A key made from the run's name: a restart goes on in the same experiment, without state of its own.
    key = hashlib.sha256(run.encode()).hexdigest()[:32]
    arguments: dict[str, Any] = {"project_name": config.project, "workspace": config.workspace}
    quiet = {
        "display_summary_level": 0,
        "log_code": False,
        "log_git_metadata": False,
        "auto_output_logging": False,
    }
    if config.mode == "offline":
        Path(config.folder).mkdir(parents=True, exist_ok=True)
        first = not any(Path(config.folder).glob(f"{key}*"))
        kind = comet_ml.OfflineExperiment if first else comet_ml.ExistingOfflineExperiment
        which = {"experiment_key": key, **arguments} if first else {"previous_experiment": key}
        experiment = kind(offline_directory=config.folder, **which, **quiet)
    else:
        settings = comet_ml.ExperimentConfig(**quiet)
        experiment = comet_ml.start(
            experiment_key=key,
            mode="get_or_create",
            project_name=config.project,
            workspace=config.workspace,
            experiment_config=settings,
        )
    experiment.set_name(run)
    experiment.log_parameters(recipe)
    return experiment


def _text(value: object) -> str:
    """Numbers plain, unknown as `-`, text with spaces quoted."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.9g}"
    text = str(value)
    return json.dumps(text) if not text or any(c.isspace() or c in '="' for c in text) else text
