"""The end of the demonstration: the trainer on two processes, from the deployed buckets, one of them killed.

It runs in the trainer's own environment and knows the platform by its stack outputs alone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from .emulator.client import ROOT, Emulator

PYTHON = ROOT / ".venv/trainer/bin/python"
RECIPE = ROOT / "trainer/recipes/tiny-cpu.yaml"
SAMPLES, HELD_OUT = 2048, 64
STEP = re.compile(r"^\[trainer\] step=(\d+) loss=(\S+) grad_norm=(\S+)", re.MULTILINE)
PATIENCE_S = 240


class Training:
    """Runs of one recipe on data in the platform's dataset bucket."""

    def __init__(self, emulator: Emulator, storage_stack: str, out: Path) -> None:
        self.out = out
        self.told: dict[str, dict[int, tuple[str, str]]] = {}
        out.mkdir(parents=True, exist_ok=True)
        self.env = {
            **emulator.env,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        found = emulator.client("cloudformation").describe_stacks(StackName=storage_stack)["Stacks"][0]
        outputs = {output["OutputKey"]: output["OutputValue"] for output in found["Outputs"]}
        self.datasets, self.checkpoints = (
            f"s3://{outputs[name]}" for name in ("DatasetsBucket", "CheckpointsBucket")
        )

    def synthesise(self) -> None:
        """Write a set to train on and one to be judged on."""
        where = f"{self.datasets}/drive"
        for options in (("--samples", SAMPLES), ("--samples", HELD_OUT, "--split", "val")):
            self._python("trainer.data", "synthesize", "--out", where, *options)

    def run(self, name: str, steps: int, *, kill_at: int | None = None) -> dict[int, tuple[str, str]]:
        """Train; at a step kill one rank, which the launcher then starts again. Loss and norm by step."""
        log = self.out / f"{name}.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [
                    PYTHON, "-m", "trainer.launch", "--standalone", "--nproc-per-node=2",
                    f"--max-restarts={int(kill_at is not None)}", "--monitor-interval=0.2",
                    "-m", "trainer.train", RECIPE, *self._settings(name, steps),
                ],
                cwd=self.out, env=self.env, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            if kill_at is not None:
                self._kill(process, log, kill_at)
            code = process.wait(PATIENCE_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        text = log.read_text(errors="replace")
        assert code == 0, f"{name} ended with {code}:\n{text[-3000:]}"
        for entry in re.findall(r"^\[trainer\] (?:started|resumed).*", text, re.MULTILINE):
            print(f"   {entry}")
        told: dict[int, tuple[str, str]] = {}
        for step, loss, norm in STEP.findall(text):
            before = told.setdefault(int(step), (loss, norm))
            assert before == (loss, norm), f"step {step} was repeated with another result"
        assert sorted(told) == list(range(1, steps + 1)), f"steps told: {sorted(told)}"
        self.told[name] = told
        return told

    def evaluate(self, name: str) -> None:
        """Judge the newest checkpoint on what it never saw."""
        told = self._python(
            "trainer.evaluate", "--checkpoint", f"{self.checkpoints}/{name}", "--out", self.out
        )
        assert re.match(r"\[trainer\] evaluation step=\d+ ade=\d", told), told
        picture = self.out / "evaluation.png"
        assert picture.stat().st_size > 1000
        print(f"   picture: {picture.relative_to(ROOT)}")

    def _settings(self, name: str, steps: int) -> list[str]:
        chosen: Mapping[str, object] = {
            "data.streams": f"[{{url: {self.datasets}/drive}}]",
            "data.cache.directory": self.out / "cache",
            "checkpoint.folder": f"{self.checkpoints}/{name}",
            "checkpoint.every": steps // 4,
            "evaluation.url": f"{self.datasets}/drive/val",
            "evaluation.answer_tokens": 24,  # so soon no answer ends by itself
            "tracking.jsonl": self.out / f"{name}.jsonl",
            "steps": steps,
        }
        return [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]

    def _kill(self, process: subprocess.Popen[bytes], log: Path, step: int) -> None:
        began = time.monotonic()
        while f"[trainer] step={step} " not in log.read_text(errors="replace"):
            assert process.poll() is None, f"ended before step {step}:\n{log.read_text()[-3000:]}"
            assert time.monotonic() - began < PATIENCE_S, f"no step {step}:\n{log.read_text()[-3000:]}"
            time.sleep(0.05)
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # ended meanwhile
                if (folder / "comm").read_text() == "rank1\n" and (folder / "cwd").readlink() == self.out:
                    os.kill(int(folder.name), signal.SIGKILL)
        print(f"   kill -9 of rank 1 after step {step}")

    def _python(self, module: str, *arguments: object) -> str:
        """Its last line, which is printed, too."""
        done = subprocess.run(
            [PYTHON, "-m", module, *map(str, arguments)], cwd=self.out, env=self.env, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{module}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        last = done.stdout.strip().rpartition("\n")[2]
        print(f"   {last}")
        return last
