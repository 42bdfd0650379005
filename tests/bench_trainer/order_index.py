"""Order index: seconds to the first 4096 sample numbers of an epoch, and the memory of the process."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from functools import partial

from tests.bench_trainer.measure import call, in_turns, median
from tests.figures import Figure, figure

SHARD = 4096  # samples
FIRST = 4096
NODES, WORKERS = 16, 8  # of mosaicml-streaming's partition
LARGE, LARGER = 10**8, 10**9


def figures(*, quick: bool) -> Iterator[Figure]:
    """At 10^8 and 10^9 samples."""
    large, larger = (10**6, 10**7) if quick else (LARGE, LARGER)
    ours = {
        n: in_turns({f"ours, {n:.0e}": partial(call, "order_index:ours", n)}, 1 if quick else 3)
        for n in (large, larger)
    }
    rival = in_turns({f"mosaicml-streaming, {large:.0e}": partial(call, "order_index:mosaicml", large)}, 1)
    (theirs,) = next(iter(rival.values()))
    for n in (large, larger):
        runs = next(iter(ours[n].values()))
        seconds, memory = median([run["s"] for run in runs]), median([run["mb"] for run in runs])
        against = "mosaicml-streaming's partition and py1e shuffle"
        if n == larger:
            against += f" at {large:.0e}; ten times that, about {theirs['mb'] / 100:.0f} GB, was not run"
        name = f"order index of {n:.0e} samples, the first {FIRST}, against {against}"
        yield figure(name, seconds, median([theirs["s"]]), "s", "≤ 0.05", met=seconds <= 0.05)
        against += f"; {theirs['imports_mb']:.0f} MB of the rival's are imports"
        name = f"order index of {n:.0e} samples, peak memory of the process, against {against}"
        yield figure(name, memory, median([theirs["mb"]]), "MB", "≤ 100", met=memory <= 100)


def ours(n: int) -> dict[str, float]:
    """What a loader does before it can read: the mixture's order over shards of 4096."""
    import numpy as np

    from trainer.order import Mixture

    sizes = np.full(-(-n // SHARD), SHARD)
    sizes[-1] = n - SHARD * (len(sizes) - 1)
    imports = _peak_mb()
    began = time.perf_counter()
    _, samples = Mixture([sizes], [1.0], 7).locate(np.arange(FIRST))
    seconds = time.perf_counter() - began
    assert len(np.unique(samples)) == FIRST
    return {"s": seconds, "mb": _peak_mb(), "imports_mb": imports}


def mosaicml(n: int) -> dict[str, float]:
    """What StreamingDataset does at the start of each epoch and each resume."""
    import numpy as np
    from streaming.base.partition import get_partitions
    from streaming.base.shuffle import get_shuffle

    sizes = np.full(-(-n // SHARD), SHARD)
    sizes[-1] = n - SHARD * (len(sizes) - 1)
    imports = _peak_mb()
    began = time.perf_counter()
    places = get_partitions("relaxed", n, NODES, NODES, 8, WORKERS, 64)
    order = get_shuffle("py1e", sizes, NODES, 7, 0)
    samples = np.where(places == -1, -1, order[places])
    seconds = time.perf_counter() - began
    assert samples.size >= n
    return {"s": seconds, "mb": _peak_mb(), "imports_mb": imports}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
