"""What the health programs share: this node's files, and commands that must not hang."""

import json
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

ROOT = Path(os.environ.get("TRAINSHED_ROOT", "/"))
SETTINGS = Path(os.environ.get("TRAINSHED_SETTINGS") or ROOT / "opt/trainshed/settings.json")
FACTS = ROOT / "opt/trainshed/node.json"
STATE = ROOT / "run/trainshed/health.json"  # in memory: a reboot clears it together with the kernel's log
LOG = ROOT / "var/log/trainshed/health.log"
NAME = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
# slurmd hands down next to nothing; HyperPod's Slurm lies in /opt/slurm.
os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin"


def say(text):
    """A line in the log; that it cannot be written stops nothing."""
    with suppress(OSError):
        LOG.parent.mkdir(parents=True, exist_ok=True)
        with LOG.open("a", encoding="utf-8") as file:
            print(time.strftime("%FT%TZ", time.gmtime()), text, file=file)


def read(path):
    """A JSON object; empty when it is missing or broken."""
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def write(path, text):
    """A file whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def run(seconds, *command):
    """(exit code, output); the code is None when the program is missing or does not answer in time."""
    with suppress(OSError):
        child = Popen(command, stdout=PIPE, stderr=DEVNULL, text=True, start_new_session=True)
        try:
            output, _ = child.communicate(timeout=seconds)
        except TimeoutExpired:
            # Never waited for: what hangs in the kernel does not die, and waiting would hang as well.
            os.killpg(child.pid, signal.SIGKILL)
        else:
            return child.returncode, output
    return None, ""
