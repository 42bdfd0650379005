"""Gloo ranks as forked processes: no imports again, so a test of four ranks takes a second."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_ranks(world: int, function, *arguments) -> list:
    """`function(rank, *arguments)` on each rank of a gloo world; results by rank."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(
            _rank, args=(world, folder, function, arguments), nprocs=world, start_method="fork", join=True
        )
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(world)]


def _rank(rank: int, world: int, folder: str, function, arguments) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    try:
        result = function(rank, *arguments)
    except BaseException:
        traceback.print_exc()
        raise
    (Path(folder) / str(rank)).write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def forked(function, timeout: float = 120) -> tuple[int, str]:
    """Exit code and stdout of `function` in a forked child; its integer result is the exit code."""
    with tempfile.TemporaryFile() as out:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.dup2(out.fileno(), 1)
                sys.stdout = os.fdopen(1, "w")
                code = int(function() or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        deadline = time.monotonic() + timeout
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.02)
        out.seek(0)
        return os.waitstatus_to_exitcode(status), out.read().decode()
