"""Runs a function in N gloo processes and gives back what each returned."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from pathlib import Path

import torch
from torch import distributed as dist

# Forks of a process that has imported, and has no threads: the tests' own has, once torch has worked in it.
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["trainer.train", "tests.trainer.layouts"])


def launch(
    target: str, processes: int, *arguments: object, timeout: float = 240, env: dict | None = None
) -> list:
    """`target` ("module:function") with picklable arguments on each rank; results in rank order.

    Each process has a gloo group already. A failure shows the output of all ranks.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        ranks = [
            _server.Process(target=_rank, args=(rank, processes, folder, target, arguments, env or {}))
            for rank in range(processes)
        ]
        for process in ranks:
            process.start()
        deadline = time.monotonic() + timeout
        while any(process.exitcode is None for process in ranks):
            if time.monotonic() > deadline or any(process.exitcode for process in ranks):
                break
            time.sleep(0.02)
        codes = [process.exitcode for process in ranks]
        for process in ranks:
            process.kill()
            process.join()
        if codes != [0] * processes:
            logs = "".join((Path(folder) / f"log{rank}").read_text()[-3000:] for rank in range(processes))
            raise AssertionError(f"{target}: exit codes {codes} (None: ended after {timeout} s)\n{logs}")
        return [pickle.loads((Path(folder) / f"result{rank}").read_bytes()) for rank in range(processes)]


def _rank(rank: int, world: int, folder: str, target: str, arguments: tuple, env: dict[str, str]) -> None:
    log = os.open(f"{folder}/log{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(world), "TOKENIZERS_PARALLELISM": "false", **env}
    code = 1
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
        module, function = target.split(":")
        result = getattr(importlib.import_module(module), function)(*arguments)
        (Path(folder) / f"result{rank}").write_bytes(pickle.dumps(result))
        dist.barrier()
        code = 0
    except BaseException:
        traceback.print_exc()
    # Gloo's threads may outlive the group and abort a process that has already done its work.
    os._exit(code)
