"""Downtime: from kill -9 of one of two ranks to the first step line after it, under a launcher."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import psutil

from tests.bench_trainer.measure import ROOT, call, environment, medians, short
from tests.figures import Figure, figure

RECIPE = ROOT / "trainer/recipes/tiny-cpu.yaml"
EVERY, KILL_AT = 5, 12  # steps between checkpoints; the step after which a rank is killed
LIMIT_S = 180


def figures(*, quick: bool) -> Iterator[Figure]:
    """Ours under its launcher against plain.py under torchrun, and the part of that which imports take."""
    place = call("datasets:make", "driving", 2000)
    runs = {
        "ours": partial(_ours, place),
        "plain torchrun": partial(_plain, place),
        "imports of plain torchrun": partial(_imports, "tests.bench_trainer.plain"),
    }
    took = medians(runs, 1 if quick else 3)
    ours, rival = took["ours"], took["plain torchrun"]
    against = "against a plain torchrun script with `dcp.save` and a DataLoader"
    name = f"downtime after kill -9 of a rank, to the next step, {against}"
    yield figure(name, ours, rival, "s", "ratio ≤ 0.4", met=ours <= 0.4 * rival)
    imports = took["imports of plain torchrun"]
    name, theirs = f"downtime beyond imports (ours none, the rival's {imports:g} s)", short(rival - imports)
    yield figure(name, ours, theirs, "s", "≤ 3", met=ours <= 3)


def _ours(place: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        own = [f"data.streams=[{json.dumps({'url': place})}]", f"data.cache.directory={folder}/cache"]
        own += [f"checkpoint.folder={folder}/checkpoints", f"tracking.jsonl={folder}/metrics.jsonl"]
        own += [f"checkpoint.every={EVERY}", "steps=100000", "global_batch=8", "schedule.kind=constant"]
        flags = [part for setting in own for part in ("--set", setting)]
        script = ["-m", "trainer.train", str(RECIPE), *flags]
        return _downtime(Path(folder), "trainer.launch", script, r"^\[trainer\] step=(\d+) ")


def _plain(place: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        script = ["-m", "tests.bench_trainer.plain", place, folder, str(EVERY), "4"]
        return _downtime(Path(folder), "torch.distributed.run", script, r"^step=(\d+) ")


def _downtime(folder: Path, launcher: str, script: Sequence[str], pattern: str) -> float:
    """Seconds from the kill to the next line of a step by a rank that was started after it."""
    command = [
        sys.executable,
        "-m",
        launcher,
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=3",
        *script,
    ]
    # Without the variable most restarts fail at rendezvous, ours and others': then there is nothing to time.
    more = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    log = folder / "log"
    with log.open("wb") as out:
        run = subprocess.Popen(
            command, cwd=ROOT, env={**environment(), **more}, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        _wait(run, log, pattern, KILL_AT)
        victim = _ranks(run)[1]
        said = log.stat().st_size
        killed = time.perf_counter()
        os.kill(victim, signal.SIGKILL)
        _wait(run, log, pattern, 1, since=said, older=KILL_AT)
        return time.perf_counter() - killed
    finally:
        _end(run)


def _wait(
    run: subprocess.Popen[bytes], log: Path, pattern: str, count: int, *, since: int = 0, older: int = 0
) -> None:
    """Until so many steps were told after byte `since`; with `older`, until their number has gone back."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        text = log.read_bytes()[since:].decode(errors="replace")
        steps = [int(step) for step in re.findall(pattern, text, re.MULTILINE)]
        # The other rank may tell a step that it was in when its peer died; a restart goes back.
        if len([step for step in steps if not older or step <= older]) >= count:
            return
        if run.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no step line any more:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.01)


def _ranks(run: subprocess.Popen[bytes]) -> dict[int, int]:
    """Process of each rank: torchrun's own children, or what has the name that the trainer gives."""
    found: dict[int, int] = {}
    for child in psutil.Process(run.pid).children(recursive=True):
        named = re.fullmatch(r"rank(\d)", child.name())
        rank = named[1] if named else child.environ().get("RANK")
        if rank is not None:
            found.setdefault(int(rank), child.pid)
    return found


def _end(run: subprocess.Popen[bytes]) -> None:
    """Kill torchrun, its ranks and their workers, which have process groups of their own."""
    try:
        family = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=10)
    run.wait()


def _imports(module: str) -> float:
    """Seconds that two ranks need at the same time to import what they run."""
    began = time.perf_counter()
    command = [sys.executable, "-c", f"import {module}"]
    ranks = [subprocess.Popen(command, cwd=ROOT, env=environment()) for _ in range(2)]
    if max(rank.wait() for rank in ranks):
        raise RuntimeError(f"import {module} failed")
    return time.perf_counter() - began
