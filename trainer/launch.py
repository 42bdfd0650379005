"""`python -m trainer.launch [options] -m trainer.train RECIPE …`: torchrun whose ranks need not import.

The options are torchrun's. One server process a node imports the trainer and nothing else; ranks are its
forks, so a restart costs no imports, and eight ranks read PyTorch from a shared file system once. What else
differs: `TORCH_DISABLE_SHARE_RDZV_TCP_STORE` is on, ranks get 300 s for the last checkpoint, and the exit
code is that of the rank that failed first.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing.forkserver
import os
import signal
import sys
import uuid
from itertools import pairwise

from trainer.errors import TrainerError
from trainer.tracking import emit

MODULES = ("trainer.train", "trainer.evaluate")  # what trainer.rl imports starts threads, which no fork has
GRACE_S = 300  # for the last checkpoint
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # torchrun's own default, too late for a server that has imported
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # most restarts fail at rendezvous otherwise
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # no fork can use CUDA after the runtime was asked
}


def module_of(arguments: list[str]) -> str:
    """What the ranks run: the module after torchrun's first `-m`.

    :raises TrainerError: there is none, or it is not one of `MODULES`.
    """
    given = next((name for flag, name in pairwise(arguments) if flag in ("-m", "--module")), None)
    if given not in MODULES:
        allowed = "-m " + ", ".join(MODULES)
        raise TrainerError(
            "launch", f"-m {given}" if given else "no -m", allowed, "torchrun runs anything else"
        )
    return given


def serve(module: str) -> None:
    """Start the server that imports `module`; it works while this process imports torchrun."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    multiprocessing.set_forkserver_preload([module])
    multiprocessing.forkserver.ensure_running()


def rank(module: str, arguments: list[str]) -> None:
    """One rank, in a fork of the server. Returns when the run is over, else ends the process."""
    from trainer.resilience import exit_code, leave  # noqa: PLC0415 (imported by the server)

    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = [module, *arguments]
    if code := exit_code(importlib.import_module(module).main, arguments):
        leave(code)
    for number in (signal.SIGTERM, signal.SIGUSR1):  # there is nothing left to save while peers still work
        signal.signal(number, signal.SIG_DFL)


def launch(module: str, arguments: list[str]) -> int:
    """Run the agent until its ranks are over; the exit code of the first that failed."""
    import torch  # noqa: PLC0415 (the server imports at the same time)
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import elastic_launch  # noqa: PLC0415
    from torch.distributed.run import config_from_args, parse_args  # noqa: PLC0415

    options = parse_args([f"--shutdown-timeout={GRACE_S}", *arguments])
    if options.standalone:  # as torchrun does
        options.rdzv_backend, options.rdzv_endpoint, options.rdzv_id = (
            "c10d",
            "localhost:0",
            str(uuid.uuid4()),
        )
    config = config_from_args(options)[0]
    config.start_method = "forkserver"
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").addFilter(_without_traceback)
    torch.multiprocessing._set_thread_name("launch")
    try:
        elastic_launch(config, rank)(module, options.training_script_args)
    except ChildFailedError as error:
        failure = error.get_first_failure()[1]
        sys.stderr.write(f"{error}\n")
        return failure.exitcode if failure.exitcode > 0 else 1
    except SignalException as error:  # the ranks have had theirs
        return 128 + error.sigval
    return 0


def _without_traceback(record: logging.LogRecord) -> bool:
    """Of a rank that failed the agent's own traceback says nothing."""
    record.exc_info = None
    return True


def main(arguments: list[str]) -> int:
    """The exit code; 2 where the arguments do not fit."""
    try:
        module = module_of(arguments)
    except TrainerError as error:
        emit("error", text=str(error))
        return 2
    serve(module)
    return launch(module, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
