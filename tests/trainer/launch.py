"""Runs a function in N gloo processes and gives back what each returned."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def launch(
    target: str, processes: int, *arguments: object, timeout: float = 240, env: dict | None = None
) -> list:
    """`target` ("module:function") with picklable arguments under torchrun; results in rank order.

    Each process has a gloo group already. A failure shows the last output of all ranks.
    """
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "arguments").write_bytes(pickle.dumps(arguments))
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={processes}",
        ]
        command += ["-m", "tests.trainer.launch", target, folder]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "OMP_NUM_THREADS": "1",
            # torchrun's own store shared with the workers loses restarts and, under load, first starts.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **(env or {}),
        }
        log = work / "log"
        with log.open("wb") as out:
            run = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = run.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, 9)
                run.wait()
                code = f"none after {timeout} s"
        if code != 0:
            raise AssertionError(f"{target} on {processes} ranks: exit {code}\n{log.read_text()[-6000:]}")
        return [pickle.loads((work / f"result{rank}").read_bytes()) for rank in range(processes)]


def main() -> None:
    import torch  # noqa: PLC0415
    from torch import distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    target, folder = sys.argv[1:]
    module, function = target.split(":")
    dist.init_process_group("gloo")
    arguments = pickle.loads((Path(folder) / "arguments").read_bytes())
    result = getattr(importlib.import_module(module), function)(*arguments)
    (Path(folder) / f"result{dist.get_rank()}").write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    # Gloo's threads may outlive the group and abort a process that has already done its work.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
