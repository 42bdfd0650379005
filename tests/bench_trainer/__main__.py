"""Measures what the trainer claims, each figure against a named rival in the same run.

Writes `build/bench/trainer.json` and prints a table; `--write FILE` also puts it between the file's markers.
`ratio` is ours divided by the rival's. Run it on a quiet machine. Data sets are written once, below
`build/bench/data`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench_trainer.measure import WORK
from tests.figures import Figure, dump, missed, table, write_between

OUT = WORK / "trainer.json"
# In this order: name on the command line, module with `figures(quick=…)`.
MODULES = {
    "loader": "loader",
    "resume": "resume",
    "index": "order_index",
    "checkpoint": "checkpoint",
    "overhead": "overhead",
    "downtime": "downtime",
    "tokens": "tokens",
}
PEERS = ("torch", "transformers", "accelerate", "mosaicml-streaming", "litdata", "webdataset", "torchdata")


def measure(names: Sequence[str], *, quick: bool) -> list[Figure]:
    """The figures of these names."""
    figures: list[Figure] = []
    for name in names:
        print(f"{name}:", flush=True)
        began = time.monotonic()
        module = importlib.import_module(f"tests.bench_trainer.{MODULES[name]}")
        figures += module.figures(quick=quick)
        print(f"  {time.monotonic() - began:.0f} s", flush=True)
    return figures


def conditions() -> str:
    """What the figures were taken with."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PEERS)
    return (
        "Medians of 3 runs in turns, each in processes of its own; mosaicml-streaming's order index ran "
        "once, and the steps of our loop and of the bare one alternate in one process. Only downtime "
        "includes imports. Throughput counts from the first batch on, files in the page cache. Local disk; "
        "Python "
        f"{platform.python_version()}, {versions}, {os.cpu_count()} cores."
    )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="bench_trainer", description=__doc__)
    parser.add_argument("--only", help=f"some of {','.join(MODULES)}")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works; not written")
    parser.add_argument("--write", type=Path, help="Markdown file to put the table into")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(MODULES)
    if unknown := sorted(set(names) - set(MODULES)):
        parser.error(f"--only: given {', '.join(unknown)}; allowed {', '.join(MODULES)}")
    if arguments.write and (arguments.quick or arguments.only):
        parser.error("--write: given with --quick or --only; allowed for a whole run; leave one of them out")
    figures = measure(names, quick=arguments.quick)
    shown = f"{table(figures)}\n\n{conditions()}"
    print(f"\n{shown}\n\n{missed(figures)}")
    if not arguments.quick and not arguments.only:
        dump(figures, OUT)
    if arguments.write:
        write_between(arguments.write, "bench:trainer", shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
