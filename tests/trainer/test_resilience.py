"""Signals, numbers that explode, ranks that hang or lag, nodes that do not fit; what is told of them."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
import urllib.request

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import forked, run_ranks
from trainer import preflight
from trainer.errors import TrainerError
from trainer.folders import open_folder
from trainer.resilience import Exit, Health, ResilienceConfig, StopSignal, Stragglers, Watchdog
from trainer.tracking import CometConfig, Tracker, TrackingConfig, fatal, flops_utilisation, line, peak_flops

# ------------------------------------------------------------------------------------ health


def health(**config) -> Health:
    return Health(ResilienceConfig(spike_window=8, **config))


@pytest.mark.parametrize(
    ("loss", "norm"), [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, math.inf)]
)
def test_what_is_not_finite_stops_or_is_skipped(loss, norm):
    assert health().judge(loss, norm) == ("stop", "nan")
    patient = health(on_nan="skip", skips_allowed=2)
    assert [patient.judge(loss, norm)[0] for _ in range(3)] == ["skip", "skip", "stop"]


def test_a_finite_step_ends_a_row_of_skips():
    patient = health(on_nan="skip", skips_allowed=1)
    assert [patient.judge(x, 1.0)[0] for x in (math.nan, 1.0, math.nan, 1.0)] == ["skip", "ok", "skip", "ok"]


@pytest.mark.parametrize("action", ["stop", "skip", "report"])
def test_a_spike_is_seen_against_the_window_and_normal_noise_is_not(action):
    judge = health(on_spike=action)
    losses = [2 + 0.1 * math.sin(step) for step in range(40)]
    assert {judge.judge(loss, 1.0)[0] for loss in losses} == {"ok"}
    assert judge.judge(9.0, 1.0) == (action, "spike")
    assert judge.judge(2.0, 1.0)[0] == "ok"


def test_a_restarted_run_judges_as_the_uninterrupted_one():
    first = health(on_spike="skip")
    for step in range(20):
        first.judge(2 + 0.1 * math.sin(step), 1.0)
    second = health(on_spike="skip")
    second.restore(json.loads(json.dumps(first.state())))
    for loss in (2.1, 2.9, 9.0):
        assert first.judge(loss, 1.0) == second.judge(loss, 1.0)


# ----------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_both_signals_set_the_flag(number):
    def child():
        stop = StopSignal()
        assert stop.received is None
        os.kill(os.getpid(), number)
        assert stop.received == number

    assert forked(child) == (0, "")


# -------------------------------------------------------------------------------------- hang


def test_a_hang_ends_the_process_with_a_fatal_line_and_stacks(tmp_path):
    config = ResilienceConfig(hang_s=0.4, first_step_s=60, trace_folder=str(tmp_path))

    def stuck_in_a_collective():
        watchdog = Watchdog(config, rank=3)
        time.sleep(0.6)  # the first step has its own limit
        watchdog.beat(7)
        with watchdog.patience(60):
            time.sleep(0.6)
        time.sleep(30)

    started = time.monotonic()
    code, out = forked(stuck_in_a_collective)
    assert code == Exit.HANG
    assert time.monotonic() - started < 10
    assert re.search(r"^\[trainer\] FATAL reason=hang step=7 rank=3 limit_s=0.4 message=", out, re.MULTILINE)
    assert "stuck_in_a_collective" in (tmp_path / "stacks-rank3.txt").read_text()
    assert (tmp_path / "flight-rank3.pickle").exists()


def test_a_closed_watchdog_does_nothing():
    def child():
        watchdog = Watchdog(ResilienceConfig(hang_s=0.2, first_step_s=0.2), rank=0)
        watchdog.close()
        time.sleep(0.6)

    assert forked(child) == (0, "")


# -------------------------------------------------------------------------------- stragglers


def _lag(rank):
    stragglers = Stragglers(ResilienceConfig(straggler_ratio=1.5), torch.device("cpu"))
    assert stragglers.probe() > 0

    def gather(values):
        rows = [torch.zeros(len(values), dtype=torch.float64) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, torch.tensor(values, dtype=torch.float64))
        return [row.tolist() for row in rows]

    return stragglers.report({"wait": 0.0001 * rank, "forward": 0.5 if rank == 1 else 0.2}, gather)


def test_the_rank_that_lags_is_named_and_noise_below_a_millisecond_is_not():
    for slowest, lagging in run_ranks(3, _lag):
        assert slowest == {"wait": 0.0002, "forward": 0.5}
        assert lagging == ["rank 1 forward 2.5x"]


# --------------------------------------------------------------------------------- preflight


def node(**changed) -> preflight.Node:
    same = {"host": "a", "torch": "2.14", "python": "3.11", "devices": 8, "clock": 100.0, "cache": "/nvme"}
    return preflight.Node(
        **same | {"cache_type": "xfs", "cache_free": 1 << 40, "shm_free": 1 << 30} | changed
    )


@pytest.mark.parametrize(
    ("other", "text", "stops"),
    [
        ({"torch": "2.13"}, "torch differs", True),
        ({"python": "3.12"}, "python differs", True),
        ({"clock": 160.0}, "clocks differ by 60 s", False),
        ({"devices": 4}, "has 4 devices for 8 ranks", True),
        ({"cache_free": 5 << 20}, "5 MiB free at /nvme", False),
        ({"cache_type": "overlay"}, "lies on overlay", False),
    ],
)
def test_a_node_that_does_not_fit_is_told(other, text, stops):
    ((told, stop),) = preflight.compare([node(), node(host="b", **other)], 8)
    assert text in told
    assert stop is stops
    assert preflight.compare([node(), node(host="b")], 8) == []


def _preflight(rank, cache):
    blocked = open_folder("/dev/null/x" if rank == 0 else cache)
    preflight.preflight(torch.device("cpu"), cache, blocked)
    return preflight.check_all_reduce(torch.device("cpu"), 1)


def test_preflight_says_one_line_per_node_and_one_for_the_network(tmp_path, capfd):
    assert all(speed > 0 for speed in run_ranks(2, _preflight, str(tmp_path / "not" / "yet")))
    out = [entry for entry in capfd.readouterr().out.splitlines() if entry.startswith("[trainer] preflight")]
    assert len(out) == 3
    assert "all_reduce=ok ranks=2" in out[1]
    assert "checkpoints cannot be written to /dev/null/x: NotADirectoryError" in out[2]


def test_a_wrong_sum_stops_the_run(monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor)
    with pytest.raises(TrainerError, match=r"all-reduce of 2 ranks gave 1.0; allowed 3.0"):
        preflight.check_all_reduce(torch.device("cpu"))


# ---------------------------------------------------------------------------------- tracking


def test_lines_are_what_log_rules_match(capsys):
    assert line("checkpoint", step=20, url="s3://b/x") == "[trainer] checkpoint step=20 url=s3://b/x"
    fatal("nan", "loss nan", step=3)
    assert capsys.readouterr().out == '[trainer] FATAL reason=nan step=3 message="loss nan"\n'


def test_a_loss_is_told_to_the_last_bit_of_a_float32():
    for value in torch.randn(1000).tolist():
        told = line(None, loss=value).partition("loss=")[2]
        assert torch.tensor(float(told)).item() == value


def test_utilisation():
    assert peak_flops(TrackingConfig(), "NVIDIA H200") == 989e12
    assert peak_flops(TrackingConfig(peak_flops=1e12), "cpu") == 1e12
    assert peak_flops(TrackingConfig(), "cpu") is None
    assert flops_utilisation(10**9, 1000.0, 60e12) == pytest.approx(0.1)
    assert flops_utilisation(10**9, 1000.0, None) is None


def test_jsonl_and_prometheus_have_what_stdout_has(tmp_path, capsys):
    port = 20000 + os.getpid() % 20000
    config = TrackingConfig(jsonl=str(tmp_path / "a" / "m.jsonl"), prometheus_port=port, every=2)
    for _ in range(2):  # a restart appends
        tracker = Tracker(
            config.model_copy(update={"prometheus_port": None}), run="r", rank=0, steps=4, recipe={}
        )
        tracker.event("resumed", step=1)
        tracker.close()
    tracker = Tracker(config, run="r", rank=0, steps=4, recipe={})
    for step in (1, 2):
        tracker.step(step, {"loss": 0.5 * step, "mfu": None, "grad_norm": math.nan})
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    tracker.close()
    assert "trainer_loss 1.0" in page
    assert "[trainer] step=2 loss=1 mfu=- grad_norm=nan\n" in capsys.readouterr().out
    entries = [json.loads(entry) for entry in (tmp_path / "a" / "m.jsonl").read_text().splitlines()]
    assert [entry["kind"] for entry in entries] == ["resumed", "resumed", "step"]
    assert entries[2]["grad_norm"] is None, "NaN is not JSON"


def test_other_ranks_are_silent(tmp_path, capsys):
    tracker = Tracker(TrackingConfig(jsonl=str(tmp_path / "m")), run="r", rank=1, steps=1, recipe={})
    tracker.step(1, {"loss": 1.0})
    tracker.event("x")
    tracker.close()
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "m").exists()


def test_comet_offline_and_a_restart_in_the_same_experiment(tmp_path):
    config = TrackingConfig(comet=CometConfig(folder=str(tmp_path)))

    def child():
        tracker = Tracker(config, run="r", rank=0, steps=1, recipe={"a": 1})
        tracker.step(1, {"loss": 1.0})
        tracker.close()

    for _ in range(2):
        code, out = forked(child)
        assert code == 0, out
    names = sorted(path.name for path in tmp_path.glob("*.zip"))
    assert len(names) == 2
    assert len({name[:32] for name in names}) == 1
