"""Measures what a dead host costs: from `kill -9` of it to the first new training step, on a real Slurm.

Split into Slurm's detection, its requeue, and our restart. `python -m tests.bench_recovery`, as root.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.engines.research import SLOW_S, Research, Submitted, research
from tests.figures import Figure, dump, figure, missed, table
from tests.support import ROOT

OUT = ROOT / "build/bench/recovery.json"
RUNS = 3
RESTART_S = 15.0


def recover(site: Research) -> dict[str, float]:
    """Seconds of each part, for a run whose second host dies between two checkpoints."""
    cluster = site.cluster
    run = site.submit("ann", "--nodes", "2")
    first = time_of(site, run, "train, start 0")
    stepped = time_of(site, run, "[trainer] step=1 ")
    time_of(site, run, "[trainer] checkpoint step=")
    cluster.kill(2)
    killed = time.monotonic()
    down = cluster.until(
        lambda: cluster.node(2)["state"].startswith("down"), "the host counts as down", SLOW_S
    )
    again = time_of(site, run, "train, start 1")
    before = run.log.index("train, start 1")
    resumed = cluster.until(
        lambda: "[trainer] step=" in run.log[before:], "a step after it", SLOW_S, lambda: run.log
    )
    cluster.run("scancel", run.train)
    cluster.wait_job(run.train, "CANCELLED")
    cluster.add(2)
    cluster.wait_idle(1, 2, 3)
    return {
        "total": resumed - killed, "detection": down - killed, "requeue": again - down,
        "restart": resumed - again, "first start": stepped - first,
    }  # fmt: skip


def time_of(site: Research, run: Submitted, text: str) -> float:
    """When the run has told it."""
    return site.cluster.until(lambda: text in run.log, text, SLOW_S, lambda: run.log)


def figures(runs: int = RUNS) -> list[Figure]:
    """Medians of several hosts' deaths."""
    folder = tempfile.TemporaryDirectory(prefix="bench-recovery-")
    with folder as place, research(Path(place), workers=3, ranks=1, steps=100_000, every=5) as site:
        rows = [recover(site) for _ in range(runs)]
    took = {name: round(statistics.median(row[name] for row in rows), 1) for name in rows[0]}
    restart, target = took["restart"], f"≤ {RESTART_S:g}"
    name = "of it, our restart: from the job's start to the step, against the run's first start"
    return [
        figure("a host's death (kill -9) to the first new step", took["total"], None, "s"),
        figure("of it, Slurm's detection (SlurmdTimeout 10 s)", took["detection"], None, "s"),
        figure("of it, Slurm's requeue (cred_expire 10 s)", took["requeue"], None, "s"),
        figure(name, restart, took["first start"], "s", target, met=restart <= RESTART_S),
    ]


def measure() -> dict[str, Any]:
    """The figures by name."""
    return {found.name: found for found in figures()}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="bench_recovery", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"hosts that die (default: {RUNS})")
    found = figures(parser.parse_args().runs)
    dump(found, OUT)
    print(f"{table(found)}\n\n{missed(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
