"""What goes wrong in a run of days: signals, numbers that explode, ranks that hang, ranks that lag.

Exit codes tell a scheduler what to do next (`Exit`).
"""

from __future__ import annotations

import faulthandler
import math
import os
import pickle
import signal
import statistics
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Literal, NoReturn

import torch
from pydantic import BaseModel, ConfigDict, Field

from trainer.errors import TrainerError
from trainer.tracking import emit, fatal

LOG_READ_S = 3.0  # HyperPod's agent reads a rank's log every second


class Exit(IntEnum):
    """Exit codes of `trainer.train`."""

    DONE = 0
    RECIPE = 2  # the recipe or the environment is wrong: a restart will not help
    FATAL = 70  # the numbers or the checkpoints went bad; a restart helps only where the cause was the node's
    HANG = 71  # no step within the limit; stacks are on stderr
    PREEMPTED = 75  # stopped by a signal, everything saved: start again to go on
    PREEMPTED_UNSAVED = 76  # stopped by a signal, the save failed: resumes from the checkpoint before


class ResilienceConfig(BaseModel):
    """Limits, and what happens at them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hang_s: float | None = Field(1800, gt=0)  # without a step
    first_step_s: float = Field(3600, gt=0)  # for start, compilation and the first step
    collective_timeout_s: float = Field(600, gt=0)
    on_nan: Literal["stop", "skip"] = "stop"
    on_spike: Literal["stop", "skip", "report"] = "report"
    spike_window: int = Field(64, ge=8)  # steps that the mean and deviation are taken over
    spike_z: float = Field(8.0, gt=0)  # deviations above the mean
    skips_allowed: int = Field(5, ge=0)  # skipped steps in a row before the run stops
    straggler_every: int = Field(50, ge=1)  # steps between reports
    straggler_ratio: float = Field(1.5, gt=1)  # of a rank's own time to the median
    preflight: Literal["stop", "warn"] = "stop"  # where nodes do not fit or agree
    trace_folder: str | None = None  # where stacks and flight records go besides stderr


class StopSignal:
    """SIGTERM and SIGUSR1 (HyperPod's graceful stop) set a flag; the loop acts on it at a step boundary."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._receive)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)


class Health:
    """Judges a step before its update is applied. Same numbers on every rank, so the same verdict."""

    def __init__(self, config: ResilienceConfig) -> None:
        self._config = config
        self._window: deque[float] = deque(maxlen=config.spike_window)
        self._skipped = 0

    def judge(self, loss: float, grad_norm: float) -> tuple[Literal["ok", "skip", "stop", "report"], str]:
        """What to do with this step, and why."""
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return self._limited(self._config.on_nan, "nan")
        if self._is_spike(loss):
            if self._config.on_spike == "report":  # it joins the window, so a new level is reported once
                self._window.append(loss)
                return "report", "spike"
            return self._limited(self._config.on_spike, "spike")
        self._window.append(loss)
        self._skipped = 0
        return "ok", ""

    def state(self) -> list[float]:
        """The window; a restarted run must judge as the uninterrupted one."""
        return [*self._window]

    def restore(self, window: list[float]) -> None:
        """Undo of `state`."""
        self._window.clear()
        self._window.extend(window)

    def _is_spike(self, loss: float) -> bool:
        if len(self._window) < self._config.spike_window:
            return False
        mean, deviation = statistics.fmean(self._window), statistics.pstdev(self._window)
        return loss > mean + self._config.spike_z * max(deviation, 1e-3 * abs(mean))

    def _limited(self, action: Literal["stop", "skip"], why: str) -> tuple[Literal["skip", "stop"], str]:
        self._skipped += 1
        if action == "skip" and self._skipped > self._config.skips_allowed:
            return "stop", f"{why}_{self._skipped}_in_a_row"
        return action, why


class Watchdog:
    """A thread that ends the process when no `beat` comes: a hung collective blocks the main thread."""

    def __init__(self, config: ResilienceConfig, *, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._limit = config.first_step_s
        self._beat = time.monotonic()
        self._step = 0
        self._closed = threading.Event()
        if config.hang_s is not None:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def beat(self, step: int) -> None:
        """A step is done."""
        self._step, self._beat = step, time.monotonic()
        self._limit = self._config.hang_s or math.inf

    @contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """Another limit for something longer than a step, such as a final save."""
        limit, self._limit, self._beat = self._limit, seconds, time.monotonic()
        try:
            yield
        finally:
            self._limit, self._beat = limit, time.monotonic()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._limit / 4)):
            silent = time.monotonic() - self._beat
            if silent > self._limit:
                fatal(
                    "hang",
                    f"no step for {silent:.1f} s",
                    step=self._step,
                    rank=self._rank,
                    limit_s=self._limit,
                )
                dump_traces(self._config.trace_folder, self._rank)
                leave(Exit.HANG)


def leave(code: int) -> NoReturn:
    """End the process at once: interpreter shutdown with live gloo threads aborts now and then."""
    sys.stdout.flush()
    sys.stderr.flush()
    if (
        code in (Exit.RECIPE, Exit.FATAL, Exit.HANG)
        and "HYPERPOD_ELASTICAGENT_SOCKET_SERVER_PATH" in os.environ
    ):
        time.sleep(LOG_READ_S)  # else the agent sees the exit first and reports a crash without a reason
    os._exit(code)


def exit_code(main: Callable[[list[str]], int], arguments: list[str]) -> int:
    """What `main` returns; what argparse exits with; 2 after a TrainerError's line; 1 after any traceback."""
    try:
        return int(main(arguments))
    except TrainerError as error:
        emit("error", text=str(error))
        return Exit.RECIPE
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1


def dump_traces(folder: str | None, rank: int) -> None:
    """Python stacks of all threads to stderr and `folder`; the collectives' flight record to `folder`."""
    faulthandler.dump_traceback(all_threads=True)
    sys.stderr.flush()
    if folder is None:
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with (Path(folder) / f"stacks-rank{rank}.txt").open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        (Path(folder) / f"flight-rank{rank}.pickle").write_bytes(flight_record())
    except Exception as failure:  # the process is about to end; whatever is written is welcome
        emit("trace_failed", rank=rank, error=f"{type(failure).__name__}: {failure}")


def flight_record() -> bytes:
    """The last collectives of this rank, pickled, for `torchfrtrace`; empty where none is kept."""
    c10d = torch._C._distributed_c10d  # there is no public name yet
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        if (dump := getattr(c10d, name, None)) is not None:
            record: bytes = dump()
            if pickle.loads(record).get("entries"):  # noqa: S301 (made by this process)
                return record
    return b""


class Stragglers:
    """Compares what ranks need for themselves: waiting for data, a first forward, a fixed small computation.

    Time inside collectives is the same for all ranks, as all wait for the slowest; it tells nothing.
    """

    def __init__(self, config: ResilienceConfig, device: torch.device) -> None:
        self._config = config
        self._device = device

    def due(self, step: int) -> bool:
        """Whether this step reports."""
        return step % self._config.straggler_every == 0

    def probe(self) -> float:
        """Seconds for a fixed computation on this rank's device: a throttled or shared one needs longer."""
        size = 1024 if self._device.type == "cuda" else 128
        matrix = torch.ones(size, size, device=self._device)
        self._wait()
        started = time.perf_counter()
        for _ in range(8):
            matrix = (matrix @ matrix).clamp_(max=1.0)
        self._wait()
        return time.perf_counter() - started

    def report(
        self, own: dict[str, float], gather: Callable[[list[float]], list[list[float]]]
    ) -> tuple[dict[str, float], list[str]]:
        """Slowest rank's seconds by kind, and the ranks that lag: `rank 3 forward 2.1x`. Collective."""
        names = sorted(own)
        everyone = gather([own[name] for name in names])
        slowest, lagging = {}, []
        for column, name in enumerate(names):
            times = [row[column] for row in everyone]
            median = statistics.median_low(times)
            slowest[name] = max(times)
            floor = 1e-3  # s: below a millisecond, a ratio is noise
            lagging += [
                f"rank {rank} {name} {value / max(median, floor):.1f}x"
                for rank, value in enumerate(times)
                if value > self._config.straggler_ratio * max(median, floor)
            ]
        return slowest, lagging

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
