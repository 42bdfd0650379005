"""Runs of `trainer.train` under a launcher that a test can watch, signal and kill."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "trainer" / "recipes" / "tiny-cpu.yaml"
SMALL = (
    "global_batch=4",
    "micro_batch=1",
    "checkpoint.every=3",
    "schedule.warmup=2",
    "schedule.kind=constant",
)


class Run:
    """One launcher (or, with `ranks=0`, one plain process) in its own process group."""

    def __init__(
        self,
        folder: Path,
        data: Path,
        *settings: str,
        ranks: int = 2,
        restarts: int = 0,
        environment: dict[str, str] | None = None,
        launcher: str = "trainer.launch",
    ):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"log-{len(list(folder.glob('log-*')))}"
        launcher = ["-m", launcher, "--standalone", f"--nproc-per-node={ranks}"]
        launcher += [f"--max-restarts={restarts}", "--monitor-interval=0.1"]
        own = (f"data.streams=[{{url: {data}}}]", f"data.cache.directory={folder}/cache")
        own += (f"checkpoint.folder={folder}/checkpoints", f"tracking.jsonl={folder}/metrics.jsonl")
        flags = [part for setting in (*SMALL, *own, *settings) for part in ("--set", setting)]
        variables = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "PYTHONWARNINGS": "ignore",
            **(environment or {}),
        }
        with self.log.open("wb") as out:
            self.process = self.launch(launcher if ranks else [], [str(RECIPE), *flags], out, variables)

    def launch(self, launcher: list[str], arguments: list[str], out: IO[bytes], variables: dict[str, str]):
        return subprocess.Popen(
            [sys.executable, *launcher, "-m", "trainer.train", *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=self.folder,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pid in self.ranks().values():
            os.kill(pid, signal.SIGKILL)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def lines(self, kind: str) -> list[str]:
        return [entry for entry in self.text().splitlines() if entry.startswith(f"[trainer] {kind}")]

    def wait_for(self, pattern: str, *, count: int = 1, timeout: float = 180) -> float:
        """Time at which the pattern has appeared `count` times."""
        deadline = time.monotonic() + timeout
        while len(re.findall(pattern, self.text(), re.MULTILINE)) < count:
            assert time.monotonic() < deadline, (
                f"no {pattern} x{count} in {timeout} s:\n{self.text()[-6000:]}"
            )
            assert self.process.poll() is None, f"ended before {pattern}:\n{self.text()[-6000:]}"
            time.sleep(0.005)
        return time.monotonic()

    def end(self, timeout: float = 240) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {timeout} s:\n{self.text()[-6000:]}") from None

    def ranks(self) -> dict[int, int]:
        """Process of each rank alive."""
        found: dict[int, int] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):  # ended meanwhile
                name = re.fullmatch(r"rank(\d+)", process.name())
                if name and process.cwd() == str(self.folder):
                    found.setdefault(int(name[1]), process.pid)  # its workers are younger
        return found


def steps_of(*runs: Run) -> dict[int, set[tuple[str, str]]]:
    """(loss, gradient norm) as told for each step; more than one value means that a repeat differed."""
    told: dict[int, set[tuple[str, str]]] = {}
    for run in runs:
        for step, loss, norm in re.findall(
            r"^\[trainer\] step=(\d+) loss=(\S+) grad_norm=(\S+)", run.text(), re.M
        ):
            told.setdefault(int(step), set()).add((loss, norm))
    return told


def tensors(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """All of a checkpoint's tensors, whole, whatever mesh wrote them."""
    reader = dcp.FileSystemReader(folder / "checkpoints" / f"step-{step:08d}")
    entries = reader.read_metadata().state_dict_metadata.items()
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries
        if isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state
