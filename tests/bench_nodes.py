"""Measures node code on booted machines: the lifecycle's wall time and size, and a dead host on a real Slurm.

Writes `build/bench/nodes.json` and prints a table; `--write FILE` also puts it between the file's markers.
Needs root, for namespaces.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests import bench_recovery
from tests.engines import test_lifecycle as lifecycle
from tests.engines.firm import Authority, Aws, Prometheus, Syslog
from tests.figures import Figure, dump, figure, missed, table, write_between
from tests.support import ROOT

OUT = ROOT / "build/bench/nodes.json"
# awslabs/awsome-distributed-ai, LifecycleScripts/base-config without its observability, and the largest of
# the sample bundles.
SMALLEST_PEER, LARGEST_PEER = 1_600, 4_700


def wall(runs: int) -> Iterator[Figure]:
    """First and second run with certificates, users, packages, metrics and logs on."""
    firsts, seconds = [], []
    for _ in range(runs):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            authority, aws = Authority(folder), stack.enter_context(Aws())
            firm = lifecycle.Firm(aws, authority, authority, folder)
            prometheus = stack.enter_context(Prometheus(authority, folder))
            syslog = stack.enter_context(Syslog(authority))
            node = lifecycle.prepared(firm)
            stack.callback(node.__exit__)
            told, site = lifecycle.everything(firm, prometheus, syslog)
            node.upload(told, site, lifecycle.groups(node))
            for times in (firsts, seconds):
                began = time.perf_counter()
                done = node.provision()
                assert done.returncode == 0, done.stdout
                times.append(time.perf_counter() - began)
    first, second = statistics.median(firsts), statistics.median(seconds)
    name = "lifecycle with everything on: the second run, against the first on a fresh root"
    yield figure(name, round(second, 2), round(first, 2), "s", "ratio ≤ 0.10", met=second <= 0.1 * first)


def size() -> Iterator[Figure]:
    """Lines of code of all that nodes run; researchers' commands and jobs apart."""
    counted = {"steps": 0, "research": 0}
    for path in sorted((ROOT / "lifecycle").rglob("*")):
        if not path.is_file() or path.suffix in (".json", ".pyc"):
            continue
        kind = "research" if path.parent.name in ("bin", "jobs") else "steps"
        counted[kind] += code_lines(path.read_text(encoding="utf-8"))
    name = "lines of node code, against the smallest of the peers' bundles"
    yield figure(name, counted["steps"], SMALLEST_PEER, "lines", "≤ 900", met=counted["steps"] <= 900)
    name = "the same with researchers' commands and job scripts, which the peers' bundles lack"
    yield figure(name, sum(counted.values()), LARGEST_PEER, "lines")


def code_lines(text: str) -> int:
    """Lines that are neither blank nor a comment nor part of a docstring."""
    lines = text.splitlines()
    told: set[int] = set()
    if re.match(r'#!.*python|"""', text):
        for node in ast.walk(ast.parse(text)):
            first = getattr(node, "body", None)
            if isinstance(first, list) and first and isinstance(first[0], ast.Expr):
                value = first[0].value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    told |= set(range(value.lineno, (value.end_lineno or 0) + 1))
    kept = (line.strip() for number, line in enumerate(lines, 1) if number not in told)
    return sum(bool(line) and not line.startswith("#") for line in kept)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="bench_nodes", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="machines to boot (default: 3)")
    parser.add_argument("--write", type=Path, help="Markdown file to put the table into")
    arguments = parser.parse_args()
    figures = [*wall(arguments.runs), *size(), *bench_recovery.figures()]
    dump(figures, OUT)
    deaths = f"{bench_recovery.RUNS} hosts' deaths"
    told = f"Medians of {arguments.runs} fresh machines, and of {deaths}. {os.cpu_count()} cores."
    shown = f"{table(figures)}\n\n{told}"
    print(shown)
    if arguments.write:
        write_between(arguments.write, "bench:nodes", shown)
    print(f"\n{missed(figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
