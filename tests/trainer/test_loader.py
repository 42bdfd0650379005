"""The loader: exactly once on any ranks and workers, resumed to the sample; workers die with the trainer."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from streaming import MDSWriter

from tests.trainer.buckets import s3_server
from trainer.cache import CacheConfig
from trainer.collate import Processor, ProcessorConfig
from trainer.errors import TrainerError
from trainer.loader import Loader, pass_over
from trainer.rival import remove_stale_shared_memory
from trainer.samples import COLUMNS
from trainer.source import DataConfig, StreamConfig
from trainer.stores import open_store
from trainer.synthesize import Scale, generate
from trainer.workers import init_worker

N = 160
ROOT = Path(__file__).parents[2]


def write(path, n=N, seed=0, size_limit=40_000, **more):
    with MDSWriter(out=str(path), columns=COLUMNS, hashes=["xxh64"], size_limit=size_limit, **more) as writer:
        for sample in generate(n, seed, scale=Scale(1, 32, 16, 4)):
            writer.write(sample)
    return str(path)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    return write(tmp_path_factory.mktemp("mds") / "set")


@pytest.fixture(scope="module")
def processor():
    return Processor(ProcessorConfig())


def config(*urls, **more) -> DataConfig:
    return DataConfig(
        **{"streams": tuple(StreamConfig(url=u) for u in urls), "window_shards": 3, "workers": 0, **more}
    )


def make(data, processor, rank=0, world=1, global_batch=16, micro_batch=2, seed=3) -> Loader:
    return Loader(
        data,
        rank=rank,
        world=world,
        global_batch=global_batch,
        micro_batch=micro_batch,
        processor=processor,
        seed=seed,
    )


def flat(lists):
    return list(chain.from_iterable(lists))


def steps(loader, count):
    """Sample ids of each step, in the order of the micro-batches."""
    out = []
    stream = iter(loader)
    for _ in range(count):
        out.append([name for batch in next(stream) for name in batch.sample_ids])
    stream.close()
    return out


def test_an_epoch_is_each_sample_once_and_epochs_differ(url, processor):
    one, two = np.array(steps(make(config(url), processor), 20)).reshape(2, N)
    assert sorted(one) == sorted(two)
    assert len(set(one)) == N
    assert list(one) != list(two)


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_a_step(url, processor, world):
    alone = steps(make(config(url), processor), 6)
    shares = [steps(make(config(url), processor, rank, world), 6) for rank in range(world)]
    assert [flat(share[n] for share in shares) for n in range(6)] == alone


def test_stop_and_resume_on_other_ranks_and_workers(url, processor):
    """M1: stopped in the middle of the second epoch on 2 ranks, resumed on 4 and on 1, with other workers."""
    alone = steps(make(config(url), processor), 18)
    loader = make(config(url, workers=2), processor, 1, 2)
    steps(loader, 13)
    state = loader.state_dict()
    assert (state["position"], state["epoch"]) == (13 * 16, 1)
    for world, workers in ((4, 1), (1, 2), (2, 0)):
        shares = []
        for rank in range(world):
            resumed = make(config(url, workers=workers), processor, rank, world)
            resumed.load_state_dict(state)
            shares.append(steps(resumed, 4))
        assert [flat(share[n] for share in shares) for n in range(4)] == alone[13:17]


def test_batches_are_bitwise_equal_at_any_worker_count(url, processor):
    for one, two in zip(
        *(_first(make(config(url, workers=w, prefetch=3), processor), 4) for w in (0, 2)), strict=True
    ):
        for name, value in vars(one).items():
            assert (
                value.equal(getattr(two, name))
                if isinstance(value, torch.Tensor)
                else value == getattr(two, name)
            )


def _first(loader, count):
    stream = iter(loader)
    got = [batch for _ in range(count) for batch in next(stream)]
    stream.close()
    return got


def test_state_counts_what_was_handed_out_not_what_was_prefetched(url, processor):
    loader = make(config(url, workers=2, prefetch=4), processor)
    stream = iter(loader)
    next(stream)
    time.sleep(0.3)
    assert loader.state_dict()["position"] == 16
    assert loader.wait_s > 0
    stream.close()


def test_state_of_another_order_is_refused(url, processor, tmp_path):
    state = make(config(url), processor).state_dict()
    with pytest.raises(TrainerError, match="loader state: seed: given 4; allowed 3"):
        make(config(url), processor, seed=4).load_state_dict(state)
    with pytest.raises(TrainerError, match="loader state: window_shards"):
        make(config(url, window_shards=5), processor).load_state_dict(state)
    with pytest.raises(TrainerError, match="loader state: shards"):
        make(config(write(tmp_path / "other", 40)), processor).load_state_dict(state)


def test_sizes_that_do_not_divide(url, processor):
    with pytest.raises(
        TrainerError, match=r"global_batch: given 16; allowed a multiple of ranks x micro_batch = 3 x 2"
    ):
        make(config(url), processor, 0, 3)


def _resume_time(url):
    code = (
        "import time\nfrom trainer.loader import *\nfrom trainer.source import *\n"
        "from trainer.collate import *\n"
        f"d=DataConfig(streams=(StreamConfig(url={url!r}),),workers=2)\n"
        "for _ in range(2):\n"
        " t=time.perf_counter()\n"
        " l=Loader(d,rank=0,world=1,global_batch=64,micro_batch=8,processor=Processor(d.processor),seed=1)\n"
        " l.load_state_dict({**l.state_dict(),'position':64*10**7})\n"
        " s=iter(l); next(s); print(time.perf_counter()-t); s.close()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return min(map(float, ran.stdout.split()))


def test_resume_deep_into_the_run_is_immediate(url):
    assert _resume_time(url) < 3  # 0.1 s on a quiet machine


# ------------------------------------------------------------------------------------------ faults


def _break(copy, shard="shard.00001.mds"):
    path = Path(copy) / shard
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return f"{copy}/{shard}"


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_shard_is_one_error_from_workers_too(url, processor, tmp_path, workers):
    copy = str(shutil.copytree(url, tmp_path / "copy"))
    name = _break(copy)
    with pytest.raises(TrainerError) as caught:
        steps(make(config(copy, workers=workers), processor), 10)
    assert str(caught.value).startswith(f"shard {name}: given xxh64 ")
    assert "\n" not in str(caught.value)


def test_quarantine_agrees_on_all_ranks_and_after_resume(url, processor, tmp_path):
    healthy = steps(make(config(url), processor), 10)
    copy = str(shutil.copytree(url, tmp_path / "copy"))
    name = _break(copy)
    by_recipe = steps(make(config(copy, quarantine=(name,)), processor), 10)
    found = make(config(copy, on_bad_shard="quarantine", workers=2), processor)
    assert steps(found, 10) == by_recipe
    assert found.state_dict()["quarantined"] == [name]
    shares = [
        steps(make(config(copy, on_bad_shard="quarantine"), processor, rank, 2), 10) for rank in range(2)
    ]
    assert [a + b for a, b in zip(*shares, strict=True)] == by_recipe
    # Only the bad shard's places changed: every healthy sample came where it would have come.
    pairs = [(a, b) for x, y in zip(healthy, by_recipe, strict=True) for a, b in zip(x, y, strict=True)]
    lost = {a for a, b in pairs if a != b}
    assert 0 < len(lost) < N / 4
    assert not lost & {b for _, b in pairs}
    resumed = make(config(copy), processor)
    resumed.load_state_dict({**found.state_dict(), "position": 5 * 16})
    assert steps(resumed, 5) == by_recipe[5:]


def test_unknown_or_whole_quarantine_is_refused(url, processor):
    with pytest.raises(TrainerError, match=r"data\.quarantine: given nonsense"):
        make(config(url, quarantine=("nonsense",)), processor)
    every = tuple(f"{url}/{path.name}" for path in Path(url).glob("*.mds"))
    with pytest.raises(TrainerError, match="every shard bad"):
        make(config(url, quarantine=every), processor)


# -------------------------------------------------------------------------------- remote and cached


@pytest.mark.parametrize("compression", [None, "zstd:3"])
def test_from_s3_within_the_limit(url, processor, tmp_path, compression):
    """The same samples as from disk, through a cache of a quarter of the data, never beyond it."""
    expected = steps(make(config(url), processor), 10)
    local = write(tmp_path / "zip", compression=compression)
    with s3_server("loader-test") as (bucket, _):
        remote = f"{bucket}/{'zip' if compression else 'raw'}"
        store = open_store(remote)
        for path in Path(local).iterdir():
            store.put(path, path.name)
        cache = CacheConfig(directory=str(tmp_path / "cache"), limit_bytes=180_000, run="a")
        loader = make(config(remote, cache=cache, workers=2), processor)
        peak, stream, got = 0, iter(loader), []
        for _ in range(10):
            got.append([name for batch in next(stream) for name in batch.sample_ids])
            root = Path(cache.directory).glob("*/a/*")
            peak = max(peak, sum(p.stat().st_size for p in root if p.exists() and p.suffix == ".mds"))
        stream.close()
        small = CacheConfig(directory=str(tmp_path / "cache"), limit_bytes=50_000, run="b")
        with pytest.raises(TrainerError, match=r"two of the largest shard"):
            make(config(remote, cache=small), processor)
    assert got == expected
    assert 40_000 < peak <= 180_000


def test_mixture_of_streams(url, processor, tmp_path):
    other = write(tmp_path / "quality", 20, seed=77)
    streams = (StreamConfig(url=url, weight=3), StreamConfig(url=other, weight=1))
    ids = flat(steps(make(config(streams=streams), processor), 10))
    mine = [name for name in ids if name.startswith("77-")]
    assert len(mine) == 40
    assert sorted(mine[:20]) == sorted(mine[20:])
    assert len({name for name in ids if not name.startswith("77-")}) == 120


def test_one_pass_for_evaluation(url, processor):
    shares = [[], []]
    for rank in range(2):
        for batch in pass_over(config(url), rank=rank, world=2, micro_batch=7, processor=processor):
            shares[rank] += batch.sample_ids
    assert sorted(flat(shares)) == [f"0-{n:09d}" for n in range(N)]
    few = pass_over(config(url), rank=0, world=1, micro_batch=7, processor=processor, limit=10, answers=False)
    assert [batch.sizes for batch in few] == [7, 3]


# -------------------------------------------------------------------------------------------------- the rival


def test_streaming_serves_the_same_samples(url, processor, monkeypatch, tmp_path):
    """Both readers: every sample once in an epoch; stopped at a step, streaming too goes on after it (M1)."""
    cache = CacheConfig(directory=str(tmp_path), run="s")
    data = config(url, reader="streaming", cache=cache)
    theirs = steps(make(data, processor), 10)
    assert sorted(flat(theirs)) == sorted(flat(steps(make(config(url), processor), 10)))
    loader = make(data, processor)
    loader.load_state_dict({**loader.state_dict(), "position": 6 * 16})
    assert steps(loader, 4) == theirs[6:]


def test_stale_shared_memory_does_not_stop_a_start(url, processor, tmp_path):
    """M2, M3: what a killed run left under streaming's names is removed; what is in use stays."""
    stale, live = Path("/dev/shm/777771_epoch_shape"), Path("/dev/shm/777772_epoch_shape")
    stale.write_bytes(b"x")
    live.write_bytes(b"x" * 4096)
    holder = subprocess.Popen([
        sys.executable, "-c",


        f"import mmap,sys;f=open('{live}','r+b');m=mmap.mmap(f.fileno(),0);"
        "print(1,flush=True);sys.stdin.read()",
    ], stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    holder.stdout.readline()
    try:
        remove_stale_shared_memory()
        assert not stale.exists()
        assert live.exists()
    finally:
        holder.kill()
        holder.wait()
        live.unlink(missing_ok=True)


# ---------------------------------------------------------------------------------------- worker processes


class Leaves:
    """Garbage, a cycle of its own, that says in which process it is collected."""

    def __init__(self, folder):
        self.folder, self.itself = folder, self

    def __del__(self):
        (self.folder / str(os.getpid())).touch()


def test_a_worker_leaves_the_parents_garbage_alone(tmp_path):
    gc.disable()
    try:
        Leaves(tmp_path)
        if (worker := os.fork()) == 0:
            init_worker(0)
            gc.collect()
            os._exit(0)
        os.waitpid(worker, 0)
    finally:
        gc.enable()
    assert not list(tmp_path.iterdir())
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())]


RUN = """
import os, sys, time
from trainer.loader import *
from trainer.source import *
from trainer.collate import *
d = DataConfig(streams=(StreamConfig(url=sys.argv[1]),), workers=2)
loader = Loader(d, rank=0, world=1, global_batch=16, micro_batch=2, processor=Processor(d.processor), seed=1)
stream = iter(loader)
next(stream)
from trainer.workers import _live
print(*[w.pid for w in _live], flush=True)
"""


def _run(url, tail):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN + tail, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    return process, workers


def _gone(pids, within):
    until = time.monotonic() + within
    while time.monotonic() < until:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_workers_die_with_a_killed_trainer(url):
    """Silent error 5: kill -9 of the rank takes its workers at once, and leaves no shared memory (M2)."""
    process, workers = _run(url, "time.sleep(60)")
    # Theirs alone: other tests read with mosaicml-streaming at the same time.
    held = {name for number in (process.pid, *workers) for name in _shared_memory(number)}
    process.kill()
    process.wait()
    assert _gone(workers, 3)
    assert not {name for name in held if Path(name).exists()}


def _shared_memory(process: int) -> set[str]:
    """Named shared memory that a process has mapped or open."""
    place = Path(f"/proc/{process}")
    names = {
        line.split(None, 5)[-1] for line in (place / "maps").read_text().splitlines() if "/dev/shm/" in line
    }
    for link in (place / "fd").iterdir():
        with suppress(OSError):
            names.add(str(link.readlink()))
    return {name for name in names if name.startswith("/dev/shm/") and not name.endswith("(deleted)")}


def test_workers_outlive_a_group_sigterm(url):
    """Silent error 5: SIGTERM and SIGUSR1 to the whole group leave workers to the trainer, which goes on."""
    tail = """
import signal
signal.signal(signal.SIGTERM, lambda *_: None); signal.signal(signal.SIGUSR1, lambda *_: None)
print("ready", flush=True)
time.sleep(1.0)
for _ in range(6): next(stream)
stream.close()
print("went on", flush=True)
"""
    process, workers = _run(url, tail)
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGUSR1)
    out, error = process.communicate(timeout=60)
    assert "went on" in out, error
    assert process.returncode == 0
    assert _gone(workers, 3)


def test_exit_without_closing_does_not_hang(url):
    process, workers = _run(url, "keep = [stream]; sys.exit(3)")
    _, error = process.communicate(timeout=60)
    assert process.returncode == 3, error
    assert "Traceback" not in error, error
    assert _gone(workers, 3)
