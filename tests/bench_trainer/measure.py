"""Measurements, each in a process of its own: clean memory, and nobody's imports but its own."""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build/bench"
LIMIT_S = 300
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "TOKENIZERS_PARALLELISM": "false",
    # Rivals look for newer versions of themselves, for models and for settings in the home directory.
    "HF_HUB_OFFLINE": "1",
    "LITDATA_DISABLE_VERSION_CHECK": "1",
}


def environment() -> dict[str, str]:
    """Of every measured process."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path)}


def call(target: str, *arguments: object, limit_s: float = LIMIT_S) -> Any:
    """What `target` ("module:function" of this package) gives for plain arguments, in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-m", __spec__.name, target, json.dumps(arguments), str(out)]
        log = Path(folder) / "log"
        # Into a file: workers that outlive their parent would hold a pipe open.
        with log.open("wb") as output:
            done = subprocess.run(
                command, cwd=ROOT, env=environment(), stdout=output, stderr=subprocess.STDOUT, check=False,
                timeout=limit_s,
            )  # fmt: skip
        if done.returncode or not out.exists():
            raise RuntimeError(f"{target} failed ({done.returncode}):\n{log.read_text()[-3000:]}")
        return json.loads(out.read_text())


def in_turns(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
    """Results of each, taking turns, so that a slow minute of the machine falls on all of them."""
    results: dict[str, list[Any]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name, run in runs.items():
            results[name].append(run())
            print(f"  {name}, {turn + 1} of {rounds}: {results[name][-1]}", flush=True)
    return results


def medians(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median of each, taking turns."""
    return {name: median(values) for name, values in in_turns(runs, rounds).items()}


def median(values: Sequence[float]) -> float:
    """To three digits, as the table shows it."""
    return short(statistics.median(values))


def short(value: float) -> float:
    """Three digits."""
    return float(f"{value:.3g}")


def main() -> None:
    """In the new process."""
    target, arguments, out = sys.argv[1:]
    module, function = target.split(":")
    result = getattr(importlib.import_module(f"{__package__}.{module}"), function)(*json.loads(arguments))
    Path(out).write_text(json.dumps(result))
    sys.stdout.flush()
    # Rivals' threads and workers that do not end must not be waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
