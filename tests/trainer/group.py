"""One rank that is a replica group, forked: it need not import again, and leaves what a test compares."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch

from tests.trainer.runs import Run
from trainer import train
from trainer.loop import Loop


class ForkedRun(Run):
    """A run of one process without a launcher.

    `samples`: a line for each step that counted, its number and the samples. `end.pt`: step, weights, and
    whether torchft was imported. BEND in the environment: a step after which one weight is bent.
    """

    def launch(self, launcher, arguments, out, variables):
        assert not launcher, "ranks=0"
        child = os.fork()
        if child:
            return _Forked(child)
        code = 1
        try:
            os.setsid()
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.environ.update(variables)
            os.chdir(self.folder)
            torch.set_num_threads(1)
            _record()
            code = train.main(arguments)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


class _Forked:
    """What of Popen a Run uses."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fork", timeout)
            time.sleep(0.01)
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _record() -> None:
    forward_backward, tell, run = Loop._forward_backward, Loop._tell, Loop.run

    def noting(self, micro_steps, counts):
        self.samples = [name for batch in micro_steps for name in batch.sample_ids]
        return forward_backward(self, micro_steps, counts)

    def telling(self, *arguments):
        with Path("samples").open("a") as out:
            out.write(f"{self.step} {' '.join(self.samples)}\n")
        if os.environ.get("BEND") == str(self.step):
            next(self.model.parameters()).to_local().detach().view(-1)[0] += 1e-3
        return tell(self, *arguments)

    def ending(self):
        end = run(self)
        weights = {name: whole.full_tensor() for name, whole in self.model.state_dict().items()}
        torch.save({"step": self.step, "weights": weights, "torchft": "torchft" in sys.modules}, "end.pt")
        return end

    Loop._forward_backward, Loop._tell, Loop.run = noting, telling, ending
