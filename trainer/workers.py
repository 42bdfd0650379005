"""What a loader's worker process does about signals and its parent's death."""

import atexit
import ctypes
import gc
import os
import signal
from collections.abc import Iterable
from multiprocessing.process import BaseProcess
from weakref import WeakSet

_PR_SET_PDEATHSIG = 1
_live: WeakSet[BaseProcess] = WeakSet()


def init_worker(_worker: int, *, parent: int | None = None) -> None:
    """`worker_init_fn` of every DataLoader here.

    torchrun signals the whole process group: a worker that died of SIGTERM would take the emergency
    checkpoint with it, so workers leave these signals to the trainer. In turn they must not outlive it: a
    forked worker holds copies of a dead rank's sockets, and the peers would wait seconds for them to close.
    """
    gc.freeze()  # a process group in the parent's garbage would wait for threads that no fork has
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died between the fork and the call above; then its death sends nothing.
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def track(workers: Iterable[BaseProcess]) -> None:
    """Have these workers killed at exit: Python would send a SIGTERM, which they ignore, and wait."""
    _live.update(workers)


def end(workers: Iterable[BaseProcess]) -> None:
    """Kill what did not leave by itself; a worker has nothing to save."""
    for worker in workers:
        _live.discard(worker)
        if worker.is_alive():
            worker.kill()
            worker.join()


def _at_exit() -> None:
    # torch's handler would report the deaths that follow as a crash.
    if any(worker.is_alive() for worker in _live):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end(list(_live))


atexit.register(_at_exit)
