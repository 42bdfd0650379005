"""A stand-in for HyperPod's Training Operator: starts, watches and stops jobs through real elastic agents."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Pod:
    """One agent, started as the image starts it, with the training command that it is to run."""

    def __init__(self, folder: Path, number: int, pods: int, command: list[str], ranks: int = 1):
        self.log = folder / f"pod-{number}.log"
        self.logs = folder / f"pod-{number}"
        self.port = free_port()
        options = [f"--nnodes={pods}", f"--nproc-per-node={ranks}", f"--log-dir={self.logs}"]
        options += ["--server-host=127.0.0.1", f"--server-port={self.port}", "--server-log-level=warning"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trainer.launch_hyperpod", *options, *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    def ask(self, path: str, body: dict | None = None) -> dict:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"{}")

    def status(self) -> dict:
        try:
            return self.ask("status")
        except OSError:
            assert self.process.poll() is None, f"the agent ended:\n{self.log.read_text()[-4000:]}"
            return {"status": "starting"}

    def text(self) -> str:
        """What its first rank wrote, all attempts."""
        return "".join(file.read_text() for file in sorted(self.logs.glob("*/attempt_*/0/stdout.log")))

    def workers(self) -> list[psutil.Process]:
        """Training processes (not their loader workers)."""
        return [
            child
            for child in psutil.Process(self.process.pid).children()
            if "trainer.train" in child.cmdline()
        ]

    def close(self) -> None:
        for child in psutil.Process(self.process.pid).children(recursive=True) if self.alive() else []:
            child.kill()
        if self.alive():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def alive(self) -> bool:
        return self.process.poll() is None


class Operator:
    """Drives pods as the operator does; `faults` counts starts, as it names the log folder of an attempt."""

    def __init__(self, pods: list[Pod], rules: list[dict]):
        self.pods, self.rules, self.faults = pods, rules, 0

    def start(self) -> None:
        self.reach("ready")
        port = free_port()
        for number, pod in enumerate(self.pods):
            pod.ask(
                "start",
                {
                    "rank": number,
                    "nnodes": len(self.pods),
                    "faultCount": self.faults,
                    "master_addr": "127.0.0.1",
                    "master_port": port,
                    "log_monitoring_configuration": self.rules,
                },
            )
        self.faults += 1

    def stop(self, *, graceful: bool, timeout: int = 30) -> None:
        for pod in self.pods:
            pod.ask("stop", {"restart_mode": "plr", "is_graceful": graceful, "timeout": timeout})
        self.reach("ready")

    def reach(self, state: str, timeout: float = 120) -> None:
        """Wait until every pod is in this state."""
        self._until(lambda: all(pod.status()["status"] == state for pod in self.pods), state, timeout)

    def fault(self, pod: int, timeout: float = 120) -> tuple[str, str]:
        """Reason and message of the fault that a pod reports."""
        self._until(lambda: self.pods[pod].status()["status"] == "faulted", "faulted", timeout)
        status = self.pods[pod].status()
        return status["reason"], status["message"]

    def told(self, pattern, *, pod: int = 0, count: int = 1, timeout: float = 120) -> None:
        """Wait until a pod's log has a line `count` times; a fault before that is an error."""

        def found() -> bool:
            assert self.pods[pod].status()["status"] != "faulted", self._state()
            return len(pattern.findall(self.pods[pod].text())) >= count

        self._until(found, pattern.pattern, timeout)

    def _until(self, condition, what: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not {what} after {timeout} s: {self._state()}")
            time.sleep(0.1)

    def _state(self) -> str:
        """Status of every pod and the end of its log, without what the agent repeats while it waits."""
        told = [
            [entry for entry in pod.log.read_text().splitlines() if "failed (exitcode" not in entry]
            for pod in self.pods
        ]
        return "\n".join(
            f"{pod.status()}\n" + "\n".join(log[-40:]) for pod, log in zip(self.pods, told, strict=True)
        )
