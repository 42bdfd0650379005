"""Resuming in the middle of an epoch: seconds from making the loader to its first batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from tests.bench_trainer.measure import call, in_turns, median, medians, short
from tests.figures import Figure, figure

SAMPLES = 1_050_000


def figures(*, quick: bool) -> Iterator[Figure]:
    """At 10^4 and 10^6 of 1.05 million tiny samples; the skipping loop is run to 10^4 only."""
    samples, near, far = (50_000, 10**4, 4 * 10**4) if quick else (SAMPLES, 10**4, 10**6)
    rounds = 1 if quick else 3
    place = call("datasets:make", "numbers", samples)
    runs = {
        f"{name}, {position}": partial(call, "resume:first_batch", name, place, position)
        for name in ("ours", "mosaicml")
        for position in (near, far)
    }
    took = medians(runs, rounds)
    skipping = in_turns({"skipping": partial(call, "resume:skip", place, near)}, rounds)["skipping"]
    skipped, rate = median([run["s"] for run in skipping]), median([run["samples_per_s"] for run in skipping])
    for position in (near, far):
        ours, name = took[f"ours, {position}"], f"first batch on resuming at sample {position:.0e}, against"
        target, met = ("≤ 0.25", ours <= 0.25) if position == far else ("", None)
        own_state = took[f"mosaicml, {position}"]
        yield figure(f"{name} mosaicml-streaming's own state", ours, own_state, "s", target, met=met)
        if position == near:
            yield figure(f"{name} reading and dropping batches of mosaicml-streaming", ours, skipped, "s")
        else:
            name = f"{name} reading and dropping, extrapolated from {rate:,.0f} samples/s"
            dropped = short(position / rate)
            yield figure(name, ours, dropped, "s", "ratio ≤ 0.002", met=ours <= 0.002 * dropped)


def skip(place: str, position: int) -> dict[str, float]:
    """Seconds to the first batch after so many dropped samples, and the speed of dropping alone."""
    import streaming  # noqa: F401 (not to be timed)

    from tests.bench_trainer import readers

    began = time.perf_counter()
    batches = iter(readers.mosaicml(place))
    next(batches)
    first = time.perf_counter()
    dropped = position // readers.BATCH - 1
    for _ in range(dropped):
        next(batches)
    speed = dropped * readers.BATCH / (time.perf_counter() - first)
    next(batches)
    return {"s": time.perf_counter() - began, "samples_per_s": speed}


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
