"""Properties of the sampling order: a permutation, each sample once on any world and stop point."""

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import TrainerError
from trainer.loader import _Positions
from trainer.order import Mixture, Order, fold, permute

shapes = {
    "n": st.integers(1, 400), "seed": st.integers(0, 2**40), "epoch": st.integers(0, 5),
    "block": st.integers(1, 90),
    "window": st.integers(1, 9), "lanes": st.integers(1, 5), "stripe": st.integers(1, 20),
}  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(**shapes)
def test_permutation_of_equal_blocks(n, seed, epoch, block, window, lanes, stripe):
    order = Order(n, seed, epoch, block, window=window, lanes=lanes, stripe=stripe)
    assert sorted(order.take(np.arange(n)).tolist()) == list(range(n))


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    seed=st.integers(0, 2**40),
    window=shapes["window"],
)
def test_permutation_of_ragged_shards(sizes, seed, window):
    total = sum(sizes)
    order = Order(total, seed, sizes=np.array(sizes), window=window)
    assert sorted(order.take(np.arange(total)).tolist()) == list(range(total))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), seed=st.integers(0, 99),
    stop=st.integers(0, 6), before=st.sampled_from([1, 2, 4, 8]), after=st.sampled_from([1, 2, 4, 8]),
    micro=st.sampled_from([1, 2]), steps=st.integers(1, 12),
)  # fmt: skip
def test_each_sample_once_over_any_world_stop_and_resume(sizes, seed, stop, before, after, micro, steps):
    """M1: what `before` ranks leave at a step, `after` ranks take up, nothing twice and nothing skipped."""
    global_batch = 16
    mixture = Mixture([np.array(sizes)], [1.0], seed)

    def samples(first, last, world):
        out = []
        for rank in range(world):
            per_step = global_batch // (world * micro)
            batches = iter(_Positions(first * global_batch, global_batch, micro, rank, world))
            out += [p for _ in range((last - first) * per_step) for p in next(batches).tolist()]
        return sorted(out)

    stop = min(stop, steps)
    positions = samples(0, stop, before) + samples(stop, steps, after)
    assert positions == list(range(steps * global_batch))
    served = mixture.locate(np.array(positions))[1]
    total = sum(sizes)
    for epoch in range(len(served) // total):
        assert sorted(served[epoch * total : (epoch + 1) * total].tolist()) == list(range(total))


def test_epochs_and_seeds_differ_and_repeat():
    first = Order(1000, 7, 0, 50).take(np.arange(1000))
    assert (first == Order(1000, 7, 0, 50).take(np.arange(1000))).all()
    for other in (Order(1000, 7, 1, 50), Order(1000, 8, 0, 50)):
        assert (first == other.take(np.arange(1000))).mean() < 0.02


def test_locality_and_mixing():
    """Positions of one window come from `window` blocks only, and from all of them at once."""
    block, window = 100, 8
    blocks = Order(10_000, 3, 0, block, window=window).take(np.arange(10_000)) // block
    for start in range(0, 10_000, block * window):
        assert len(set(blocks[start : start + block * window])) <= window
    assert len(set(blocks[:64].tolist())) == window


def test_uniform_over_small_permutations():
    seen = {}
    for seed in range(3000):
        key = tuple(permute(np.arange(4), 4, fold(seed, 1)).tolist())
        seen[key] = seen.get(key, 0) + 1
    assert len(seen) == 24
    assert sum((count - 125) ** 2 / 125 for count in seen.values()) < 60  # chi², 23 degrees: p < 1e-4 above


def test_first_sample_lands_anywhere():
    places = np.array([Order(1000, seed, 0, 64)[0] for seed in range(500)])
    assert 400 < places.mean() < 600
    assert len(set(places.tolist())) > 350


def test_lanes_keep_ranks_to_their_part():
    order = Order(64 * 100, 1, 0, 64, window=2, lanes=4, stripe=8)
    blocks = {lane: set() for lane in range(4)}
    for position, sample in enumerate(order.take(np.arange(1600))):
        blocks[position // 8 % 4].add(int(sample) // 64)
    union = set.union(*blocks.values())
    assert all(len(part) <= len(union) / 2 for part in blocks.values())


def test_mixture_meets_weights_and_reshuffles():
    mixture = Mixture([np.array([10, 10]), np.array([300])], [0.75, 0.25], 5)
    stream, sample = mixture.locate(np.arange(4096))
    assert (stream == 0).sum() == 3072
    for start in range(0, 4096 - 64, 64):
        assert abs((stream[start : start + 64] == 0).mean() - 0.75) < 0.03
    mine = sample[stream == 0]
    assert all(sorted(mine[k : k + 20].tolist()) == list(range(20)) for k in range(0, 3000, 20))
    assert (mine[:20] != mine[20:40]).any()
    assert mixture.epochs(4096) == [3072 // 20, 1024 // 300]


def test_errors():
    with pytest.raises(TrainerError, match=r"order\.window: given 0"):
        Order(5, 1, window=0)
    with pytest.raises(IndexError, match="position 5 outside"):
        Order(5, 1)[5]
    with pytest.raises(TrainerError, match="weight above 0"):
        Mixture([np.array([1])], [0.0], 1)


@pytest.mark.parametrize("n", [10**8, 10**9])
def test_index_is_constant_in_time_and_memory(n):
    """First index and 64 more: milliseconds, and the process stays at numpy's own size."""
    code = (
        "import time,numpy as np\nfrom trainer.order import Order\nOrder(9,1)[0]\n"
        f"t=time.perf_counter()\no=Order({n},1,0,16384)\no[0]; o.take(np.arange({n}-64,{n}))\n"
        "took = time.perf_counter()-t\n"
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(took, int(peak.split()[1])/1024)"
    )
    best = min(
        tuple(map(float, subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
        check=True)
                  .stdout.split())) for _ in range(2)
    )  # fmt: skip
    assert best[0] < 0.05
    assert best[1] < 100


def test_ragged_index_over_many_shards_is_quick():
    sizes = np.random.default_rng(0).integers(5000, 15000, 100_000)
    began = time.perf_counter()
    order = Order(int(sizes.sum()), 1, sizes=sizes)
    assert 0 <= order[10**9 // 2] < sizes.sum()
    assert time.perf_counter() - began < 2
