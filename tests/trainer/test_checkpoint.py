"""Saving beside the training, and what becomes of a save that fails."""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import threading
import time

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.staging import DefaultStager
from torch.distributed.device_mesh import init_device_mesh

from tests.trainer.buckets import s3_server
from tests.trainer.ranks import run_ranks
from tests.trainer.toy import Toy
from trainer import state as state_module
from trainer.checkpoint import CheckpointsFailingError
from trainer.errors import TrainerError
from trainer.publish import MARKER
from trainer.state import load_model, rng_state, set_rng_state


@pytest.fixture
def lines(capfd):
    def read() -> list[str]:
        return [entry for entry in capfd.readouterr().out.splitlines() if entry.startswith("[trainer]")]

    return read


# ------------------------------------------------------------------------------- one process


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path, mode):
    whole = Toy(tmp_path, mode=mode, every=3)
    losses = []
    for step in range(6):
        losses.append(whole.step(step))
        if whole.checkpoints.due(step + 1) and step < 5:
            whole.checkpoints.save(step + 1, whole.state(step + 1))
    whole.checkpoints.close()

    resumed = Toy(tmp_path)
    marker, skipped = resumed.checkpoints.latest()
    assert (marker.step, skipped) == (3, [])
    state = resumed.state()
    resumed.checkpoints.load(3, state)
    assert json.loads(state["progress"]) == {"step": 3}
    assert [resumed.step(step) for step in range(3, 6)] == losses[3:]
    assert all(map(torch.equal, whole.weights(), resumed.weights()))


def test_hyperparameters_are_the_recipes_and_lie_in_no_checkpoint(tmp_path, monkeypatch):
    """Those of a checkpoint that has them, as older ones do, do not count either."""
    for name, kept in (("new", state_module._is_hyperparameter), ("old", lambda name: False)):
        saved = Toy(tmp_path / name)
        saved.step(0)
        with monkeypatch.context() as patch:
            patch.setattr(state_module, "_is_hyperparameter", kept)
            saved.checkpoints.save(1, saved.state(1), urgent=True)
        reader = saved.checkpoints.folder.reader("step-00000001")
        keys = reader.read_metadata().state_dict_metadata
        assert any("param_groups" in key for key in keys) == (name == "old")
        assert sum("exp_avg" in key for key in keys) == 8

        resumed = Toy(tmp_path / name)
        (group,) = resumed.optimizer.param_groups
        group |= {"betas": (0.5, 0.6), "weight_decay": 0.3}
        resumed.checkpoints.load(1, resumed.state())
        (group,) = resumed.optimizer.param_groups
        assert (group["betas"], group["weight_decay"], group["lr"]) == ((0.5, 0.6), 0.3, 1e-2)
        moments = [resumed.optimizer.state[p]["exp_avg"] for p in resumed.model.parameters()]
        expected = [saved.optimizer.state[p]["exp_avg"] for p in saved.model.parameters()]
        assert all(map(torch.equal, moments, expected))


def test_weights_that_change_while_they_are_copied_do_not_tear_the_checkpoint(tmp_path, monkeypatch):
    """Silent error 4 (M7): with a slow copy and without `before_optimizer_step` the file is wrong."""
    stage = DefaultStager._stage

    def slow(self, state, **options):
        time.sleep(0.3)
        return stage(self, state, **options)

    monkeypatch.setattr(DefaultStager, "_stage", slow)
    saved = {}
    for name, waits in (("whole", True), ("torn", False)):
        toy = Toy(tmp_path / name)
        toy.step(0)
        before = toy.weights()
        toy.checkpoints.save(1, toy.state(1))
        if not waits:
            monkeypatch.setattr(toy.checkpoints, "before_optimizer_step", lambda: None)
        toy.step(1)
        assert not all(map(torch.equal, before, toy.weights()))
        toy.checkpoints.close()
        other = Toy(tmp_path / name)
        other.checkpoints.load(1, other.state())
        saved[name] = all(map(torch.equal, before, other.weights()))
    assert saved == {"whole": True, "torn": False}, "the second shows that the test can see a torn one"


def test_saving_does_not_block_the_step_and_commits_at_once(tmp_path, monkeypatch):
    """`latest` moves when the write is done, not at the next save."""
    toy = Toy(tmp_path)
    writer, gate = toy.checkpoints.folder.writer, threading.Event()

    def slow(*arguments):
        gate.wait(10)
        return writer(*arguments)

    monkeypatch.setattr(toy.checkpoints.folder, "writer", slow)
    toy.checkpoints.save(1, toy.state(1))
    toy.step(1)  # goes on while the writer waits
    assert not (tmp_path / "step-00000001").exists()
    gate.set()
    deadline = time.monotonic() + 10
    while not (tmp_path / "step-00000001" / MARKER).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert toy.checkpoints.latest()[0].step == 1
    toy.checkpoints.close()


def test_an_urgent_save_returns_when_it_is_durable_and_does_nothing_twice(tmp_path, lines):
    toy = Toy(tmp_path)
    toy.checkpoints.save(4, toy.state(4))
    toy.checkpoints.save(4, toy.state(4), urgent=True)
    toy.checkpoints.save(5, toy.state(5), urgent=True)
    assert toy.checkpoints.durable_step == 5
    assert [" ".join(entry.split()[1:3]) for entry in lines()] == ["checkpoint step=4", "checkpoint step=5"]


def test_keep_and_keep_every(tmp_path):
    toy = Toy(tmp_path, keep=2, keep_every=4)
    for step in range(1, 8):
        toy.checkpoints.save(step, toy.state(step))
    toy.checkpoints.close()
    assert sorted(p.name[-1] for p in tmp_path.iterdir()) == ["4", "6", "7"]


def test_a_cut_save_of_the_same_step_is_replaced(tmp_path):
    rest = tmp_path / "step-00000002"
    rest.mkdir()
    (rest / "__7_0.distcp").write_bytes(b"of eight ranks")
    toy = Toy(tmp_path)
    toy.checkpoints.save(2, toy.state(2), urgent=True)
    assert sorted(p.name for p in rest.iterdir()) == [".metadata", MARKER, "__0_0.distcp"]


def test_resume_skips_damaged_ones_and_says_so(tmp_path):
    toy = Toy(tmp_path, keep=9)
    for step in (1, 2, 3, 4):
        toy.checkpoints.save(step, toy.state(step))
    toy.checkpoints.close()
    (tmp_path / "step-00000004" / MARKER).unlink()
    (tmp_path / "step-00000003" / "__0_0.distcp").write_bytes(b"")
    data = tmp_path / "step-00000002" / "__0_0.distcp"
    data.write_bytes(data.read_bytes().replace(b"\x00", b"\x01", 1))  # a flipped bit
    marker, skipped = Toy(tmp_path).checkpoints.latest()
    assert marker.step == 1
    assert [entry.reason.split(":")[0].split(" (")[0] for entry in skipped] == [
        "not published",
        "truncated",
        "corrupt",
    ]
    assert Toy(tmp_path, verify="sizes").checkpoints.latest()[0].step == 2


def test_a_checkpoint_of_another_model_is_refused_with_one_line(tmp_path):
    toy = Toy(tmp_path)
    toy.checkpoints.save(1, toy.state(1), urgent=True)
    other = Toy(tmp_path, width=16)
    with pytest.raises(TrainerError) as refused:
        other.checkpoints.load(1, other.state())
    assert "\n" not in str(refused.value)
    assert "fits the recipe's model" in str(refused.value)


def test_weights_alone(tmp_path):
    toy = Toy(tmp_path)
    toy.step(0)
    toy.checkpoints.save(1, toy.state(1), urgent=True)
    other = Toy(tmp_path / "other")
    load_model(f"{tmp_path}/step-00000001", other.model)
    assert all(map(torch.equal, toy.weights(), other.weights()))
    with pytest.raises(TrainerError, match="FOLDER/step-NNNNNNNN"):
        load_model(str(tmp_path), other.model)


def test_random_generators_go_on_where_they_were():
    state = rng_state()
    drawn = (random.random(), np.random.rand(), torch.rand(1).item())
    set_rng_state(state)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == drawn


def test_many_saves_do_not_grow_the_process(tmp_path):
    """M8: a leak of one copy per save would be 4 MB each here."""
    toy = Toy(tmp_path, width=400, keep=1)
    toy.step(0)
    sizes = []
    for step in range(1, 13):
        toy.checkpoints.save(step, toy.state(step))
        toy.step(step)
        gc.collect()
        sizes.append(psutil.Process().memory_info().rss / 2**20)
    toy.checkpoints.close()
    assert sizes[-1] - sizes[4] < 20, sizes


# --------------------------------------------------------------------------- saves that fail


def test_failing_saves_are_told_and_stop_the_run_after_the_allowed_number(tmp_path, lines):
    blocked = tmp_path / "file"
    blocked.write_text("a file, not a folder")
    toy = Toy(blocked, failures_allowed=2)
    for step in (1, 2):
        toy.checkpoints.save(step, toy.state(step))
        toy.step(step)
    toy.checkpoints.save(3, toy.state(3))  # reports the second
    with pytest.raises(CheckpointsFailingError, match=r"3 checkpoints in a row failed, .*NotADirectoryError"):
        toy.checkpoints.save(4, toy.state(4))
    failed = [entry for entry in lines() if "checkpoint_failed" in entry]
    assert len(failed) == 3
    assert "step=2 in_a_row=2 allowed=2" in failed[1]


def test_a_copy_that_fails_costs_one_checkpoint_and_the_next_are_written_without(
    tmp_path, lines, monkeypatch
):
    """M9: staging into pinned memory ends in an error on some systems."""

    def broken(*_, **__):
        raise RuntimeError("pinned memory")

    monkeypatch.setattr(DefaultStager, "_stage", broken)
    toy = Toy(tmp_path)
    for step in (1, 2):
        toy.checkpoints.save(step, toy.state(step))
        toy.step(step)
    toy.checkpoints.close()
    assert toy.checkpoints.durable_step == 2
    told = " ".join(lines())
    assert 'staging_failed rank=0 now=sync error="RuntimeError: pinned memory"' in told
    assert "checkpoint_failed step=1" in told


@pytest.mark.skipif(
    os.geteuid() != 0, reason="root may write anywhere, so the test gives that up; needs root"
)
def test_a_read_only_folder_fails_the_save_and_not_the_training(tmp_path, lines):
    tmp_path.chmod(0o555)
    mp.start_processes(_as_nobody, args=(tmp_path / "run",), start_method="fork")
    (failed,) = [entry for entry in lines() if "checkpoint_failed" in entry]
    assert "PermissionError" in failed


def _as_nobody(rank, folder):
    os.setegid(65534)
    os.seteuid(65534)
    toy = Toy(folder)
    toy.checkpoints.save(1, toy.state(1), urgent=True)
    toy.step(1)


def test_a_full_disk_fails_the_save_frees_what_was_written_and_recovers(tmp_path, lines):
    """A limit on file size stands for the disk: rank 1's write is cut short."""
    assert run_ranks(2, _full_disk, tmp_path) == [(None, 2)] * 2
    told = lines()
    assert "checkpoint_failed step=1 in_a_row=1" in told[0]
    assert 'error="rank 1: OSError' in told[0] or 'error="rank 1: RuntimeError' in told[0]
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000002"]


def _full_disk(rank, folder):
    toy = Toy(folder, mesh=init_device_mesh("cpu", (2,)), rank=rank)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
    toy.checkpoints.save(1, toy.state(1), urgent=True)
    first = toy.checkpoints.durable_step
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    toy.checkpoints.save(2, toy.state(2), urgent=True)
    return first, toy.checkpoints.durable_step


# -------------------------------------------------------------------------------- many ranks


def _train_and_save(rank, folder, steps):
    toy = Toy(folder, mesh=init_device_mesh("cpu", (2,)), rank=rank, keep=9)
    losses = []
    for step in range(steps):
        losses.append(toy.step(step))
        toy.checkpoints.save(step + 1, toy.state(step + 1))
    toy.checkpoints.close()
    return losses, toy.weights()


def _resume(rank, folder, shape, names, first, steps):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names) if shape else None
    toy = Toy(folder, mesh=mesh, rank=rank)
    state = toy.state()
    toy.checkpoints.load(first, state)
    dist.barrier()
    return (
        [toy.step(step) for step in range(first, steps)],
        toy.weights(),
        sorted(k for k in state if "rng" in k),
    )


def test_a_checkpoint_of_two_ranks_goes_on_on_one_on_four_and_on_two_by_two(tmp_path):
    losses, weights = run_ranks(2, _train_and_save, tmp_path, 4)[0]
    layouts = [
        (1, None, None),
        (2, (2,), ("shard",)),
        (4, (4,), ("shard",)),
        (4, (2, 2), ("replicate", "shard")),
    ]
    for world, shape, names in layouts:
        for rank, (again, end, rng) in enumerate(run_ranks(world, _resume, tmp_path, shape, names, 2, 4)):
            assert again == pytest.approx(losses[2:], rel=1e-6)
            for ours, theirs in zip(weights, end, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
            assert rng == ([f"rng.{rank}"] if rank < 2 else []), "a new rank keeps the generators it has"
            if world == 2:
                assert again == losses[2:]
                assert all(map(torch.equal, weights, end)), "the same mesh is bit-equal"


def _one_copy_fails(rank, folder):
    toy = Toy(folder, mesh=init_device_mesh("cpu", (2,)), rank=rank, timeout_s=20)
    if rank == 1:
        toy.checkpoints._stager._stage = lambda *_, **__: 1 / 0
    for step in (1, 2):
        toy.checkpoints.save(step, toy.state(step))
        toy.step(step)
    toy.checkpoints.close()
    return toy.checkpoints.durable_step


def test_a_copy_that_fails_on_one_rank_does_not_hang_the_others(tmp_path, lines):
    assert run_ranks(2, _one_copy_fails, tmp_path) == [2, 2]
    assert 'checkpoint_failed step=1 in_a_row=1 allowed=3 error="ZeroDivisionError' in "\n".join(lines())


def _search(rank, folder):
    marker, skipped = Toy(folder, rank=rank).checkpoints.latest()
    return marker.step, [entry.reason for entry in skipped]


def test_all_ranks_agree_on_the_newest_whole_one_and_share_its_verification(tmp_path):
    run_ranks(2, _train_and_save, tmp_path, 3)
    for step, rank in ((3, 1), (2, 0)):
        data = tmp_path / f"step-0000000{step}" / f"__{rank}_0.distcp"
        data.write_bytes(data.read_bytes()[:-1] + b"!")
    answers = run_ranks(3, _search, tmp_path)
    assert [step for step, _ in answers] == [1] * 3
    assert all(len(reasons) == 2 and "corrupt: __1_0" in reasons[0] for _, reasons in answers)


def _interleave(rank, folder):
    """M6: the training's collectives run while the writers' do, in another order on each rank."""
    toy = Toy(folder, mesh=init_device_mesh("cpu", (2,)), rank=rank)
    total = torch.zeros(1)
    for step in range(1, 6):
        toy.checkpoints.save(step, toy.state(step))
        for _ in range(20):
            value = torch.ones(1)
            dist.all_reduce(value)
            total += value
        toy.step(step)
    toy.checkpoints.close()
    return total.item(), toy.checkpoints.durable_step


def test_the_writers_have_their_own_group(tmp_path):
    assert run_ranks(2, _interleave, tmp_path) == [(200.0, 5)] * 2


# ---------------------------------------------------------------------------------------- S3


def test_s3_takes_the_same_path_and_throttling_is_waited_out(lines):
    with s3_server("checkpoints") as (url, throttle):
        toy = Toy(f"{url}/run", keep=1)
        toy.step(0)
        throttle.left = 4
        toy.checkpoints.save(1, toy.state(1), urgent=True)
        assert throttle.refused == 4
        before = toy.weights()
        toy.step(1)
        toy.checkpoints.save(2, toy.state(2), urgent=True)
        assert [p.split()[1] for p in lines()] == ["checkpoint", "checkpoint"]
        assert toy.checkpoints.folder.names() == ["step-00000002"]

        other = Toy(f"{url}/run")
        assert other.checkpoints.latest()[0].step == 2
        other.checkpoints.load(2, other.state())
        assert all(map(torch.equal, toy.weights(), other.weights()))
        assert not all(map(torch.equal, before, other.weights()))


def test_a_bucket_that_is_not_there_is_one_line(lines):
    with s3_server("checkpoints"):
        toy = Toy("s3://absent/run", failures_allowed=0)
        with pytest.raises(CheckpointsFailingError, match="1 checkpoints in a row failed"):
            toy.checkpoints.save(1, toy.state(1), urgent=True)
        with pytest.raises(TrainerError, match="NoSuchBucket"):
            toy.checkpoints.latest()
    assert "checkpoint_failed" in lines()[0]
