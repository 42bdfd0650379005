"""Resuming in the middle of an epoch: seconds from making the loader to its first batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from tests.bench_trainer.measure import call, medians, short
from tests.figures import Figure, figure

SAMPLES = 1_050_000


def figures(*, quick: bool) -> Iterator[Figure]:
    """At 10^4 and 10^6 of 1.05 million tiny samples; the skipping loop is run to 10^4 only."""
    samples, near, far = (50_000, 1000, 40_000) if quick else (SAMPLES, 10**4, 10**6)
    place = call("datasets:make", "numbers", samples)
    runs = {
        f"{name}, {position}": partial(call, "resume:first_batch", name, place, position)
        for name in ("ours", "mosaicml")
        for position in (near, far)
    }
    runs["naive"] = partial(call, "resume:first_batch", "naive", place, near)
    took = medians(runs, 1 if quick else 3)
    for position in (near, far):
        ours, name = took[f"ours, {position}"], f"first batch on resuming at sample {position:.0e}, against"
        rival = took[f"mosaicml, {position}"]
        target, met = ("≤ 0.25", ours <= 0.25) if position == far else ("", None)
        yield figure(f"{name} mosaicml-streaming's own state", ours, rival, "s", target, met=met)
        skipped = took["naive"]
        if position == near:
            yield figure(f"{name} skipping batches of mosaicml-streaming", ours, skipped, "s")
            continue
        empty = took[f"mosaicml, {near}"]
        rate = near / max(skipped - empty, 1e-3)
        name += f" skipping batches, extrapolated from {rate:,.0f} samples/s to {near:.0e}"
        yield figure(name, ours, short(far / rate), "s", "≤ 0.002", met=ours <= 0.002 * far / rate)


def first_batch(loader: str, place: str, position: int) -> float:
    """Seconds; imports are not in it."""
    from tests.bench_trainer import readers

    if loader != "ours":
        import streaming  # noqa: F401
    began = time.perf_counter()
    batch = next(iter(getattr(readers, loader)(place, position)))
    took = time.perf_counter() - began
    assert len(batch["number"]) == readers.BATCH
    return took
