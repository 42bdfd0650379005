"""Loader throughput: samples per second from the first batch on, over an epoch or its first ten seconds."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from functools import partial

from tests.bench_trainer.measure import call, medians
from tests.figures import Figure, figure

LIMIT_S = 10.0
TARGETS = {"mosaicml-streaming": 3.0, "litdata": 1.3, "webdataset": None, "torchdata over a memmap": None}
FORMATS = {
    "mosaicml": "mds",
    "litdata": "litdata",
    "webdataset": "webdataset",
    "torchdata": "memmap",
    "ours": "mds",
}


def figures(*, quick: bool) -> Iterator[Figure]:
    """The same samples through every loader, then driving samples through the trainer's Loader."""
    samples, rounds = (20_000, 1) if quick else (100_000, 3)
    places = {kind: call("datasets:make", kind, samples) for kind in dict.fromkeys(FORMATS.values())}
    runs = {name: partial(call, "loader:epoch", name, places[kind]) for name, kind in FORMATS.items()}
    speed = medians(runs, rounds)
    for (rival, target), key in zip(TARGETS.items(), FORMATS, strict=False):
        name = f"loader, {samples:,} samples of 4 KiB, batch 64, 2 workers, against {rival}"
        met = None if target is None else speed["ours"] >= target * speed[key]
        told = "" if target is None else f"ratio ≥ {target:g}"
        yield figure(name, speed["ours"], speed[key], "samples/s", told, met=met)
    place, batches = call("datasets:make", "driving", 2000), 60 if quick else 240  # within an epoch
    readers = {name: partial(call, "loader:drive", place, name, batches) for name in ("native", "streaming")}
    speed = medians(readers, rounds)
    name = "whole loader on driving samples, against the same with `reader: streaming`"
    yield figure(name, speed["native"], speed["streaming"], "samples/s")


def epoch(loader: str, place: str) -> float:
    """Samples per second."""
    from tests.bench_trainer import readers

    batches = iter(getattr(readers, loader)(place))
    next(batches)
    began, seen = time.perf_counter(), 0
    for batch in batches:
        first, second = batch.values() if isinstance(batch, dict) else batch
        assert first.shape[1:] in ((512,), (16, 64)), first.shape
        assert len(first) == len(second)
        seen += len(first)
        if time.perf_counter() - began > LIMIT_S:
            break
    return seen / (time.perf_counter() - began)


def drive(place: str, reader: str, batches: int) -> float:
    """Samples per second of so many batches."""
    from tests.bench_trainer import readers

    with tempfile.TemporaryDirectory() as cache:
        steps = readers.driving(place, reader, cache)
        next(steps)
        began = time.perf_counter()
        seen = sum(micro.sizes for _ in range(batches) for micro in next(steps))
        speed = seen / (time.perf_counter() - began)
        steps.close()
    return speed
