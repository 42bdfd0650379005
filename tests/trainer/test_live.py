"""Live recovery with torchft itself: a lighthouse and two groups, one of which dies, leaves, comes back."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import yaml

from tests.trainer.group import ForkedRun
from tests.trainer.ranks import forked
from tests.trainer.runs import RECIPE, steps_of
from trainer import live
from trainer.config import ConfigError, recipe_of
from trainer.errors import TrainerError
from trainer.groups import Group, LiveConfig, check_batch, own_group
from trainer.publish import MARKER
from trainer.resilience import Exit
from trainer.synthesize import Scale, synthesize

STEPS = 30
# Two micro-steps: their sum is the same to the bit in one process and in two groups.
SMALL = ("micro_batch=2",)
STEP = r"^\[trainer\] step="
HEARTBEAT_S = 1.0  # a group without one for so long is dead to the lighthouse
STALL_S = 15.0  # of a survivor at most, on cores that others use, too


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "mds"
    synthesize(str(folder), 64, 0, scale=Scale(cameras=1, side=32, lidar=32, radar=8), shard_bytes=1 << 17)
    return folder


@contextmanager
def lighthouse(groups: int):
    """The program that a user starts; its address."""
    program = str(Path(sys.executable).with_name("torchft_lighthouse"))
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    command = [program, "--bind", f"[::]:{port}", "--min_replicas", str(groups)]
    command += ["--heartbeat_timeout_ms", str(int(HEARTBEAT_S * 1000)), "--join_timeout_ms", "30000"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield f"http://{socket.gethostname()}:{port}"
    finally:
        process.kill()
        process.wait()


class Job:
    """Two groups over one lighthouse and one folder of checkpoints."""

    def __init__(self, folder, data, *settings: str, address: str | None):
        self.folder, self.data, self.address, self.settings = folder, data, address, settings
        self.runs: list[ForkedRun] = []

    def start(self, number: int, **environment: str) -> ForkedRun:
        contract = {"TORCHFT_LIGHTHOUSE": self.address, "NUM_REPLICA_GROUPS": "2"} if self.address else {}
        contract |= {"REPLICA_GROUP_ID": str(number), **environment}
        waits = ("live.quorum_s=60", "live.collective_s=60") if self.address else ()
        settings = (f"checkpoint.folder={self.folder}/checkpoints", *SMALL, *waits, *self.settings)
        folder = self.folder / f"group-{number}"
        self.runs.append(ForkedRun(folder, self.data, *settings, ranks=0, environment=contract))
        return self.runs[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for run in self.runs:
            run.__exit__()

    def samples(self) -> dict[int, list[str]]:
        """By step that counted, from the logs of all groups."""
        counted: dict[int, list[str]] = {}
        for file in self.folder.glob("group-*/samples"):
            for line in file.read_text().splitlines():
                step, *names = line.split()
                counted.setdefault(int(step), []).extend(names)
        return {step: sorted(names) for step, names in counted.items()}


def end_of(run: ForkedRun) -> dict:
    return torch.load(run.folder / "end.pt")


def assert_same_weights(first: ForkedRun, second: ForkedRun) -> None:
    ours, theirs = end_of(first), end_of(second)
    assert ours["step"] == theirs["step"]
    assert ours["weights"].keys() == theirs["weights"].keys()
    assert [name for name, w in ours["weights"].items() if not torch.equal(w, theirs["weights"][name])] == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    """One process with the whole global batch, without the option."""
    folder = tmp_path_factory.mktemp("whole")
    with Job(folder, data, f"steps={STEPS}", "checkpoint.every=1000", address=None) as job:
        run = job.start(0)
        assert run.end() == 0, run.text()
    return run, job.samples()


def test_without_the_option_torchft_is_not_imported(whole):
    run, samples = whole
    assert not end_of(run)["torchft"]
    assert not run.lines("live")
    assert sorted(samples) == list(range(1, STEPS + 1))


def test_two_groups_train_as_one_process_with_the_same_global_batch(whole, data, tmp_path):
    steps, (alone, samples) = 8, whole
    with (
        lighthouse(2) as address,
        Job(tmp_path, data, f"steps={steps}", "live.min_groups=2", address=address) as job,
    ):
        runs = [job.start(number) for number in range(2)]
        assert [run.end() for run in runs] == [0, 0], runs[0].text() + runs[1].text()
    for run in runs:
        assert steps_of(run) == {step: steps_of(alone)[step] for step in range(1, steps + 1)}
    assert job.samples() == {step: samples[step] for step in range(1, steps + 1)}
    assert sorted(len(run.lines("checkpoint ")) for run in runs) == [0, 3], "one group publishes"
    assert_same_weights(*runs)


def test_a_killed_group_costs_a_step_and_comes_back_from_a_peer(whole, data, tmp_path, record_property):
    alone, samples = whole
    with lighthouse(1) as address, Job(tmp_path, data, f"steps={STEPS}", address=address) as job:
        first, second = job.start(0), job.start(1)
        first.wait_for(r"^\[trainer\] live .*groups=2")
        first.wait_for(STEP, count=len(first.lines("step=")) + 4)
        told = len(second.lines("step="))
        first.process.kill()
        killed = time.monotonic()
        stall = second.wait_for(STEP, count=told + 2) - killed  # the next one may have been on its way
        second.wait_for(r"^\[trainer\] live .*groups=1 index=0")
        second.wait_for(STEP, count=told + 6)
        again = job.start(0)
        assert [again.end(), second.end()] == [0, 0], again.text() + second.text()
    print(f"kill -9 to the survivor's second step after it: {stall:.2f} s")
    record_property("stall_s", stall)
    assert stall < STALL_S
    (healed,) = again.lines("healed")
    assert re.search(r"step=\d+ from=1$", healed)
    assert not again.lines("resumed"), "no checkpoint was read"
    assert_same_weights(again, second)
    assert_same_weights(again, alone)
    assert steps_of(first, second, again) == steps_of(alone), "losses and norms, to the last bit"
    assert len(second.lines("uncommitted")) <= 1
    counted = job.samples()
    assert sorted(counted) == list(range(1, STEPS + 1))
    assert {step: sorted(set(names)) for step, names in counted.items()} == samples
    twice = [step for step, names in counted.items() if names != samples[step]]
    assert len(twice) <= 1, "the dead one may have told the step that the other had to repeat"


def test_a_group_may_leave_the_last_one_saves_and_so_does_one_without_a_lighthouse(data, tmp_path):
    settings = ("steps=1000000", "checkpoint.every=1000000", "live.quorum_s=10")
    light = ExitStack()
    with light, Job(tmp_path, data, *settings, address=light.enter_context(lighthouse(1))) as job:
        first, second = job.start(0), job.start(1)
        first.wait_for(r"^\[trainer\] live .*groups=2")
        first.wait_for(STEP, count=len(first.lines("step=")) + 2)
        os.kill(first.process.pid, signal.SIGTERM)
        assert first.end() == Exit.PREEMPTED, first.text()
        assert 'saved="by a peer"' in first.lines("stopped")[0]
        second.wait_for(r"^\[trainer\] live .*groups=1")
        second.wait_for(STEP, count=len(second.lines("step=")) + 2)
        assert not second.lines("uncommitted"), "a leave costs no step"
        assert not list((tmp_path / "checkpoints").glob("*")), "the state is with the others"
        os.kill(second.process.pid, signal.SIGTERM)
        assert second.end() == Exit.PREEMPTED, second.text()
        (told,) = second.lines("stopped")
        assert "saved=True" in told
        step = re.search(r"step=(\d+)", told)[1]
        both = [job.start(number) for number in range(2)]  # nobody is ahead: the checkpoint it is
        for run in both:
            run.wait_for(r"^\[trainer\] live .*groups=2")
            run.wait_for(STEP, count=len(run.lines("step=")) + 2)
        light.close()
        assert [run.end() for run in both] == [Exit.FATAL] * 2
    for run in both:
        assert run.lines("FATAL")[0].startswith("[trainer] FATAL reason=quorum step=")
    assert sum(len(run.lines("checkpoint ")) for run in both) == 1, "one of them saves"
    assert (tmp_path / "checkpoints" / f"step-{max(job.samples()):08d}" / MARKER).exists()
    assert any(run.lines(f"resumed step={step} ") for run in both), both[0].text() + both[1].text()
    assert all(run.lines("resumed") or run.lines("healed") for run in both)
    assert sorted(job.samples()) == list(range(1, max(job.samples()) + 1))


def test_too_few_groups_are_waited_for_and_then_told(data, tmp_path):
    settings = ("steps=2", "live.min_groups=2", "live.quorum_s=2")
    with lighthouse(1) as address, Job(tmp_path, data, *settings, address=address) as job:
        run = job.start(0)
        assert run.end() == Exit.FATAL, run.text()
    assert run.lines("FATAL") == ['[trainer] FATAL reason=quorum message="1 groups, live.min_groups is 2"']


def test_groups_whose_weights_differ_end_with_one_line(data, tmp_path):
    settings = ("steps=12", "live.min_groups=2", "checkpoint.every=4")
    with lighthouse(2) as address, Job(tmp_path, data, *settings, address=address) as job:
        runs = [job.start(0, BEND="2"), job.start(1)]
        assert [run.end() for run in runs] == [Exit.FATAL] * 2, runs[0].text()
    for run in runs:
        told = '[trainer] FATAL reason=groups step=5 message="their weights differ after step 4"'
        assert run.lines("FATAL") == [told]


# ----------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("TORCHFT_LIGHTHOUSE", None, "TORCHFT_LIGHTHOUSE: given nothing; allowed http://host:port"),
        ("TORCHFT_LIGHTHOUSE", "host:29510", "TORCHFT_LIGHTHOUSE: given host:29510; allowed http://"),
        ("NUM_REPLICA_GROUPS", "two", "NUM_REPLICA_GROUPS: given two; allowed 2 or more"),
        ("NUM_REPLICA_GROUPS", "1", "NUM_REPLICA_GROUPS: given 1; allowed 2 or more"),
        ("REPLICA_GROUP_ID", None, "REPLICA_GROUP_ID: given nothing; allowed 0 to 3, another in each group"),
        ("REPLICA_GROUP_ID", "4", "REPLICA_GROUP_ID: given 4; allowed 0 to 3"),
    ],
)
def test_a_wrong_environment_is_told_in_one_line(monkeypatch, name, value, told):
    right = {"TORCHFT_LIGHTHOUSE": "http://h:1", "NUM_REPLICA_GROUPS": "4", "REPLICA_GROUP_ID": "3"}
    for key, text in right.items():
        monkeypatch.setenv(key, text)
    config = LiveConfig(min_groups=2)
    assert own_group(config) == Group(3, 4, "http://h:1")
    monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(TrainerError) as refused:
        own_group(config)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_step_must_divide_by_every_number_of_groups_that_may_be_left():
    check_batch(48, 2, 4, LiveConfig(), 3)
    check_batch(16, 2, 4, LiveConfig(min_groups=2), 2)
    with pytest.raises(
        TrainerError, match="global_batch: given 64 for micro_batch 2 on 4 data ranks in each of 1 to 3"
    ):
        check_batch(64, 2, 4, LiveConfig(), 3)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("live.min_group=1", "did you mean min_groups?"),
        ("live.collective_s=0", "live.collective_s: given 0"),
        ("live.quorum_s=120", "resilience.hang_s must be above live's quorum_s and collective_s, 120 s"),
        ("checkpoint.tiered.every=1", "live needs no checkpoint.tiered"),
    ],
)
def test_a_wrong_recipe_is_told_in_one_line(setting, told):
    with pytest.raises(ConfigError) as refused:
        recipe_of(yaml.safe_load(RECIPE.read_text()), ["live.quorum_s=60", "live.collective_s=60", setting])
    assert told in str(refused.value)
    assert len(refused.value.faults) == 1


def test_without_torchft_or_its_lighthouse_one_line_says_so(monkeypatch):
    def child():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        group = Group(0, 2, "http://127.0.0.1:9")
        peers = live.Live(LiveConfig(connect_s=1), group, device=torch.device("cpu"), event=print)
        try:
            peers.join(dict, print)
        except TrainerError as error:
            print(error)

    code, told = forked(child)
    assert code == 0
    assert told.startswith(
        "TORCHFT_LIGHTHOUSE: given http://127.0.0.1:9; allowed the address of a lighthouse"
    )
    assert len(told.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "torchft", None)
    with pytest.raises(TrainerError, match=r"live: .*; fix: pip install torchft==0.2.0"):
        live._torchft()


def test_buckets_hold_neighbours_of_one_type(monkeypatch):
    monkeypatch.setattr(live, "_BUCKET", 10)
    sizes = [
        (4, torch.float32),
        (6, torch.float32),
        (1, torch.float32),
        (1, torch.bfloat16),
        (99, torch.bfloat16),
    ]
    tensors = [torch.zeros(size, dtype=dtype) for size, dtype in sizes]
    assert [[t.numel() for t in bucket] for bucket in live._buckets(tensors)] == [[4, 6], [1], [1], [99]]
    assert not list(live._buckets([]))
