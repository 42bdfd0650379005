"""Whole runs: killed, stopped, moved to another world. `TRAINSHED_REPEATS=20` for the long form."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time

import pytest
import torch

from tests.trainer.buckets import s3_server
from tests.trainer.runs import Run, steps_of, tensors
from trainer.publish import MARKER
from trainer.resilience import Exit
from trainer.synthesize import Scale, synthesize

STEPS = 12
TORCHRUN = "torch.distributed.run"
ALONE = ("parallel.mode=none", "parallel.shard=1")
REPEATS = int(os.environ.get("TRAINSHED_REPEATS", "3"))
KILLS = 3  # in one run; two of them are certain, the third comes when the run is not over before


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "mds"
    synthesize(str(folder), 64, 0, scale=Scale(cameras=1, side=32, lidar=32, radar=8), shard_bytes=1 << 17)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    """The uninterrupted run on two ranks, all checkpoints kept."""
    with Run(tmp_path_factory.mktemp("whole"), data, f"steps={STEPS}", "checkpoint.keep=9") as run:
        assert run.end() == 0, run.text()
    assert sorted(steps_of(run)) == list(range(1, STEPS + 1))
    return run


def assert_equal_weights(run: Run, whole: Run) -> None:
    ours, theirs = tensors(run.folder, STEPS), tensors(whole.folder, STEPS)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_an_uninterrupted_run_tells_what_it_does(whole):
    assert len(whole.lines("preflight node=")) == 1
    assert re.search(r"run=tiny-cpu step=0 ranks=2 mesh=1x2x1 parameters=\d+", whole.lines("started")[0])
    assert [re.search(r"step=(\d+)", entry)[1] for entry in whole.lines("checkpoint ")] == [
        "3",
        "6",
        "9",
        "12",
    ]
    assert whole.lines("ended") == ["[trainer] ended step=12 exit=0"]
    first = whole.lines("step=")[0]
    for key in ("loss", "grad_norm", "lr", "tokens_per_s", "mfu", "wait", "step_s", "loss_text"):
        assert re.search(rf" {key}=[-\d.e+]+( |$)", first), key


@pytest.mark.parametrize("_round", range(1 if REPEATS <= KILLS else (REPEATS + 1) // 2))
def test_kill_9_of_any_rank_at_any_step_changes_nothing(whole, data, tmp_path, record_property, _round):
    """Several in one run, the second right after the restart of the first: the same step is lost twice.

    Under our launcher, and in the long form every other time under torchrun.
    """
    launcher = TORCHRUN if _round % 2 else "trainer.launch"
    dice = random.Random(time.time_ns())
    downs, imports = [], []
    settings = (f"steps={STEPS}", "checkpoint.keep=9")
    with Run(tmp_path / "killed", data, *settings, restarts=KILLS, launcher=launcher) as run:
        run.wait_for(r"^\[trainer\] checkpoint step=3")
        for kill in range(KILLS):
            told = len(run.lines("step="))
            run.wait_for(r"^\[trainer\] step=", count=told + (1 if kill == 1 else dice.randint(1, 3)))
            newest = int(re.findall(r"\[trainer\] step=(\d+)", run.text())[-1])
            if kill > 1 and newest >= STEPS - 1:  # nothing left to kill
                break
            os.kill(run.ranks()[dice.choice([0, 1])], signal.SIGKILL)
            killed = time.monotonic()
            told = len(run.lines("step="))
            run.wait_for(r"^\[trainer\] started", count=kill + 2)
            imports.append(float(re.search(r"start_s=(\S+)", run.lines("started")[-1])[1]))
            downs.append(run.wait_for(r"^\[trainer\] step=", count=told + 1) - killed)
        assert run.end() == 0, run.text()
    record_property("kill_to_first_step_s", downs)
    print("kill to first step (s):", [round(down, 1) for down in downs], "of it start:", imports)
    assert len(run.lines("resumed step=")) >= len(downs) - 1
    assert steps_of(run) == steps_of(whole), "every repeat of every step, to the last bit"
    assert_equal_weights(run, whole)


def test_signals_save_at_the_step_and_the_next_start_goes_on(whole, data, tmp_path, record_property):
    """SIGTERM to torchrun (which signals the loader's workers, too), to our launcher, to a rank; SIGUSR1."""
    folder, runs, durable = tmp_path / "stopped", [], []
    kinds = ["torchrun", "usr1", "launcher", "term"] * (REPEATS // 4 + 1)
    for number, kind in enumerate(kinds[:REPEATS]):
        launcher = TORCHRUN if kind == "torchrun" else "trainer.launch"
        with Run(folder, data, "steps=1000000", "checkpoint.every=1000", launcher=launcher) as run:
            runs.append(run)
            run.wait_for(r"^\[trainer\] step=", count=2)
            ranks = run.ranks()
            before = {path.name for path in (folder / "checkpoints").glob(f"*/{MARKER}")}
            sent = time.monotonic()
            if kind in ("torchrun", "launcher"):
                os.kill(run.process.pid, signal.SIGTERM)
            else:
                os.kill(ranks[number % 2], signal.SIGUSR1 if kind == "usr1" else signal.SIGTERM)
            stopped = run.wait_for(r"^\[trainer\] checkpoint ") - sent
            durable.append(stopped)
            ends = {"torchrun": 1, "launcher": 128 + signal.SIGTERM}
            assert run.end() == ends.get(kind, Exit.PREEMPTED), run.text()
            (told,) = run.lines("stopped")
            assert "saved=True" in told, run.text()
            step = int(re.search(r"step=(\d+)", told)[1])
            assert (folder / "checkpoints" / f"step-{step:08d}" / MARKER).exists(), before
            assert "killed by signal" not in run.text(), "loader workers outlive the signal"
            assert not run.ranks(), "nobody is left behind"
            if number:
                assert run.lines("resumed"), run.text()
    record_property("signal_to_durable_s", durable)
    print("signal to durable (s):", [round(value, 2) for value in durable])
    told = steps_of(*runs)
    assert sorted(told) == list(range(1, max(told) + 1)), "no step lost, none twice"
    assert all(len(values) == 1 for values in told.values())
    common = steps_of(whole).keys() & told.keys()
    assert {step: told[step] for step in common} == {step: steps_of(whole)[step] for step in common}


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_run_goes_on_in_another_world(whole, data, tmp_path, ranks):
    folder = tmp_path / f"on-{ranks}"
    shutil.copytree(whole.folder / "checkpoints" / "step-00000009", folder / "checkpoints" / "step-00000009")
    layout = ["parallel.mode=hsdp", "parallel.replicate=2"] if ranks == 4 else []
    with Run(folder, data, f"steps={STEPS}", *layout, ranks=ranks) as run:
        assert run.end() == 0, run.text()
    assert "resumed step=9" in run.text()
    again, before = steps_of(run), steps_of(whole)
    assert sorted(again) == [10, 11, 12]
    for step in again:
        ((loss, norm),), ((loss_before, norm_before),) = again[step], before[step]
        assert float(loss) == pytest.approx(float(loss_before), rel=1e-6)
        assert float(norm) == pytest.approx(float(norm_before), rel=1e-5)
    ours, theirs = tensors(run.folder, STEPS), tensors(whole.folder, STEPS)
    difference = {
        name: ((ours[name] - theirs[name]).norm() / theirs[name].norm().clamp_min(1e-12)).item()
        for name in ours
        if name.startswith("model.") and theirs[name].is_floating_point()
    }
    assert max(difference.values()) <= 1e-5, max(difference, key=difference.get)


def test_resume_skips_what_is_not_whole_and_says_why(whole, data, tmp_path):
    """Ends at once: step 9 is torn, 6 half published, 3 whole; two more steps suffice."""
    folder = tmp_path / "torn"
    shutil.copytree(whole.folder / "checkpoints", folder / "checkpoints")
    shutil.rmtree(folder / "checkpoints" / "step-00000012")
    (folder / "checkpoints" / "step-00000006" / MARKER).unlink()
    torn = folder / "checkpoints" / "step-00000009" / "__1_0.distcp"
    torn.write_bytes(torn.read_bytes()[:1000])
    with Run(folder, data, "steps=4", f"checkpoint.keep={STEPS}") as run:
        assert run.end() == 0, run.text()
    skipped = run.lines("skipped")
    assert "checkpoint=step-00000009" in skipped[0]
    assert "truncated: __1_0.distcp has 1000 of" in skipped[0]
    assert "not published" in skipped[1]
    assert "resumed step=3" in run.text()


def test_numbers_that_explode_end_the_run_with_one_fatal_line(data, tmp_path):
    """And without torchrun: one plain process, whose exit code is seen as it is."""
    settings = ("optimizer.lr=1e30", "steps=50", "checkpoint.every=1000")
    with Run(tmp_path / "nan", data, *settings, *ALONE, ranks=0) as run:
        assert run.end() == Exit.FATAL, run.text()
    (told,) = run.lines("FATAL")
    assert told.startswith("[trainer] FATAL reason=nan step=")
    assert not list((tmp_path / "nan").glob("checkpoints/*")), "bad weights are not saved"


def test_a_save_that_fails_meanwhile_does_not_hide_why_the_run_ended(data, tmp_path):
    (tmp_path / "nan" / "checkpoints").mkdir(parents=True)
    (tmp_path / "nan" / "checkpoints" / "step-00000001").touch()  # no folder: the save after step 1 fails
    settings = ("optimizer.lr=1e30", "checkpoint.every=1", "checkpoint.failures_allowed=0")
    with Run(tmp_path / "nan", data, *settings, *ALONE, ranks=0) as run:
        assert run.end() == Exit.FATAL, run.text()
    assert run.lines("checkpoint_failed")
    (told,) = run.lines("FATAL")
    assert told.startswith("[trainer] FATAL reason=nan step=2 ")


def test_checkpoints_in_s3_beside_forked_loader_workers(data, tmp_path):
    with s3_server("runs") as (url, _):
        for steps in (2, 3):
            settings = (f"steps={steps}", f"checkpoint.folder={url}/tiny", "checkpoint.every=1")
            with Run(tmp_path / "s3", data, *settings, *ALONE, ranks=0) as run:
                assert run.end() == 0, run.text()
    assert f"resumed step=2 url={url}/tiny/step-00000002" in run.text()
    assert sorted(steps_of(run)) == [3]
